// What an application loads at run time, and unloads again.
#include <hvd/allreduce.hpp>
#include <hvd/launch.hpp>
#include <hvd/queue.hpp>
#include <hvd/transport/self.hpp>
#include <hvd/transport/shm.hpp>

#include <cstdlib>
#include <span>

/// 3, if all works: a sum over two forked ranks, and one by a thread of the plug-in.
extern "C" int sum() {
  const int failed = hvd::fork_run(2, [](hvd::ShmTransport& comm) {
    int mine = comm.rank() + 1;
    hvd::allreduce(comm, std::span(&mine, 1));
    if (mine != 3) std::abort();
  });
  int value = 3;
  hvd::queue calls(hvd::SelfTransport{});
  calls.run([&](auto& comm) { hvd::allreduce(comm, std::span(&value, 1)); }).wait();
  return failed == 0 ? value : -1;
}
