// The conformance body of the engine on two levels: shared memory and MPI.
#include <hvd/hierarchical.hpp>
#include <hvd/transport/shm.hpp>

#include <transport/on_mpi.hpp>

#include <engine/conformance.hpp>

using namespace hvd::test;

namespace {

/// Two ranks a host, and an odd last one alone.
struct two_levels {
  static constexpr std::initializer_list<int> sizes = {2, 3, 4};
  static constexpr bool real_time = true;
  template <class F>
  static void run(int size, const F& f) {
    on_first(size, [&](MPI_Comm part) {
      hvd::MpiTransport all(part, {.timeout = long_deadline().failure.timeout});
      hvd::MpiTransport near = all.split(all.rank() / 2, all.rank());
      hvd::ShmTransport local(near, long_deadline());
      hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport> comm(std::move(all), std::move(local));
      f(comm);
    });
  }
};

static_assert(hvd::timeline_name_of<hvd::MpiTransport> == "MPI" &&
              hvd::timeline_name_of<hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>> == "MPI");

}  // namespace

TEST_CASE("engine, two levels: every operation, type and reduction") { conformance_operations<two_levels>(); }
TEST_CASE("engine, two levels: typed calls") { conformance_front_doors<two_levels>(); }
TEST_CASE("engine, two levels: the same bits on all ranks") { conformance_same_bits<two_levels>(); }
TEST_CASE("engine, two levels: another type on the wire") { conformance_wire<two_levels>(); }
TEST_CASE("engine, two levels: adasum") { conformance_adasum<two_levels>(); }
TEST_CASE("engine, two levels: shapes that change, priorities") { conformance_changes<two_levels>(); }
TEST_CASE("engine, two levels: callbacks") { conformance_callbacks<two_levels>(); }
TEST_CASE("engine, two levels: refused at once, limits of waits") { conformance_refused_here<two_levels>(); }
TEST_CASE("engine, two levels: mismatches") { conformance_mismatches<two_levels>(); }
TEST_CASE("engine, two levels: join") { conformance_join<two_levels>(); }
TEST_CASE("engine, two levels: process sets") { conformance_process_sets<two_levels>(); }
TEST_CASE("engine, two levels: process sets do not wait for each other") { conformance_independent_sets<two_levels>(); }
TEST_CASE("engine, two levels: several threads, two engines") { conformance_threads<two_levels>(); }
TEST_CASE("engine, two levels: shutdown") { conformance_shutdown<two_levels>(); }
