// hvd/policy.hpp: options for waiting, memory and failures of transports that share memory.
#pragma once

#include <hvd/config.hpp>
#include <hvd/line_costs.hpp>

#include <chrono>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// The spin policy: the steps in which a rank waits for another rank. It loads, then loads with pauses, then yields its
/// CPU, then sleeps on a futex with a time limit. The writer issues no fence for sleepers, so a wake-up can be lost;
/// the limit bounds that delay. Oversubscribed ranks (more ranks than usable CPUs) yield after `oversubscribed_loads`
/// loads.
struct waiting_policy {
  /// Loads before the first pause. A line arrives from another core in 20 to 200 ns; a load takes about 10 ns.
  int loads = 64;
  /// Loads with pauses (10 to 140 cycles each) before the first yield: together about 20 us. More would take CPU time
  /// from a peer that waits for this CPU; a yield costs only 0.5 us if no other thread wants the CPU.
  int pauses = 512;
  /// Loads before yielding if ranks are oversubscribed: the awaited rank is probably not running.
  int oversubscribed_loads = 16;
  /// Yields before sleeping.
  int yields = 256;
  /// The longest sleep, and so the longest delay if a wake-up is lost. 0: yields do not end.
  std::chrono::microseconds sleep{500};
};

/// The source and the amount of shared memory.
struct memory_policy {
  /// Staging memory that each rank adds to the group, in bytes, control structures included. At least 64 KiB. Up to 1
  /// MiB, the staging ring uses no more than fits into a second-level cache; above that, it uses everything.
  std::size_t staging_bytes = std::size_t{1} << 20;
  /// HVD_SHM_DIR: the directory of the shared files; use a memory file system for speed.
  std::string directory = "/dev/shm";

  static memory_policy from_environment(const config::lookup& variable = detail::variable_of_environment) {
    memory_policy p;
    detail::read_variable(variable, "HVD_SHM_DIR", p.directory, parse_directory);
    return p;
  }
};

/// Time limits and checks. Infinity, or more than a hundred years, means no limit. A negative limit, or NaN, is an
/// error (invalid_argument) when the group is made.
struct failure_policy {
  using seconds = std::chrono::duration<double>;
  /// HVD_TIMEOUT: for every wait inside an operation; 0 waits as long as all peers live.
  seconds timeout{300};
  /// HOROVOD_START_TIMEOUT: for the other ranks to join.
  seconds start_timeout{30};
  /// The interval at which a waiting rank checks that its peer lives and that no rank has failed.
  std::chrono::microseconds look_every{1000};
  /// HVD_CHECK: compares every collective's operation, count, type, op, root and algorithm between ranks before data
  /// moves. Cost: one exchange of a cache line per call. Mismatches become errors on all ranks, and the transport stays
  /// usable. (For ranks without common memory, HVD_CHECK alone decides, and the cost is log p messages.)
  bool check = HVD_CHECK != 0;

  static failure_policy from_environment(const config::lookup& variable = detail::variable_of_environment) {
    failure_policy p;
    detail::read_variable(variable, "HVD_TIMEOUT", p.timeout, detail::parse_limit);
    detail::read_variable(variable, "HOROVOD_START_TIMEOUT", p.start_timeout,
                          [](auto name, auto text) { return parse_seconds(name, text); });
    detail::read_variable(variable, "HVD_CHECK", p.check, parse_boolean);
    return p;
  }
};

/// A callback that can end waits, for example after a signal. A waiting rank calls `wanted(context)` about every
/// millisecond, on the waiting thread. If it returns true, the wait ends with an error of kind aborted, and the group
/// can no longer be used.
struct interruption {
  bool (*wanted)(void* context) = nullptr;
  void* context = nullptr;

  explicit operator bool() const { return wanted != nullptr && wanted(context); }
};

/// The options of transports that share memory. Programs that pass none get those of `from_environment`.
struct sharing_options {
  waiting_policy waiting{};  ///< how ranks wait for each other
  memory_policy memory{};    ///< how much they share, and where it lies
  failure_policy failure{};  ///< when they give up, and whether they compare their calls
  /// HVD_LINE_COSTS: the costs of cache lines, the same on all ranks; if unknown, measured when a group is joined.
  line_costs lines{};

  /// The defaults, changed by the variables named above. An invalid_argument error names the variable, its value and
  /// the allowed values.
  static sharing_options from_environment(const config::lookup& variable = detail::variable_of_environment) {
    sharing_options o;
    o.memory = memory_policy::from_environment(variable);
    o.failure = failure_policy::from_environment(variable);
    detail::read_variable(variable, "HVD_LINE_COSTS", o.lines, parse_line_costs);
    return o;
  }
};

}  // namespace hvd::inline HVD_ABI
