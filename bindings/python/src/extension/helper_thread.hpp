// helper_thread.hpp: when a group's own thread takes up work that the program's threads may do themselves.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace hvd_python {

/// A thread that does what nobody waits for. To wake it costs more than a small operation. Where the program has waited
/// at once for the last small one, it is not woken for the next, and looks by itself a little later. The mutex of its
/// group guards it.
class helper_thread {
 public:
  using lock = std::unique_lock<std::mutex>;
  using clock = std::chrono::steady_clock;

  /// Work was added. `run`: what the thread does, from the first work on.
  template <class Run>
  void added(bool small, const Run& run) {
    if (!thread_.joinable()) thread_ = std::thread(run);
    last_ = clock::now();
    if (!(small && waited_at_once_ && looks_)) work_.notify_one();
  }
  /// There is work that another thread has left.
  void left() {
    if (!looks_) work_.notify_one();
  }
  /// A thread of the program does the small work that was added last.
  void not_needed() { waited_at_once_ = true; }
  /// The group ends.
  void end() { work_.notify_all(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }

  /// In the thread: waits until there is work for it. `ready()`: there is some, and nobody does it. `urgent(now)`: it
  /// is not small, or has waited for long. False where `over()`.
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

  /// How often it looks, and how long after the last work.
  static constexpr std::chrono::microseconds look_every{100}, look_for{2000};

 private:
  std::condition_variable work_;
  std::thread thread_;
  bool looks_ = false;
  bool waited_at_once_ = false;
  clock::time_point last_{};
};

}  // namespace hvd_python
