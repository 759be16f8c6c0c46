// error: direct needs PeerMemory
#include <hvd/broadcast.hpp>
#include <hvd/transport/self.hpp>

#include <vector>

// SelfTransport has messages and no peers whose memory it could read.
void f(hvd::SelfTransport& comm, std::vector<int>& v) {
#ifdef BAD
  hvd::broadcast(comm, v, 0, hvd::direct{});
#else
  hvd::broadcast(comm, v, 0, hvd::tree{});
#endif
}
