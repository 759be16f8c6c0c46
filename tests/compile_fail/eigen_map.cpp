// error: a strided map
#include <hvd/eigen.hpp>

#ifdef BAD
using map = Eigen::Map<Eigen::MatrixXf, 0, Eigen::OuterStride<>>;
#else
using map = Eigen::Map<Eigen::MatrixXf>;
#endif

auto f(map& m) { return hvd::as_span(m); }
