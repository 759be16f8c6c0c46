// bench/backends/kernels.cpp: hvd's reductions, as its collectives use them.
#include <bench/backends/kernels.hpp>

namespace hvd::bench {

reduction reduction_for(dtype type, redop op, int ranks) { return make_reduction(type, reduce_op_of(op), ranks); }

}  // namespace hvd::bench
