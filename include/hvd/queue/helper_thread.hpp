// hvd/queue/helper_thread.hpp: decides when a queue's own thread takes over work that the program's threads may do
// themselves.
#pragma once

#include <hvd/version.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// A thread for work that nobody waits for. Waking it costs more than a quick call. If the program waited at once for
/// the last quick call, the thread is not woken for the next one, and checks by itself a little later. Guarded by the
/// mutex of its owner.
class helper_thread {
 public:
  using lock = std::unique_lock<std::mutex>;
  using clock = std::chrono::steady_clock;

  /// Work was added. `run`: the thread's function; the first call starts the thread.
  template <class Run>
  void added(bool quick, const Run& run) {
    if (!thread_.joinable()) thread_ = std::thread(run);
    last_ = clock::now();
    if (!(quick && waited_at_once_ && looks_)) work_.notify_one();
  }
  /// Another thread has left work behind.
  void left() {
    if (!looks_) work_.notify_one();
  }
  /// A thread of the program does the last added quick work.
  void not_needed() { waited_at_once_ = true; }
  /// The owner ends.
  void end() { work_.notify_all(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  /// Called on the thread: waits for work. `ready()`: there is work, and nobody does it. `urgent(now)`: it is not
  /// quick, or has waited for long. Returns false if `over()`.
  template <class Ready, class Urgent, class Over>
  bool wait(lock& held, const Ready& ready, const Urgent& urgent, const Over& over) {
    while (!over()) {
      const auto now = clock::now();
      if (ready() && (!waited_at_once_ || urgent(now))) {
        waited_at_once_ = false;
        return true;
      }
      if (waited_at_once_ && now - last_ < look_for) {
        looks_ = true;
        work_.wait_for(held, look_every);
        looks_ = false;
      } else {
        work_.wait(held);
      }
    }
    return false;
  }

  /// The interval of its checks, and how long after the last work it makes them.
  static constexpr std::chrono::microseconds look_every{100}, look_for{2000};

 private:
  std::condition_variable work_;
  std::thread thread_;
  bool looks_ = false;
  bool waited_at_once_ = false;
  clock::time_point last_{};
};

}  // namespace hvd::inline HVD_ABI::detail
