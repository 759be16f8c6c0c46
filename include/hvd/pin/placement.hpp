// hvd/pin/placement.hpp: the input of a pinning policy besides the topology, and its result.
#pragma once

#include <hvd/config.hpp>
#include <hvd/error.hpp>
#include <hvd/topology.hpp>

#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The rank that a policy places, and the number of ranks on this host.
struct local_place {
  int rank = 0;                        ///< in the job, for messages
  int local_rank = 0, local_size = 1;  ///< on this host
  /// Its launcher has chosen its CPUs: there are no others.
  bool bound = false;
  /// Its process is not started yet: a MIG instance can be made visible to it.
  bool starting = false;
  /// The number of ranks that may use one device; 0: any number. `shared` sets it.
  int max_ranks = 1;

  /// The place that the launcher of this process reports, as `config` reads it.
  static local_place of_environment() {
    const config found = config::from_environment();
    const char* const cpus = std::getenv("HVD_CPUS");
    return {.rank = found.rank,
            .local_rank = found.local_rank,
            .local_size = found.local_size,
            .bound = cpus != nullptr && *cpus != '\0'};
  }
  /// The same; if no launcher has started this process, such as under fork_run, all ranks of `comm` are on this host.
  template <class Comm>
  static local_place of(Comm& comm) {
    local_place found = of_environment();
    found.rank = comm.rank();
    if (config::from_environment().launcher == "none") {
      found.local_rank = comm.rank();
      found.local_size = comm.size();
    }
    return found;
  }
};

/// The device and the CPUs for one rank.
struct placement {
  std::optional<device_id> device{};  ///< nothing: no GPU
  int ordinal = -1;                   ///< of the device, in this process
  std::vector<int> cpus{};            ///< to bind to, in order; empty: those that it has
  int max_ranks = 1;                  ///< number of ranks that may use the device; 0: any
  bool keep_current = false;          ///< the device is the caller's current one, and stays current
  std::string reason{};               ///< one clause with the reason for the device
  std::string cpu_reason{};           ///< one clause with the reason for the CPUs
};

/// A pure function from topology to placement. Throws invalid_argument if it has no device for this rank.
template <class P>
concept pin_policy = requires(const P& policy, const topology& host, const local_place& where) {
  { policy(host, where) } -> std::same_as<placement>;
};

namespace detail {

/// The devices that a rank sees, for errors: "2 GPUs are visible to it: 0 is GPU-... (0000:17:00.0), 1 is ...".
inline std::string visible_text(const topology& host) {
  std::string text = host.gpus.empty()       ? std::string("no GPU is visible to it")
                     : host.gpus.size() == 1 ? std::string("one GPU is visible to it: ")
                                             : joined({host.gpus.size(), " GPUs are visible to it: "});
  for (std::size_t i = 0; i != host.gpus.size(); ++i) {
    text += joined({i == 0 ? "" : ", ", host.gpus[i].ordinal, " is ", label(host.gpus[i].id())});
  }
  if (host.gpus.empty() && !host.no_gpus.empty()) text += joined({" (", host.no_gpus, ")"});
  if (!host.visible_devices.empty()) text += joined({"; CUDA_VISIBLE_DEVICES is \"", host.visible_devices, "\""});
  return text;
}

/// "rank 5 (local rank 1 of 4)".
inline std::string who(const local_place& where) {
  return joined({"rank ", where.rank, " (local rank ", where.local_rank, " of ", where.local_size, ")"});
}

/// A placement on one GPU.
inline placement on_gpu(const gpu& g, std::string reason) {
  placement p;
  p.device = g.id();
  p.ordinal = g.ordinal;
  p.reason = std::move(reason);
  return p;
}

/// A placement without a device, for a host that has none.
inline placement on_host(const topology& host) {
  placement p;
  p.reason = host.no_gpus.empty() ? "no GPU is visible" : host.no_gpus;
  return p;
}

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
