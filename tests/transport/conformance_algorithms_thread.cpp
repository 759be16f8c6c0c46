#include "conformance_algorithms.hpp"

using namespace hvd::test;

TEST_CASE("threads: direct, every protocol") { conformance_direct<on_threads>(); }
TEST_CASE("threads: ring") {
  conformance_over_messages<on_threads, std::int32_t, hvd::sum_t>(hvd::ring{.chunk_bytes = 1000});
}
TEST_CASE("threads: tree") { conformance_over_messages<on_threads, affine, compose>(hvd::tree{.chunk_bytes = 1000}); }
TEST_CASE("threads: recursive doubling") {
  conformance_over_messages<on_threads, affine, compose>(hvd::recursive_doubling{});
}
TEST_CASE("threads: halving and doubling") {
  conformance_over_messages<on_threads, affine, compose>(hvd::halving_doubling{});
}
TEST_CASE("threads: two trees") {
  conformance_over_messages<on_threads, affine, compose>(hvd::double_tree{.chunk_bytes = 1000});
}
TEST_CASE("threads: Bruck's") { conformance_over_messages<on_threads, affine, compose>(hvd::bruck{}); }
TEST_CASE("threads: elements of any alignment") { conformance_alignment_in_common_memory<on_threads>(); }
TEST_CASE("threads: adasum") { conformance_adasum<on_threads>(); }
TEST_CASE("threads: the same bits by direct") { conformance_bits_of_direct<on_threads>(); }
TEST_CASE("threads: the same bits over messages") { conformance_bits_over_messages<on_threads>(); }
