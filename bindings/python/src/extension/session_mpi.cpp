// session_mpi.cpp: hvd._core_mpi, a job of processes that MPI connects, on one host or on several.

#include "errors.hpp"
#include "gil.hpp"
#include "job.hpp"
#include "session_of.hpp"

#include <hvd/hierarchical.hpp>
#include <hvd/transport/mpi.hpp>
#include <hvd/transport/shm.hpp>
#include <nanobind/nanobind.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>

#include <unistd.h>

namespace {

namespace nb = nanobind;
using two_levels = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>;

pid_t rank_process = 0;  // the process that is a rank: abort_if_failed ignores its forked children
int rank_of_process = -1;

/// Ends the job when a rank exits with an error. Ranks of other hosts do not notice such an exit, and MPICH's mpiexec
/// waits for them; only MPI_Abort makes it end them. Under hvdrun, which sets HOROVOD_RANK, guards watch the ranks.
void abort_if_failed(int status, void* /*unused*/) {
  int finalized = 0;
  if (status == 0 || ::getpid() != rank_process || std::getenv("HOROVOD_RANK") != nullptr) return;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  std::fprintf(stderr, "hvd: rank %d ends with exit code %d, and the job with it\n", rank_of_process, status);
  std::fflush(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // so that the abort does not outrun this rank's output
  MPI_Abort(MPI_COMM_WORLD, status);
}

/// Connects the ranks of the communicator at `address` (as mpi4py gives it), or all processes of the launch if that is
/// 0. Ranks of one host share memory.
hvd_python::job connect(std::uintptr_t address) {
  const MPI_Comm over = address == 0 ? MPI_COMM_WORLD : *reinterpret_cast<const MPI_Comm*>(address);
  // The engine calls MPI on a thread of its own, while the program may call it on others.
  hvd::MpiTransport world(over, {.thread_level = MPI_THREAD_MULTIPLE});
  rank_of_process = world.rank();
  if (std::exchange(rank_process, ::getpid()) == 0) ::on_exit(abort_if_failed, nullptr);
  return hvd_python::job(std::make_shared<hvd_python::session_of<two_levels>>(two_levels::over(std::move(world))));
}

}  // namespace

NB_MODULE(_core_mpi, m) {
  nb::module_::import_("hvd._core");  // it defines the class Job
  nb::register_exception_translator(&hvd_python::translate);
  m.def("connect_mpi", &connect, nb::arg("communicator") = 0, nb::call_guard<hvd_python::released_gil>());
  m.def("library", [] { return nb::str(hvd::detail::mpi_library_name().c_str()); });
}
