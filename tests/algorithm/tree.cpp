// tests/algorithm/tree.cpp: the binomial tree over a transport that has send, recv and exchange.
#include <hvd/algorithm/tree.hpp>

#include <algorithm/point_to_point.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

using hvd::tree;
using hvd::test::few_chunks;
using hvd::test::matrix;
using hvd::test::matrix_product;
using hvd::test::QueueTransport;

static_assert(hvd::Answers<tree, QueueTransport, hvd::broadcast_call>);
static_assert(hvd::Answers<tree, QueueTransport, hvd::reduce_call>);
static_assert(hvd::Answers<tree, QueueTransport, hvd::allreduce_call>);
static_assert(hvd::Answers<tree, QueueTransport, hvd::gather_call>);
static_assert(hvd::Answers<tree, QueueTransport, hvd::scatter_call>);
static_assert(tree::rank_ordered);
static_assert(tree{.chunk_bytes = 5} == tree{.chunk_bytes = 5} && tree{.chunk_bytes = 5} != tree{});

TEST_CASE("tree says its tunables") { CHECK(name(tree{.chunk_bytes = 65536}) == "tree(chunk_bytes=65536)"); }

TEST_CASE("tree broadcast") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      for (const std::size_t count : hvd::test::element_counts) {
        for (const std::size_t chunk : {0U, 7U, 500U, 1U << 20}) {
          if (!few_chunks(count * sizeof(float), chunk, 1)) continue;
          hvd::test::check_broadcast<float>(t, tree{.chunk_bytes = chunk}, count, root);
        }
      }
    }
  });
}

TEST_CASE("tree reduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      for (const std::size_t count : hvd::test::element_counts) {
        if (root <= 2) {
          hvd::test::for_operations(
              [&]<class T>(T, const auto& op) { hvd::test::check_reduce<T>(t, tree{}, op, count, root); });
        }
        for (const std::size_t chunk : {0U, 500U, 1U << 20}) {
          if (!few_chunks(count * sizeof(float), chunk, sizeof(float))) continue;
          const tree how{.chunk_bytes = chunk};
          hvd::test::check_reduce<std::int64_t>(t, how, hvd::sum, count, root);
          hvd::test::check_reduce<matrix>(t, how, matrix_product{}, count, root);
          hvd::test::check_reduce<float>(t, how, hvd::scaled(hvd::sum, 2.0, 4.0), count, root);
        }
      }
    }
  });
}

TEST_CASE("tree allreduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t count : hvd::test::element_counts) {
      hvd::test::for_operations(
          [&]<class T>(T, const auto& op) { hvd::test::check_allreduce<T>(t, tree{}, op, count); });
      for (const std::size_t chunk : {0U, 33U, 500U}) {
        if (!few_chunks(count * sizeof(matrix), chunk, sizeof(matrix))) continue;
        hvd::test::check_allreduce<matrix>(t, tree{.chunk_bytes = chunk}, matrix_product{}, count);
        hvd::test::check_allreduce<float>(t, tree{.chunk_bytes = chunk}, hvd::scaled(hvd::sum, 2.0, 4.0), count);
      }
    }
  });
}

TEST_CASE("tree reduce and allreduce of many chunks") {
  for (const int p : {2, 5}) {
    hvd::test::on_ranks(p, [](QueueTransport& t) {
      const tree how{.chunk_bytes = 3000};
      hvd::test::check_allreduce<std::int64_t>(t, how, hvd::sum, hvd::test::large_count);
      hvd::test::check_reduce<matrix>(t, how, matrix_product{}, hvd::test::large_count, 1);
    });
  }
}

TEST_CASE("tree allreduce has the same bits on all ranks and in every run") {
  for (const int p : {2, 3, 8}) hvd::test::check_same_bits(p, tree{.chunk_bytes = 400}, 1000);
}

TEST_CASE("tree gather and scatter") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      hvd::test::for_partitions<float>(t, [&](const hvd::partition& blocks) {
        hvd::test::check_gather<float>(t, tree{}, blocks, root);
        hvd::test::check_scatter<float>(t, tree{}, blocks, root);
      });
    }
  });
}

TEST_CASE("tree sends what it says") {
  constexpr int p = 8;
  constexpr std::size_t count = 100;
  const auto reduced = hvd::test::traffic_of(p, [](QueueTransport& t) {
    const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, p);
    std::vector<float> x(count);
    auto* const bytes = reinterpret_cast<std::byte*>(x.data());
    tree{}(t, hvd::reduce_call{bytes, bytes, count, op, 3});
  });
  for (int r = 0; r != p; ++r) CHECK(reduced[static_cast<std::size_t>(r)].messages == (r == 3 ? 0 : 1));
  const auto spread = hvd::test::traffic_of(p, [](QueueTransport& t) {
    std::vector<std::byte> x(count);
    tree{}(t, hvd::broadcast_call{x.data(), x.data(), count, 3});
  });
  std::size_t messages = 0;
  for (const auto& s : spread) messages += s.messages;
  CHECK(messages == p - 1);
  CHECK(spread[3].bytes == 3 * count);
}
