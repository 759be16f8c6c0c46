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
  const std::string kind(hvd::name(e.kind()));
  const nb::object type = nb::module_::import_("hvd.exceptions").attr("HorovodInternalError");
  const nb::object value = type(e.what(), kind, e.rank());
  PyErr_SetObject(type.ptr(), value.ptr());
}

/// A call that can never work is a ValueError, memory a MemoryError, all else is what a restart might mend.
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
