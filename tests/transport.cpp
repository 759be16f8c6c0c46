// tests/transport.cpp: who is a transport, and how a buffer is cut into blocks.
#include <support/require.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/call.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/thread.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using hvd::test::require;

// The least that a program may bring.
struct quiet {
  int rank() const { return 0; }
  int size() const { return 1; }
  void barrier() {}
};
struct letters : quiet {
  void send(const std::byte* /*data*/, std::size_t /*bytes*/, int /*peer*/) {}
  void recv(std::byte* /*data*/, std::size_t /*bytes*/, int /*peer*/) {}
  void exchange(const std::byte* /*out*/, std::size_t /*out_bytes*/, int /*to*/, std::byte* /*in*/,
                std::size_t /*in_bytes*/, int /*from*/) {}
};
struct no_exchange : quiet {
  void send(const std::byte* /*data*/, std::size_t /*bytes*/, int /*peer*/) {}
  void recv(std::byte* /*data*/, std::size_t /*bytes*/, int /*peer*/) {}
};
struct untyped : letters {  // no alloc_shared
  hvd::detail::peer_memory& peers();
};
struct windows : untyped {
  template <class T>
  std::vector<T> alloc_shared(std::size_t n) {
    return std::vector<T>(n);
  }
};
struct no_barrier {
  int rank() const;
  int size() const;
};
struct splits : quiet {
  splits split(int color, int key);
};
struct splits_into_another : quiet {
  quiet split(int color, int key);
};
struct own_allreduce : quiet {
  bool native(const hvd::allreduce_call&) { return true; }
};

struct on_device : own_allreduce {
  static constexpr hvd::memory_kind memory = hvd::memory_kind::device;
  static constexpr std::string_view timeline_name = "DEVICE";
};
static_assert(hvd::memory_of<quiet> == hvd::memory_kind::host && hvd::memory_of<on_device> == hvd::memory_kind::device);
static_assert(hvd::timeline_name_of<letters> == "P2P" && hvd::timeline_name_of<on_device> == "DEVICE");

static_assert(hvd::Transport<quiet> && !hvd::PointToPoint<quiet> && !hvd::PeerMemory<quiet>);
static_assert(hvd::Transport<letters> && hvd::PointToPoint<letters> && hvd::Bootstrap<letters>);
static_assert(hvd::Transport<no_exchange> && !hvd::PointToPoint<no_exchange> && !hvd::Bootstrap<no_exchange>);
static_assert(!hvd::Transport<no_barrier> && !hvd::Transport<int>);
static_assert(hvd::Splitting<splits> && !hvd::Splitting<quiet> && !hvd::Splitting<splits_into_another>);
static_assert(!hvd::PeerMemory<untyped> && hvd::PeerMemory<windows>);
static_assert(!hvd::Transport<const quiet>);  // a barrier changes it
static_assert(hvd::Native<own_allreduce, hvd::allreduce_call> && !hvd::Native<own_allreduce, hvd::reduce_call> &&
              !hvd::Native<quiet, hvd::allreduce_call>);

// An algorithm answers what it has a call operator for, on the transports that this accepts.
struct only_broadcast {
  template <hvd::PointToPoint T>
  void operator()(T& /*t*/, const hvd::broadcast_call& /*call*/) const {}
};
static_assert(hvd::Answers<only_broadcast, letters, hvd::broadcast_call>);
static_assert(!hvd::Answers<only_broadcast, letters, hvd::allreduce_call>);
static_assert(!hvd::Answers<only_broadcast, quiet, hvd::broadcast_call>);

void check_blocks(const hvd::partition& p, const std::vector<std::size_t>& counts, std::size_t element_bytes) {
  CHECK(p.ranks() == static_cast<int>(counts.size()));
  CHECK(p.element_bytes() == element_bytes);
  std::size_t before = 0, most = 0;
  for (std::size_t r = 0; r != counts.size(); ++r) {
    CAPTURE(r);
    CHECK(p.count(static_cast<int>(r)) == counts[r]);
    CHECK(p.bytes(static_cast<int>(r)) == counts[r] * element_bytes);
    CHECK(p.offset(static_cast<int>(r)) == before * element_bytes);
    before += counts[r];
    most = counts[r] > most ? counts[r] : most;
  }
  CHECK(p.total_count() == before);
  CHECK(p.total_bytes() == before * element_bytes);
  CHECK(p.max_bytes() == most * element_bytes);
}

/// A transport of a program's own, with the common memory of one of hvd's: it records what is allocated.
class recording {
 public:
  explicit recording(hvd::ThreadTransport& over) : over_(over) {}
  int rank() const { return over_.rank(); }
  int size() const { return over_.size(); }
  void barrier() { over_.barrier(); }
  auto& peers() { return over_.peers(); }
  template <class T>
  auto alloc_shared(std::size_t n) {
    allocated += n * sizeof(T);
    return over_.template alloc_shared<T>(n);
  }
  std::size_t allocated = 0;

 private:
  hvd::ThreadTransport& over_;
};
static_assert(hvd::PeerMemory<recording> && !hvd::Splitting<recording> && !hvd::SendRecv<recording>);

}  // namespace

TEST_CASE("a transport of a program's own can have common memory") {
  for (const int ranks : {1, 2, 3, 4}) {
    CHECK_NOTHROW(hvd::thread_run(ranks, [&](hvd::ThreadTransport& threads) {
      recording comm(threads);
      const int all = ranks * (ranks + 1) / 2;
      std::vector<int> own(1001, comm.rank() + 1);
      hvd::allreduce(comm, own);
      require(own == std::vector<int>(1001, all), "staged: another sum");
      auto shared = comm.alloc_shared<int>(50'000);
      std::fill(shared.begin(), shared.end(), comm.rank() + 1);
      hvd::allreduce(comm, shared, hvd::sum, hvd::direct{});
      require(std::count(shared.begin(), shared.end(), all) == 50'000, "in common memory: another sum");
      comm.barrier();
      require(comm.allocated == 200'000, "not allocated by the program's own transport");
    }));
  }
}

TEST_CASE("equal blocks") {
  check_blocks(hvd::partition(1, 5, 4), {5}, 4);
  check_blocks(hvd::partition(3, 0, 8), {0, 0, 0}, 8);
  check_blocks(hvd::partition(40, 7, 3), std::vector<std::size_t>(40, 7), 3);
  CHECK(hvd::partition(3, 2, 4).uniform());
}

TEST_CASE("blocks of a size each") {
  for (const unsigned ranks : {1u, 2u, 3u, 31u, 32u, 33u, 100u}) {
    std::vector<std::size_t> counts;
    for (std::size_t r = 0; r != ranks; ++r) counts.push_back(r * r % 7);
    const hvd::partition p(counts, 16);
    CHECK_FALSE(p.uniform());
    check_blocks(p, counts, 16);
  }
  const std::vector<std::size_t> nothing(5, 0);
  check_blocks(hvd::partition(nothing, 4), nothing, 4);
}

TEST_CASE("more than 2^31 elements, and bytes than 2^32") {
  constexpr std::size_t large = (std::size_t{1} << 31) + 5;
  const hvd::partition p(4, large, 8);
  CHECK(p.offset(3) == 3 * large * 8);
  CHECK(p.total_count() == 4 * large);
  const std::vector<std::size_t> counts{large, 1, large};
  const hvd::partition q(counts, 4);
  CHECK(q.offset(2) == (large + 1) * 4);
  CHECK(q.total_bytes() == (2 * large + 1) * 4);
}

TEST_CASE("groups are numbered by color, and each rank without one has its own number") {
  using hvd::detail::group_number;
  const int most = std::numeric_limits<int>::max();
  const std::vector<int> colors{7, hvd::no_group, -1, 7, hvd::no_group, most, -1};
  std::vector<int> numbers;
  for (std::size_t r = 0; r != colors.size(); ++r) numbers.push_back(group_number(colors, static_cast<int>(r)));
  CHECK(numbers == std::vector<int>{4, 0, 2, 4, 1, 6, 2});
  for (std::size_t a = 0; a != colors.size(); ++a) {
    for (std::size_t b = 0; b != colors.size(); ++b) {
      CHECK(hvd::detail::same_group(colors[a], static_cast<int>(a), colors[b], static_cast<int>(b)) ==
            (numbers[a] == numbers[b]));
    }
  }
}

TEST_CASE("operations have their names") {
  using hvd::operation;
  const std::pair<operation, std::string_view> names[] = {{operation::barrier, "barrier"},
                                                          {operation::allreduce, "allreduce"},
                                                          {operation::reduce, "reduce"},
                                                          {operation::reduce_scatter, "reduce_scatter"},
                                                          {operation::allgather, "allgather"},
                                                          {operation::broadcast, "broadcast"},
                                                          {operation::alltoall, "alltoall"},
                                                          {operation::gather, "gather"},
                                                          {operation::scatter, "scatter"},
                                                          {operation::split, "split"},
                                                          {operation::alloc_shared, "alloc_shared"},
                                                          {operation::send, "send"},
                                                          {operation::recv, "recv"},
                                                          {operation::scan, "scan"},
                                                          {operation::exscan, "exscan"}};
  for (const auto& [op, text] : names) CHECK(hvd::name(op) == text);
}
