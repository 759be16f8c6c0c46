// hvd/transport/simulated/events.hpp: the messages of a simulation and their next events; a part of simulated.hpp.
#pragma once

#include <hvd/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// A message, from `send` to `recv`, which is also its own next event. (One that only wakes rank `to` carries nothing.)
struct simulated_message {
  enum class stage : unsigned char { wakes, departs, arrives };
  stage next_is{};
  bool crossing = false;
  bool carries = false;  // its bytes
  int from = 0, to = 0;  // counted in the whole simulation
  std::uint32_t context = 0;
  std::size_t bytes = 0;
  double done = 0;  // when the last byte is received
  std::unique_ptr<std::byte[]> payload{};
  std::size_t room = 0;  // for payload
  simulated_message* behind = nullptr;
};

/// All messages, and a queue of those with a next event, ordered by virtual time.
class simulated_events {
 public:
  using message = simulated_message;
  struct event {
    double time;
    std::uint64_t number;  // equal times in the order in which they were queued
    message* what;
    bool operator<(const event& other) const noexcept {  // the earliest comes first out of a heap
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  /// An unused message. Its address never changes.
  message& fresh() {
    if (unused_ == nullptr) return messages_.emplace_back();
    message& m = *std::exchange(unused_, unused_->behind);
    m.behind = nullptr;
    return m;
  }
  /// Called when the message has been received.
  void drop(message& m) noexcept {
    if (m.room > kept_bytes) {
      m.payload.reset();
      m.room = 0;
    }
    m.behind = unused_;
    unused_ = &m;
  }

  void add(double time, message& m) {
    heap_.push_back({time, numbers_++, &m});
    std::push_heap(heap_.begin(), heap_.end());
  }
  [[nodiscard]] bool empty() const noexcept { return heap_.empty(); }
  [[nodiscard]] double first_time() const noexcept { return heap_.front().time; }
  event take() {
    std::pop_heap(heap_.begin(), heap_.end());
    const event e = heap_.back();
    heap_.pop_back();
    return e;
  }

 private:
  static constexpr std::size_t kept_bytes = 4096;  // of a message that is used again

  std::deque<message> messages_;
  message* unused_ = nullptr;
  std::vector<event> heap_;
  std::uint64_t numbers_ = 0;
};

}  // namespace hvd::inline HVD_ABI::detail
