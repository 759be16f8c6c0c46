// hvd/timeline/trace_ring.hpp: a queue of events, from many threads to the one thread that writes them to the file.
//
// A bounded queue after Dmitry Vyukov (bounded MPMC queue, 1024cores.net, 2010): each slot carries a number by which a
// thread sees whose turn it is, so that adding costs one compare-and-swap, and no thread waits for another.
#pragma once

#include <hvd/detail/cpu.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hvd::inline HVD_ABI::detail {

enum class trace_kind : std::uint8_t { begin, end, result, tick, cycle, step, wait, stall, round, members };

/// One event; refers to nothing but `activity`, which lives for ever, and `text`.
struct trace_event {
  static constexpr std::size_t most_dims = 5;  // as many as a slot of one cache line has room for

  std::uint32_t tensor = 0;
  trace_kind kind{};
  std::uint8_t type = 0;  // of a result: its dtype
  std::uint8_t dims = 0;  // of a result: its number of dimensions, of which `shape` has the first
  std::int64_t time = 0;  // nanoseconds of this host's steady clock
  union {
    const char* activity = nullptr;  // of a begin
    int rank;                        // of a tick
    std::uint64_t amount;            // of a step: its samples; of a wait: nanoseconds from `time` on
    std::string* text;               // of a stall, a round and members: owned by the event
    std::uint64_t shape[most_dims];  // of a result
  };

  /// The text that the event owns, if it has one; once.
  [[nodiscard]] std::unique_ptr<std::string> take_text() const {
    return std::unique_ptr<std::string>(kind >= trace_kind::stall ? text : nullptr);
  }
};

/// Any thread may push, one at a time may pop.
class trace_ring {
 public:
  /// Room for `capacity` events, a power of two; 64 bytes each.
  explicit trace_ring(std::uint32_t capacity) : slots_(new slot[capacity]), mask_(capacity - 1) {
    for (std::uint32_t i = 0; i != capacity; ++i) slots_[i].turn.store(i, std::memory_order_relaxed);
  }

  trace_ring(const trace_ring&) = delete;
  trace_ring& operator=(const trace_ring&) = delete;
  ~trace_ring() { clear(); }

  [[nodiscard]] std::uint32_t capacity() const noexcept { return mask_ + 1; }

  /// Adds an event and returns how many were added before it (modulo 2^32), or adds nothing if the ring is full.
  std::optional<std::uint32_t> push(const trace_event& e) noexcept {
    std::uint32_t at = added_.load(std::memory_order_relaxed);
    for (;;) {
      slot& s = slots_[at & mask_];
      const auto ahead = static_cast<std::int32_t>(s.turn.load(std::memory_order_acquire) - at);
      if (ahead < 0) return std::nullopt;
      if (ahead > 0) {
        at = added_.load(std::memory_order_relaxed);
      } else if (added_.compare_exchange_weak(at, at + 1, std::memory_order_seq_cst, std::memory_order_relaxed)) {
        s.event = e;
        s.turn.store(at + 1, std::memory_order_release);
        return at;
      }
    }
  }

  /// The oldest event. None if there is none, or if the thread that adds it is not done yet: see empty().
  std::optional<trace_event> pop() noexcept {
    slot& s = slots_[taken_ & mask_];
    if (s.turn.load(std::memory_order_acquire) != taken_ + 1) return std::nullopt;
    const trace_event e = s.event;
    s.turn.store(taken_ + capacity(), std::memory_order_release);
    ++taken_;
    return e;
  }

  /// For the thread that pops: discards all events.
  void clear() {
    while (const auto e = pop()) (void)e->take_text();
  }

  /// For the thread that pops: true if no thread has begun to add an event that was not popped. In the single order of
  /// sequentially consistent operations, so that a thread that adds afterwards also sees what this thread has stored
  /// before it asked.
  [[nodiscard]] bool empty() const noexcept { return added_.load(std::memory_order_seq_cst) == taken_; }

 private:
  struct alignas(cache_line) slot {
    std::atomic<std::uint32_t> turn;  // p: free for event p; p + 1: holds event p
    trace_event event;
  };
  static_assert(sizeof(slot) == cache_line);

  std::unique_ptr<slot[]> slots_;
  std::uint32_t mask_;
  alignas(cache_line) std::atomic<std::uint32_t> added_{0};
  alignas(cache_line) std::uint32_t taken_ = 0;
};

}  // namespace hvd::inline HVD_ABI::detail
