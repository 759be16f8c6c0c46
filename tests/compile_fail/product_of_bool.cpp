// error: sum, average and product are defined for numbers
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

void f(hvd::SelfTransport& comm, bool (&flags)[3]) {
#ifdef BAD
  hvd::allreduce(comm, flags, hvd::product);
#else
  hvd::allreduce(comm, flags, hvd::min);
#endif
}
