// tests/algorithm/direct.cpp: the tunables of direct: what they are, and that they change no bit of a result.
#include <hvd/algorithm/direct.hpp>

#include <hvd/allgather.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/alltoall.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/reduce_scatter.hpp>
#include <support/front_door.hpp>
#include <support/queue_transport.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

using namespace hvd::test;

namespace {

static_assert(std::is_aggregate_v<hvd::direct>);
static_assert(hvd::direct::rank_ordered);

// It answers everything, on common memory alone.
template <class T>
constexpr bool answers_all =
    hvd::Answers<hvd::direct, T, hvd::allreduce_call> && hvd::Answers<hvd::direct, T, hvd::reduce_call> &&
    hvd::Answers<hvd::direct, T, hvd::reduce_scatter_call> && hvd::Answers<hvd::direct, T, hvd::allgather_call> &&
    hvd::Answers<hvd::direct, T, hvd::broadcast_call> && hvd::Answers<hvd::direct, T, hvd::alltoall_call> &&
    hvd::Answers<hvd::direct, T, hvd::gather_call> && hvd::Answers<hvd::direct, T, hvd::scatter_call>;
static_assert(answers_all<hvd::ThreadTransport> && answers_all<hvd::ShmTransport>);
static_assert(!hvd::Answers<hvd::direct, hvd::SelfTransport, hvd::allreduce_call>);
static_assert(!hvd::Answers<hvd::direct, QueueTransport, hvd::broadcast_call>);

// Numbers whose sum depends on the order in its last bits.
std::vector<float> rough(int rank, std::size_t count) {
  std::vector<float> v(count);
  for (std::size_t i = 0; i != count; ++i) v[i] = std::sin(static_cast<float>(i) + 100.0f * static_cast<float>(rank));
  return v;
}
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("sizes are derived from ranks and caches alone") {
  using hvd::direct_sizes;
  constexpr std::size_t mib = std::size_t{1} << 20;
  static_assert(direct_sizes::derive(2, false, mib, 32 * mib) == direct_sizes{1024, 1024, 128 << 10, 1024, 12 * mib});
  CHECK(direct_sizes::derive(2, false, 2 * mib, 60 * mib).chunk_bytes == 256 << 10);
  CHECK(direct_sizes::derive(8, false, mib, 32 * mib) == direct_sizes{163, 1024, 64 << 10, 1024, 3 * mib});
  // Ranks that have to share CPUs save synchronisations.
  CHECK(direct_sizes::derive(4, true, mib, 32 * mib) == direct_sizes{4096, 4096, 64 << 10, 1024, 6 * mib});
  // Caches that nobody knows of.
  CHECK(direct_sizes::derive(2, false, 0, 0) == direct_sizes{1024, 1024, 64 << 10, 1024, 6 * mib});
  // A chunk has a page for each rank's slice.
  CHECK(direct_sizes::derive(256, false, mib, 32 * mib).chunk_bytes == mib);
  for (int p = 1; p != 5000; ++p) CHECK(direct_sizes::derive(p, p % 2 == 0, mib, mib).streaming_bytes > 0);
}

TEST_CASE("tunables by name, compared and printed") {
  CHECK(hvd::direct{} == hvd::direct{});
  const hvd::direct changed{.line_bytes = 128, .chunk_bytes = 4096};
  CHECK(changed != hvd::direct{});
  CHECK(changed.copy_line_bytes == hvd::direct{}.copy_line_bytes);
  CHECK(hvd::direct{.mapped_bytes = 1} != hvd::direct{});
  CHECK(name(hvd::direct{}) == "direct(line_bytes=0, copy_line_bytes=0, chunk_bytes=0, mapped_bytes=0, streaming_bytes=0)");
  CHECK(name(changed) == "direct(line_bytes=128, copy_line_bytes=0, chunk_bytes=4096, mapped_bytes=0, streaming_bytes=0)");
}

TEST_CASE("lines, cells and mapped memory give the same bits: the sum in rank order") {
  const hvd::direct in_lines{.line_bytes = 1 << 20};
  const hvd::direct in_cells{.line_bytes = 1, .mapped_bytes = std::size_t{1} << 40};
  const hvd::direct in_small_cells{.line_bytes = 1, .chunk_bytes = 64, .mapped_bytes = std::size_t{1} << 40};
  const hvd::direct mapped{.line_bytes = 1, .mapped_bytes = 1};
  for (const int ranks : {2, 3}) {
    hvd::thread_run(ranks, [&](hvd::ThreadTransport& comm) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{500}, std::size_t{2000}, std::size_t{30000}}) {
        std::vector<float> want = rough(0, count);
        for (int q = 1; q != comm.size(); ++q) {
          const std::vector<float> next = rough(q, count);
          for (std::size_t i = 0; i != count; ++i) want[i] += next[i];
        }
        CAPTURE(count);
        for (const hvd::direct& how : {hvd::direct{}, in_lines, in_cells, in_small_cells, mapped}) {
          CAPTURE(name(how));
          std::vector<float> v = rough(comm.rank(), count);
          hvd::allreduce(comm, v, hvd::sum, how);
          CHECK(same_bits(v, want));
          auto shared = comm.alloc_shared<float>(count);
          const std::vector<float> own = rough(comm.rank(), count);
          std::copy(own.begin(), own.end(), shared.begin());
          hvd::allreduce(comm, shared, hvd::sum, how);
          CHECK(same_bits({shared.begin(), shared.end()}, want));
        }
      }
    });
  }
}

TEST_CASE("tunables change no byte of what is copied") {
  const hvd::direct ways[] = {{.copy_line_bytes = 1 << 20}, {.copy_line_bytes = 1},
                              {.copy_line_bytes = 1, .chunk_bytes = 64}, {.copy_line_bytes = 1, .chunk_bytes = 4096}};
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    for (const std::size_t each : {std::size_t{1}, std::size_t{300}, std::size_t{5001}}) {
      for (const hvd::direct& how : ways) {
        CAPTURE(each);
        CAPTURE(name(how));
        std::vector<float> all(3 * each);
        hvd::allgather(comm, ramp(comm.rank(), each), all, how);
        CHECK(all == ramps(3, each));
        hvd::alltoall(comm, all, how);  // everybody's block of everybody's copy
        for (std::size_t q = 0; q != 3; ++q) CHECK(all[q * each] == static_cast<float>(comm.rank() + 1));
        hvd::broadcast(comm, all, 2, how);
        CHECK(all.front() == 3.0f);
        std::vector<float> block(each);
        hvd::reduce_scatter(comm, ramp(comm.rank(), 3 * each), block, hvd::sum, how);
        CHECK(block.back() == ramp_sum(3, 3 * each)[static_cast<std::size_t>(comm.rank() + 1) * each - 1]);
      }
    }
  });
}
