// hvd/pin.hpp: which GPU and which CPUs a rank uses.
//
// A policy is a pure function from a topology and a place on the host to a placement; `pin` applies it:
//   const auto guard = hvd::pin(comm);                                  // HVD_PIN, or by local rank
//   const auto guard = hvd::pin(hvd::topology::discover(), hvd::pinning::scatter{}, hvd::cpu_binding::numa);
// Devices are known by UUID and PCI address: their numbers differ between processes, CUDA, nvidia-smi and schedulers.
// A host without a GPU is no error until a device is asked for; CPUs are bound there all the same.
#pragma once

#include <hvd/error.hpp>
#include <hvd/pin/apply.hpp>
#include <hvd/pin/cpus.hpp>
#include <hvd/pin/exclusive.hpp>
#include <hvd/pin/named.hpp>
#include <hvd/pin/parse.hpp>
#include <hvd/pin/placement.hpp>
#include <hvd/pin/plan.hpp>
#include <hvd/pin/policies.hpp>
#include <hvd/topology.hpp>

#include <concepts>
#include <string_view>
#include <utility>

namespace hvd::inline HVD_ABI {

/// Where a policy puts this rank, without doing it. Pure: what it needs is in its arguments.
template <pin_policy Policy>
placement placement_of(const topology& host, const Policy& policy, const local_place& where,
                       cpu_binding cpus = cpu_binding::none) {
  return detail::place_rank(host, policy, where, cpus);
}
/// The same for a parsed policy, which may say what CPUs are bound.
inline placement placement_of(const topology& host, const parsed_pin& policy, const local_place& where) {
  return detail::place_rank(host, policy, where, policy.cpus.value_or(cpu_binding::none));
}

/// Pins the calling thread, until the guard is destroyed. Call it early: threads that exist already stay where they
/// are. Errors: invalid_argument where the policy has no device for this rank (the sentence names the policy, the rank,
/// what is visible and what to do), system where the kernel or the driver refuses.
template <pin_policy Policy>
[[nodiscard]] PinGuard pin(const topology& host, const Policy& policy, cpu_binding cpus = cpu_binding::none,
                           const local_place& where = local_place::of_environment()) {
  return PinGuard(placement_of(host, policy, where, cpus));
}
[[nodiscard]] inline PinGuard pin(const topology& host, const parsed_pin& policy,
                                  const local_place& where = local_place::of_environment()) {
  return PinGuard(placement_of(host, policy, where));
}
/// The same by the text of a policy, on this host: pin("numa_near,cpus=numa").
[[nodiscard]] inline PinGuard pin(std::string_view policy) { return pin(topology::discover(), parse_pin(policy)); }
/// The same by HVD_PIN, which hvdrun --pin sets; by_local_rank where it is not set.
[[nodiscard]] inline PinGuard pin() { return pin(topology::discover(), detail::pin_of_environment()); }

/// The same for a rank of a transport, also where no launcher says which rank this is: under fork_run and thread_run.
template <class Comm>
  requires requires(Comm& c) {
    { c.rank() } -> std::convertible_to<int>;
    { c.size() } -> std::convertible_to<int>;
  }
[[nodiscard]] PinGuard pin(Comm& comm) {
  return pin(topology::discover(), detail::pin_of_environment(), local_place::of(comm));
}

namespace detail {

/// Of a placement's device. Errors: unsupported, with the reason, where it has none.
inline int ordinal_of(const placement& p) {
  if (p.ordinal < 0) fail(error_kind::unsupported, {"this rank has no GPU: ", p.reason});
  return p.ordinal;
}

}  // namespace detail

/// The ordinal of this rank's GPU, for cudaSetDevice: of the device that the thread is pinned to, else of the one that
/// `pin()` would choose. Errors: unsupported, with the reason, where there is none; those of `pin`.
inline int local_device() {
  return detail::ordinal_of(detail::pinned() ? *detail::pinned()
                                             : placement_of(topology::discover(), detail::pin_of_environment(),
                                                            local_place::of_environment()));
}

}  // namespace hvd::inline HVD_ABI
