// job.hpp: the session of a process, as the class Job of Python.
#pragma once

#include "errors.hpp"
#include "gil.hpp"
#include "keep_alive.hpp"
#include "session.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace hvd_python {

/// Functions are called with the GIL, and run without it. Not in an unnamed namespace: two modules know it.
class job {
 public:
  explicit job(std::shared_ptr<session> s) : session_(std::move(s)) {}

  /// f(session). Errors: ValueError once the job is closed.
  template <class F>
  auto run(const F& f) const {
    // A reference of its own: another thread may close the job meanwhile.
    const std::shared_ptr<session> s = session_;
    if (!s) throw closed_job();
    const released_gil released;
    return f(*s);
  }

  /// Other ranks that wait for this one learn of it. Other threads that are in a call get an error, and then let go of
  /// the session.
  void close() {
    std::shared_ptr<session> last = std::move(session_);
    {
      const released_gil released;
      if (last) last->shutdown();
      last.reset();
    }
    released_objects::instance().drain();
  }

  /// In the child of a fork, which has no part in the job: no thread, no place among the ranks. Nothing is destroyed.
  void forget() { new std::shared_ptr<session>(std::move(session_)); }

 private:
  std::shared_ptr<session> session_;
};

}  // namespace hvd_python
