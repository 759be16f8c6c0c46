// hvd/detail/tagged_message.hpp: messages that are matched by their sender and a tag, not only by their order.
#pragma once

#include <hvd/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace hvd::inline HVD_ABI::detail {

/// A message to be sent or received. It stays alive, and so does its memory, until it is done.
struct tagged_message {
  using clock = std::chrono::steady_clock;
  static constexpr int any_rank = -1;

  bool sends = false;
  std::byte* data = nullptr;  ///< of a message to be sent only read
  std::size_t bytes = 0;
  int peer = any_rank;  ///< a rank; of a message to be received also any_rank
  std::int64_t tag = 0;
  clock::time_point deadline = clock::time_point::max();

  // The result.
  bool done = false;
  int source = any_rank;  ///< the rank that a received message came from
  std::optional<error> problem{};

  void end() noexcept { done = true; }
  void fail(const error& why) {
    problem = why;
    done = true;
  }
  /// True if it matches a message with this tag from this rank.
  [[nodiscard]] bool takes(int from, std::int64_t its_tag) const noexcept {
    return its_tag == tag && (peer == any_rank || peer == from);
  }
};

}  // namespace hvd::inline HVD_ABI::detail
