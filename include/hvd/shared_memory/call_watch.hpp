// hvd/shared_memory/call_watch.hpp: a thread that looks on while another thread is in a call that may never return.
#pragma once

#include <hvd/shared_memory/futex.hpp>
#include <hvd/version.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// Watches the calls of one thread at a time. Its thread starts with the first call, and sleeps while there are none.
class call_watch {
 public:
  using duration = std::chrono::milliseconds;
  static constexpr duration look_every{250};

  /// `look(lasting)` is called by the watching thread, every 250 ms, while one call lasts, which does not end before
  /// `look` returns.
  explicit call_watch(std::function<void(duration lasting)> look) : look_(std::move(look)) {}
  call_watch(const call_watch&) = delete;
  call_watch& operator=(const call_watch&) = delete;
  ~call_watch() {
    if (!thread_.joinable()) return;
    if (owner_ != ::getpid()) {  // a forked child does not have it
      thread_.detach();
      return;
    }
    stopping_.store(1);
    futex_wake_all(stopping_);
    calls_.fetch_add(2);
    futex_wake_all(calls_);
    thread_.join();
  }

  /// The calling thread is in the call; not nested.
  class scope {
   public:
    /// Null: nobody watches.
    explicit scope(call_watch* by) : watch_(by) {
      if (watch_ != nullptr) watch_->enter();
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() { end(); }
    void end() noexcept {
      if (watch_ == nullptr) return;
      const std::lock_guard lock(watch_->mutex_);
      watch_->calls_.fetch_add(1);
      watch_ = nullptr;
    }

   private:
    call_watch* watch_;
  };

  /// Held while `look` runs.
  [[nodiscard]] std::mutex& mutex() noexcept { return mutex_; }
  [[nodiscard]] bool inside() const noexcept { return calls_.load() % 2 != 0; }

 private:
  void enter() {
    try {
      if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error&) {  // no more threads: nobody watches
    }
    calls_.fetch_add(1);
    if (asleep_.load()) futex_wake_all(calls_);
  }
  void serve() noexcept {
    std::uint32_t before = 0;
    for (int looks = 0; stopping_.load() == 0;) {
      const std::uint32_t now = calls_.load();
      const bool in_call = now % 2 != 0, same = now == before;
      looks = in_call && same ? looks + 1 : 0;
      if (looks != 0) {
        const std::lock_guard lock(mutex_);
        if (calls_.load() == now) look_(looks * look_every);
      }
      before = now;
      if (in_call || !same) {
        futex_wait(stopping_, 0, look_every);
        continue;
      }
      asleep_.store(true);
      futex_wait(calls_, now, std::chrono::hours(1));
      asleep_.store(false);
    }
  }

  std::function<void(duration)> look_;
  std::mutex mutex_;
  std::atomic<std::uint32_t> calls_{0};  // odd in a call
  std::atomic<std::uint32_t> stopping_{0};
  std::atomic<bool> asleep_{false};
  std::thread thread_;
  const pid_t owner_ = ::getpid();
};

}  // namespace hvd::inline HVD_ABI::detail
