// pinning.hpp: GPUs and CPUs of ranks, for hvdrun and hvd.pin.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

/// Adds parse_pin, plan_placement, local_device and the class Pin to the module.
void define_pinning(nanobind::module_& m);

}  // namespace hvd_python
