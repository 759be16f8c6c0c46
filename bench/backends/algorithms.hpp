// bench/backends/algorithms.hpp: hvd's algorithms by name, with tunables.
#pragma once

#include <bench/backends/hvd.hpp>
#include <bench/job.hpp>
#include <bench/sizes.hpp>

#include <hvd/algorithm/automatic.hpp>

#include <cstddef>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace hvd::bench {

using any_algorithm =
    std::variant<automatic<>, direct, ring, tree, recursive_doubling, halving_doubling, double_tree, bruck>;
static_assert(std::size(algorithm_names) == std::variant_size_v<any_algorithm>, "a name for each, in this order");

/// Calls visit(name, reference) for each tunable of an algorithm.
template <class A, class Visit>
void each_tunable(A& a, Visit visit) {
  if constexpr (requires { a.one_shot_bytes; }) visit("one_shot_bytes", a.one_shot_bytes);
  if constexpr (requires { a.chunk_bytes; }) visit("chunk_bytes", a.chunk_bytes);
  if constexpr (requires { a.mapped_bytes; }) visit("mapped_bytes", a.mapped_bytes);
  if constexpr (requires { a.streaming_bytes; }) visit("streaming_bytes", a.streaming_bytes);
}

/// Their names, for messages: "one_shot_bytes, chunk_bytes".
template <class A>
std::string tunables_of(A a) {
  std::string names;
  each_tunable(a, [&](const char* name, auto&) { names += (names.empty() ? "" : ", ") + std::string(name); });
  return names;
}

/// Sets the tunable with this name; false if the algorithm does not have it.
template <class A>
bool set_tunable(A& a, std::string_view key, std::size_t value) {
  bool found = false;
  each_tunable(a, [&](std::string_view name, auto& tunable) {
    if (name == key) tunable = value, found = true;
  });
  return found;
}

/// "NAME" or "NAME:tunable=value,...". Throws std::runtime_error with a sentence.
inline any_algorithm parse_algorithm(std::string_view text) {
  const std::string_view head = text.substr(0, text.find(':'));
  any_algorithm a;
  const auto known = find<std::size_t>(algorithm_names, head.empty() ? algorithm_names[0] : head);
  if (!known) {
    std::string allowed;
    for (const std::string_view name : algorithm_names) allowed += (allowed.empty() ? "" : ", ") + std::string(name);
    throw std::runtime_error("there is no algorithm \"" + std::string(head) + "\"; allowed: " + allowed);
  }
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((I == *known ? static_cast<void>(a.emplace<I>()) : void()), ...);
  }(std::make_index_sequence<std::variant_size_v<any_algorithm>>());
  std::string_view rest = head.size() < text.size() ? text.substr(head.size() + 1) : std::string_view();
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size() < rest.size() ? item.size() + 1 : rest.size());
    const std::size_t equals = item.find('=');
    const std::optional<std::size_t> value =
        equals == std::string_view::npos ? std::nullopt : parse_size(item.substr(equals + 1));
    if (!value) {
      throw std::runtime_error("\"" + std::string(item) + "\" in --algorithm " + std::string(text) +
                               " is not tunable=BYTES; write NAME:tunable=64K,...");
    }
    const std::string_view key = item.substr(0, equals);
    if (!std::visit([&](auto& x) { return set_tunable(x, key, *value); }, a)) {
      const std::string allowed = std::visit([](const auto& x) { return tunables_of(x); }, a);
      throw std::runtime_error(std::string(head.empty() ? "automatic" : head) + " has no tunable \"" +
                               std::string(key) + "\"; allowed: " + (allowed.empty() ? "none" : allowed));
    }
  }
  return a;
}

}  // namespace hvd::bench
