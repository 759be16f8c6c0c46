// xla.hpp: the engine for programs that XLA has compiled, which call it without Python.
#pragma once

#include "session.hpp"

#include <nanobind/nanobind.h>

#include <memory>

namespace hvd_python {

/// Programs use this session from now on, for as long as its job holds it.
void publish(std::weak_ptr<session> current);

/// Adds register_xla and xla_failures to the module.
void define_xla(nanobind::module_& m);

}  // namespace hvd_python
