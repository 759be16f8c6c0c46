// bench/gpu/overhead.cpp: the time that hvd adds to a call of NCCL.
#include <bench/backends/plain_nccl.hpp>
#include <bench/gpu/measure.hpp>
#include <bench/sizes.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport/nccl.hpp>

#include <array>
#include <cstdio>
#include <stdexcept>

namespace hvd::bench {
namespace {

int rank_of(ShmTransport& control, const gpu_settings& s) {
  NcclTransport comm(control, take_gpu(control.rank(), s.ranks_per_gpu));
  Gpu gpu(comm.group()->device());
  const plain_communicator plain(control);
  const detail::nccl_library& nccl = detail::get_nccl();
  const std::size_t most = gpu.stands_in() ? 4096 : std::size_t{64} << 20;
  auto* const in = static_cast<float*>(gpu.allocate(most));
  auto* const out = static_cast<float*>(gpu.allocate(most));
  const std::vector<float> ones(most / sizeof(float), 1.0F);
  gpu.upload(in, ones.data(), most);
  if (control.rank() == 0) {
    print_gpu(gpu);
    std::printf(
        "Allreduce of float32, out of place, %d rank(s), %d on a GPU; us a call, queued one after the other; the "
        "host's share\n\n"
        "| bytes | NCCL | hvd | more, us | more, %% | NCCL, host | hvd, host |\n|--:|--:|--:|--:|--:|--:|--:|\n",
        control.size(), s.ranks_per_gpu);
  }
  bool right = true;
  // Ranks that share a GPU run in turns of milliseconds.
  const bool shared = s.ranks_per_gpu > 1;
  for (std::size_t bytes = 8; bytes <= most; bytes *= shared ? 512 : 8) {
    const std::size_t n = bytes / sizeof(float);
    // The host's own time, until all calls are queued; the same turns as in `us`.
    std::array<std::vector<double>, 2> host;
    const auto queued = [&](std::size_t way, const auto& call) {
      return [&, way, call]() -> double {
        // Enough calls that the wait at their end is little of them.
        const int calls = shared ? 10 : bytes <= (std::size_t{1} << 20) ? 100 : 20;
        control.barrier();
        const auto start = bench_clock::now();
        for (int i = 0; i != calls; ++i) call();
        host[way].push_back(us_since(start) / calls);
        gpu.finish();
        return us_since(start) / calls;
      };
    };
    const std::array<std::function<double()>, 2> ways{
        queued(0,
               [&] {
                 must(nccl.allreduce(in, out, n, detail::nccl_float32, detail::nccl_sum, plain.get(), gpu.stream()),
                      "ncclAllReduce");
               }),
        queued(1, [&] {
          hvd::allreduce(comm, std::span<const float>(in, n), std::span(out, n), hvd::sum, on_stream{gpu.stream()});
        })};
    const std::vector<double> us = in_turns(ways, s.seconds, [&](int turns) {
      hvd::broadcast(control, std::span(&turns, 1));
      return turns;
    });
    std::vector<float> got(n);
    gpu.download(got.data(), out, bytes);
    for (const float x : got) right = right && x == static_cast<float>(control.size());
    if (control.rank() == 0) {
      std::printf("| %s | %.2f | %.2f | %.2f | %.1f | %.2f | %.2f |\n", size_text(bytes).c_str(), us[0], us[1],
                  us[1] - us[0], 100 * (us[1] - us[0]) / us[0], median(host[0]), median(host[1]));
      std::fflush(stdout);
    }
  }
  if (!right) std::printf("\nrank %d has WRONG results\n", control.rank());
  gpu.release(in);
  gpu.release(out);
  return right ? 0 : 1;
}

}  // namespace

int measure_overhead(const gpu_settings& s) {
  return fork_run(s.ranks, [&](ShmTransport& control) {
    if (rank_of(control, s) != 0) throw std::runtime_error("results are wrong");
  });
}

}  // namespace hvd::bench
