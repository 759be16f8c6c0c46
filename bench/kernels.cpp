// bench/kernels.cpp: hvd's own reductions, as its front doors make them.
#include <bench/kernels.hpp>

#include <bench/types.hpp>

#include <hvd/error.hpp>

#include <string>

namespace hvd::bench {

reduction reduction_for(dtype type, redop op, int ranks) {
  reduction made;
  const bool exists = with(type, op, [&]<class T, class Op>(T, Op o) { made = make_reduction<T>(o, ranks); });
  if (!exists) {
    throw error(error_kind::unsupported, std::string(name(op)) + " is not defined for " + std::string(type_name(type)));
  }
  return made;
}

}  // namespace hvd::bench
