// error: this Eigen expression is not known to be contiguous in memory
#include <hvd/eigen.hpp>

// A part of the rows: between two columns lies what is not asked for.
auto f(Eigen::MatrixXf& m) {
#ifdef BAD
  return hvd::as_span(m.block(0, 0, 2, 2));
#else
  return hvd::as_span(m.middleCols(0, 2));
#endif
}
