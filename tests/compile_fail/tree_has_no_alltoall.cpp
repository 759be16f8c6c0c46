// error: or has no such collective
#include <hvd/alltoall.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

void f(hvd::SelfTransport& comm, std::vector<int>& v) {
#ifdef BAD
  hvd::alltoall(comm, v, hvd::tree{});
#else
  hvd::alltoall(comm, v, hvd::ring{});
#endif
}
