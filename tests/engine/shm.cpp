// The conformance body of the engine on processes.
#include <engine/conformance.hpp>

using namespace hvd::test;

namespace {

struct processes : on_processes {
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  static constexpr bool real_time = true, one_process = false;
};

}  // namespace

TEST_CASE("engine, processes: names of collectives in a timeline") {
  using names = hvd::detail::activities_on<hvd::ShmTransport>;
  CHECK(names::name(hvd::operation::allreduce) == std::string("SHM_ALLREDUCE"));
  CHECK(names::name(hvd::operation::allgather) == std::string("SHM_ALLGATHER"));
  CHECK(names::name(hvd::operation::broadcast) == std::string("SHM_BCAST"));
  CHECK(names::name(hvd::operation::reduce_scatter) == std::string("SHM_REDUCESCATTER"));
  CHECK(names::name(hvd::operation::alltoall) == std::string("SHM_ALLTOALL"));
  CHECK(hvd::detail::activities_on<hvd::SelfTransport>::name(hvd::operation::broadcast) == std::string("P2P_BCAST"));
}
TEST_CASE("engine, processes: every operation, type and reduction") { conformance_operations<processes>(); }
TEST_CASE("engine, processes: typed calls") { conformance_front_doors<processes>(); }
TEST_CASE("engine, processes: the same bits on all ranks") { conformance_same_bits<processes>(); }
TEST_CASE("engine, processes: another type on the wire") { conformance_wire<processes>(); }
TEST_CASE("engine, processes: adasum") { conformance_adasum<processes>(); }
TEST_CASE("engine, processes: shapes that change, priorities") { conformance_changes<processes>(); }
TEST_CASE("engine, processes: callbacks") { conformance_callbacks<processes>(); }
TEST_CASE("engine, processes: names that come again") { conformance_names<processes>(); }
TEST_CASE("engine, processes: refused at once, limits of waits") { conformance_refused_here<processes>(); }
TEST_CASE("engine, processes: mismatches") { conformance_mismatches<processes>(); }
TEST_CASE("engine, processes: join") { conformance_join<processes>(); }
TEST_CASE("engine, processes: process sets") { conformance_process_sets<processes>(); }
TEST_CASE("engine, processes: process sets do not wait for each other") { conformance_independent_sets<processes>(); }
TEST_CASE("engine, processes: several threads, two engines") { conformance_threads<processes>(); }
TEST_CASE("engine, processes: shutdown") { conformance_shutdown<processes>(); }
TEST_CASE("engine, processes: a rank that goes while others wait") { conformance_left<processes>(); }
TEST_CASE("engine, processes: 500 engines leave nothing behind") { conformance_again<processes>(3, 500); }
