// error: pass a variable or a std::span (see hvd::buffer_access)
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

std::vector<float> made();

void f(hvd::SelfTransport& comm) {
#ifdef BAD
  hvd::allreduce(comm, made(), hvd::average);
#else
  std::vector<float> kept = made();
  hvd::allreduce(comm, made(), kept, hvd::average);  // an input may be a temporary
#endif
}
