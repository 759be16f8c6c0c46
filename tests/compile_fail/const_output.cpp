// error: an output buffer must not be const
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm, const std::vector<double>& in, std::vector<double>& out) {
#ifdef BAD
  hvd::allreduce(comm, out, in);
#else
  hvd::allreduce(comm, in, out);
#endif
}
