// error: a buffer's elements must not be pointers, spans or other views
#include <hvd/broadcast.hpp>
#include <hvd/transport/self.hpp>

#include <cstdint>
#include <vector>

void f(hvd::SelfTransport& comm) {
#ifdef BAD
  std::vector<float*> v(8);
#else
  std::vector<std::uintptr_t> v(8);
#endif
  hvd::broadcast(comm, v);
}
