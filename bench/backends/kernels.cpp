// bench/backends/kernels.cpp: hvd's own reductions, as its front doors make them.
#include <bench/backends/kernels.hpp>

namespace hvd::bench {

reduction reduction_for(dtype type, redop op, int ranks) { return make_reduction(type, reduce_op_of(op), ranks); }

}  // namespace hvd::bench
