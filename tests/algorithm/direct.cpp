// tests/algorithm/direct.cpp: the tunables of direct: what they are, and that they change no bit of a result.
#include <hvd/algorithm/direct.hpp>

#include <hvd/allgather.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/alltoall.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/gather.hpp>
#include <hvd/reduce.hpp>
#include <hvd/reduce_scatter.hpp>
#include <hvd/scatter.hpp>
#include <support/front_door.hpp>
#include <support/queue_transport.hpp>
#include <support/require.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
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
  static_assert(direct_sizes::derive(2, false, mib, 32 * mib) == direct_sizes{32 << 10, 64 << 10, 4096, 12 * mib});
  CHECK(direct_sizes::derive(2, false, 4 * mib, 32 * mib).chunk_bytes == 128 << 10);
  CHECK(direct_sizes::derive(8, false, mib, 32 * mib) == direct_sizes{938, 64 << 10, 4096, 3 * mib});
  // Ranks that have to share CPUs save synchronisations.
  CHECK(direct_sizes::derive(8, true, mib, 32 * mib) == direct_sizes{4096, 64 << 10, 4096, 3 * mib});
  // Caches that nobody knows of, and one of which a virtual machine has a part at most.
  CHECK(direct_sizes::derive(2, false, 0, 0) == direct_sizes{32 << 10, 64 << 10, 4096, 6 * mib});
  CHECK(direct_sizes::derive(2, false, 2 * mib, 480 * mib).streaming_bytes == 12 * mib);
  // A chunk has a page for each rank's slice.
  CHECK(direct_sizes::derive(256, false, mib, 32 * mib).chunk_bytes == mib);
  for (int p = 1; p != 5000; ++p) CHECK(direct_sizes::derive(p, p % 2 == 0, mib, mib).streaming_bytes > 0);
}

TEST_CASE("tunables by name, compared and printed") {
  CHECK(hvd::direct{} == hvd::direct{});
  const hvd::direct changed{.one_shot_bytes = 128, .chunk_bytes = 4096};
  CHECK(changed != hvd::direct{});
  CHECK(hvd::direct{.mapped_bytes = 1} != hvd::direct{});
  CHECK(name(hvd::direct{}) == "direct(one_shot_bytes=0, chunk_bytes=0, mapped_bytes=0, streaming_bytes=0)");
  CHECK(name(changed) == "direct(one_shot_bytes=128, chunk_bytes=4096, mapped_bytes=0, streaming_bytes=0)");
}

TEST_CASE("one shot, two shots and mapped memory give the same bits: the sum in rank order") {
  constexpr std::size_t never = std::size_t{1} << 40;
  const hvd::direct one_shot{.one_shot_bytes = never, .mapped_bytes = never};
  const hvd::direct small_one_shot{.one_shot_bytes = never, .chunk_bytes = 64, .mapped_bytes = never};
  const hvd::direct two_shots{.one_shot_bytes = 1, .mapped_bytes = never};
  const hvd::direct small_two_shots{.one_shot_bytes = 1, .chunk_bytes = 64, .mapped_bytes = never};
  const hvd::direct mapped{.mapped_bytes = 1};
  for (const int ranks : {2, 3}) {
    hvd::thread_run(ranks, [&](hvd::ThreadTransport& comm) {
      for (const std::size_t count : {std::size_t{3}, std::size_t{500}, std::size_t{2000}, std::size_t{30000}}) {
        std::vector<float> want = rough(0, count);
        for (int q = 1; q != comm.size(); ++q) {
          const std::vector<float> next = rough(q, count);
          for (std::size_t i = 0; i != count; ++i) want[i] += next[i];
        }
        CAPTURE(count);
        for (const hvd::direct& how : {hvd::direct{}, one_shot, small_one_shot, two_shots, small_two_shots, mapped}) {
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
  const hvd::direct ways[] = {{}, {.chunk_bytes = 64}, {.chunk_bytes = 4096}, {.chunk_bytes = 1 << 20}};
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    for (const std::size_t each : {std::size_t{1}, std::size_t{300}, std::size_t{5001}}) {
      for (const hvd::direct& how : ways) {
        CAPTURE(each);
        CAPTURE(name(how));
        std::vector<float> all(3 * each);
        hvd::allgather(comm, ramp(comm.rank(), each), all, how);
        CHECK(all == ramps(3, each));
        hvd::alltoall(comm, all, how);  // this rank's block of everybody's copy
        const std::vector<float> own = ramp(comm.rank(), each);
        for (std::size_t q = 0; q != 3; ++q) CHECK(std::equal(own.begin(), own.end(), all.data() + q * each));
        hvd::broadcast(comm, all, 2, how);
        CHECK(all.front() == 3.0f);
        std::vector<float> block(each);
        hvd::reduce_scatter(comm, ramp(comm.rank(), 3 * each), block, hvd::sum, how);
        CHECK(block.back() == ramp_sum(3, 3 * each)[static_cast<std::size_t>(comm.rank() + 1) * each - 1]);
      }
    }
  });
}

namespace {

// Longer than what lies between reading and writing in turns.
struct long_element {
  std::int32_t part[400];
  friend bool operator==(const long_element&, const long_element&) = default;
};
struct add_long {
  long_element operator()(const long_element& a, const long_element& b) const {
    long_element c{};
    for (std::size_t i = 0; i != 400; ++i) c.part[i] = a.part[i] + b.part[i];
    return c;
  }
};

/// A place for `count` floats at an odd address, with marks before and behind it.
class framed {
 public:
  framed(float* memory, std::size_t count) : all_(memory, count + 3) { std::fill(all_.begin(), all_.end(), -7.0f); }
  [[nodiscard]] std::span<float> inside() const { return all_.subspan(1, all_.size() - 3); }
  /// Whether the output is exactly that, and nothing beside it was written.
  [[nodiscard]] bool holds(std::span<const float> want) const {
    return std::equal(want.begin(), want.end(), inside().begin(), inside().end()) && all_.front() == -7.0f &&
           all_[all_.size() - 2] == -7.0f && all_.back() == -7.0f;
  }

 private:
  std::span<float> all_;
};

}  // namespace

TEST_CASE("output past the caches is whole, has the same bits, and leaves what is beside it alone") {
  constexpr std::size_t far = std::size_t{1} << 40;
  const hvd::direct ways[] = {{.one_shot_bytes = 1, .chunk_bytes = 4096, .mapped_bytes = far, .streaming_bytes = 1},
                              {.one_shot_bytes = 1, .mapped_bytes = far, .streaming_bytes = 1},
                              {.one_shot_bytes = far, .chunk_bytes = 4096, .mapped_bytes = far, .streaming_bytes = 1},
                              {.mapped_bytes = 1, .streaming_bytes = 1}};
  for (const int ranks : {2, 3}) {
    hvd::thread_run(ranks, [&](hvd::ThreadTransport& comm) {
      const auto p = static_cast<std::size_t>(comm.size()), me = static_cast<std::size_t>(comm.rank());
      const int last = comm.size() - 1;
      for (const std::size_t each :
           {std::size_t{1}, std::size_t{17}, std::size_t{255}, std::size_t{1000}, std::size_t{9001}}) {
        const std::size_t all = each * p;
        auto in = comm.alloc_shared<float>(all);
        auto memory = comm.alloc_shared<float>(all + 3);
        const std::span<const float> in_all(in.data(), all), in_block(in.data(), each);
        const std::vector<float> mine = ramp(comm.rank(), all), sum = ramp_sum(comm.size(), all);
        std::copy(mine.begin(), mine.end(), in.begin());
        const std::vector<float> gathered = ramps(comm.size(), each);
        for (const hvd::direct& how : ways) {
          CAPTURE(each);
          CAPTURE(name(how));
          const auto check = [&](const char* what, std::size_t count, std::span<const float> want, bool written,
                                 auto&& collective) {
            CAPTURE(what);
            const framed out(memory.data(), count);
            comm.barrier();  // all have marked their own
            collective(out.inside());
            if (written) CHECK(out.holds(want));
            comm.barrier();
          };
          check("allreduce", all, sum, true, [&](auto out) { hvd::allreduce(comm, in_all, out, hvd::sum, how); });
          check("reduce", all, sum, comm.rank() == last,
                [&](auto out) { hvd::reduce(comm, in_all, out, hvd::sum, last, how); });
          check("reduce_scatter", each, std::span(sum).subspan(me * each, each), true,
                [&](auto out) { hvd::reduce_scatter(comm, in_all, out, hvd::sum, how); });
          check("allgather", all, gathered, true, [&](auto out) { hvd::allgather(comm, in_block, out, how); });
          check("gather", all, gathered, comm.rank() == last,
                [&](auto out) { hvd::gather(comm, in_block, out, last, how); });
          check("broadcast", all, ramp(last, all), true, [&](auto out) {
            if (comm.rank() == last) std::copy(mine.begin(), mine.end(), out.begin());
            hvd::broadcast(comm, out, last, how);
          });
          const std::vector<float> roots = ramp(last, all);
          check("scatter", each, std::span(roots).subspan(me * each, each), true,
                [&](auto out) { hvd::scatter(comm, in_all, out, last, how); });
          std::vector<float> exchanged;
          for (int q = 0; q != comm.size(); ++q) {
            const std::vector<float> theirs = ramp(q, all);
            exchanged.insert(exchanged.end(), theirs.begin() + static_cast<std::ptrdiff_t>(me * each),
                             theirs.begin() + static_cast<std::ptrdiff_t>((me + 1) * each));
          }
          check("alltoall", all, exchanged, true, [&](auto out) { hvd::alltoall(comm, in_all, out, how); });
        }
      }
    });
  }
}

TEST_CASE("output past the caches of elements longer than a tile") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    auto in = comm.alloc_shared<long_element>(3), out = comm.alloc_shared<long_element>(3);
    for (const std::size_t mapped_bytes : {std::size_t{1}, std::size_t{1} << 40}) {
      for (std::size_t i = 0; i != 3; ++i) {
        for (std::size_t k = 0; k != 400; ++k) {
          in[i].part[k] = static_cast<std::int32_t>(i * 1000 + k) * (comm.rank() + 1);
          out[i].part[k] = -1;
        }
      }
      hvd::allreduce(comm, in, out, add_long{},
                     hvd::direct{.one_shot_bytes = 1, .mapped_bytes = mapped_bytes, .streaming_bytes = 1});
      std::size_t wrong = 0;
      for (std::size_t i = 0; i != 3; ++i) {
        for (std::size_t k = 0; k != 400; ++k) wrong += out[i].part[k] != static_cast<std::int32_t>(i * 1000 + k) * 3;
      }
      CHECK(wrong == 0);
      comm.barrier();
    }
  });
}

TEST_CASE(
    "a peer's words about its buffers do not move this rank's accesses: what lies outside of a block is an error") {
  using hvd::detail::descriptor;
  constexpr std::size_t count = 4096;  // enough to be used in place
  struct lie {
    std::uint32_t in_block, out_block;
    std::uint64_t in_offset, out_offset;
  };
  const std::uint64_t bytes = count * sizeof(float);
  const lie lies[] = {{1, 1, 4, 0},       {1, 1, 0, 4},     {1, 1, bytes + 1, 0}, {1, 1, ~std::uint64_t{0}, 0},
                      {1, 1, 0, 1 << 30}, {77, 1, 0, 0},    {1, 77, 0, 0},        {1, 1, 0, ~std::uint64_t{3}},
                      {1, 1, bytes, 0},   {1, 1, 0, bytes}, {0xffffffff, 0, 0, 0}};
  for (const lie& l : lies) {
    hvd::thread_run(2, [&](hvd::ThreadTransport& comm) {
      auto shared = comm.alloc_shared<float>(count);
      if (comm.rank() == 0) {
        try {
          hvd::allreduce(comm, shared);
          require(l.out_block == 0, "a lie that was believed");
        } catch (const hvd::error& e) {
          require(e.kind() == hvd::error_kind::mismatch || e.kind() == hvd::error_kind::peer_lost, e.what());
        }
        return;
      }
      hvd::detail::peer_memory& m = comm.peers();
      hvd::detail::peer_memory::scope scope(m, "allreduce");
      auto* const p = reinterpret_cast<std::byte*>(shared.data());
      const hvd::reduction add = hvd::make_reduction<float>(hvd::sum, 2);
      descriptor d = hvd::detail::describe(hvd::allreduce_call{p, p, count, add});
      d.in_block = l.in_block, d.in_offset = l.in_offset;
      d.out_block = l.out_block, d.out_offset = l.out_offset;
      hvd::detail::agree(m, d, scope);
      scope.leave();
    });
  }
}
