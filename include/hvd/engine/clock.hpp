// hvd/engine/clock.hpp: the agreement of ranks that make an engine: on its options, and on the clock of rank 0.
#pragma once

#include <hvd/collective/front_door.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The start of a job; the same on all ranks except for the offset.
struct job_clock {
  std::uint64_t job = 0;       ///< a number of the job's own, from rank 0
  std::int64_t steady_ns = 0;  ///< rank 0's steady clock at the start
  std::int64_t epoch_us = 0;   ///< and its system clock, in microseconds since 1970
  std::int64_t offset_ns = 0;  ///< this rank's steady clock plus this is rank 0's
};

inline std::int64_t steady_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// True if the ranks have common memory.
template <class T>
bool has_common_memory(T& comm) {
  if constexpr (requires { comm.peers() == nullptr; }) return comm.peers() != nullptr;
  return PeerMemory<T>;
}

/// Collective. Ranks with common memory are on one host, with one clock. Other ranks ask rank 0 for its time, take the
/// quickest of 8 answers, and assume that question and answer took equally long (F. Cristian, "Probabilistic clock
/// synchronization", 1989). Cost: 8 round trips for each rank, one rank after the other.
template <PointToPoint T>
job_clock agree_on_clock(T& comm, std::uint64_t job) {
  job_clock c{job, steady_now(),
              std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
                  .count(),
              0};
  const auto bytes = [](auto& value) { return reinterpret_cast<std::byte*>(&value); };
  const int asks = has_common_memory(comm) ? 0 : 8;
  if (comm.rank() == 0) {
    for (int r = 1; r < comm.size(); ++r) {
      comm.send(bytes(c), sizeof c, r);
      for (int i = 0; i != asks; ++i) {
        std::int64_t now = 0;
        comm.recv(bytes(now), sizeof now, r);
        now = steady_now();
        comm.send(bytes(now), sizeof now, r);
      }
    }
    return c;
  }
  comm.recv(bytes(c), sizeof c, 0);
  std::int64_t quickest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i != asks; ++i) {
    std::int64_t theirs = 0;
    const std::int64_t asked = steady_now();
    comm.send(bytes(theirs), sizeof theirs, 0);
    comm.recv(bytes(theirs), sizeof theirs, 0);
    const std::int64_t answered = steady_now();
    if (answered - asked >= quickest) continue;
    quickest = answered - asked;
    c.offset_ns = theirs - (asked + (answered - asked) / 2);
  }
  return c;
}

/// Collective. Throws mismatch on all ranks if they differ in an option that must be the same on all. Returns the
/// largest of their numbers `round`.
template <PointToPoint T>
std::uint64_t agree_on_options(T& comm, const engine_options& o, bool device, std::uint64_t round) {
  constexpr std::string_view names[] = {"fusion_threshold",
                                        "cache_capacity",
                                        "cycle_time (us)",
                                        "groups_alone",
                                        "watch",
                                        "autotune",
                                        "autotune_warmup",
                                        "autotune_steps",
                                        "autotune_samples",
                                        "thread",
                                        "threshold_fixed (HOROVOD_FUSION_THRESHOLD is set)",
                                        "cycle_fixed (HOROVOD_CYCLE_TIME is set)",
                                        "device (whether the engine was made with one)"};
  constexpr std::size_t n = std::size(names);
  using values = std::array<std::uint64_t, n + 1>;
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  const values mine{number(o.fusion_threshold),
                    number(o.cache_capacity),
                    number(o.cycle_time.count() * 1e6),
                    number(o.groups_alone),
                    number(o.watch),
                    number(o.autotune),
                    number(o.autotune_warmup),
                    number(o.autotune_steps),
                    number(o.autotune_samples),
                    number(o.thread),
                    number(o.autotune && o.threshold_fixed),  // they only decide what is tuned
                    number(o.autotune && o.cycle_fixed),
                    number(device),
                    round};
  const std::vector<values> all = share_by_messages(comm, mine);
  for (std::size_t r = 1; r != all.size(); ++r) {
    round = std::max(round, all[r][n]);
    for (std::size_t i = 0; i != n; ++i) {
      if (all[r][i] == all[0][i]) continue;
      fail(error_kind::mismatch,
           {"Engine on rank ", comm.rank(), " of ", comm.size(), ": the option ", names[i], " is ", all[0][i],
            " on rank 0 and ", all[r][i], " on rank ", r, "; give all ranks the same options and HOROVOD_* variables"},
           static_cast<int>(r));
    }
  }
  return std::max(round, all[0][n]);
}

}  // namespace hvd::inline HVD_ABI::detail
