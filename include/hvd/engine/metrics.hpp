// hvd/engine/metrics.hpp: counters of an engine's work, which are always on.
#pragma once

#include <hvd/call.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::inline HVD_ABI {

/// This rank's counters for one kind of operation in one process set.
struct operation_metrics {
  operation kind = operation::barrier;
  int process_set = 0;
  std::uint64_t operations = 0;         ///< that have ended, with or without an error
  std::uint64_t failed = 0;             ///< of these, with an error
  std::uint64_t bytes = 0;              ///< of this rank's inputs
  std::uint64_t waits = 0;              ///< times the program has waited for an unfinished operation
  std::chrono::nanoseconds exposed{0};  ///< the duration of these waits: exposed communication
};

/// The counters of an engine since it was made, and its current state. See Engine::metrics.
struct engine_metrics {
  std::uint64_t round = 1;                      ///< see Engine::continue_over
  std::uint64_t steps = 0;                      ///< calls of Engine::mark_step
  std::uint64_t samples = 0;                    ///< the sum of their samples
  std::uint64_t stalls = 0;                     ///< reports of the watch on this rank
  std::uint64_t dropped = 0;                    ///< events that are not in the timeline
  std::uint64_t in_flight = 0;                  ///< operations that are submitted and not done
  std::chrono::nanoseconds oldest{0};           ///< the age of the oldest of these
  std::vector<operation_metrics> operations{};  ///< of each kind and process set that was used; removed sets are not
};

namespace detail {

/// Counts by kind of operation. Any thread may call any function: each costs some relaxed additions.
class operation_counters {
 public:
  void ended(operation kind, std::uint64_t bytes, bool failed) noexcept {
    counters& c = of(kind);
    add(c.operations, 1);
    add(c.bytes, bytes);
    if (failed) add(c.failed, 1);
  }
  void waited(operation kind, std::chrono::nanoseconds time, bool to_the_end) noexcept {
    counters& c = of(kind);
    if (to_the_end) add(c.waits, 1);
    add(c.exposed_ns, static_cast<std::uint64_t>(time.count()));
  }
  /// Adds the counters of each kind that was used.
  void report(std::vector<operation_metrics>& to, int process_set) const {
    for (std::size_t i = 0; i != all_.size(); ++i) {
      const counters& c = all_[i];
      const auto read = [](const std::atomic<std::uint64_t>& from) { return from.load(std::memory_order_relaxed); };
      const auto exposed = std::chrono::nanoseconds(static_cast<std::int64_t>(read(c.exposed_ns)));
      if (read(c.operations) == 0 && exposed.count() == 0) continue;
      to.push_back({static_cast<operation>(i), process_set, read(c.operations), read(c.failed), read(c.bytes),
                    read(c.waits), exposed});
    }
  }

 private:
  struct counters {
    std::atomic<std::uint64_t> operations{0}, failed{0}, bytes{0}, waits{0}, exposed_ns{0};
  };
  static void add(std::atomic<std::uint64_t>& to, std::uint64_t amount) noexcept {
    to.fetch_add(amount, std::memory_order_relaxed);
  }
  counters& of(operation kind) noexcept { return all_[static_cast<std::size_t>(kind)]; }

  std::array<counters, static_cast<std::size_t>(operation::exscan) + 1> all_{};
};

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
