// The conformance body of the engine over MPI.
#include <transport/on_mpi.hpp>

#include <engine/conformance.hpp>

using namespace hvd::test;

namespace {

struct over_mpi : on_mpi {
  static constexpr std::initializer_list<int> sizes = {1, 2, 4};  // ranks spin while they wait inside of MPI
  static constexpr bool real_time = true;
};

}  // namespace

TEST_CASE("engine, MPI: every operation, type and reduction") { conformance_operations<over_mpi>(); }
TEST_CASE("engine, MPI: typed calls") { conformance_front_doors<over_mpi>(); }
TEST_CASE("engine, MPI: the same bits on all ranks") { conformance_same_bits<over_mpi>(); }
TEST_CASE("engine, MPI: another type on the wire") { conformance_wire<over_mpi>(); }
TEST_CASE("engine, MPI: adasum") { conformance_adasum<over_mpi>(); }
TEST_CASE("engine, MPI: shapes that change, priorities") { conformance_changes<over_mpi>(); }
TEST_CASE("engine, MPI: callbacks") { conformance_callbacks<over_mpi>(); }
TEST_CASE("engine, MPI: names that come again") { conformance_names<over_mpi>(); }
TEST_CASE("engine, MPI: refused at once, limits of waits") { conformance_refused_here<over_mpi>(); }
TEST_CASE("engine, MPI: mismatches") { conformance_mismatches<over_mpi>(); }
TEST_CASE("engine, MPI: join") { conformance_join<over_mpi>(); }
TEST_CASE("engine, MPI: process sets") { conformance_process_sets<over_mpi>(); }
TEST_CASE("engine, MPI: process sets do not wait for each other") { conformance_independent_sets<over_mpi>(); }
TEST_CASE("engine, MPI: several threads, two engines") { conformance_threads<over_mpi>(); }
TEST_CASE("engine, MPI: shutdown") { conformance_shutdown<over_mpi>(); }
