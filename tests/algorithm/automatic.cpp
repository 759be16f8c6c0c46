// tests/algorithm/automatic.cpp: the choice is a pure function, and automatic runs what it says.
#include <hvd/algorithm/automatic.hpp>

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

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

using namespace hvd::test;

namespace {

using hvd::choice;
using hvd::operation;

constexpr std::size_t kib = 1024;

// Pure: it needs no rank, no transport and no run.
constexpr choice chosen(operation kind, std::size_t bytes, bool commutative = true, int ranks = 8) {
  return hvd::default_tuning{}({.kind = kind, .bytes = bytes, .ranks = ranks, .commutative = commutative});
}
static_assert(noexcept(hvd::default_tuning{}(hvd::workload{})));

// Short: up to 8 KiB. Long: beyond 512 KiB.
static_assert(chosen(operation::allreduce, 0) == choice::recursive_doubling);
static_assert(chosen(operation::allreduce, 8 * kib) == choice::recursive_doubling);
static_assert(chosen(operation::allreduce, 8 * kib + 1) == choice::halving_doubling);
static_assert(chosen(operation::allreduce, 512 * kib) == choice::halving_doubling);
static_assert(chosen(operation::allreduce, 512 * kib + 1) == choice::ring);
static_assert(chosen(operation::reduce_scatter, 4) == choice::halving_doubling);
static_assert(chosen(operation::reduce_scatter, 512 * kib + 1) == choice::ring);
static_assert(chosen(operation::allgather, 4) == choice::recursive_doubling);
static_assert(chosen(operation::allgather, 512 * kib + 1) == choice::ring);
static_assert(chosen(operation::broadcast, 4) == choice::tree);
static_assert(chosen(operation::broadcast, 512 * kib + 1) == choice::ring);
static_assert(chosen(operation::alltoall, 4) == choice::ring);
static_assert(chosen(operation::alltoall, std::size_t{1} << 40) == choice::ring);
static_assert(chosen(operation::reduce, std::size_t{1} << 40) == choice::tree);
static_assert(chosen(operation::gather, 4) == choice::tree);
static_assert(chosen(operation::scatter, 4) == choice::tree);

// A ring does not keep the order of ranks.
static_assert(chosen(operation::allreduce, 4, false) == choice::recursive_doubling);
static_assert(chosen(operation::allreduce, 512 * kib + 1, false) == choice::halving_doubling);
static_assert(chosen(operation::reduce_scatter, std::size_t{1} << 40, false) == choice::halving_doubling);

// The thresholds are the tuning's own.
static_assert(hvd::default_tuning{.short_bytes = 0}({.kind = operation::allreduce, .bytes = 1}) ==
              choice::halving_doubling);
static_assert(hvd::default_tuning{.short_bytes = 0, .long_bytes = 0}({.kind = operation::allreduce, .bytes = 1}) ==
              choice::ring);
static_assert(hvd::default_tuning{} == hvd::default_tuning{} && hvd::automatic<>{} == hvd::automatic<>{});
static_assert(hvd::automatic<>{.tuning = {.short_bytes = 1}} != hvd::automatic<>{});

// A tuning of one's own.
template <choice C>
struct always {
  constexpr choice operator()(const hvd::workload& /*w*/) const { return C; }
  friend constexpr bool operator==(const always&, const always&) = default;
};
static_assert(std::is_empty_v<hvd::automatic<always<choice::tree>>>);

// Writes down what it is asked.
struct curious {
  std::vector<hvd::workload>* asked;
  choice operator()(const hvd::workload& w) const {
    asked->push_back(w);
    return hvd::default_tuning{}(w);
  }
};

struct first {
  static constexpr bool commutative = false;
  float operator()(float a, float /*b*/) const { return a; }
};

}  // namespace

TEST_CASE("on messages alone automatic does every collective, short and long") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    on_ranks(ranks, [&](QueueTransport& comm) {
      const auto p = static_cast<std::size_t>(ranks);
      for (const std::size_t each : {std::size_t{1}, std::size_t{4000}, std::size_t{150000}}) {
        CAPTURE(each);
        std::vector<float> v = ramp(comm.rank(), each);
        hvd::allreduce(comm, v, hvd::max);
        CHECK(v == ramp(ranks - 1, each));
        hvd::reduce(comm, ramp(comm.rank(), each), v, hvd::min, ranks - 1);
        if (comm.rank() == ranks - 1) CHECK(v == ramp(0, each));
        std::vector<float> all(p * each);
        hvd::allgather(comm, ramp(comm.rank(), each), all);
        CHECK(all == ramps(ranks, each));
        hvd::reduce_scatter(comm, all, v, hvd::max);  // all have the same
        CHECK(v == ramp(comm.rank(), each));
        hvd::alltoall(comm, all);
        for (std::size_t q = 0; q != p; ++q) CHECK(all[q * each] == static_cast<float>(comm.rank() + 1));
        hvd::broadcast(comm, v, ranks - 1);
        CHECK(v == ramp(ranks - 1, each));
        hvd::gather(comm, ramp(comm.rank(), each), all);
        if (comm.rank() == 0) CHECK(all == ramps(ranks, each));
        hvd::scatter(comm, all, v);
        CHECK(v == ramp(comm.rank(), each));
        hvd::allreduce(comm, v, first{});
        CHECK(v == ramp(0, each));
      }
    });
  }
}

TEST_CASE("the tuning is asked with the size of the whole operation") {
  on_ranks(3, [](QueueTransport& comm) {
    std::vector<hvd::workload> asked;
    const hvd::automatic<curious> how{curious{&asked}};
    std::vector<double> ten(10), thirty(30);
    hvd::allreduce(comm, ten, hvd::sum, how);
    hvd::reduce(comm, ten, hvd::sum, 0, how);
    hvd::reduce_scatter(comm, thirty, ten, hvd::sum, how);
    hvd::allgather(comm, ten, thirty, how);
    hvd::broadcast(comm, ten, 0, how);
    hvd::gather(comm, ten, thirty, 0, how);
    hvd::scatter(comm, thirty, ten, 0, how);
    std::vector<float> floats(7);
    hvd::allreduce(comm, floats, first{}, how);
    const operation kinds[] = {operation::allreduce, operation::reduce,    operation::reduce_scatter,
                               operation::allgather, operation::broadcast, operation::gather,
                               operation::scatter,   operation::allreduce};
    const std::size_t bytes[] = {80, 80, 240, 240, 80, 240, 240, 28};
    REQUIRE(asked.size() == 8);
    for (std::size_t i = 0; i != 8; ++i) {
      CAPTURE(i);
      CHECK(asked[i].kind == kinds[i]);
      CHECK(asked[i].bytes == bytes[i]);
      CHECK(asked[i].ranks == 3);
      CHECK(asked[i].commutative == (i != 7));
    }
  });
}

TEST_CASE("a tuning of one's own chooses; what the algorithm cannot do is an error") {
  on_ranks(3, [](QueueTransport& comm) {
    std::vector<float> v = ramp(comm.rank(), 30);
    hvd::allreduce(comm, v, hvd::sum, hvd::automatic<always<choice::tree>>{});
    CHECK(v == ramp_sum(3, 30));
    comm.sent();
    v = ramp(comm.rank(), 30);
    hvd::allreduce(comm, v, hvd::sum, hvd::automatic<always<choice::ring>>{});
    CHECK(v == ramp_sum(3, 30));
    CHECK(comm.sent().messages == 4);  // 2 (p - 1)
    CHECK(complaint([&] { hvd::alltoall(comm, v, hvd::automatic<always<choice::tree>>{}); }) ==
          "unsupported: hvd: the tuning chose an algorithm that cannot do alltoall");
    CHECK(complaint([&] { hvd::allreduce(comm, v, first{}, hvd::automatic<always<choice::ring>>{}); }) ==
          "unsupported: hvd: the tuning chose an algorithm that does not combine ranks in order for a non-commutative "
          "allreduce");
  });
}

TEST_CASE("where ranks have common memory, automatic is direct: the tuning is not asked") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    std::vector<hvd::workload> asked;
    std::vector<float> v = ramp(comm.rank(), 30);
    hvd::allreduce(comm, v, hvd::sum, hvd::automatic<curious>{curious{&asked}});
    CHECK(v == ramp_sum(2, 30));
    CHECK(asked.empty());
  });
}
