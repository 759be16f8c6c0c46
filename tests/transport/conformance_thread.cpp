#include "conformance.hpp"

using namespace hvd::test;

TEST_CASE("threads: every collective at every threshold, 4 bytes an element") {
  conformance_collectives<on_threads, std::int32_t, hvd::sum_t>(on_threads::sizes, true);
}
TEST_CASE("threads: every collective, single bytes") {
  conformance_collectives<on_threads, std::int8_t, hvd::sum_t>({2, 3, 8}, true);
}
TEST_CASE("threads: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<on_threads, affine, compose>({2, 3, 5, 8}, true);
}
TEST_CASE("threads: every root") { conformance_roots<on_threads>(); }
TEST_CASE("threads: blocks of different sizes") { conformance_uneven_blocks<on_threads>(); }
TEST_CASE("threads: several MiB") { conformance_large<on_threads>({2, 3, 8}); }
TEST_CASE("threads: more than the last-level cache") { conformance_streaming<on_threads>(); }
TEST_CASE("threads: mixed collectives in random order") { conformance_random_order<on_threads>(); }
TEST_CASE("threads: groups of a group") { conformance_split<on_threads>(); }
TEST_CASE("threads: a limit for one call") { conformance_limit_is_over<on_threads>(); }
TEST_CASE("threads: messages") { conformance_messages<on_threads>(); }
TEST_CASE("threads: whether a message is there") { conformance_probing<on_threads>(); }
TEST_CASE("threads: two groups in two threads") { conformance_two_threads<on_threads>({1, 2, 4}); }
TEST_CASE("threads: barrier") { conformance_barrier<on_threads>(); }
TEST_CASE("threads: calls compared, little memory") { conformance_options<on_threads>(); }
