// hvd/pin.hpp: the choice of a rank's GPU and CPUs.
//
// A policy is a pure function from a topology and a place on the host to a placement; `pin` applies it:
//   const auto guard = hvd::pin(comm);                                  // HVD_PIN, or by local rank
//   const auto guard = hvd::pin(hvd::topology::discover(), hvd::pinning::scatter{}, hvd::cpu_binding::numa);
// Devices are identified by UUID and PCI address, because their numbers differ between processes, CUDA, nvidia-smi and
// schedulers. A host without a GPU is not an error until a device is requested; CPUs are bound there, too.
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

/// The placement that a policy chooses for this rank; nothing is pinned. A pure function of its arguments.
template <pin_policy Policy>
placement placement_of(const topology& host, const Policy& policy, const local_place& where,
                       cpu_binding cpus = cpu_binding::none) {
  return detail::place_rank(host, policy, where, cpus);
}
/// The same for a parsed policy, which may also choose the CPUs.
inline placement placement_of(const topology& host, const parsed_pin& policy, const local_place& where) {
  return detail::place_rank(host, policy, where, policy.cpus.value_or(cpu_binding::none));
}

/// Pins the calling thread, until the guard is destroyed. Call it early: existing threads stay where they are. Errors:
/// invalid_argument if the policy has no device for this rank (the message names the policy, the rank, the visible
/// devices and a remedy), system if the kernel or the driver refuses.
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
/// The same by HVD_PIN, which hvdrun --pin sets; by_local_rank if it is not set.
[[nodiscard]] inline PinGuard pin() { return pin(topology::discover(), detail::pin_of_environment()); }

/// The same for a rank of a transport. Works without a launcher as well, under fork_run and thread_run.
template <class Comm>
  requires requires(Comm& c) {
    { c.rank() } -> std::convertible_to<int>;
    { c.size() } -> std::convertible_to<int>;
  }
[[nodiscard]] PinGuard pin(Comm& comm) {
  return pin(topology::discover(), detail::pin_of_environment(), local_place::of(comm));
}

namespace detail {

/// The ordinal of a placement's device. Errors: unsupported, with the reason, if it has no device.
inline int ordinal_of(const placement& p) {
  if (p.ordinal < 0) fail(error_kind::unsupported, {"this rank has no GPU: ", p.reason});
  return p.ordinal;
}

}  // namespace detail

/// The ordinal of this rank's GPU, for cudaSetDevice: the device that the thread is pinned to, or else the one that
/// `pin()` would choose. Errors: unsupported, with the reason, if there is no GPU; those of `pin`.
inline int local_device() {
  return detail::ordinal_of(detail::pinned() ? *detail::pinned()
                                             : placement_of(topology::discover(), detail::pin_of_environment(),
                                                            local_place::of_environment()));
}

}  // namespace hvd::inline HVD_ABI
