// error: for bool use hvd::max (or) or hvd::min (and)
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

void f(hvd::SelfTransport& comm, bool (&flags)[3]) {
#ifdef BAD
  hvd::allreduce(comm, flags);
#else
  hvd::allreduce(comm, flags, hvd::max);
#endif
}
