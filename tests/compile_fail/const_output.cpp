// error: an output buffer must not be const
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm, const std::vector<float>& in, std::vector<float>& out) {
#ifdef BAD
  hvd::allreduce(comm, out, in);
#else
  hvd::allreduce(comm, in, out);
#endif
}
