// hvd/queue/waiting.hpp: how threads of a program wait for a queue, and its end.
#pragma once

#include <hvd/error.hpp>
#include <hvd/handle.hpp>
#include <hvd/policy.hpp>
#include <hvd/queue/helper_thread.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// True on a thread of the program that does a queue's work while it waits: only there is the program asked for
/// interruptions.
inline thread_local bool waits_in_queue = false;

class waits_in_queue_scope {
 public:
  waits_in_queue_scope() : before_(std::exchange(waits_in_queue, true)) {}
  waits_in_queue_scope(const waits_in_queue_scope&) = delete;
  waits_in_queue_scope& operator=(const waits_in_queue_scope&) = delete;
  ~waits_in_queue_scope() { waits_in_queue = before_; }

 private:
  bool before_;
};

/// Work of one kind, which one thread at a time does: one of the program that waits for it, otherwise its own.
class queued_work : public waiting_room {
 public:
  using clock = std::chrono::steady_clock;

  queued_work(const interruption& by, const std::atomic<bool>& forked) : by_(by), forked_(forked) {}
  queued_work(const queued_work&) = delete;
  queued_work& operator=(const queued_work&) = delete;

  /// Waits until all work has ended, at most until `until`; true if it has. New work is refused from now on.
  bool close_until(clock::time_point until) noexcept {
    lock held(mutex_);
    closing_ = true;
    ended_.notify_all();
    helper_.end();
    return ended_.wait_until(held, until, [this] { return idle(); });
  }
  /// Waits for the threads.
  void join() noexcept {
    helper_.join();
    lock held(mutex_);
    ended_.wait(held, [this] { return !running_; });
  }

 protected:
  using lock = std::unique_lock<std::mutex>;
  static constexpr std::chrono::milliseconds slice{50};  // between questions to the program while another thread works

  [[nodiscard]] virtual bool idle() const noexcept = 0;

  /// A forked child has neither the threads nor the group, and a thread of the parent may hold the lock. So this is
  /// called before.
  void refuse_fork() const {
    if (forked_.load(std::memory_order_relaxed)) {
      fail(error_kind::invalid_argument,
           {"a queue: this process was forked from the one that made it; only that one may use it"});
    }
  }
  /// The caller, which has the lock, no longer does the work.
  void stop_running() {
    running_ = false;
    ended_.notify_all();
    if (closing_) helper_.end();  // it waits for the last work
  }
  void refuse_if_closing() const {
    if (closing_) throw error(error_kind::aborted, "this process has left the group, or is about to");
  }
  [[noreturn]] static void end_interrupted() { throw error(error_kind::aborted, "interrupted"); }
  /// Without the lock.
  [[nodiscard]] bool interrupted() const { return static_cast<bool>(by_); }
  /// Waits while another thread works, until `over()` or until `until`; false if that has come. Errors: aborted.
  template <class Over>
  bool sleep(lock& held, clock::time_point until, const Over& over) {
    const clock::time_point now = clock::now();
    if (now >= until) return false;
    ended_.wait_until(held, std::min(until, now + slice));
    if (over() || by_.wanted == nullptr) return true;
    held.unlock();
    const bool out = interrupted();
    held.lock();
    if (out) end_interrupted();
    return true;
  }
  /// The error of f(), if it has one.
  template <class F>
  static std::optional<error> attempt(const F& f) {
    try {
      f();
    } catch (const error& e) {
      return e;
    } catch (const std::exception& e) {
      return error(error_kind::no_memory, e.what());
    } catch (...) {
      return error(error_kind::no_memory, "an exception that does not derive from std::exception");
    }
    return std::nullopt;
  }

  const interruption by_;
  const std::atomic<bool>& forked_;
  std::mutex mutex_;
  std::condition_variable ended_;  // notified when work ends
  bool closing_ = false;
  bool running_ = false;  // a thread does the work
  helper_thread helper_;
};

}  // namespace hvd::inline HVD_ABI::detail
