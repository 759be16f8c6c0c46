// error: an expression without storage
#include <hvd/allreduce.hpp>
#include <hvd/eigen.hpp>
#include <hvd/transport/self.hpp>

void f(hvd::SelfTransport& comm, const Eigen::MatrixXf& a, const Eigen::MatrixXf& b, Eigen::MatrixXf& out) {
#ifdef BAD
  hvd::allreduce(comm, a + b, out);
#else
  hvd::allreduce(comm, (a + b).eval(), out);
#endif
}
