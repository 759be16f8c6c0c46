// error: a reduction's function object must be stateless (no captures, no members)
#include <hvd/allreduce.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm, std::vector<int>& v, int modulus) {
#ifdef BAD
  hvd::allreduce(comm, v, [modulus](int a, int b) { return (a + b) % modulus; });
#else
  static_cast<void>(modulus);
  hvd::allreduce(comm, v, [](int a, int b) { return (a + b) % 7; });
#endif
}
