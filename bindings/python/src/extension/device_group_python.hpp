// device_group_python.hpp: the Python class DeviceGroup.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

void define_device_group(nanobind::module_& m);

}  // namespace hvd_python
