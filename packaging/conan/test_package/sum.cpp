#include <hvd/allreduce.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport/shm.hpp>

#include <cstdio>

int main() {
  return hvd::fork_run(2, [](hvd::ShmTransport& comm) {
    int rank = comm.rank() + 1;
    hvd::allreduce(comm, std::span(&rank, 1));
    if (comm.rank() == 0) std::printf("%d\n", rank);
    if (rank != 3) throw hvd::error(hvd::error_kind::mismatch, "1 + 2 is not 3");
  });
}
