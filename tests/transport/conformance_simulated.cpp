// Sizes are few: what differs from other transports is who is woken when, not how bytes move.
#include <hvd/transport/simulated.hpp>

#include "conformance_algorithms.hpp"

using namespace hvd::test;

namespace {

struct on_simulated {
  using transport = hvd::SimulatedTransport;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4, 5, 8};
  /// Two ranks a host, and a shared uplink: messages of all kinds, some of which overtake others.
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& /*opts*/ = {}) {
    const hvd::network net{.ranks_per_host = 2, .uplink = 8e9};
    CHECK_NOTHROW(hvd::simulate(size, net, f));
  }
};

TEST_CASE("simulated: every collective at every threshold, 4 bytes an element") {
  conformance_collectives<on_simulated, std::int32_t, hvd::sum_t>(on_simulated::sizes, false);
}
TEST_CASE("simulated: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<on_simulated, affine, compose>({2, 3, 5, 8}, false);
}
TEST_CASE("simulated: every root") { conformance_roots<on_simulated>(); }
TEST_CASE("simulated: blocks of different sizes") { conformance_uneven_blocks<on_simulated>(); }
TEST_CASE("simulated: mixed collectives in random order") { conformance_random_order<on_simulated>(); }
TEST_CASE("simulated: groups of a group") { conformance_split<on_simulated>(); }
TEST_CASE("simulated: a limit for one call") { conformance_limit<on_simulated>(); }
TEST_CASE("simulated: messages") { conformance_messages<on_simulated>(); }
TEST_CASE("simulated: whether a message is there") { conformance_probing<on_simulated>(); }
TEST_CASE("simulated: barrier") { conformance_barrier<on_simulated>(); }
TEST_CASE("simulated: ring") {
  conformance_over_messages<on_simulated, std::int32_t, hvd::sum_t>(hvd::ring{.chunk_bytes = 1000});
}
TEST_CASE("simulated: tree") {
  conformance_over_messages<on_simulated, affine, compose>(hvd::tree{.chunk_bytes = 1000});
}
TEST_CASE("simulated: recursive doubling") {
  conformance_over_messages<on_simulated, affine, compose>(hvd::recursive_doubling{});
}
TEST_CASE("simulated: halving and doubling") {
  conformance_over_messages<on_simulated, affine, compose>(hvd::halving_doubling{});
}
TEST_CASE("simulated: two trees") {
  conformance_over_messages<on_simulated, affine, compose>(hvd::double_tree{.chunk_bytes = 1000});
}
TEST_CASE("simulated: Bruck's") { conformance_over_messages<on_simulated, affine, compose>(hvd::bruck{}); }
TEST_CASE("simulated: elements of any alignment") { conformance_alignment_over_messages<on_simulated>(); }
TEST_CASE("simulated: adasum") { conformance_adasum<on_simulated>(); }
TEST_CASE("simulated: the same bits over messages") { conformance_bits_over_messages<on_simulated>(); }

}  // namespace
