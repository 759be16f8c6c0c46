// tests/algorithm/ring.cpp: the ring's collectives over a transport that has send, recv and exchange.
#include <hvd/algorithm/ring.hpp>
#include <hvd/alltoall.hpp>
#include <hvd/launch.hpp>

#include <algorithm/point_to_point.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

using hvd::ring;
using hvd::test::few_chunks;
using hvd::test::QueueTransport;

static_assert(hvd::Answers<ring, QueueTransport, hvd::allreduce_call>);
static_assert(hvd::Answers<ring, QueueTransport, hvd::reduce_scatter_call>);
static_assert(hvd::Answers<ring, QueueTransport, hvd::allgather_call>);
static_assert(hvd::Answers<ring, QueueTransport, hvd::alltoall_call>);
static_assert(hvd::Answers<ring, QueueTransport, hvd::broadcast_call>);
static_assert(!ring::rank_ordered);
static_assert(ring{.chunk_bytes = 5} == ring{.chunk_bytes = 5} && ring{.chunk_bytes = 5} != ring{});

namespace {

// No element, less than an element, one and a bit, some, and all at once.
constexpr std::size_t chunks[] = {0, 3, 11, 100, std::size_t{1} << 20, ~std::size_t{0}};

}  // namespace

TEST_CASE("even blocks") {
  for (const std::size_t count : {0U, 1U, 2U, 7U, 8U, 9U, 64U, 1000U}) {
    for (const int parts : {1, 2, 3, 7, 8}) {
      const hvd::detail::even_blocks blocks(parts, count, 4);
      CHECK(blocks.start(0) == 0);
      CHECK(blocks.start(parts) == count);
      const std::size_t least = count / static_cast<std::size_t>(parts);
      for (int i = 0; i != parts; ++i) {
        CHECK(blocks.count(i) - least <= 1);
        CHECK(blocks.bytes(i) <= blocks.max_bytes());
      }
    }
  }
  const std::size_t huge = ~std::size_t{0} / 4;
  CHECK(hvd::detail::even_blocks(1024, huge, 4).start(1024) == huge);
}

TEST_CASE("the transport of these tests splits") {
  hvd::test::on_ranks(5, [](QueueTransport& t) {
    QueueTransport part = t.split(t.rank() % 2, -t.rank());  // 4 2 0 and 3 1
    const int size = t.rank() % 2 == 0 ? 3 : 2;
    CHECK(part.size() == size);
    CHECK(part.rank() == size - 1 - t.rank() / 2);
    part.barrier();
    hvd::test::check_allreduce<std::int64_t>(part, ring{}, hvd::sum, 10);
    t.barrier();
  });
}

TEST_CASE("ring says its tunables") { CHECK(name(ring{.chunk_bytes = 1 << 20}) == "ring(chunk_bytes=1048576)"); }

TEST_CASE("ring allreduce") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t count : hvd::test::element_counts) {
      hvd::test::for_operations(
          [&]<class T>(T, const auto& op) { hvd::test::check_allreduce<T>(t, ring{}, op, count); });
      for (const std::size_t chunk : chunks) {
        if (!few_chunks(count * 8, chunk, 8)) continue;
        hvd::test::check_allreduce<std::int64_t>(t, ring{.chunk_bytes = chunk}, hvd::sum, count);
        hvd::test::check_allreduce<float>(t, ring{.chunk_bytes = chunk}, hvd::scaled(hvd::sum, 2.0, 4.0), count);
      }
    }
  });
}

TEST_CASE("ring allreduce of many chunks") {
  for (const int p : {2, 3, 5}) {
    hvd::test::on_ranks(p, [](QueueTransport& t) {
      const ring how{.chunk_bytes = 1000};
      hvd::test::check_allreduce<std::int64_t>(t, how, hvd::sum, hvd::test::large_count);
      hvd::test::check_allreduce<float>(t, how, hvd::scaled(hvd::sum, 2.0, 4.0), hvd::test::large_count);
    });
  }
}

TEST_CASE("ring allreduce has the same bits on all ranks and in every run") {
  for (const int p : {2, 3, 8}) hvd::test::check_same_bits(p, ring{.chunk_bytes = 400}, 1000);
}

TEST_CASE("ring reduce_scatter") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    hvd::test::for_partitions<std::int64_t>(t, [&](const hvd::partition& blocks) {
      for (const std::size_t chunk : {0U, 24U, 1U << 20}) {
        const ring how{.chunk_bytes = chunk};
        if (!few_chunks(blocks.max_bytes(), chunk, 8)) continue;
        hvd::test::check_reduce_scatter<std::int64_t>(t, how, hvd::sum, blocks);
        hvd::test::check_reduce_scatter<std::int64_t>(t, how, hvd::average, blocks);
        hvd::test::check_reduce_scatter<std::int64_t>(t, how, hvd::scaled(hvd::sum, 3.0, 2.0), blocks);
      }
    });
  });
}

TEST_CASE("ring allgather") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    hvd::test::for_partitions<float>(
        t, [&](const hvd::partition& blocks) { hvd::test::check_allgather<float>(t, ring{}, blocks); });
  });
}

TEST_CASE("ring alltoall") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (const std::size_t each : {0U, 1U, 2U, 9U, 64U, 333U}) {
      const hvd::partition blocks(t.size(), each, sizeof(float));
      for (const std::size_t chunk : {0U, 100U, 1U << 20}) {
        if (!few_chunks(blocks.max_bytes(), chunk, 1)) continue;
        hvd::test::check_alltoall<float>(t, ring{.chunk_bytes = chunk}, blocks, blocks);
      }
    }
    // Rank i sends (i + 2 j) mod 5 elements, often none, to rank j.
    std::vector<std::size_t> send, recv;
    for (int j = 0; j != t.size(); ++j) {
      send.push_back(static_cast<std::size_t>((t.rank() + 2 * j) % 5));
      recv.push_back(static_cast<std::size_t>((j + 2 * t.rank()) % 5));
    }
    hvd::test::check_alltoall<std::int64_t>(t, ring{}, hvd::partition(send, 8), hvd::partition(recv, 8));
  });
}

TEST_CASE("ring broadcast") {
  hvd::test::on_all_sizes([](QueueTransport& t) {
    for (int root = 0; root != t.size(); ++root) {
      for (const std::size_t count : hvd::test::element_counts) {
        for (const std::size_t chunk : {0U, 7U, 500U, 1U << 20}) {
          if (!few_chunks(count * sizeof(float), chunk, 1)) continue;
          hvd::test::check_broadcast<float>(t, ring{.chunk_bytes = chunk}, count, root);
        }
      }
    }
  });
}

TEST_CASE("ring sends what it says") {
  constexpr int p = 5;
  constexpr std::size_t count = 1000;  // 200 on each rank
  const auto sent = hvd::test::traffic_of(p, [](QueueTransport& t) {
    const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, p);
    std::vector<float> x(count);
    auto* const bytes = reinterpret_cast<std::byte*>(x.data());
    ring{.chunk_bytes = 400}(t, hvd::allreduce_call{bytes, bytes, count, op});
  });
  for (const auto& s : sent) {
    CHECK(s.bytes == 2 * (p - 1) * 800);
    CHECK(s.messages == (p - 1) * 2 + (p - 1));
  }
}

TEST_CASE("ranks that disagree on the count find out") {
  for (const int other : {0, 3}) {
    const auto run = [&] {
      hvd::test::on_ranks(3, [&](QueueTransport& t) {
        const hvd::reduction op = hvd::make_reduction<float>(hvd::sum, 3);
        std::vector<float> x(9);
        auto* const bytes = reinterpret_cast<std::byte*>(x.data());
        ring{}(t, hvd::allreduce_call{bytes, bytes, static_cast<std::size_t>(t.rank() == 1 ? other : 9), op});
      });
    };
    CHECK_THROWS_AS(run(), hvd::error);
  }
}

TEST_CASE("alltoall: some ranks in place, others not") {
  constexpr std::size_t block = 100003;  // several chunks
  CHECK_NOTHROW(hvd::thread_run(3, [](hvd::ThreadTransport& comm) {
    const int r = comm.rank();
    std::vector<int> in(3 * block), out(3 * block);
    for (std::size_t i = 0; i != in.size(); ++i) in[i] = static_cast<int>(i) * 4 + r;
    std::vector<int>& result = r == 1 ? in : out;
    hvd::alltoall(comm, in, result, hvd::ring{.chunk_bytes = 4096});
    for (std::size_t i = 0; i != result.size(); ++i) {
      const std::size_t from = i / block, at = static_cast<std::size_t>(r) * block + i % block;
      if (result[i] != static_cast<int>(at) * 4 + static_cast<int>(from)) throw std::runtime_error("wrong element");
    }
  }));
}
