// hvd/pin/plan.hpp: policies for all ranks of a host: a launcher's plan, and a rank's assumptions about the others.
#pragma once

#include <hvd/error.hpp>
#include <hvd/pin/cpus.hpp>
#include <hvd/pin/exclusive.hpp>
#include <hvd/pin/parse.hpp>
#include <hvd/pin/placement.hpp>
#include <hvd/pin/policies.hpp>
#include <hvd/topology.hpp>

#include <cstddef>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

inline void check_local(const local_place& where) {
  if (where.local_rank >= 0 && where.local_rank < where.local_size) return;
  fail(error_kind::invalid_argument,
       {"pin: the local rank of rank ", where.rank, " is ", where.local_rank, "; allowed: 0 to ", where.local_size - 1,
        ", as there are ", where.local_size, " ranks on its host"});
}

/// Device and CPUs of one rank. If several ranks each see only their own GPU, a rank does not know the GPUs of the
/// others. Then cores are divided without regard to GPUs, because all ranks must compute the same shares.
template <pin_policy P>
placement place_rank(const topology& host, const P& policy, const local_place& where, cpu_binding binding) {
  check_local(where);
  placement p = policy(host, where);
  std::vector<const gpu*> devices(static_cast<std::size_t>(where.local_size));
  if (binding == cpu_binding::exclusive && host.gpus.size() > 1) {
    for (int r = 0; r < where.local_size; ++r) {
      local_place other = where;
      other.rank += r - where.local_rank;
      other.local_rank = r;
      try {
        devices[static_cast<std::size_t>(r)] = find_gpu(host, policy(host, other));
      } catch (const error&) {  // that rank's to report
      }
    }
  }
  if (binding == cpu_binding::numa || where.local_size == 1) {
    devices[static_cast<std::size_t>(where.local_rank)] = find_gpu(host, p);
  }
  bind_cpus(host, where, binding, devices, p);
  return p;
}

/// A launcher's plan for one rank: a placement, or a sentence with the reason why there is none.
struct planned_rank {
  placement where{};
  std::string problem{};
};

/// Finds devices with more ranks than the policy allows.
inline void refuse_shared(std::vector<planned_rank>& ranks, int first_rank, int allowed) {
  char host_name[64] = {};
  static_cast<void>(::gethostname(host_name, sizeof host_name - 1));
  for (std::size_t i = 0; i != ranks.size(); ++i) {
    if (!ranks[i].where.device || !ranks[i].problem.empty()) continue;
    std::vector<int> same;
    std::vector<std::size_t> indices;
    for (std::size_t j = 0; j != ranks.size(); ++j) {
      if (ranks[j].where.device != ranks[i].where.device) continue;
      same.push_back(first_rank + static_cast<int>(j));
      indices.push_back(j);
    }
    const std::string problem = too_many_on(*ranks[i].where.device, host_name, same, allowed);
    if (problem.empty()) continue;
    for (const std::size_t j : indices) ranks[j].problem = problem;
  }
}

/// The placements of all ranks of this host, whose processes are not started yet; ranks count from `first_rank`. `host`
/// is the launcher's topology. `cores_each`: cores for a rank; 0: equal shares. If the policy does not mention CPUs,
/// the ranks get exclusive cores.
inline std::vector<planned_rank> plan_host(const topology& host, const parsed_pin& policy, int first_rank, int ranks,
                                           std::size_t cores_each = 0) {
  const cpu_binding binding = policy.cpus.value_or(cpu_binding::exclusive);
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<planned_rank> planned(count);
  std::vector<const gpu*> devices(count);
  const bool by_cpus = std::holds_alternative<pinning::numa_near>(policy.device) && binding == cpu_binding::exclusive;
  // A rank near to its CPUs gets these first: its process, which sees no others, comes to the same device.
  core_shares first;
  if (by_cpus) first = share_cores(host, devices, cores_each);
  const auto place_of = [&](std::size_t r) {
    return local_place{.rank = first_rank + static_cast<int>(r),
                       .local_rank = static_cast<int>(r),
                       .local_size = ranks,
                       .starting = true};
  };
  for (std::size_t r = 0; r != count; ++r) {
    try {
      topology own = host;
      if (!first.cpus.empty()) own.cpu_ids = first.cpus[r];
      planned[r].where = policy(own, place_of(r));
      if (!by_cpus) devices[r] = find_gpu(host, planned[r].where);
    } catch (const error& e) {
      planned[r].problem = sentence(e);
    }
  }
  refuse_shared(planned, first_rank, policy.max_ranks);
  for (std::size_t r = 0; r != count; ++r) bind_cpus(host, place_of(r), binding, devices, planned[r].where, cores_each);
  return planned;
}

}  // namespace hvd::inline HVD_ABI::detail
