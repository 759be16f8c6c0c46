// callbacks.hpp: Python functions that are called when operations end.
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

/// Functions whose operations have ended, for the thread of Python that calls them. A thread of the engine only adds
/// to it: it never takes the GIL, so no callback holds up other operations.
class callbacks {
 public:
  /// Never destroyed: threads may still use it while the process ends.
  static callbacks& instance() { return *current()[0]; }
  /// Those of groups, which other threads call.
  static callbacks& of_groups() { return *current()[1]; }
  /// For a forked child, in which threads that it does not have may hold the lock: it gets its own.
  static void forget() { current() = {new callbacks, new callbacks}; }

  /// A function that `keep_alive` holds.
  void add(std::shared_ptr<void> function) {
    const std::lock_guard lock(mutex_);
    ready_.push_back(std::move(function));
    any_.notify_one();
  }

  /// Waits without the GIL for the next one, in the order in which operations have ended.
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
