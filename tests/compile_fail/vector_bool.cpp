// error: std::vector<bool>, lists and strided views are not
#include <hvd/broadcast.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm) {
#ifdef BAD
  std::vector<bool> flags(8);
#else
  bool flags[8] = {};
#endif
  hvd::broadcast(comm, flags);
}
