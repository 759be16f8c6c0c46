// error: within a timeout
#include <hvd/broadcast.hpp>
#include <hvd/within.hpp>

#include <chrono>
#include <cstddef>
#include <vector>

// A transport of a program's own, whose waits have no limit that could be set.
struct endless {
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier() {}
  endless split(int /*color*/, int /*key*/) { return {}; }
  void send(const std::byte* /*data*/, std::size_t /*bytes*/, int /*peer*/) {}
  void recv(std::byte* /*data*/, std::size_t /*bytes*/, int /*peer*/) {}
  void exchange(const std::byte* /*out*/, std::size_t /*out_bytes*/, int /*to*/, std::byte* /*in*/,
                std::size_t /*in_bytes*/, int /*from*/) {}
};

void f(endless& comm, std::vector<int>& v) {
#ifdef BAD
  hvd::broadcast(comm, v, 0, hvd::within(std::chrono::seconds(2)));
#else
  hvd::broadcast(comm, v, 0);
#endif
}
