// tcp.hpp: connecting processes by TCP.
#pragma once

#include <nanobind/nanobind.h>

namespace hvd_python {

/// TcpListener, accept_tcp and connect_tcp: see _core.pyi.
void define_tcp(nanobind::module_& m);

}  // namespace hvd_python
