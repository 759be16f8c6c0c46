// error: pass a variable or a std::span (see hvd::buffer_access)
#include <hvd/allgather.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

std::vector<float> made();

void f(hvd::SelfTransport& comm, const std::vector<float>& in) {
#ifdef BAD
  hvd::allgather(comm, in, made());
#else
  std::vector<float> kept = made();
  hvd::allgather(comm, in, kept);
#endif
}
