// error: an output buffer must not be const
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

void f(hvd::SelfTransport& comm, const float* in, float* out) {
#ifdef BAD
  hvd::allreduce(comm, out, in, 8);
#else
  hvd::allreduce(comm, in, out, 8);
#endif
}
