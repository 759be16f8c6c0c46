// core_mpi.cpp: connects processes by MPI, on one host or several, for jobs and groups of hvd._core. The extension of
// each MPI is made of it, with the name HVD_MPI_MODULE; hvd._core_mpi chooses one.

#include "connected.hpp"
#include "errors.hpp"
#include "gil.hpp"

#include <hvd/hierarchical.hpp>
#include <hvd/transport/mpi.hpp>
#include <hvd/transport/shm.hpp>
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace {

namespace nb = nanobind;
using two_levels = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>;

pid_t rank_process = 0;  // the rank's process: abort_if_failed ignores its forked children
int rank_of_process = -1;

/// Ends the job when a rank exits with an error. Ranks on other hosts do not notice such an exit, and MPICH's mpiexec
/// waits for them until MPI_Abort is called. Under hvdrun, which sets HOROVOD_RANK, guards watch the ranks instead.
void abort_if_failed(int status, void* /*unused*/) {
  int finalized = 0;
  if (status == 0 || ::getpid() != rank_process || std::getenv("HOROVOD_RANK") != nullptr) return;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  std::fprintf(stderr, "hvd: rank %d ends with exit code %d, and the job with it\n", rank_of_process, status);
  std::fflush(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // so that the abort does not outrun this rank's output
  MPI_Abort(MPI_COMM_WORLD, status);
}

/// Enables abort_if_failed from now on.
void watch_exit(int rank) {
  rank_of_process = rank;
  if (std::exchange(rank_process, ::getpid()) == 0) ::on_exit(abort_if_failed, nullptr);
}

/// Connects the ranks of the communicator at `address` (from mpi4py), or all processes of the launch if it is 0. Ranks
/// of one host share memory.
nb::capsule connect(std::uintptr_t address) {
  const MPI_Comm over = address == 0 ? MPI_COMM_WORLD : *reinterpret_cast<const MPI_Comm*>(address);
  std::unique_ptr<hvd_python::connected> made;
  {
    const hvd_python::released_gil released;
    // The engine calls MPI on its own thread, while the program may call it on others.
    hvd::mpi_options options = hvd::mpi_options::from_environment();
    options.thread_level = MPI_THREAD_MULTIPLE;
    hvd::MpiTransport world(over, options);
    watch_exit(world.rank());
    two_levels ranks = two_levels::over(std::move(world));
    made = std::make_unique<hvd_python::connected>(hvd::any_transport(std::move(ranks)));
  }
  return hvd_python::in_capsule(std::move(made));
}

/// Rank and size among the processes of the launch.
nb::tuple find_world() {
  int rank = 0, size = 1;
  {
    const hvd_python::released_gil released;
    hvd::detail::mpi_process::start(MPI_THREAD_MULTIPLE);
    hvd::MpiTransport::require_threads("a process group");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }
  watch_exit(rank);
  return nb::make_tuple(rank, size);
}

/// A communicator of these ranks of the launch; only they call this. `number` distinguishes groups created at the same
/// time.
MPI_Comm join_ranks(const std::vector<int>& ranks, int number) {
  MPI_Group world = MPI_GROUP_NULL, part = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  int code = MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &part);
  if (code == MPI_SUCCESS) code = MPI_Comm_create_group(MPI_COMM_WORLD, part, number, &made);
  MPI_Group_free(&world);
  if (part != MPI_GROUP_NULL) MPI_Group_free(&part);
  if (code != MPI_SUCCESS)
    hvd::detail::fail(hvd::error_kind::system, {"MPI_Comm_create_group failed: ", hvd::detail::mpi_text(code)});
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  return made;
}

/// Connects ranks of several hosts for a group of torch.distributed.
nb::capsule connect_group(const std::vector<int>& ranks, int number, double timeout, bool check) {
  std::unique_ptr<hvd_python::connected> made;
  {
    const hvd_python::released_gil released;
    MPI_Comm joined = join_ranks(ranks, number);
    hvd::MpiTransport over(joined,
                           {.timeout = hvd::mpi_options::seconds(timeout), .thread_level = MPI_THREAD_MULTIPLE});
    MPI_Comm_free(&joined);
    auto options = two_levels::options::from_environment();
    if (check) options.sharing.failure.check = true;
    made = std::make_unique<hvd_python::connected>(hvd::any_transport(two_levels::over(std::move(over), options)));
  }
  return hvd_python::in_capsule(std::move(made));
}

}  // namespace

#define HVD_EXTENSION(name, m) NB_MODULE(name, m)  // which does not replace macros in a name
HVD_EXTENSION(HVD_MPI_MODULE, m) {
  nb::register_exception_translator(&hvd_python::translate);
  m.def("connect", &connect, nb::arg("communicator") = 0);
  m.def("world", &find_world);
  m.def("connect_group", &connect_group);
  m.def("library", [] { return nb::str(hvd::detail::mpi_library_name().c_str()); });
}
