// tests/engine/kill.cpp: a rank is killed at a random moment of an engine's life; all others name it.
#include <hvd/engine.hpp>
#include <hvd/transport/shm.hpp>
#include <support/processes.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using hvd::test::children;
using hvd::test::report;

using numbers = std::mt19937_64;
std::size_t below(numbers& random, std::size_t n) { return static_cast<std::size_t>(random() % n); }

/// What a rank does until another one is lost: all that an engine can do, the same on all ranks (`random`), and each
/// at its own speed; with one engine, or one after the other.
void work(hvd::ShmTransport& comm, numbers random, bool one, report& r) {
  const int size = comm.size();
  for (;;) {
    hvd::engine_options o;
    o.watch = below(random, 2) == 0;
    hvd::Engine engine(comm, o);
    ++r.progress;
    std::vector<std::vector<float>> tensors(6, std::vector<float>(1 + below(random, 3) * below(random, 30'000)));
    for (std::size_t left = 2 + below(random, 20); one || left != 0; --left) {
      std::vector<hvd::handle> all;
      for (std::size_t i = 0; i != tensors.size(); ++i) {
        all.push_back(engine.allreduce(hvd::detail::joined({"t", i}), tensors[i]));
      }
      if (below(random, 3) == 0) all.push_back(engine.barrier());
      if (below(random, 5) == 0) all.push_back(engine.allgather("g", tensors[0]));
      for (const hvd::handle& h : all) h.wait();
      if (below(random, 5) != 0) continue;
      const int first = static_cast<int>(below(random, static_cast<std::size_t>(size)));
      const std::vector<int> members =
          first == 0 || below(random, 2) == 0 ? std::vector<int>{first} : std::vector<int>{first, first - 1};
      const int set = engine.add_process_set(members);
      const bool member = comm.rank() == members.front() || comm.rank() == members.back();
      for (int i = 0; i != 3; ++i) {
        if (member) engine.allreduce("s", tensors[1], hvd::sum, {.process_set = set}).wait();
        engine.barrier().wait();
      }
      if (below(random, 2) == 0) engine.remove_process_set(set);
    }
    engine.shutdown();
  }
}

}  // namespace

TEST_CASE("whoever is killed is named by all who are left") {
  const char* const given = std::getenv("HVD_TEST_SEEDS");
  const std::uint64_t seeds = given != nullptr ? std::strtoull(given, nullptr, 10) : hvd::test::sanitized ? 20 : 150;
  const hvd::test::private_directory folder;
  hvd::sharing_options options;
  options.memory.directory = folder.path();
  options.failure.timeout = std::chrono::seconds(60);
  std::size_t slow = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    numbers random(seed);
    constexpr int sizes[] = {2, 3, 3, 8};
    const int np = sizes[below(random, 4)];
    CAPTURE(np);
    // Ranks that end without leaving their groups look as if they had been killed. The engine knows better; between one
    // engine and the next only the transport is there, which does not.
    const bool abrupt = seed % 3 == 0;
    children ranks(np);
    ranks.start_all([&](int rank, report& r) {
      hvd::ShmTransport comm(hvd::detail::joined({"kill@", seed}), rank, np, options);
      r.progress = 1;
      try {
        work(comm, numbers(seed), abrupt, r);
      } catch (const hvd::error& e) {
        r.keep(e);
        if (abrupt && rank % 2 == 0) ::_exit(3);
      }
    });
    REQUIRE(ranks.wait_while(60.0, [&] {
      bool joined = true;
      for (int r = 0; r != np; ++r) joined = joined && ranks[r].progress != 0;
      return !joined;
    }));
    const int victim = static_cast<int>(below(random, static_cast<std::size_t>(np)));
    CAPTURE(victim);
    hvd::test::pause_for(static_cast<double>(below(random, 40'000)) * 1e-6);
    ranks.kill(victim);
    const double killed = hvd::test::now();
    REQUIRE(ranks.wait(60.0));
    for (int r = 0; r != np; ++r) {
      if (r == victim) continue;
      CAPTURE(r);
      CHECK_MESSAGE((ranks[r].is(hvd::error::peer_lost) && ranks[r].culprit == victim), ranks[r].text());
      slow += ranks[r].at - killed > 1.0 ? 1 : 0;
    }
    CHECK(folder.empty());
  }
  MESSAGE("survivors that took longer than a second: " << slow);
}

TEST_CASE("a second launch of a name ends the engine that works under it, on all ranks and in all its process sets") {
  const hvd::test::private_directory folder;
  hvd::sharing_options options;
  options.memory.directory = folder.path();
  options.failure.timeout = std::chrono::seconds(60);
  children ranks(4);
  const auto join = [&](int i, int rank) {
    ranks.start(i, [&, rank](report& r) {
      hvd::ShmTransport comm("engines", rank, 3, options);
      hvd::Engine engine(comm);
      const int set = engine.add_process_set({1, 2});
      std::vector<float> v(100);
      for (r.progress = 1;;) {
        engine.allreduce("x", v, hvd::sum, {.process_set = rank != 0 ? set : 0}).wait();  // of rank 0: never ready
      }
    });
  };
  for (int r = 0; r != 3; ++r) join(r, r);
  REQUIRE(ranks.wait_while(60.0, [&] { return ranks[0].progress + ranks[1].progress + ranks[2].progress < 3; }));
  hvd::test::pause_for(0.05);
  join(3, 2);
  REQUIRE(ranks.wait(60.0));
  for (int i = 0; i != 4; ++i) {
    CAPTURE(i);
    CAPTURE(ranks[i].text());
    CHECK(ranks[i].is(i == 3 ? hvd::error::invalid_argument : hvd::error::mismatch));
    CHECK(ranks[i].says("two processes claim rank 2"));
  }
  CHECK(folder.empty());
}
