// job.hpp: the session of a process as the Python class Job.
#pragma once

#include "errors.hpp"
#include "gil.hpp"
#include "keep_alive.hpp"
#include "session.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace hvd_python {

/// All functions need the GIL; run and close release it.
class job {
 public:
  explicit job(std::shared_ptr<session> s) : session_(std::move(s)) {}

  /// Calls f(session). Raises ValueError if the job is closed.
  template <class F>
  auto run(const F& f) const {
    // Its own reference: another thread may close the job meanwhile.
    const std::shared_ptr<session> s = session_;
    if (!s) throw closed_job();
    const released_gil released;
    return f(*s);
  }

  /// Shuts the session down. Ranks that wait for this one get an error. So do threads in a call, which then release the
  /// session.
  void close() {
    std::shared_ptr<session> last = std::move(session_);
    {
      const released_gil released;
      if (last) last->shutdown();
      last.reset();
    }
    released_objects::instance().drain();
  }

  /// For users of the session outside Python, while the job holds it.
  [[nodiscard]] std::weak_ptr<session> held() const { return session_; }

  /// For a forked child, which has none of the job's threads and is not a rank. Leaks the session instead of destroying
  /// it.
  void forget() { new std::shared_ptr<session>(std::move(session_)); }

 private:
  std::shared_ptr<session> session_;
};

}  // namespace hvd_python
