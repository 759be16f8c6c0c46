// error: a row of a column-major matrix
#include <hvd/eigen.hpp>

#ifdef BAD
using matrix = Eigen::MatrixXd;
#else
using matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
#endif

auto f(matrix& m) { return hvd::as_span(m.row(1)); }
