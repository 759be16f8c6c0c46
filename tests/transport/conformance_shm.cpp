#include "conformance.hpp"

using namespace hvd::test;

TEST_CASE("processes: every collective at every threshold, 4 bytes an element") {
  conformance_collectives<on_processes, std::int32_t, hvd::sum_t>(on_processes::sizes, true);
}
TEST_CASE("processes: every collective, single bytes") {
  conformance_collectives<on_processes, std::int8_t, hvd::sum_t>({2, 3, 8}, true);
}
TEST_CASE("processes: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<on_processes, affine, compose>({2, 3, 5, 8}, true);
}
TEST_CASE("processes: every root") { conformance_roots<on_processes>(); }
TEST_CASE("processes: blocks of different sizes") { conformance_uneven_blocks<on_processes>(); }
TEST_CASE("processes: several MiB") { conformance_large<on_processes>({2, 3, 8}); }
TEST_CASE("processes: more than the last-level cache") { conformance_streaming<on_processes>(); }
TEST_CASE("processes: mixed collectives in random order") { conformance_random_order<on_processes>(); }
TEST_CASE("processes: groups of a group") { conformance_split<on_processes>(); }
TEST_CASE("processes: a limit for one call") { conformance_limit<on_processes>(); }
TEST_CASE("processes: messages") { conformance_messages<on_processes>(); }
TEST_CASE("processes: whether a message is there") { conformance_probing<on_processes>(); }
TEST_CASE("processes: two groups in two threads") { conformance_two_threads<on_processes>({1, 2, 4}); }
TEST_CASE("processes: barrier") { conformance_barrier<on_processes>(); }
TEST_CASE("processes: calls compared, little memory") { conformance_options<on_processes>(); }
