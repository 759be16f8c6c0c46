// error: prescale and postscale need numbers: not bool, not your own type
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

void f(hvd::SelfTransport& comm) {
#ifdef BAD
  bool v[3] = {};
#else
  int v[3] = {};
#endif
  hvd::allreduce(comm, v, hvd::scaled(hvd::max, 2.0));
}
