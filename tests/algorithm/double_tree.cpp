// tests/algorithm/double_tree.cpp: two trees at once, over a transport that has only send, recv and exchange.
#include <hvd/algorithm/double_tree.hpp>

#include <algorithm/point_to_point.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

using hvd::double_tree;
using hvd::detail::two_trees;
using hvd::test::few_chunks;
using hvd::test::matrix;
using hvd::test::matrix_product;
using hvd::test::QueueTransport;

static_assert(hvd::Answers<double_tree, QueueTransport, hvd::broadcast_call>);
static_assert(hvd::Answers<double_tree, QueueTransport, hvd::reduce_call>);
static_assert(hvd::Answers<double_tree, QueueTransport, hvd::allreduce_call>);
static_assert(double_tree::rank_ordered);
static_assert(double_tree{.chunk_bytes = 5} == double_tree{.chunk_bytes = 5});
static_assert(double_tree{.chunk_bytes = 5} != double_tree{});

namespace {

/// The places of a subtree in the order in which they are combined.
void walk(const two_trees& trees, int tree, int place, std::vector<int>& order) {
  const auto below = trees.below(tree, place);
  if (below.left != 0) walk(trees, tree, below.left, order);
  order.push_back(place);
  if (below.right != 0) walk(trees, tree, below.right, order);
}

/// How many children a rank has, in both trees together: each gets half of the vector from it.
std::size_t edges_down(int size, int rank) {
  const two_trees trees(size);
  std::size_t edges = 0;
  for (const int tree : {0, 1}) {
    const auto below = trees.below(tree, rank);
    edges += (below.left != 0 ? 1U : 0U) + (below.right != 0 ? 1U : 0U);
  }
  return edges;
}

}  // namespace

TEST_CASE("double_tree says its tunables") {
  CHECK(name(double_tree{.chunk_bytes = 65536}) == "double_tree(chunk_bytes=65536)");
}

TEST_CASE("two trees: each has all places in order, and inside of one is a leaf of the other") {
  std::vector<int> sizes;
  for (int size = 1; size <= 70; ++size) sizes.push_back(size);
  for (const int more : {127, 128, 129, 1000, 1023, 1024}) sizes.push_back(more);
  for (const int size : sizes) {
    CAPTURE(size);
    const two_trees trees(size);
    std::vector<int> all(static_cast<std::size_t>(size));
    for (int v = 0; v != size; ++v) all[static_cast<std::size_t>(v)] = v;
    for (const int tree : {0, 1}) {
      std::vector<int> order;
      walk(trees, tree, 0, order);
      CHECK(order == all);
    }
    int wrong_parents = 0, inside_both = 0;
    for (int v = 1; v < size; ++v) {
      int trees_with_children = 0;
      for (const int tree : {0, 1}) {
        const auto siblings = trees.below(tree, trees.parent(tree, v));
        wrong_parents += siblings.left == v || siblings.right == v ? 0 : 1;
        const auto below = trees.below(tree, v);
        trees_with_children += below.left != 0 || below.right != 0 ? 1 : 0;
      }
      inside_both += trees_with_children == 2 ? 1 : 0;
    }
    CHECK(wrong_parents == 0);
    CHECK(inside_both == 0);
  }
}

TEST_CASE("two trees: in a step everybody sends to one and receives from one, and passes on only what it has") {
  for (int size = 2; size <= 300; ++size) {
    CAPTURE(size);
    const two_trees trees(size);
    std::set<std::pair<int, int>> sends, receives;  // of whom, in which of two alternating steps
    int too_early = 0, latest = 0;
    for (const int tree : {0, 1}) {
      for (int v = 1; v < size; ++v) {
        const int at = trees.arrival(tree, v);
        const int above = trees.parent(tree, v);
        sends.emplace(above, at % 2);
        receives.emplace(v, at % 2);
        too_early += above != 0 && at <= trees.arrival(tree, above) ? 1 : 0;
        latest = std::max(latest, at);
      }
    }
    CHECK(sends.size() == 2 * static_cast<std::size_t>(size - 1));
    CHECK(receives.size() == 2 * static_cast<std::size_t>(size - 1));
    CHECK(too_early == 0);
    CHECK(latest <= trees.depth());
    CHECK(latest <= 2 * std::bit_width(static_cast<unsigned>(size - 1)) + 1);  // 2 log2 p, and what the root adds
  }
}

TEST_CASE("double_tree broadcast") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      for (const std::size_t count : hvd::test::element_counts) {
        for (const std::size_t chunk : {0U, 7U, 500U, 1U << 20}) {
          if (!few_chunks(count * sizeof(float), chunk, 1)) continue;
          hvd::test::check_broadcast<float>(t, double_tree{.chunk_bytes = chunk}, count, root);
        }
      }
    }
  });
}

TEST_CASE("double_tree reduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      for (const std::size_t count : hvd::test::element_counts) {
        if (root <= 2) {
          hvd::test::for_operations(
              [&]<class T>(T, const auto& op) { hvd::test::check_reduce<T>(t, double_tree{}, op, count, root); });
        }
        for (const std::size_t chunk : {0U, 500U, 1U << 20}) {
          if (!few_chunks(count * sizeof(float), chunk, sizeof(float))) continue;
          const double_tree how{.chunk_bytes = chunk};
          hvd::test::check_reduce<std::int64_t>(t, how, hvd::sum, count, root);
          hvd::test::check_reduce<matrix>(t, how, matrix_product{}, count, root);
          hvd::test::check_reduce<float>(t, how, hvd::scaled(hvd::sum, 2.0, 4.0), count, root);
        }
      }
    }
  });
}

TEST_CASE("double_tree allreduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t count : hvd::test::element_counts) {
      hvd::test::for_operations(
          [&]<class T>(T, const auto& op) { hvd::test::check_allreduce<T>(t, double_tree{}, op, count); });
      for (const std::size_t chunk : {0U, 33U, 500U}) {
        if (!few_chunks(count * sizeof(matrix), chunk, sizeof(matrix))) continue;
        hvd::test::check_allreduce<matrix>(t, double_tree{.chunk_bytes = chunk}, matrix_product{}, count);
        hvd::test::check_allreduce<float>(t, double_tree{.chunk_bytes = chunk}, hvd::scaled(hvd::sum, 2.0, 4.0), count);
      }
    }
  });
}

TEST_CASE("double_tree of many chunks") {
  for (const int p : {2, 5, 12}) {
    hvd::test::on_ranks(p, [](QueueTransport& t) {
      const double_tree how{.chunk_bytes = 5000};
      hvd::test::check_allreduce<std::int64_t>(t, how, hvd::sum, hvd::test::large_count);
      hvd::test::check_reduce<matrix>(t, how, matrix_product{}, hvd::test::large_count, 1);
      hvd::test::check_broadcast<float>(t, how, hvd::test::large_count, 1);
    });
  }
}

TEST_CASE("double_tree allreduce has the same bits on all ranks and in every run") {
  for (const int p : {2, 3, 7, 8}) hvd::test::check_same_bits(p, double_tree{.chunk_bytes = 400}, 1000);
}

TEST_CASE("double_tree sends what it says") {
  constexpr std::size_t count = 1000;  // floats: 2000 bytes in each half, in 5 chunks
  const double_tree how{.chunk_bytes = 400};
  for (const int p : {2, 3, 8, 11}) {
    CAPTURE(p);
    const auto reduced = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, p);
      std::vector<float> x(count);
      auto* const bytes = reinterpret_cast<std::byte*>(x.data());
      how(t, hvd::reduce_call{bytes, bytes, count, op, 0});
    });
    const auto spread = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      std::vector<std::byte> x(4 * count);
      how(t, hvd::broadcast_call{x.data(), x.data(), x.size(), 0});
    });
    const auto both = hvd::test::traffic_of(p, [&](QueueTransport& t) {
      const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, p);
      std::vector<float> x(count);
      auto* const bytes = reinterpret_cast<std::byte*>(x.data());
      how(t, hvd::allreduce_call{bytes, bytes, count, op});
    });
    std::size_t edges = 0;
    for (int r = 0; r != p; ++r) {
      CAPTURE(r);
      const auto i = static_cast<std::size_t>(r);
      const std::size_t up = r == 0 ? 0 : 2, down = edges_down(p, r);
      CHECK(reduced[i].bytes == up * 2000);
      CHECK(reduced[i].messages == up * 5);
      CHECK(spread[i].bytes == down * 2000);
      CHECK(spread[i].messages == down * 5);
      CHECK(both[i].bytes == (up + down) * 2000);
      CHECK(both[i].messages == (up + down) * 5);
      CHECK(down <= 2);
      edges += down;
    }
    CHECK(edges == 2 * static_cast<std::size_t>(p - 1));
  }
}

TEST_CASE("double_tree: what does not commute goes to rank 0 and then to the root") {
  constexpr std::size_t count = 100;
  const auto sent = hvd::test::traffic_of(5, [&](QueueTransport& t) {
    const hvd::reduction op = hvd::make_reduction<matrix>(matrix_product{}, 5);
    std::vector<matrix> x(count, matrix{1, 0, 0, 1});
    auto* const bytes = reinterpret_cast<std::byte*>(x.data());
    double_tree{}(t, hvd::reduce_call{bytes, bytes, count, op, 3});
  });
  for (int r = 0; r != 5; ++r) {
    CHECK(sent[static_cast<std::size_t>(r)].bytes == count * sizeof(matrix));
    CHECK(sent[static_cast<std::size_t>(r)].messages == (r == 0 ? 1 : 2));
  }
}
