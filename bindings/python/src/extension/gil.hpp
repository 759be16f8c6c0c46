// gil.hpp: the interpreter's lock. Once a thread ends Python, other threads may never get the lock again.
#pragma once

#include <nanobind/nanobind.h>

#include <unistd.h>

namespace hvd_python {

/// Calls f, which throws nothing itself but may take the GIL. When the interpreter has begun to end, Python before 3.14
/// ends a thread that takes the GIL with pthread_exit, which unwinds its stack. Frames of nanobind are noexcept, so the
/// process would abort. Instead, the thread waits here until the process is gone, as Python itself does since 3.14.
template <class F>
void stay_if_python_ends(const F& f) {
  try {
    f();
  } catch (...) {
    while (true) ::pause();
  }
}

/// Releases the GIL during its lifetime.
class released_gil {
 public:
  released_gil() : thread_(PyEval_SaveThread()) {}
  released_gil(const released_gil&) = delete;
  released_gil& operator=(const released_gil&) = delete;
  ~released_gil() {
    stay_if_python_ends([this] { PyEval_RestoreThread(thread_); });
  }

 private:
  PyThreadState* thread_;
};

}  // namespace hvd_python
