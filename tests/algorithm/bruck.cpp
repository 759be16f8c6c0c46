// tests/algorithm/bruck.cpp: over a transport that has only send, recv and exchange.
#include <hvd/algorithm/bruck.hpp>
#include <hvd/alltoall.hpp>

#include <algorithm/point_to_point.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using hvd::bruck;
using hvd::test::matrix;
using hvd::test::QueueTransport;

static_assert(hvd::Answers<bruck, QueueTransport, hvd::allgather_call>);
static_assert(hvd::Answers<bruck, QueueTransport, hvd::alltoall_call>);
static_assert(bruck{} == bruck{});

TEST_CASE("bruck says its name") { CHECK(name(bruck{}) == "bruck()"); }

TEST_CASE("bruck allgather") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    hvd::test::for_partitions<float>(
        t, [&](const hvd::partition& blocks) { hvd::test::check_allgather<float>(t, bruck{}, blocks); });
    hvd::test::for_partitions<matrix>(
        t, [&](const hvd::partition& blocks) { hvd::test::check_allgather<matrix>(t, bruck{}, blocks); });
  });
}

TEST_CASE("bruck alltoall") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t each : {0U, 1U, 2U, 9U, 64U, 333U}) {
      const hvd::partition floats(t.size(), each, sizeof(float));
      hvd::test::check_alltoall<float>(t, bruck{}, floats, floats);
      const hvd::partition matrices(t.size(), each, sizeof(matrix));
      hvd::test::check_alltoall<matrix>(t, bruck{}, matrices, matrices);
    }
  });
}

TEST_CASE("bruck refuses blocks of several lengths, on all ranks, and the group goes on") {
  hvd::test::on_ranks(3, [](QueueTransport& t) {
    const std::vector<std::size_t> counts{2, 2, 2};  // even if they are equal: nobody knows of the others'
    const std::vector<int> in(6);
    std::vector<int> out(6);
    try {
      hvd::alltoall_v(t, in, out, counts, counts, bruck{});
      FAIL_CHECK("was not refused");
    } catch (const hvd::error& e) {
      const std::string what = e.what();
      CHECK(e.kind() == hvd::error::unsupported);
      CHECK(what.find("rank " + std::to_string(t.rank()) + " of 3") != std::string::npos);
      CHECK(what.find("use ring") != std::string::npos);
    }
    const hvd::partition blocks(3, 5, sizeof(float));
    hvd::test::check_alltoall<float>(t, bruck{}, blocks, blocks);
  });
}

TEST_CASE("bruck sends what it says") {
  constexpr std::size_t each = 100;
  for (const int p : {2, 3, 5, 8, 11}) {
    CAPTURE(p);
    const auto steps = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(p - 1)));
    const hvd::partition blocks(p, each, 1);
    const auto gathered = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      std::vector<std::byte> x(blocks.total_bytes());
      bruck{}(t, hvd::allgather_call{x.data() + blocks.offset(t.rank()), x.data(), blocks});
    });
    for (const auto& s : gathered) {
      CHECK(s.bytes == static_cast<std::size_t>(p - 1) * each);
      CHECK(s.messages == steps);
    }
    const auto exchanged = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      std::vector<std::byte> x(blocks.total_bytes());
      bruck{}(t, hvd::alltoall_call{x.data(), x.data(), blocks, blocks});
    });
    std::size_t bits = 0;  // in all distances
    for (unsigned d = 1; d < static_cast<unsigned>(p); ++d) bits += static_cast<std::size_t>(std::popcount(d));
    for (const auto& s : exchanged) {
      CHECK(s.bytes == bits * each);
      CHECK(2 * s.bytes <= steps * blocks.total_bytes());
      CHECK(s.messages == steps);
    }
  }
}

TEST_CASE("bruck allgather of uneven blocks: as many messages, in which a rank's own block comes first") {
  constexpr int p = 5;
  const std::vector<std::size_t> counts{3, 0, 10, 1, 4};
  const hvd::partition blocks(counts, 1);
  const auto sent = hvd::test::traffic_of(p, [&](QueueTransport& t) {
    std::vector<std::byte> x(blocks.total_bytes());
    bruck{}(t, hvd::allgather_call{x.data() + blocks.offset(t.rank()), x.data(), blocks});
  });
  for (std::size_t r = 0; r != p; ++r) {
    CHECK(sent[r].bytes == 3 * counts[r] + counts[(r + 1) % p]);  // one block, two, and one
    CHECK(sent[r].messages == 3);
  }
}
