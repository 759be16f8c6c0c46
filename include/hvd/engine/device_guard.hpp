// hvd/engine/device_guard.hpp: notices a lost rank while the thread that drives is stuck in a call of its device.
#pragma once

#include <hvd/shared_memory/futex.hpp>
#include <hvd/transport.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

namespace hvd::inline HVD_ABI::detail {

/// A call of a GPU's driver waits while another thread holds the context, for example in cudaFree. If that thread waits
/// for a collective whose peer is lost, all threads that use the GPU wait for ever, and none of them can end the
/// collective. The thread of this class calls no driver. It starts with the first call of the device, and sleeps while
/// there are none.
template <Probing T, class D>
class device_guard {
 public:
  /// The time in one call after which the ranks are checked: longer than the calls of a healthy GPU take, because a
  /// rank that has ended properly counts as lost.
  static constexpr std::chrono::milliseconds look_every{250};
  static constexpr int patience = 4;

  device_guard(T& control, D& device) : control_(control), device_(device) {}
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;
  ~device_guard() {
    stopping_.store(1);
    futex_wake_all(stopping_);
    calls_.fetch_add(2);
    futex_wake_all(calls_);
    if (thread_.joinable()) thread_.join();
  }

  /// The driving thread is in calls of the device, and uses the transport only through `check`.
  class scope {
   public:
    explicit scope(device_guard& guard) : guard_(guard) { guard.enter(); }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      const std::lock_guard lock(guard_.mutex_);
      guard_.calls_.fetch_add(1);
    }

   private:
    device_guard& guard_;
  };

  /// Throws if a rank is lost.
  void check() {
    const std::lock_guard lock(mutex_);
    control_.check();
  }
  /// Ends the device's work if the driving thread is in a call of the device. Any thread.
  void interrupt() noexcept {
    const std::lock_guard lock(mutex_);
    if (calls_.load() % 2 != 0) device_.interrupt();
  }

 private:
  void enter() {
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    calls_.fetch_add(1);
    if (asleep_.load()) futex_wake_all(calls_);
  }
  void serve() noexcept {
    std::uint32_t before = 0;
    for (int looks = 0; stopping_.load() == 0;) {
      const std::uint32_t now = calls_.load();
      const bool inside = now % 2 != 0, same = now == before;
      looks = inside && same ? looks + 1 : 0;
      if (looks >= patience) look(now);
      before = now;
      if (inside || !same) {
        futex_wait(stopping_, 0, look_every);
        continue;
      }
      asleep_.store(true);
      futex_wait(calls_, now, std::chrono::hours(1));
      asleep_.store(false);
    }
  }
  void look(std::uint32_t call) noexcept {
    const std::lock_guard lock(mutex_);
    if (calls_.load() != call) return;
    try {
      control_.check();
    } catch (const std::exception&) {
      device_.interrupt();
    }
  }

  T& control_;
  D& device_;
  std::mutex mutex_;                     // held while another thread than the driving one uses the transport
  std::atomic<std::uint32_t> calls_{0};  // odd in a call
  std::atomic<std::uint32_t> stopping_{0};
  std::atomic<bool> asleep_{false};
  std::thread thread_;
};

/// For a device that cannot be interrupted.
template <Probing T, class D>
  requires(!requires(D& d) { d.interrupt(); })
class device_guard<T, D> {
 public:
  device_guard(T& control, D& /*device*/) : control_(control) {}
  struct scope {
    explicit scope(device_guard& /*guard*/) noexcept {}
  };
  void check() { control_.check(); }
  void interrupt() noexcept {}

 private:
  T& control_;
};

}  // namespace hvd::inline HVD_ABI::detail
