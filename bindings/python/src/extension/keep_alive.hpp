// keep_alive.hpp: Python objects released by engine threads.
#pragma once

#include "gil.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hvd_python {

/// References waiting for a thread with the GIL to drop them. An engine thread never takes the GIL: it would wait for
/// any thread that computes in Python, and forever once the interpreter has ended.
class released_objects {
 public:
  /// Never destroyed: threads may still use it while the process ends.
  static released_objects& instance() { return *current(); }
  /// For a forked child, which gets its own one: a thread missing in the child may hold the lock.
  static void forget() { current() = new released_objects; }

  void add(PyObject* object) {
    const std::lock_guard lock(mutex_);
    objects_.push_back(object);
  }

  /// Drops the references. Needs the GIL.
  void drain() {
    std::vector<PyObject*> objects;
    {
      const std::lock_guard lock(mutex_);
      objects.swap(objects_);
    }
    stay_if_python_ends([&] {
      for (PyObject* const object : objects) Py_DECREF(object);
    });
  }

 private:
  static released_objects*& current() {
    static auto* all = new released_objects;
    return all;
  }

  std::mutex mutex_;
  std::vector<PyObject*> objects_;
};

/// A reference that any thread may drop. Needs the GIL.
inline std::shared_ptr<void> keep_alive(nanobind::handle object) {
  return {object.inc_ref().ptr(), [](void* p) { released_objects::instance().add(static_cast<PyObject*>(p)); }};
}

}  // namespace hvd_python
