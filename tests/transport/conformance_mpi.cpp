// The conformance body over MPI, by hvd's algorithms and by MPI's own. Thinner than elsewhere: MPI's ranks spin while
// they wait, and there are more of them than CPUs.
#include <transport/on_mpi.hpp>

#include <transport/conformance_algorithms.hpp>

#include <hvd/algorithm/native.hpp>

using namespace hvd::test;

namespace {

/// Everything by MPI's own collectives.
template <class Run>
void conformance_native(std::initializer_list<int> sizes, const std::vector<std::size_t>& thresholds) {
  for (const int size : sizes) {
    const auto counts = counts_around(thresholds, size, sizeof(std::int32_t));
    with_checkers<Run, std::int32_t, hvd::sum_t>(counts.back(),
                                                 [&](auto& check, auto& comm) {
                                                   sweep(check, counts, comm.rank(), sizeof(std::int32_t), false);
                                                   run_random(check, comm.rank(), 31, 100, counts.back());
                                                 },
                                                 hvd::native{}, {size});
  }
}

}  // namespace

TEST_CASE("MPI: every collective, 4 bytes an element") {
  conformance_collectives<on_mpi, std::int32_t, hvd::sum_t>(on_mpi::sizes, false);
}
TEST_CASE("MPI: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<on_mpi, affine, compose>({2, 3, 4}, false);
}
TEST_CASE("MPI: every root") { conformance_roots<on_mpi>(); }
TEST_CASE("MPI: blocks of different sizes") { conformance_uneven_blocks<on_mpi>(); }
TEST_CASE("MPI: several MiB") { conformance_large<on_mpi>({2, 4}); }
TEST_CASE("MPI: mixed collectives in random order") { conformance_random_order<on_mpi>(); }
TEST_CASE("MPI: groups of a group") { conformance_split<on_mpi>(); }
TEST_CASE("MPI: a limit for one call") { conformance_limit<on_mpi>(); }
TEST_CASE("MPI: messages") { conformance_messages<on_mpi>(); }
TEST_CASE("MPI: whether a message is there") { conformance_probing<on_mpi>(); }
TEST_CASE("MPI: two groups in two threads") {
  int given = MPI_THREAD_SINGLE;
  MPI_Query_thread(&given);
  if (given < MPI_THREAD_MULTIPLE) return skip("this MPI has no MPI_THREAD_MULTIPLE");
  conformance_two_threads<on_mpi>({2, 4});
}

TEST_CASE("MPI: nobody leaves a barrier before everybody has come") {
  for (const int size : on_mpi::sizes) {
    CAPTURE(size);
    on_first(size, [&](MPI_Comm part) {
      const common_words arrivals(part, size);
      hvd::MpiTransport comm(part);
      for (std::uint64_t round = 1; round != 200; ++round) {
        if (round % 16 == 0 && round / 16 % static_cast<unsigned>(size) == static_cast<unsigned>(comm.rank())) {
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        arrivals[comm.rank()].store(round, std::memory_order_relaxed);
        hvd::barrier(comm);
        for (int r = 0; r != size; ++r) {
          require(arrivals[r].load(std::memory_order_relaxed) >= round, "a barrier did not wait for everybody");
        }
      }
    });
  }
}

TEST_CASE("MPI: ring") { conformance_over_messages<on_mpi, std::int32_t, hvd::sum_t>(hvd::ring{.chunk_bytes = 1000}); }
TEST_CASE("MPI: tree") { conformance_over_messages<on_mpi, affine, compose>(hvd::tree{.chunk_bytes = 1000}); }
TEST_CASE("MPI: recursive doubling") { conformance_over_messages<on_mpi, affine, compose>(hvd::recursive_doubling{}); }
TEST_CASE("MPI: halving and doubling") { conformance_over_messages<on_mpi, affine, compose>(hvd::halving_doubling{}); }
TEST_CASE("MPI: two trees") {
  conformance_over_messages<on_mpi, affine, compose>(hvd::double_tree{.chunk_bytes = 1000});
}
TEST_CASE("MPI: Bruck's") { conformance_over_messages<on_mpi, affine, compose>(hvd::bruck{}); }
TEST_CASE("MPI: elements of any alignment") { conformance_alignment_over_messages<on_mpi>(); }
TEST_CASE("MPI: adasum") { conformance_adasum<on_mpi>(); }
TEST_CASE("MPI: the same bits over messages") { conformance_bits_over_messages<on_mpi>(); }

TEST_CASE("MPI: its own collectives") { conformance_native<on_mpi>({2, 3, 4}, {64, 4096, 70000}); }
TEST_CASE("MPI: its own collectives, several MiB") {
  with_checkers<on_mpi, std::int32_t, hvd::sum_t>(75011,
                                                  [&](auto& check, auto&) {
                                                    for (const bool in_place : {false, true}) {
                                                      const variant v{placement::apart, in_place, check.size() - 1, 3};
                                                      check.all(75011, v);
                                                      check.all_uneven(75011, 0, v);
                                                    }
                                                  },
                                                  hvd::native{}, {2, 4});
}
TEST_CASE("MPI: its own collectives, in pieces as counts beyond 2^31 are") {
  conformance_native<on_mpi_by<100>>({2, 3, 4}, {56, 1024, 5000});
  conformance_native<on_mpi_by<1>>({3}, {56});
}
TEST_CASE("MPI: messages in pieces") { conformance_messages<on_mpi_by<1000>>(); }
TEST_CASE("MPI: its own collectives give the same bits") {
  conformance_same_bits<on_mpi, float>(std::vector<hvd::native>(1), false);
}
