// A program with a pool of threads: ranks that are forked before it is there, and what fork_run says after that.
#include <hvd/allreduce.hpp>
#include <hvd/launch.hpp>

#include <cstdio>
#include <vector>

static float sum_of(const std::vector<float>& v) {
  float sum = 0;
#pragma omp parallel for num_threads(2) reduction(+ : sum)
  for (std::size_t i = 0; i < v.size(); ++i) sum += v[i];
  return sum;
}

int main() {
  const auto train = [](hvd::ShmTransport& comm) {
    const std::vector<float> mine(1000, 1.0f + static_cast<float>(comm.rank()));
    float loss[] = {sum_of(mine)};
    hvd::allreduce(comm, loss);
    if (comm.rank() == 0) std::printf("%g\n", loss[0]);
  };
  if (const int code = hvd::fork_run(2, train); code != 0) return code;
  sum_of(std::vector<float>(1000, 1.0f));
  try {
    return hvd::fork_run(2, train);
  } catch (const hvd::error& e) {
    std::printf("%s\n", e.what());
  }
}
