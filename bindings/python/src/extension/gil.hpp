// gil.hpp: the interpreter's lock, which other threads may never get again once one ends Python.
#pragma once

#include <nanobind/nanobind.h>

#include <unistd.h>

namespace hvd_python {

/// Calls f, which throws nothing itself but may take the GIL. Once the interpreter ends, Python before 3.14 ends a
/// thread that takes the GIL by pthread_exit, which unwinds its stack. Frames of nanobind are noexcept, so the process
/// would abort. The thread stays here instead until the process is gone, as Python itself does from 3.14 on.
template <class F>
void stay_if_python_ends(const F& f) {
  try {
    f();
  } catch (...) {
    while (true) ::pause();
  }
}

/// The GIL is released while this lives.
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
