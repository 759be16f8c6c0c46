// hvd/pin/policies.hpp: the choice of a rank's GPU: pure functions from a topology and a place on the host.
#pragma once

#include <hvd/error.hpp>
#include <hvd/pin/placement.hpp>
#include <hvd/topology.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

/// The choice of local rank i is the i-th of `order`, indices into the GPUs. If ranks share GPUs, those beyond the end
/// start again. A rank that sees one GPU takes it: schedulers show each rank its own, and otherwise ranks detect the
/// common GPU when they compare their devices.
inline placement take_in_turn(const topology& host, const local_place& where, std::string_view policy,
                              const std::vector<std::size_t>& order, std::string reason) {
  if (host.gpus.empty()) return on_host(host);
  if (host.gpus.size() == 1) return on_gpu(host.gpus.front(), "the only visible GPU");
  const auto count = order.size(), mine = static_cast<std::size_t>(where.local_rank);
  const bool wraps = where.max_ranks != 1;
  const std::size_t limit = where.max_ranks == 0 ? mine + 1 : count * static_cast<std::size_t>(where.max_ranks);
  if (mine >= limit) {
    fail(error_kind::invalid_argument,
         {"pin ", policy, ": ", who(where), " has no GPU left; ", visible_text(host), "; start at most ", limit,
          " ranks on this host, ",
          wraps ? joined({"allow more than shared:", where.max_ranks}) : "pin with shared (NCCL 2.30 or newer)",
          ", or use a transport on the host"});
  }
  return on_gpu(host.gpus[order[mine % count]], std::move(reason));
}

inline std::vector<std::size_t> in_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i != count; ++i) order[i] = i;
  return order;
}

/// The GPUs of each NUMA node, ordered by PCI address; those of unknown node are one group, the last.
inline std::vector<std::vector<std::size_t>> gpus_by_node(const topology& host) {
  std::map<std::pair<bool, int>, std::vector<std::size_t>> nodes;
  for (std::size_t i = 0; i != host.gpus.size(); ++i) {
    const int node = host.gpus[i].numa_node;
    nodes[{node < 0, node}].push_back(i);
  }
  std::vector<std::vector<std::size_t>> groups;
  for (auto& [node, group] : nodes) {
    std::stable_sort(group.begin(), group.end(),
                     [&](std::size_t a, std::size_t b) { return host.gpus[a].pci < host.gpus[b].pci; });
    groups.push_back(std::move(group));
  }
  return groups;
}

/// ", on NUMA node 1", if the node is known.
inline std::string on_node(const gpu& g) {
  return g.numa_node < 0 ? std::string() : joined({", on NUMA node ", g.numa_node});
}

}  // namespace detail

namespace pinning {

/// No GPU.
struct none {
  static constexpr std::string_view name = "none";
  placement operator()(const topology&, const local_place&) const {
    placement p;
    p.reason = "no GPU is asked for";
    return p;
  }
};

/// Local rank i gets GPU i, as CUDA numbers them. A rank beyond the last is an error.
struct by_local_rank {
  static constexpr std::string_view name = "by_local_rank";
  placement operator()(const topology& host, const local_place& where) const {
    return detail::take_in_turn(host, where, name, detail::in_order(host.gpus.size()),
                                detail::joined({"local rank ", where.local_rank}));
  }
};

/// Local rank i gets GPU i modulo their number: the same rule on all hosts of a job.
struct round_robin {
  static constexpr std::string_view name = "round_robin";
  placement operator()(const topology& host, const local_place& where) const {
    if (host.gpus.empty()) return detail::on_host(host);
    const auto mine = static_cast<std::size_t>(where.local_rank) % host.gpus.size();
    return detail::on_gpu(host.gpus[mine],
                          detail::joined({"local rank ", where.local_rank, " modulo ", host.gpus.size()}));
  }
};

/// Fills one NUMA node's GPUs before the next one's: ranks are near each other.
struct compact {
  static constexpr std::string_view name = "compact";
  placement operator()(const topology& host, const local_place& where) const {
    std::vector<std::size_t> order;
    for (const auto& group : detail::gpus_by_node(host)) order.insert(order.end(), group.begin(), group.end());
    placement p = detail::take_in_turn(host, where, name, order, "node by node");
    return p;
  }
};

/// Takes one GPU of each NUMA node before the second of any: ranks have the host's memory bandwidth to share.
struct scatter {
  static constexpr std::string_view name = "scatter";
  placement operator()(const topology& host, const local_place& where) const {
    std::vector<std::size_t> order;
    const auto groups = detail::gpus_by_node(host);
    for (std::size_t i = 0; order.size() != host.gpus.size(); ++i) {
      for (const auto& group : groups)
        if (i < group.size()) order.push_back(group[i]);
    }
    return detail::take_in_turn(host, where, name, order, "one of each NUMA node in turn");
  }
};

/// The GPU nearest to the CPUs that the rank may run on; of several that are as near, by local rank modulo their
/// number. GPUs whose node is unknown are as near as those of another node.
struct numa_near {
  static constexpr std::string_view name = "numa_near";
  placement operator()(const topology& host, const local_place& where) const {
    if (host.gpus.empty()) return detail::on_host(host);
    std::size_t most = 0;
    std::vector<const gpu*> nearest;
    for (const gpu& g : host.gpus) {
      const std::size_t close_by = detail::common(g.cpus, host.cpu_ids).size();
      if (close_by > most) nearest.clear();
      most = std::max(most, close_by);
      if (close_by == most) nearest.push_back(&g);
    }
    const gpu& mine = *nearest[static_cast<std::size_t>(where.local_rank) % nearest.size()];
    if (most == 0) return detail::on_gpu(mine, "by local rank: no GPU is known to be near to its CPUs");
    return detail::on_gpu(
        mine, detail::joined({"near to ", most, " of its ", host.cpu_ids.size(), " CPUs", detail::on_node(mine)}));
  }
};

/// Leaves the GPU that the caller has made current.
struct current {
  static constexpr std::string_view name = "current";
  placement operator()(const topology& host, const local_place&) const {
    if (host.gpus.empty()) return detail::on_host(host);
    placement p;
    for (const gpu& g : host.gpus) {
      if (g.ordinal == host.current_gpu) p = detail::on_gpu(g, "current in this thread");
    }
    if (!p.device) p.reason = "no GPU is current in this thread";
    p.keep_current = true;
    return p;
  }
};

/// `Policy` with one rank for each device, which is also the default: NcclTransport refuses others before NCCL
/// starts.
template <pin_policy Policy = by_local_rank>
struct exclusive {
  Policy policy{};
  placement operator()(const topology& host, local_place where) const {
    where.max_ranks = 1;
    placement p = policy(host, where);
    p.max_ranks = 1;
    return p;
  }
};

/// `Policy` with up to `max` ranks for each device; 0: any number. It needs NCCL 2.30 or newer.
template <int max = 0, pin_policy Policy = by_local_rank>
  requires(max >= 0)
struct shared {
  Policy policy{};
  placement operator()(const topology& host, local_place where) const {
    where.max_ranks = max;
    placement p = policy(host, where);
    p.max_ranks = max;
    return p;
  }
};

}  // namespace pinning

}  // namespace hvd::inline HVD_ABI
