// hvd/pin/parse.hpp: parses a policy, from hvdrun, Python or HVD_PIN.
#pragma once

#include <hvd/config.hpp>
#include <hvd/error.hpp>
#include <hvd/pin/cpus.hpp>
#include <hvd/pin/named.hpp>
#include <hvd/pin/placement.hpp>
#include <hvd/pin/policies.hpp>
#include <hvd/topology.hpp>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace hvd::inline HVD_ABI {

/// A policy that is known at run time: for the device, for sharing it, and for the CPUs.
struct parsed_pin {
  using device_policy =
      std::variant<pinning::by_local_rank, pinning::none, pinning::round_robin, pinning::compact, pinning::scatter,
                   pinning::numa_near, pinning::list, pinning::from_scheduler, pinning::current>;
  device_policy device{};
  int max_ranks = 1;                  ///< on one device; 0: any number
  std::optional<cpu_binding> cpus{};  ///< nothing: not set. hvdrun then binds to exclusive cores, and `pin` does not

  placement operator()(const topology& host, local_place where) const {
    where.max_ranks = max_ranks;
    placement p = std::visit([&](const auto& policy) { return policy(host, where); }, device);
    p.max_ranks = max_ranks;
    return p;
  }

  /// The text from which `parse_pin` makes the same policy: "shared:2,list:GPU-89,GPU-8a".
  [[nodiscard]] std::string text() const {
    std::string all;
    if (max_ranks == 0) all += "shared,";
    if (max_ranks > 1) all += detail::joined({"shared:", max_ranks, ","});
    if (cpus) all += detail::joined({"cpus=", name(*cpus), ","});
    std::visit([&](const auto& policy) { all += policy.name; }, device);
    if (const auto* const devices = std::get_if<pinning::list>(&device)) all += ":" + devices->text();
    return all;
  }
};

namespace detail {

/// Sets the policy of this name, if there is one without parameters.
inline bool set_device_policy(parsed_pin& found, std::string_view policy) {
  const auto set = [&]<class P>(std::type_identity<P>) {
    if (policy != P::name) return false;
    if constexpr (std::is_same_v<P, pinning::from_scheduler>) {
      found.device = P::of_environment();
    } else {
      found.device = P{};
    }
    return true;
  };
  using namespace pinning;
  return set(std::type_identity<by_local_rank>{}) || set(std::type_identity<none>{}) ||
         set(std::type_identity<round_robin>{}) || set(std::type_identity<compact>{}) ||
         set(std::type_identity<pinning::scatter>{}) || set(std::type_identity<numa_near>{}) ||
         set(std::type_identity<from_scheduler>{}) || set(std::type_identity<current>{});
}

inline std::optional<cpu_binding> binding_named(std::string_view text) {
  for (const cpu_binding b : {cpu_binding::none, cpu_binding::numa, cpu_binding::exclusive}) {
    if (text == name(b)) return b;
  }
  return std::nullopt;
}

}  // namespace detail

/// A policy from text: parts with commas between them, each at most once, in any order.
///   by_local_rank (the default), round_robin, compact, scatter, numa_near, from_scheduler, current, none
///   list:A,B    ordinals, UUIDs or their beginnings, PCI addresses, MIG UUIDs, one for each local rank
///   exclusive (the default), shared, shared:N   ranks on one device
///   cpus=none, cpus=numa, cpus=exclusive
/// Else invalid_argument, which names the part that it does not know. `name`: whose value it is.
inline parsed_pin parse_pin(std::string_view text, std::string_view name = "pin") {
  constexpr std::string_view allowed =
      "by_local_rank, round_robin, compact, scatter, numa_near, list:A,B,..., from_scheduler, current or none, with "
      "exclusive, shared or shared:N, and cpus=none, cpus=numa or cpus=exclusive, with commas between them";
  const auto refuse = [&](const std::string& problem) { detail::refuse_value(name, text, problem, {allowed}); };
  parsed_pin found;
  bool device = false, sharing = false;
  pinning::list* names = nullptr;
  if (text.empty()) refuse(" is empty");
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = detail::take_part(rest, ',');
    if (part == "exclusive" || part == "shared" || part.starts_with("shared:")) {
      if (std::exchange(sharing, true)) refuse(" sets twice how many ranks share a device");
      found.max_ranks = part == "exclusive" ? 1
                        : part == "shared"  ? 0
                                            : parse_integer(name, part.substr(7), 1, std::numeric_limits<int>::max(),
                                                            "shared:N, N from 1");
    } else if (part.starts_with("cpus=")) {
      if (found.cpus) refuse(" sets twice which CPUs are bound");
      found.cpus = detail::binding_named(part.substr(5));
      if (!found.cpus) refuse(detail::joined({" has the unknown part \"", part, "\""}));
    } else if (part.starts_with("list:") && part.size() > 5) {
      if (std::exchange(device, true)) refuse(" names two policies");
      names = &found.device.emplace<pinning::list>();
      names->devices.emplace_back(part.substr(5));
    } else if (parsed_pin other; detail::set_device_policy(other, part)) {
      if (std::exchange(device, true)) refuse(" names two policies");
      found.device = std::move(other.device);
      names = nullptr;
    } else if (names != nullptr && !part.empty()) {
      names->devices.emplace_back(part);
    } else {
      refuse(detail::joined({" has the unknown part \"", part, "\""}));
    }
  }
  return found;
}

namespace detail {

/// The policy in HVD_PIN; by_local_rank if it is not set or empty.
inline parsed_pin pin_of_environment(const config::lookup& variable = variable_of_environment) {
  const std::optional<std::string> text = variable("HVD_PIN");
  return !text || text->empty() ? parsed_pin{} : parse_pin(*text, "HVD_PIN");
}

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
