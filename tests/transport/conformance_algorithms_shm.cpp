#include "conformance_algorithms.hpp"

using namespace hvd::test;

TEST_CASE("processes: direct, every protocol") { conformance_direct<on_processes>(); }
TEST_CASE("processes: ring") {
  conformance_over_messages<on_processes, std::int32_t, hvd::sum_t>(hvd::ring{.chunk_bytes = 1000});
}
TEST_CASE("processes: tree") {
  conformance_over_messages<on_processes, affine, compose>(hvd::tree{.chunk_bytes = 1000});
}
TEST_CASE("processes: recursive doubling") {
  conformance_over_messages<on_processes, affine, compose>(hvd::recursive_doubling{});
}
TEST_CASE("processes: halving and doubling") {
  conformance_over_messages<on_processes, affine, compose>(hvd::halving_doubling{});
}
TEST_CASE("processes: two trees") {
  conformance_over_messages<on_processes, affine, compose>(hvd::double_tree{.chunk_bytes = 1000});
}
TEST_CASE("processes: Bruck's") { conformance_over_messages<on_processes, affine, compose>(hvd::bruck{}); }
TEST_CASE("processes: elements of any alignment") { conformance_alignment_in_common_memory<on_processes>(); }
TEST_CASE("processes: adasum") { conformance_adasum<on_processes>(); }
TEST_CASE("processes: the same bits by direct") { conformance_bits_of_direct<on_processes>(); }
TEST_CASE("processes: the same bits over messages") { conformance_bits_over_messages<on_processes>(); }
