// bytes MIB: the hierarchical allreduce of so many MiB; each rank says where it is and what its host sent.
#include <hvd/allreduce.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/transport/mpi.hpp>
#include <hvd/transport/shm.hpp>

#include <multihost/report.hpp>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <stdexcept>

using namespace hvd::test;

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
