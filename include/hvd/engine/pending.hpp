// hvd/engine/pending.hpp: the batches that a device runs while the engine goes on.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/detail/keep_for_ever.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/engine/device.hpp>
#include <hvd/engine/device_guard.hpp>
#include <hvd/engine/erased_device.hpp>
#include <hvd/engine/negotiation.hpp>
#include <hvd/erased_transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The batches that a driver's device runs, in the order in which they were started; they end in that order. Only the
/// driving thread uses it, except that any thread may check that it is empty. Without a device it stays empty.
///
/// Its functions throw if the device or the transport reports a lost rank. The transport is asked if no batch has ended
/// for a while. If the device does not know which rank is lost, the transport gets a moment to name it.
class pending_batches {
 public:
  using clock = std::chrono::steady_clock;
  /// The transport is asked for lost ranks if no batch ends for this long. Longer within a round: the last message of a
  /// rank that has ended properly may still be in transit, through other ranks.
  static constexpr std::chrono::milliseconds quiet{50}, quiet_in_round{500};
  /// The time for batches that still finish although a rank is lost.
  static constexpr std::chrono::milliseconds last_chance{100};

  /// Called for each submission of a batch that has ended, with its error or null.
  using end_function = std::function<void(submission&, const error*)>;

  pending_batches(erased_transport& control, std::unique_ptr<erased_device> device, end_function end)
      : device_(std::move(device)), guard_(control, device_.get()), end_(std::move(end)) {}

  /// The engine's device; null in an engine without one.
  [[nodiscard]] erased_device* device() noexcept { return device_.get(); }
  [[nodiscard]] bool empty() const noexcept { return count_.load(std::memory_order_relaxed) == 0; }

  /// Connects a device that is connected only when it is first needed; collective, over the transport for data. If it
  /// fails, it fails on all ranks; returns the error.
  [[nodiscard]] std::optional<error> connect(erased_transport& data) {
    try {
      device_->connect(data);
    } catch (const error& e) {
      if (e.kind() == error_kind::peer_lost || e.kind() == error_kind::timeout) throw;
      return e;
    }
    return std::nullopt;
  }
  /// Starts a batch, whose submissions live until it has ended. An error of this batch is kept until its turn comes.
  void start(std::span<const work> works, const received_rows& rows, std::vector<std::shared_ptr<submission>> mine,
             const largest_number& largest) {
    device_->order(largest);
    if (all_.empty()) checked_ = clock::now();
    entry e{std::move(mine), nullptr, std::nullopt};
    const device_guard::scope calls(guard_);
    try {
      e.batch = device_->start(works, rows);
    } catch (const error& why) {
      check_device();
      e.problem.emplace(why);
    }
    all_.push_back(std::move(e));
    count_.store(all_.size(), std::memory_order_relaxed);
    looks_ = 0;
    nap_ = least_nap;
  }

  /// Ends the batches that are done. If no batch has been done for `longest`, asks the transport for lost ranks, unless
  /// `called()` is true: then another rank has begun a round.
  template <class Called>
  void poll(std::chrono::milliseconds longest, const Called& called) {
    if (all_.empty()) return;
    const bool any = end_all_done();
    const auto now = clock::now();
    if (any) {
      checked_ = now;
      looks_ = 0;
      nap_ = least_nap;
    } else if (now - checked_ >= longest && !called()) {
      checked_ = now;
      guard_.check();
    }
  }
  /// Ends the device's work if the driving thread is stuck in it: it is to end. Any thread.
  void interrupt() noexcept { guard_.interrupt(); }
  /// True for some polls after a batch was started or has ended: the next one may be done in a moment.
  bool spin() noexcept {
    if (all_.empty() || ++looks_ > most_looks) return false;
    cpu_pause();
    return true;
  }
  /// The time of the next poll, at `until` at the latest; less often the longer it lasts.
  clock::time_point next_look(clock::time_point until) noexcept {
    if (all_.empty()) return until;
    nap_ = std::min<std::chrono::microseconds>(nap_ * 5 / 4, std::chrono::milliseconds(1));
    return std::min(until, clock::now() + nap_);
  }

  /// Ends the batches that are done before `until`, and aborts the device if others are left. The caller ends the
  /// submissions of the others.
  void finish(clock::time_point until) noexcept {
    try {
      for (end_all_done(); !all_.empty() && clock::now() < until; end_all_done()) {
        nap(paces::gpu_end.sleep);
      }
    } catch (const std::exception&) {  // the device is lost as well
    }
    if (!all_.empty()) abort();
  }
  /// Ends all work of the device, for good. Memory that the device may use for ever is kept until the process
  /// ends.
  void abort() noexcept {
    const bool over = device_ == nullptr || std::exchange(aborted_, true) || device_->abort();
    for (entry& e : all_) {
      for (const auto& s : e.mine) {
        if (!over) keep_for_ever(s->what.keep, s->end);  // the tensors, and the results
      }
      if (!over) keep_for_ever(std::move(e.batch));
    }
    all_.clear();
    count_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr int most_looks = 200;
  static constexpr std::chrono::microseconds least_nap{20};
  static constexpr std::chrono::milliseconds to_name{500};  // the time for the transport to name a lost rank

  struct entry {
    std::vector<std::shared_ptr<submission>> mine;
    erased_device::pending batch;
    std::optional<error> problem;
  };

  bool end_all_done() {
    bool any = false;
    const auto front_ended = [&] {
      const device_guard::scope calls(guard_);
      return ended(all_.front());
    };
    while (!all_.empty() && front_ended()) {
      const entry done = std::move(all_.front());  // `end_` calls the program
      all_.pop_front();
      count_.store(all_.size(), std::memory_order_relaxed);
      for (const auto& s : done.mine) end_(*s, done.problem ? &*done.problem : nullptr);
      any = true;
    }
    return any;
  }
  bool ended(entry& e) {
    if (e.problem) return true;
    try {
      if (device_->poll(e.batch)) return true;
    } catch (const error& why) {
      check_device();
      e.problem.emplace(why);
      return true;
    }
    check_device();
    return false;
  }
  void check_device() {
    try {
      device_->check();
    } catch (const error& e) {
      const auto until = clock::now() + to_name;
      while (e.rank() < 0 && clock::now() < until) {
        guard_.check();
        nap(paces::other_process.sleep);
      }
      throw;
    }
  }

  const std::unique_ptr<erased_device> device_;
  device_guard guard_;
  const end_function end_;
  std::deque<entry> all_;
  std::atomic<std::size_t> count_{0};
  clock::time_point checked_{};  // when a batch was last seen to end, or the transport was asked
  int looks_ = 0;
  bool aborted_ = false;
  std::chrono::microseconds nap_ = least_nap;
};

}  // namespace hvd::inline HVD_ABI::detail
