// errors.hpp: hvd::error as Python exceptions.
#pragma once

#include "gil.hpp"

#include <hvd/error.hpp>
#include <nanobind/nanobind.h>

#include <exception>
#include <string>

namespace hvd_python {

/// The error of a submitted operation. Always becomes HorovodInternalError.
struct failed_operation {
  hvd::error why;
};

/// A call on a job that this process has left.
struct closed_job {};

/// Raises the exception returned by `function` of hvd.core.state. Needs the GIL.
template <class... A>
void raise(const char* function, const char* format, const A&... arguments) {
  stay_if_python_ends([&] {
    PyObject* const state = PyImport_ImportModule("hvd.core.state");
    PyObject* const value = state != nullptr ? PyObject_CallMethod(state, function, format, arguments...) : nullptr;
    // Without a value, another exception is already set, perhaps by a signal handler that ran meanwhile.
    if (value != nullptr) PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
    Py_XDECREF(value);
    Py_XDECREF(state);
  });
}

inline void raise_internal_error(const hvd::error& e) {
  raise("internal_error", "ssi", e.what(), std::string(hvd::name(e.kind())).c_str(), e.rank());
}

/// A call that can never work becomes a ValueError. All other errors become HorovodInternalError, because a restart may
/// help.
inline void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const failed_operation& e) {
    raise_internal_error(e.why);
  } catch (const closed_job&) {
    raise("outside_job", nullptr);
  } catch (const hvd::error& e) {
    if (e.kind() == hvd::error::invalid_argument)
      PyErr_SetString(PyExc_ValueError, e.what());
    else
      raise_internal_error(e);
  }
}

}  // namespace hvd_python
