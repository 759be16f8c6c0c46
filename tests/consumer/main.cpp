// A user's program: two files that both include all of hvd.
#include <hvd/hvd.hpp>

#include <cstdio>
#include <vector>

std::vector<float> averaged(hvd::ShmTransport& comm, std::vector<float> values);

int main() {
  return hvd::fork_run(2, [](hvd::ShmTransport& comm) {
    std::vector<int> ranks = {comm.rank() + 1, 10};
    hvd::allreduce(comm, ranks);
    const std::vector<float> mean = averaged(comm, {static_cast<float>(comm.rank()), 4.0f});
    if (comm.rank() == 0) {
      const int length = static_cast<int>(hvd::version.size());
      std::printf("hvd %.*s: %d %d, %g %g\n", length, hvd::version.data(), ranks[0], ranks[1], mean[0], mean[1]);
    }
  });
}
