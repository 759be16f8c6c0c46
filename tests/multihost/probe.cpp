// probe allreduce MIB: MPI's own allreduce of so many MiB; each rank says where it is and what its host sent.
// probe die RANK: that rank is killed while the others wait for it.
#include <hvd/transport/mpi.hpp>

#include <multihost/report.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

using namespace hvd::test;

int main(int argc, char** argv) {
  const hvd::MpiTransport mpi;  // for its end: MPICH's own MPI_Finalize may hang here
  const int rank = mpi.rank();
  const std::string what = argc == 3 ? argv[1] : "";
  const int number = argc == 3 ? std::atoi(argv[2]) : 0;
  bool right = false;
  if (what == "allreduce") {
    MPI_Comm local = MPI_COMM_NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local);
    int local_rank = 0, local_size = 0;
    MPI_Comm_rank(local, &local_rank);
    MPI_Comm_size(local, &local_size);
    MPI_Comm_free(&local);
    auto data = elements(static_cast<std::size_t>(number) << 18, rank);
    right = report(local_rank, local_size, data, [&] {
      MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
  } else if (what == "die") {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == number) std::raise(SIGKILL);
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    std::fputs("usage: probe allreduce MIB | probe die RANK\n", stderr);
  }
  return right ? 0 : 1;
}
