// callbacks.hpp: Python functions called when operations end.
#pragma once

#include "gil.hpp"
#include "keep_alive.hpp"

#include <nanobind/nanobind.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace hvd_python {

/// Functions of ended operations, for the Python thread that calls them. Engine threads only add functions and never
/// take the GIL, so no callback delays other operations.
class callbacks {
 public:
  /// Never destroyed: threads may still use it while the process ends.
  static callbacks& instance() { return *current()[0]; }
  /// Callbacks of groups, called by other threads.
  static callbacks& of_groups() { return *current()[1]; }
  /// For a forked child, which gets its own one: a thread missing in the child may hold the lock.
  static void forget() { current() = {new callbacks, new callbacks}; }

  /// A function held by `keep_alive`.
  void add(std::shared_ptr<void> function) {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(function));
    any_.notify_one();
  }

  /// Waits without the GIL for the next function, in the order in which operations end.
  nanobind::object next() {
    std::shared_ptr<void> function;
    {
      const released_gil released;
      std::unique_lock lock(mutex_);
      any_.wait(lock, [this] { return !ready_.empty(); });
      function = std::move(ready_.front());
      ready_.pop_front();
    }
    nanobind::object next = nanobind::borrow(static_cast<PyObject*>(function.get()));
    function.reset();
    released_objects::instance().drain();
    return next;
  }

 private:
  static std::array<callbacks*, 2>& current() {
    static std::array<callbacks*, 2> all{new callbacks, new callbacks};
    return all;
  }

  std::mutex mutex_;
  std::condition_variable any_;
  std::deque<std::shared_ptr<void>> ready_;
};

}  // namespace hvd_python
