// calls.hpp: calls from Python on groups: their arguments, and waits in which signals are handled.
#pragma once

#include "collective.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "memory.hpp"

#include <hvd/error.hpp>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace hvd_python {

/// The exception raised by a signal handler on this thread during a wait.
inline thread_local std::array<PyObject*, 3> raised_here{};

/// Runs the handlers of pending signals, as Python itself does on its main thread. The GIL is released.
inline bool interrupted_by_signal() {
  using clock = std::chrono::steady_clock;
  static thread_local clock::time_point next{};
  const clock::time_point now = clock::now();
  if (now < next) return false;
  next = now + std::chrono::milliseconds(50);
  bool raised = false;
  stay_if_python_ends([&] {
    const PyGILState_STATE state = PyGILState_Ensure();
    raised = PyErr_CheckSignals() != 0;
    if (raised) PyErr_Fetch(&raised_here[0], &raised_here[1], &raised_here[2]);
    PyGILState_Release(state);
  });
  return raised;
}

/// Calls f() without the GIL. Raises the exception of a signal handler that ran meanwhile, or HorovodInternalError for
/// a failed operation.
template <class F>
auto without_gil(const F& f) -> decltype(f()) {
  try {
    const released_gil released;
    return f();
  } catch (const hvd::error& e) {
    if (raised_here[0] != nullptr) {
      PyErr_Restore(raised_here[0], raised_here[1], raised_here[2]);
      raised_here = {};
      throw nanobind::python_error();
    }
    if (e.kind() == hvd::error_kind::invalid_argument) throw;
    throw failed_operation{e};
  }
}

/// Elements of each block if blocks differ.
using lengths = std::optional<nanobind::sequence>;

inline collective read(int kind, std::uintptr_t in, std::uintptr_t out, std::size_t count, int type, int op,
                       double factor, int root, const lengths& send, const lengths& recv) {
  collective c;
  c.kind = static_cast<hvd::operation>(kind);
  c.in = reinterpret_cast<const std::byte*>(in);
  c.out = reinterpret_cast<std::byte*>(out);
  c.count = count;
  c.type = static_cast<hvd::dtype>(type);
  c.op = static_cast<torch_op>(op);
  c.factor = factor;
  c.root = root;
  if (send) c.send = read_lengths(*send);
  if (recv) c.recv = read_lengths(*recv);
  return c;
}

}  // namespace hvd_python
