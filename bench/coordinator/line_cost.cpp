// bench/coordinator/line_cost.cpp: the measurement that each group takes at its start, by a group made for it. A test
// links another one.
#include <bench/coordinator/line_cost.hpp>

#include <bench/coordinator/signals.hpp>
#include <bench/rank/place.hpp>

#include <hvd/launch.hpp>

#include <cstdlib>

#include <unistd.h>

namespace hvd::bench {

std::optional<double> measure_line_us(int ranks, const std::string& cpu_list) {
  if (ranks < 2) return std::nullopt;
  auto opts = hvd::sharing_options::from_environment();
  opts.lines = {1, 1, 1};  // so that ranks measure only once they are pinned
  for (int tries = 0; tries != 3; ++tries) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
    const auto measure = [&](hvd::ShmTransport& comm) {
      ::setenv(cpus_variable, cpu_list.c_str(), 1);
      pin_to_list(comm.rank());
      const std::uint32_t ps = hvd::detail::agree_on_line_costs(comm.peers(), {}).transfer;
      return comm.rank() != 0 || ::write(ends[1], &ps, sizeof ps) == sizeof ps ? 0 : 1;
    };
    const int code = hvd::fork_run(ranks, measure, opts);
    ::close(ends[1]);
    std::uint32_t ps = 0;
    const bool found = code == 0 && ::read(ends[0], &ps, sizeof ps) == sizeof ps && ps != 0;
    ::close(ends[0]);
    if (const int signal = hvd::detail::signal_relay::received(); signal != 0) throw interrupted(signal);
    if (found) return ps * 1e-6;
  }
  return std::nullopt;
}

}  // namespace hvd::bench
