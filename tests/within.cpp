// tests/within.cpp: a time limit for one call. Over every transport: transport/conformance.hpp.
#include <hvd/algorithm/ring.hpp>
#include <hvd/allgather.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/within.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

using namespace hvd::test;
using namespace std::chrono_literals;
using hvd::within;

namespace {

using seconds = std::chrono::duration<double>;

/// Stands for an algorithm: notes the timeout that it finds, and fails if it should.
struct notes_timeout {
  seconds* found;
  bool fails = false;
  template <hvd::Transport T>
  void operator()(T& t, const hvd::allreduce_call& /*call*/) const {
    *found = t.timeout();
    if (fails) throw std::runtime_error("no");
  }
};

static_assert(hvd::within_limit<>::rank_ordered && !hvd::within_limit<hvd::ring>::rank_ordered);
static_assert(within(2s) == within(2000ms) && within(2s) != within(1s));
static_assert(within(2s, hvd::ring{.chunk_bytes = 1}) != within(2s, hvd::ring{.chunk_bytes = 2}));
static_assert(!hvd::Answers<hvd::within_limit<hvd::tree>, hvd::SelfTransport, hvd::alltoall_call>);

}  // namespace

TEST_CASE("a call within a limit, by the default algorithm or by name") {
  everywhere([](auto& comm) {
    for (const seconds limit : {seconds(20), seconds(0), seconds(std::numeric_limits<double>::infinity())}) {
      std::vector<float> v = ramp(comm.rank(), 10), in = v;
      hvd::allreduce(comm, v, hvd::sum, within(limit));
      CHECK(v == ramp_sum(comm.size(), 10));
      hvd::allreduce(comm, in, v, hvd::sum, within(limit, hvd::ring{}));
      CHECK(v == ramp_sum(comm.size(), 10));
      std::vector<float> all(10 * static_cast<std::size_t>(comm.size()));
      hvd::allgather(comm, in, all, within(limit));
      CHECK(all == ramps(comm.size(), 10));
    }
  });
}

TEST_CASE("the limit is the transport's timeout for that call alone, also if it throws") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    comm.set_timeout(77s);
    seconds found{};
    float x = 1;
    hvd::allreduce(comm, &x, 1, hvd::sum, within(3s, notes_timeout{&found}));
    CHECK((found == 3s && comm.timeout() == 77s));
    CHECK_THROWS_AS(hvd::allreduce(comm, &x, 1, hvd::sum, within(4s, notes_timeout{&found, true})), std::runtime_error);
    CHECK((found == 4s && comm.timeout() == 77s));
    hvd::allreduce(comm, &x, 1, hvd::sum, within(3s, within(5s, notes_timeout{&found})));
    CHECK((found == 5s && comm.timeout() == 77s));
  });
}

TEST_CASE("a limit that is none is refused, with the group still usable") {
  everywhere([](auto& comm) {
    float x = 1;
    for (const double bad : {-1.0, -1e-9, std::numeric_limits<double>::quiet_NaN()}) {
      const std::string said =
          hvd::detail::joined({"within has a limit of ", bad, " s; allowed: 0 (no limit) and above"});
      CHECK(complaint([&] { hvd::allreduce(comm, &x, 1, hvd::sum, within(seconds(bad))); }) ==
            refused(hvd::operation::allreduce, comm, said).c_str());
    }
    hvd::allreduce(comm, &x, 1);
    CHECK(x == static_cast<float>(comm.size()));
  });
}

TEST_CASE("ranks may pass different limits, and not different algorithms, if they compare their calls") {
  everywhere(
      [](auto& comm) {
        float x = 1;
        const auto limit = seconds(20 + comm.rank());
        hvd::allreduce(comm, &x, 1, hvd::sum, within(limit));
        comm.rank() == 0 ? hvd::allreduce(comm, &x, 1) : hvd::allreduce(comm, &x, 1, hvd::sum, within(limit));
        comm.rank() == 0 ? hvd::allreduce(comm, &x, 1, hvd::sum, hvd::ring{})
                         : hvd::allreduce(comm, &x, 1, hvd::sum, within(limit, hvd::ring{}));
        if (comm.size() == 1) return;
        const auto said = complaint([&] {
          comm.rank() == 0 ? hvd::allreduce(comm, &x, 1, hvd::sum, within(limit))
                           : hvd::allreduce(comm, &x, 1, hvd::sum, within(limit, hvd::ring{}));
        });
        CHECK(said == doctest::Contains("algorithm or its tunables differ"));
      },
      true);
}

TEST_CASE("a limit is printed with its algorithm") {
  CHECK(name(within(2s, hvd::ring{.chunk_bytes = 5})) == "within(2 s, " + name(hvd::ring{.chunk_bytes = 5}) + ")");
  CHECK(name(within(500ms)) == "within(0.5 s)");
}
