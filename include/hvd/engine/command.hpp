// hvd/engine/command.hpp: an engine's internal commands, which run at the same point in the order of operations on all
// ranks.
#pragma once

#include <hvd/engine/request.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// See Engine::add_process_set; the answer is its number.
struct add_process_set {
  static constexpr std::string_view name = "add_process_set";
  std::vector<int> ranks;
  [[nodiscard]] std::vector<std::size_t> numbers() const { return {ranks.begin(), ranks.end()}; }
};
/// See Engine::remove_process_set.
struct remove_process_set {
  static constexpr std::string_view name = "remove_process_set";
  int id;
  [[nodiscard]] std::vector<std::size_t> numbers() const { return {static_cast<std::size_t>(id)}; }
};
/// See Engine::alloc_bucket, and alloc_device_bucket.
struct alloc_bucket {
  static constexpr std::string_view name = "alloc_bucket";
  std::size_t bytes;
  memory_kind memory = memory_kind::host;
  [[nodiscard]] std::vector<std::size_t> numbers() const { return {bytes, static_cast<std::size_t>(memory)}; }
};

using command = std::variant<add_process_set, remove_process_set, alloc_bucket>;

/// The request by which ranks agree on a command: its name differs from all users' names, and its arguments form a
/// shape, so that ranks compare them.
inline request request_of(const command& c) {
  request r;
  r.kind = operation::split;
  tensor t;
  t.type = dtype::uint64;
  std::visit(
      [&](const auto& what) {
        r.name = joined({"engine: ", what.name});
        t.shape = what.numbers();
      },
      c);
  r.tensors.push_back(std::move(t));
  return r;
}

}  // namespace hvd::inline HVD_ABI::detail
