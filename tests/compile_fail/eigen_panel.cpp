// error: take whole columns: m.middleCols(j, n), m.col(j)
#include <hvd/eigen.hpp>

// Whole columns of something that is not contiguous itself.
auto f(Eigen::MatrixXf& m) {
#ifdef BAD
  auto part = m.topRows(3);
#else
  auto part = m.leftCols(3);
#endif
  return hvd::as_span(part.middleCols(1, 2));
}
