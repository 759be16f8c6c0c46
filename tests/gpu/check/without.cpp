// tests/gpu/check/without.cpp: 3 ranks on one GPU: rank 2 stays away from a collective, the others wait for it in vain,
// and go on without it. tools/gpu-check runs it.
//
// usage: without [MS]: after a pause of so many milliseconds (default: 0)
#include <hvd/gpu.hpp>
#include <hvd/hvd.hpp>

#include <gpu/check/own_host.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

using namespace std::chrono_literals;

namespace {

void allreduce_of_ones(hvd::NcclTransport& gpus) {
  constexpr std::size_t n = std::size_t{1} << 20;
  auto x = gpus.alloc_shared<float>(n);
  const std::vector<float> ones(n, 1.0F);
  gpus.copy_to_device(std::span<const float>(ones), x.data());
  hvd::allreduce(gpus, x);
  std::vector<float> got(n);
  gpus.copy_to_host(x.data(), std::span(got));
  for (const float value : got) {
    if (value != static_cast<float>(gpus.size())) throw std::runtime_error("a sum is wrong");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::chrono::milliseconds pause(argc > 1 ? std::atoi(argv[1]) : 0);
  return hvd::fork_run(3, [&](hvd::ShmTransport& comm) {
    hvd::test::be_own_host(comm.rank());
    hvd::nccl_options options;
    options.device = 0;
    options.ranks_per_device = 3;
    options.start_timeout = 60s;
    options.timeout = 5s;
    hvd::NcclTransport gpus(comm, options);
    allreduce_of_ones(gpus);
    if (comm.rank() == 2) {
      comm.barrier();
      ::_exit(0);  // the communicator's end would wait for the others
    }
    const auto start = std::chrono::steady_clock::now();
    const auto say = [&](const std::string& what) {
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      std::printf("rank %d, %.2f s: %s\n", comm.rank(), s, what.c_str());
      std::fflush(stdout);
    };
    try {
      allreduce_of_ones(gpus);
      throw std::runtime_error("the collective ended without rank 2");
    } catch (const hvd::error& e) {
      say(e.what());
    }
    std::this_thread::sleep_for(pause);
    try {
      const std::vector<int> lost{2};
      hvd::NcclTransport left = gpus.without(lost);
      allreduce_of_ones(left);
      say("went on with " + std::to_string(left.size()) + " ranks");
    } catch (const hvd::error& e) {
      say(e.what());
      if (e.kind() != hvd::error_kind::unsupported) ::_exit(1);
    }
    comm.barrier();
  });
}
