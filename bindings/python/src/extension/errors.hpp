// errors.hpp: hvd::error as exceptions of Python.
#pragma once

#include <hvd/error.hpp>
#include <nanobind/nanobind.h>

#include <exception>
#include <string>

namespace hvd_python {

/// What an operation that had been submitted ended with: always HorovodInternalError.
struct failed_operation {
  hvd::error why;
};

/// With the GIL.
inline void set_internal_error(const hvd::error& e) {
  namespace nb = nanobind;
  try {
    const nb::object type = nb::module_::import_("hvd.exceptions").attr("HorovodInternalError");
    const nb::object value = type(e.what(), nb::str(std::string(hvd::name(e.kind())).c_str()), e.rank());
    PyErr_SetObject(type.ptr(), value.ptr());
  } catch (nb::python_error& other) {
    other.restore();  // a signal's exception that came in between
  }
}

/// A call that can never work is a ValueError; all else is a HorovodInternalError, which a restart might mend.
inline void translate(const std::exception_ptr& thrown, void* /*unused*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const failed_operation& e) {
    set_internal_error(e.why);
  } catch (const hvd::error& e) {
    if (e.kind() == hvd::error::invalid_argument)
      PyErr_SetString(PyExc_ValueError, e.what());
    else
      set_internal_error(e);
  }
}

}  // namespace hvd_python
