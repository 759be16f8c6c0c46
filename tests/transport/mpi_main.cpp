// The main function of doctest programs that mpiexec starts: one rank speaks, unless another has something to say.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <support/count_cases.hpp>
#include <transport/on_mpi.hpp>

#include <cstdio>
#include <sstream>

int main(int argc, char** argv) {
  // Starts MPI, for tests in which several threads use it.
  const auto mpi = hvd::MpiTransport::from_environment();
  const int rank = mpi.rank();
  int failed = 0;
  {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    doctest::Context context;
    context.applyCommandLine(argc, argv);
    context.setOption("no-skip", true);
    std::ostringstream said;
    if (rank == 0) {
      std::printf("%s, %d ranks\n", hvd::MpiTransport::library().c_str(), hvd::test::world().size());
    } else {
      context.setCout(&said);
      if (std::freopen("/dev/null", "w", stdout) == nullptr) return 1;
    }
    int mine = context.run();
    if (!hvd::test::any_case_ran()) mine = 1;
    if (mine != 0 && rank != 0) std::fprintf(stderr, "rank %d:\n%s", rank, said.str().c_str());
    MPI_Allreduce(&mine, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  // On several hosts hvd ends MPI, because MPICH's MPI_Finalize can hang there. Here it would not, because in some
  // tests a deadline passes.
  MPI_Comm here = MPI_COMM_NULL;
  int on_this_host = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &here);
  MPI_Comm_size(here, &on_this_host);
  MPI_Comm_free(&here);
  if (on_this_host == mpi.size()) MPI_Finalize();
  return failed;
}
