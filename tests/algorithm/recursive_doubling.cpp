// tests/algorithm/recursive_doubling.cpp: over a transport that has only send, recv and exchange.
#include <hvd/algorithm/recursive_doubling.hpp>

#include <algorithm/point_to_point.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

using hvd::recursive_doubling;
using hvd::test::matrix;
using hvd::test::matrix_product;
using hvd::test::QueueTransport;

static_assert(hvd::Answers<recursive_doubling, QueueTransport, hvd::allreduce_call>);
static_assert(hvd::Answers<recursive_doubling, QueueTransport, hvd::allgather_call>);
static_assert(hvd::Answers<recursive_doubling, QueueTransport, hvd::scan_call>);
static_assert(hvd::Answers<recursive_doubling, QueueTransport, hvd::exscan_call>);
static_assert(recursive_doubling::rank_ordered);
static_assert(recursive_doubling{} == recursive_doubling{});

TEST_CASE("recursive_doubling says its name") { CHECK(name(recursive_doubling{}) == "recursive_doubling()"); }

TEST_CASE("recursive_doubling allreduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t count : hvd::test::element_counts) {
      hvd::test::for_operations(
          [&]<class T>(T, const auto& op) { hvd::test::check_allreduce<T>(t, recursive_doubling{}, op, count); });
      hvd::test::check_allreduce<matrix>(t, recursive_doubling{}, matrix_product{}, count);
    }
  });
}

TEST_CASE("recursive_doubling allreduce of many elements") {
  for (const int p : {4, 7}) {
    hvd::test::on_ranks(p, [](QueueTransport& t) {
      hvd::test::check_allreduce<std::int64_t>(t, recursive_doubling{}, hvd::sum, hvd::test::large_count);
    });
  }
}

TEST_CASE("recursive_doubling allreduce has the same bits on all ranks and in every run") {
  for (const int p : {2, 3, 7, 8}) hvd::test::check_same_bits(p, recursive_doubling{}, 1000);
}

TEST_CASE("recursive_doubling allgather") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    hvd::test::for_partitions<float>(
        t, [&](const hvd::partition& blocks) { hvd::test::check_allgather<float>(t, recursive_doubling{}, blocks); });
  });
}

TEST_CASE("recursive_doubling scan") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t count : hvd::test::element_counts) {
      hvd::test::for_operations(
          [&]<class T>(T, const auto& op) { hvd::test::check_scan<T>(t, recursive_doubling{}, op, count); });
      hvd::test::check_scan<matrix>(t, recursive_doubling{}, matrix_product{}, count);
    }
  });
}

TEST_CASE("recursive_doubling exscan") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t count : hvd::test::element_counts) {
      hvd::test::for_operations(
          [&]<class T>(T, const auto& op) { hvd::test::check_exscan<T>(t, recursive_doubling{}, op, count); });
      hvd::test::check_exscan<matrix>(t, recursive_doubling{}, matrix_product{}, count);
    }
  });
}

TEST_CASE("recursive_doubling sends what it says") {
  constexpr std::size_t count = 100;
  for (const int p : {5, 8}) {
    const auto reduced = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, p);
      std::vector<float> x(count);
      auto* const bytes = reinterpret_cast<std::byte*>(x.data());
      recursive_doubling{}(t, hvd::allreduce_call{bytes, bytes, count, op});
    });
    for (const auto& s : reduced) CHECK(s.bytes <= 3 * count * sizeof(float));
    const auto gathered = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      const hvd::partition blocks(p, count, 1);
      std::vector<std::byte> x(blocks.total_bytes());
      recursive_doubling{}(t, hvd::allgather_call{x.data() + blocks.offset(t.rank()), x.data(), blocks});
    });
    for (const auto& s : gathered) {
      CHECK(s.bytes == static_cast<std::size_t>(p - 1) * count);
      CHECK(s.messages <= (p == 8 ? 3 : 6));
    }
  }
}
