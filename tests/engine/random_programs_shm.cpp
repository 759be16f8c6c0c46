// tests/engine/random_programs_shm.cpp: random programs on processes, and such in which one of them is killed.
#include <engine/random_programs.hpp>
#include <support/processes.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

using namespace hvd::test;

TEST_CASE("engine: random programs on processes") {
  for (std::uint64_t seed = 0; seed != seeds(300); ++seed) {
    CAPTURE(seed);
    CHECK(hvd::fork_run(
              static_cast<int>(1 + seed % 4),
              [&](hvd::ShmTransport& comm) {
                const watchdog w(seed);
                run_program(comm, seed, true);
              },
              long_deadline()) == 0);
  }
}

TEST_CASE("engine: a rank is killed, and all that is in flight on the others ends") {
  for (std::uint64_t seed = 0; seed != seeds(60); ++seed) {
    CAPTURE(seed);
    dice random(seed);
    const int size = 2 + static_cast<int>(random.below(3)),
              victim = static_cast<int>(random.below(static_cast<std::size_t>(size)));
    const std::string job = "engine-kill-" + std::to_string(::getpid()) + "-" + std::to_string(seed);
    children ranks(size);
    ranks.start_all([&](int rank, report& mine) {
      const watchdog w(seed);
      hvd::ShmTransport comm(job, rank, size, long_deadline());
      hvd::Engine engine(comm);
      std::vector<int> pair = {0, 1};
      const int set = engine.add_process_set(pair);
      dice own(mix({seed, static_cast<std::uint64_t>(rank)}));
      std::vector<attempt> all;
      try {
        for (std::uint64_t step = 0;; ++step) {
          mine.progress = 1;
          all.clear();
          for (std::uint64_t i = 0; i != 6; ++i) {
            const bool inner = i == 5;
            if (inner && rank > 1) continue;
            const int p = inner ? 2 : size;
            all.emplace_back(random_task(mix({seed, step % 3, i}), p, "t" + std::to_string(i), 20000), rank, p);
          }
          for (attempt& a : all) a.submit(engine, a.what().name == "t5" ? set : 0);
          own.shuffle(all);
          for (const attempt& a : all) a.finish();
        }
      } catch (const hvd::error& e) {
        mine.keep(e);
      }
      // Nothing stays in flight, but for what the killed rank has no part in.
      for (const attempt& a : all) {
        try {
          a.end().wait(std::chrono::seconds(20));
        } catch (const hvd::error& e) {
          if (e.kind() != hvd::error::peer_lost && e.kind() != hvd::error::aborted) mine.keep(e);
        }
      }
      const std::string later = [&] {
        attempt last({.name = "later"}, rank, size);
        last.submit(engine);
        return last.failure();
      }();
      require(later.starts_with("peer_lost") || later.starts_with("aborted"), "submitted later: " + later);
    });
    REQUIRE(ranks.wait_while(30.0, [&] {
      for (int r = 0; r != size; ++r) {
        if (ranks[r].progress == 0 && ranks.running(r)) return true;
      }
      return false;
    }));
    pause_for(1e-6 * static_cast<double>(random.below(20000)));
    const double killed = now();
    ranks.kill(victim);
    CHECK(ranks.wait(40.0));
    for (int r = 0; r != size; ++r) {
      if (r == victim) continue;
      CAPTURE(r);
      INFO(ranks[r].text());
      CHECK((ranks[r].is(hvd::error_kind::peer_lost) || ranks[r].is(hvd::error_kind::aborted)));
      CHECK(ranks[r].at - killed < 10.0);
    }
  }
}
