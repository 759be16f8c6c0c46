// hvd/shared_memory/wait_board.hpp: shows the rank for which each rank waits, so that a timeout names the rank at
// fault.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/shared_memory/layout.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hvd::inline HVD_ABI::detail {

/// One rank's view of the board. A rank may wait long for another only because that one waits itself.
class wait_board {
 public:
  /// `windows`: the window of rank 0; `stride`: bytes from one window to the next.
  wait_board(std::byte* windows, std::size_t stride, int rank, int size) noexcept
      : windows_(windows), stride_(stride), rank_(rank), size_(size) {}
  wait_board(const wait_board&) = delete;
  wait_board& operator=(const wait_board&) = delete;

  /// `begin`: this rank waits for `peer` from now on. `look`: it still waits. `end`: it no longer waits.
  void begin(int peer) noexcept {
    waiting_for_.store(peer, std::memory_order_relaxed);
    of(rank_).waits_for.store(static_cast<std::uint32_t>(peer + 1), std::memory_order_relaxed);
  }
  void look() noexcept { of(rank_).looks.fetch_add(1, std::memory_order_relaxed); }
  void end() noexcept { begin(-1); }
  /// The rank that this rank waits for, or -1. Any thread may call this.
  [[nodiscard]] int waiting_for() const noexcept { return waiting_for_.load(std::memory_order_relaxed); }

  /// The rank that holds up `peer`, for which this rank has waited too long: the first one in the chain of waits from
  /// `peer` on that does not wait itself. A rank that is stopped during a wait no longer calls `look`, and so does not
  /// count as waiting. If all of them wait, returns `peer`. Cost: up to 0.2 s for each rank of the chain.
  [[nodiscard]] int responsible(int peer) const noexcept {
    int at = peer;
    for (int hops = 0; hops != size_; ++hops) {
      const int next = static_cast<int>(of(at).waits_for.load(std::memory_order_relaxed)) - 1;
      if (next < 0 || next >= size_ || next == at || !looks_up(at)) return at;
      if (next == rank_) break;
      at = next;
    }
    return peer;
  }

 private:
  [[nodiscard]] wait_state& of(int r) const noexcept {
    return reinterpret_cast<control*>(windows_ + static_cast<std::size_t>(r) * stride_)->self.waits;
  }
  /// True if a rank is still waiting. Waiting ranks call `look` every millisecond, those of an engine every 50, if they
  /// get a CPU.
  [[nodiscard]] bool looks_up(int r) const noexcept {
    const std::uint32_t before = of(r).looks.load(std::memory_order_relaxed);
    backoff rest(paces::other_process);
    for (int i = 0; i != 200; ++i) {
      rest.step();
      if (of(r).looks.load(std::memory_order_relaxed) != before) return true;
    }
    return false;
  }

  std::byte* windows_;
  std::size_t stride_;
  int rank_, size_;
  std::atomic<int> waiting_for_{-1};
};

}  // namespace hvd::inline HVD_ABI::detail
