// hvd/policy.hpp: how transports that share memory wait, reserve memory, and fail.
#pragma once

#include <hvd/config.hpp>
#include <hvd/line_costs.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>

namespace hvd::inline HVD_ABI {

namespace detail {

// Each default reads only its own variable, so that a mistake elsewhere in the environment does not stop a program that
// sets everything else itself.
template <class Value, class Parse>
Value from_variable(const char* name, Value fallback, Parse parse) {
  const char* const text = std::getenv(name);
  return text == nullptr ? fallback : Value(parse(name, text));
}

}  // namespace detail

/// The spin policy: how a rank waits for another. It loads, then loads with pauses, then yields its CPU, then sleeps on
/// a futex with a time limit. The writer issues no fence for sleepers: a wake-up can be lost, and the limit bounds what
/// that costs. Oversubscribed ranks (more than usable CPUs) yield after `oversubscribed_loads` loads.
struct waiting_policy {
  /// Loads before the first pause: a line comes from another core in 20 to 200 ns, about 10 ns a load.
  int loads = 64;
  /// Loads with pauses (10 to 140 cycles each) before the first yield: together about 20 us. Longer would take CPU time
  /// from a peer that waits for this CPU; a yield on a CPU that no other thread wants costs 0.5 us.
  int pauses = 512;
  /// Loads before yielding where ranks are oversubscribed: the awaited rank is probably not running.
  int oversubscribed_loads = 16;
  /// Yields before sleeping.
  int yields = 256;
  /// The longest sleep, and so the delay when a wake-up is lost.
  std::chrono::microseconds sleep{500};
};

/// Where shared memory comes from, and how much of it.
struct memory_policy {
  /// Staging memory that each rank adds to the group, in bytes, control structures included. At least 64 KiB. Up to
  /// 1 MiB the staging ring takes no more than fits into a second-level cache; above, it takes all.
  std::size_t staging_bytes = std::size_t{1} << 20;
  /// A directory, on a memory file system if it is to be fast.
  std::string directory = detail::from_variable("HVD_SHM_DIR", std::string("/dev/shm"), parse_directory);
};

/// When to give up. Infinity, or more than a hundred years, means no limit; a negative limit, or NaN, is an error
/// (invalid_argument) when the group is made.
struct failure_policy {
  using seconds = std::chrono::duration<double>;
  /// For every wait inside an operation; 0 waits as long as all peers live.
  seconds timeout = detail::from_variable("HVD_TIMEOUT", seconds(300),
                                          [](auto name, auto text) { return parse_seconds(name, text, "no limit"); });
  /// For the other ranks to join.
  seconds start_timeout = detail::from_variable("HOROVOD_START_TIMEOUT", seconds(30),
                                                [](auto name, auto text) { return parse_seconds(name, text); });
  /// How often a waiting rank checks that its peer lives and that no rank has given up.
  std::chrono::microseconds look_every{1000};
  /// Compare every collective's operation, count, type, op, root and algorithm between ranks before data moves. Costs
  /// one exchange of a cache line per call; mismatches become errors on all ranks and the transport stays usable.
  /// (Where ranks have no common memory, HVD_CHECK alone decides, and log p messages are exchanged.)
  bool check = detail::from_variable("HVD_CHECK", HVD_CHECK != 0, parse_boolean);
};

/// What may end waits from outside, such as a signal: a rank that waits calls `wanted(context)` about every
/// millisecond, on the thread that waits, and gives up with an error of kind aborted where it returns true. The group
/// has ended then.
struct interruption {
  bool (*wanted)(void* context) = nullptr;
  void* context = nullptr;

  explicit operator bool() const { return wanted != nullptr && wanted(context); }
};

/// The options of transports that share memory.
struct sharing_options {
  waiting_policy waiting{};  ///< how ranks wait for each other
  memory_policy memory{};    ///< how much they share, and where it lies
  failure_policy failure{};  ///< when they give up, and whether they compare their calls
  /// What cache lines cost, the same on all ranks; by default measured when a group is joined.
  line_costs lines = detail::from_variable("HVD_LINE_COSTS", line_costs{}, parse_line_costs);
};

}  // namespace hvd::inline HVD_ABI
