// hvd/engine/progress.hpp: the choice of the thread that drives.
#pragma once

#include <hvd/shared_memory/futex.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// One thread at a time drives. If a thread waits for a result, it drives, so a call that is awaited at once needs no
/// switch between threads. Otherwise a thread of this class drives, which sleeps while there is nothing to do.
class progress {
 public:
  progress() = default;
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { join(); }

  /// Starts the thread: while `has_work()` and no other thread drives, it calls `drive()`.
  template <class HasWork, class Drive>
  void start(HasWork has_work, Drive drive) {
    thread_ = std::thread([this, has_work = std::move(has_work), drive = std::move(drive)] {
      while (!closing_.load()) {
        const std::uint32_t seen = calls_.load();
        if (has_work() && attempt(drive)) continue;
        asleep_.store(1);
        if (!closing_.load() && calls_.load() == seen) futex_wait(calls_, seen, std::chrono::hours(1));
        asleep_.store(0);
      }
    });
  }
  /// Drives, unless another thread drives.
  template <class Drive>
  bool attempt(const Drive& drive) {
    if (!driving_.try_lock()) return false;
    take(drive);
    return true;
  }
  /// Drives, once no other thread drives.
  template <class Drive>
  void insist(const Drive& drive) {
    driving_.lock();
    take(drive);
  }

  /// True if the calling thread drives, and so must not wait for progress.
  [[nodiscard]] bool mine() const noexcept { return driver_.load() == std::this_thread::get_id(); }
  /// True if any thread drives. After a thread has made something new visible, either the driving thread sees it, or
  /// this is false.
  [[nodiscard]] bool taken() const noexcept { return driven_.load(); }
  /// Makes the thread check for work.
  void wake() noexcept {
    calls_.fetch_add(1);
    if (asleep_.load() != 0) futex_wake_all(calls_);
  }

  [[nodiscard]] bool closing() const noexcept { return closing_.load(); }
  /// Sets `closing`; the thread ends when it stops driving.
  void close() noexcept {
    closing_.store(true);
    wake();
  }
  void join() {
    close();
    if (thread_.joinable()) thread_.join();
  }

 private:
  template <class Drive>
  void take(const Drive& drive) {
    const std::lock_guard lock(driving_, std::adopt_lock);
    driver_.store(std::this_thread::get_id());
    driven_.store(true);
    drive();
    driver_.store(std::thread::id());
    driven_.store(false);
  }

  std::mutex driving_;
  std::atomic<std::thread::id> driver_{};
  std::atomic<bool> driven_{false};
  std::atomic<bool> closing_{false};
  std::atomic<std::uint32_t> calls_{0};   // counts the reasons to check for work
  std::atomic<std::uint32_t> asleep_{0};  // 1 while the thread sleeps
  std::thread thread_;
};

}  // namespace hvd::inline HVD_ABI::detail
