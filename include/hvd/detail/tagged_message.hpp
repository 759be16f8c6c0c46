// hvd/detail/tagged_message.hpp: messages that are matched by their sender and a tag, not only by their order.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
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

/// Messages of a group of ranks, many in flight at once. They have their own way between the ranks, so that they never
/// wait for a collective. One thread at a time calls the functions, except for `wake` and `abort`.
class message_channel {
 public:
  message_channel() = default;
  message_channel(const message_channel&) = delete;
  message_channel& operator=(const message_channel&) = delete;
  virtual ~message_channel() = default;

  /// Begins a message. The caller has checked its peer: another rank of the group, or any_rank of one to be received.
  virtual void post(std::shared_ptr<tagged_message> message) = 0;
  /// True if nothing is in flight.
  [[nodiscard]] virtual bool idle() const noexcept = 0;
  /// Moves all data that can be moved now, without waiting. True if any was moved. Errors: those that have ended the
  /// group; `fail_all` then ends the messages.
  virtual bool progress() = 0;
  /// Waits until something can be moved, a deadline is over or `woken()`; may also return early. Errors: those of a
  /// wait in any collective.
  virtual void wait(function_ref<bool()> woken) = 0;
  /// Another thread ends the wait early: `woken()` is true by now.
  virtual void wake() noexcept = 0;
  /// Ends waits, current and future, with an error of kind aborted. Any thread.
  virtual void abort() noexcept = 0;
  /// Ends all messages with this error.
  virtual void fail_all(const error& why) = 0;
};

}  // namespace hvd::inline HVD_ABI::detail
