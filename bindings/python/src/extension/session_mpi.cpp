// session_mpi.cpp: hvd._core_mpi, processes that an MPI connects, on one host or on several.

#include "errors.hpp"
#include "job.hpp"
#include "session_of.hpp"

#include <hvd/hierarchical.hpp>
#include <hvd/transport/mpi.hpp>
#include <hvd/transport/shm.hpp>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace {

namespace nb = nanobind;
using two_levels = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>;

/// Over a communicator, which lies at an address as mpi4py gives it; 0: all processes of the launch. Ranks of one host
/// share memory.
hvd_python::job connect(std::uintptr_t address) {
  const MPI_Comm over = address == 0 ? MPI_COMM_WORLD : *reinterpret_cast<const MPI_Comm*>(address);
  // The engine has a thread of its own, beside whatever the program does with MPI.
  hvd::MpiTransport world(over, {.thread_level = MPI_THREAD_MULTIPLE});
  return hvd_python::job(std::make_shared<hvd_python::session_of<two_levels>>(two_levels::over(std::move(world))));
}

}  // namespace

NB_MODULE(_core_mpi, m) {
  nb::module_::import_("hvd._core");  // which knows what a Job is
  nb::register_exception_translator(&hvd_python::translate);
  m.def("connect_mpi", &connect, nb::arg("communicator") = 0, nb::call_guard<nb::gil_scoped_release>());
  m.def("library", [] { return nb::str(hvd::detail::mpi_library_name().c_str()); });
}
