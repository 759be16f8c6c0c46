// hvd/pin/cpus.hpp: the choice of a rank's CPUs: pure functions, like the policies for devices.
#pragma once

#include <hvd/error.hpp>
#include <hvd/pin/placement.hpp>
#include <hvd/topology.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The CPUs to which a rank is bound, of those that it may run on.
enum class cpu_binding : unsigned char {
  none,       ///< nothing: the kernel chooses
  numa,       ///< the CPUs near its GPU; without one, those of a NUMA node, over which ranks are spread in blocks
  exclusive,  ///< whole cores, as many for each rank of the host and none shared, near its GPU if possible
};

/// "none", "numa" or "exclusive".
constexpr std::string_view name(cpu_binding binding) noexcept {
  return binding == cpu_binding::none ? "none" : binding == cpu_binding::numa ? "numa" : "exclusive";
}

namespace detail {

/// "2 cores"; "1 core".
inline std::string counted(std::size_t n, std::string_view noun) { return joined({n, " ", noun, n == 1 ? "" : "s"}); }

/// The cores that ranks can have exclusively, and their number in words.
struct usable_cores {
  std::vector<std::vector<int>> cores;
  std::size_t count;  ///< the quota of CPU time may grant less than all
  std::string text;
};
inline usable_cores find_cores(const topology& host) {
  usable_cores found{host.cores, 0, {}};
  if (found.cores.empty()) {
    for (const int cpu : host.cpu_ids) found.cores.push_back({cpu});
  }
  const std::size_t all = found.cores.size();
  std::size_t threads = 1;
  for (const auto& core : found.cores) threads = std::max(threads, core.size());
  found.count = all;
  if (std::isfinite(host.quota)) {
    const double granted = std::max(1.0, std::floor(host.quota / static_cast<double>(threads)));
    found.count = std::min(all, static_cast<std::size_t>(std::min(granted, 1e6)));
  }
  found.text = counted(found.count, "core");
  if (found.count < all) found.text += joined({" (a quota of ", host.quota, " CPUs, on ", counted(all, "core"), ")"});
  return found;
}

/// The CPUs of each local rank, neighbouring cores, or none if there are too few; and the reason. `devices`: the GPU of
/// each rank, null if unknown; a rank first takes cores near it, and then remaining ones. `each`: cores for a rank; 0:
/// an equal share. A single rank is not bound to an equal share, which would be all cores.
struct core_shares {
  std::vector<std::vector<int>> cpus;
  std::string reason;
};
inline core_shares share_cores(const topology& host, const std::vector<const gpu*>& devices, std::size_t each = 0) {
  const std::size_t ranks = devices.size();
  const usable_cores usable = find_cores(host);
  if (ranks == 1 && each == 0) return {{}, "not bound: one rank has all CPUs to itself"};
  const std::size_t mine = each == 0 ? usable.count / ranks : each;
  if (mine == 0 || mine * ranks > usable.count) {
    const std::string wanted = each == 0 ? "" : joined({" of ", counted(each, "core")});
    return {{}, joined({"not bound: ", ranks, " ranks", wanted, " on ", usable.text})};
  }
  core_shares shares{std::vector<std::vector<int>>(ranks),
                     joined({"bound to ", mine, " of ", usable.text, ranks == 1 ? "" : " each"})};
  std::vector<bool> taken(usable.cores.size());
  const auto take = [&](std::size_t rank, std::size_t& missing, const auto& fits) {
    for (std::size_t core = 0; core != usable.cores.size() && missing != 0; ++core) {
      if (taken[core] || !fits(usable.cores[core])) continue;
      taken[core] = true;
      --missing;
      shares.cpus[rank].insert(shares.cpus[rank].end(), usable.cores[core].begin(), usable.cores[core].end());
    }
  };
  // All ranks take near cores before any rank takes remaining ones, which may be near another rank's GPU.
  std::vector<std::size_t> missing(ranks, mine);
  for (std::size_t rank = 0; rank != ranks; ++rank) {
    if (devices[rank] == nullptr || devices[rank]->numa_node < 0) continue;
    take(rank, missing[rank], [&](const auto& core) {
      const auto& close_by = devices[rank]->cpus;
      return std::binary_search(close_by.begin(), close_by.end(), core.front());
    });
  }
  for (std::size_t rank = 0; rank != ranks; ++rank) {
    take(rank, missing[rank], [](const auto&) { return true; });
    put_in_order(shares.cpus[rank]);
  }
  return shares;
}

/// The CPUs of one NUMA node, as a placement's CPUs and reason.
inline void bind_to_node(const topology& host, const gpu* device, const local_place& where, placement& p) {
  if (device != nullptr) {
    p.cpus = device->numa_node < 0 ? std::vector<int>() : common(device->cpus, host.cpu_ids);
    p.cpu_reason = device->numa_node < 0 ? std::string("not bound: the GPU's NUMA node is unknown")
                   : p.cpus.empty()
                       ? joined({"not bound: no usable CPU is near the GPU, on NUMA node ", device->numa_node})
                       : joined({"near the GPU, on NUMA node ", device->numa_node});
    return;
  }
  const std::size_t nodes = host.numa_nodes.size();
  if (nodes < 2) {
    p.cpu_reason = "not bound: the CPUs are on one NUMA node";
    return;
  }
  const auto local = static_cast<std::size_t>(where.local_rank), size = static_cast<std::size_t>(where.local_size);
  const topology::numa_node& node = host.numa_nodes[local * nodes / std::max(size, local + 1)];
  p.cpus = node.cpus;
  p.cpu_reason = joined({"NUMA node ", node.id});
}

/// The GPU of a placement in the topology; null if it has none.
inline const gpu* find_gpu(const topology& host, const placement& p) {
  for (const gpu& g : host.gpus) {
    if (p.device && g.id() == *p.device) return &g;
  }
  return nullptr;
}

/// The CPUs of a placement whose device is chosen, in the process of the rank. `devices`: see share_cores.
inline void bind_cpus(const topology& host, const local_place& where, cpu_binding binding,
                      const std::vector<const gpu*>& devices, placement& p, std::size_t each = 0) {
  const auto local = static_cast<std::size_t>(where.local_rank);
  p.cpus.clear();
  if (binding == cpu_binding::none) {
    p.cpu_reason = "not bound: as asked for";
  } else if (binding == cpu_binding::numa) {
    bind_to_node(host, devices[local], where, p);
  } else if (where.bound) {
    p.cpu_reason = "bound by the launcher";
  } else {
    const core_shares shares = share_cores(host, devices, each);
    if (!shares.cpus.empty()) p.cpus = shares.cpus[local];
    p.cpu_reason = shares.reason;
  }
}

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
