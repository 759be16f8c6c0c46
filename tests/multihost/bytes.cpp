// bytes MIB: the hierarchical allreduce of so many MiB; each rank says where it is and what its host sent.
#include <hvd/allreduce.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/transport/mpi.hpp>
#include <hvd/transport/shm.hpp>

#include <multihost/report.hpp>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>

using namespace hvd::test;

/// Instead of MPI's own: one rank comes late, as on a busy machine. MPICH's then hangs.
extern "C" int MPI_Finalize() {
  using clock = std::chrono::steady_clock;
  int rank = 0, unused = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (const auto end = clock::now() + std::chrono::milliseconds(200); rank == 0 && clock::now() < end;) {
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, &unused, MPI_STATUS_IGNORE);
  }
  return PMPI_Finalize();
}

int main(int argc, char** argv) try {
  if (argc != 2) throw std::invalid_argument("usage: bytes MIB");
  auto comm = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>::over(hvd::MpiTransport());
  float first = 1;  // whatever a first call does once, such as to measure, is not counted
  hvd::allreduce(comm, std::span(&first, 1));
  auto data = elements(static_cast<std::size_t>(std::atoi(argv[1])) << 18, comm.rank());
  const bool right = report(comm.local().rank(), comm.local().size(), data, [&] { hvd::allreduce(comm, data); });
  return right && first == static_cast<float>(comm.size()) ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "bytes: %s\n", e.what());
  return 1;
}
