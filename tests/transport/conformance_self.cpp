#include "conformance.hpp"

using namespace hvd::test;

TEST_CASE("alone: every collective, 4 bytes an element") {
  conformance_collectives<on_self, std::int32_t, hvd::sum_t>(on_self::sizes, true);
}
TEST_CASE("alone: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<on_self, affine, compose>(on_self::sizes, false);
}
TEST_CASE("alone: every root") { conformance_roots<on_self>(); }
TEST_CASE("alone: blocks of different sizes") { conformance_uneven_blocks<on_self>(); }
TEST_CASE("alone: several MiB") { conformance_large<on_self>(on_self::sizes); }
TEST_CASE("alone: mixed collectives in random order") { conformance_random_order<on_self>(); }
TEST_CASE("alone: groups of a group") { conformance_split<on_self>(); }
TEST_CASE("alone: a limit for one call") { conformance_limit<on_self>(); }
TEST_CASE("alone: messages") { conformance_messages<on_self>(); }
TEST_CASE("alone: whether a message is there") { conformance_probing<on_self>(); }
TEST_CASE("alone: barrier") { conformance_barrier<on_self>(); }
