// tests/algorithm/halving_doubling.cpp: over a transport that has only send, recv and exchange.
#include <hvd/algorithm/halving_doubling.hpp>

#include <algorithm/point_to_point.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

using hvd::halving_doubling;
using hvd::test::matrix;
using hvd::test::matrix_product;
using hvd::test::QueueTransport;

static_assert(hvd::Answers<halving_doubling, QueueTransport, hvd::allreduce_call>);
static_assert(hvd::Answers<halving_doubling, QueueTransport, hvd::reduce_call>);
static_assert(hvd::Answers<halving_doubling, QueueTransport, hvd::reduce_scatter_call>);
static_assert(hvd::Answers<halving_doubling, QueueTransport, hvd::broadcast_call>);
static_assert(halving_doubling::rank_ordered);
static_assert(halving_doubling{} == halving_doubling{});

TEST_CASE("halving_doubling says its name") { CHECK(name(halving_doubling{}) == "halving_doubling()"); }

TEST_CASE("halving_doubling allreduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t count : hvd::test::element_counts) {
      hvd::test::for_operations(
          [&]<class T>(T, const auto& op) { hvd::test::check_allreduce<T>(t, halving_doubling{}, op, count); });
      hvd::test::check_allreduce<matrix>(t, halving_doubling{}, matrix_product{}, count);
    }
  });
}

TEST_CASE("halving_doubling allreduce of many elements") {
  for (const int p : {4, 7}) {
    hvd::test::on_ranks(p, [](QueueTransport& t) {
      hvd::test::check_allreduce<std::int64_t>(t, halving_doubling{}, hvd::sum, hvd::test::large_count);
    });
  }
}

TEST_CASE("halving_doubling allreduce has the same bits on all ranks and in every run") {
  for (const int p : {2, 3, 7, 8}) hvd::test::check_same_bits(p, halving_doubling{}, 1000);
}

TEST_CASE("halving_doubling reduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      for (const std::size_t count : hvd::test::element_counts) {
        hvd::test::check_reduce<std::int64_t>(t, halving_doubling{}, hvd::sum, count, root);
        hvd::test::check_reduce<float>(t, halving_doubling{}, hvd::scaled(hvd::sum, 2.0, 4.0), count, root);
        hvd::test::check_reduce<float>(t, halving_doubling{}, hvd::average, count, root);
        hvd::test::check_reduce<matrix>(t, halving_doubling{}, matrix_product{}, count, root);
      }
    }
  });
}

TEST_CASE("halving_doubling reduce_scatter") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    hvd::test::for_partitions<std::int64_t>(t, [&](const hvd::partition& blocks) {
      hvd::test::check_reduce_scatter<std::int64_t>(t, halving_doubling{}, hvd::sum, blocks);
      hvd::test::check_reduce_scatter<std::int64_t>(t, halving_doubling{}, hvd::average, blocks);
      hvd::test::check_reduce_scatter<std::int64_t>(t, halving_doubling{}, hvd::scaled(hvd::sum, 3.0, 2.0), blocks);
    });
    hvd::test::for_partitions<matrix>(t, [&](const hvd::partition& blocks) {
      hvd::test::check_reduce_scatter<matrix>(t, halving_doubling{}, matrix_product{}, blocks);
    });
  });
}

TEST_CASE("halving_doubling broadcast") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      for (const std::size_t count : hvd::test::element_counts) {
        hvd::test::check_broadcast<float>(t, halving_doubling{}, count, root);
        hvd::test::check_broadcast<std::int8_t>(t, halving_doubling{}, count, root);
      }
    }
  });
}

TEST_CASE("halving_doubling broadcast of many elements") {
  for (const int p : {4, 7}) {
    hvd::test::on_ranks(p, [](QueueTransport& t) {
      hvd::test::check_broadcast<matrix>(t, halving_doubling{}, hvd::test::large_count, 2);
    });
  }
}

TEST_CASE("halving_doubling sends what it says") {
  constexpr std::size_t count = 1024;
  constexpr std::size_t bytes_each = count * sizeof(float);
  for (const int p : {8, 11}) {
    const auto sent = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, p);
      std::vector<float> x(count);
      auto* const bytes = reinterpret_cast<std::byte*>(x.data());
      halving_doubling{}(t, hvd::allreduce_call{bytes, bytes, count, op});
    });
    for (int r = 0; r != p; ++r) {
      const auto& s = sent[static_cast<std::size_t>(r)];
      const bool paired = r < 2 * (p - 8);
      const bool acts = !paired || r % 2 == 0;
      const std::size_t own = acts ? 2 * bytes_each * 7 / 8 : 0;
      const std::size_t for_pair = paired ? (acts ? bytes_each / 2 + bytes_each : bytes_each) : 0;
      CHECK(s.bytes == own + for_pair);
      CHECK(s.messages == (acts ? 6U : 0U) + (paired ? 2U : 0U));
    }
  }
}

TEST_CASE("halving_doubling broadcast sends what it says") {
  constexpr int root = 2;
  for (const int p : {2, 4, 5, 7, 8, 11, 16}) {
    CAPTURE(p);
    const auto each = std::size_t{6};  // bytes in a part
    const auto parts = static_cast<std::size_t>(p);
    const auto sent = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      std::vector<std::byte> x(parts * each);
      halving_doubling{}(t, hvd::broadcast_call{x.data(), x.data(), x.size(), root});
    });
    const auto steps = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(p - 1)));
    std::size_t all = 0, scattered = 0;
    for (const auto& s : sent) all += s.bytes;
    for (int v = 1; v < p; ++v) scattered += static_cast<std::size_t>(std::min(v & -v, p - v)) * each;
    // A place sends all parts but one in the second half, of which those to the root are left out: p - 1 as well.
    CHECK(all == scattered + (parts - 1) * (parts - 1) * each);
    CHECK(sent[root % parts].bytes == 2 * (parts - 1) * each);
    CHECK(sent[root % parts].messages == 2 * steps);
    for (const auto& s : sent) {
      CHECK(s.bytes <= 2 * (parts - 1) * each);
      CHECK(s.messages <= 3 * steps);  // parts around the end are two messages
    }
  }
}
