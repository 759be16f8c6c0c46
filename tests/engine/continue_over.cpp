// tests/engine/continue_over.cpp: ranks are killed, and an engine goes on over the group of those that are left.
#include <hvd/any_transport.hpp>
#include <hvd/engine.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport/shm.hpp>

#include "support/processes.hpp"
#include "support/require.hpp"
#include "support/timeline_reader.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <optional>
#include <source_location>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace continue_over_test {

using hvd::error_kind;
using hvd::test::children;
using hvd::test::private_directory;
using hvd::test::report;

void require(bool holds, std::source_location where = std::source_location::current()) {
  hvd::test::require(holds, "does not hold", where);
}

hvd::sharing_options job_options(const private_directory& d) {
  hvd::sharing_options o;
  o.memory.directory = d.path();
  o.failure.timeout = o.failure.start_timeout = std::chrono::seconds(60);
  return o;
}

hvd::engine_options with_timeline(const private_directory& d, bool watch = true) {
  hvd::engine_options o;
  o.timeline = d.path() + "/timeline.json";
  o.watch = watch;
  return o;
}

bool is_loss(const hvd::error& e) { return e.kind() == error_kind::peer_lost || e.kind() == error_kind::aborted; }

/// The error of an operation that must end with one.
hvd::error failure_of(const hvd::handle& h) {
  try {
    h.wait(std::chrono::seconds(60));
  } catch (const hvd::error& e) {
    return hvd::error(e.kind(), std::string(hvd::detail::sentence(e)), e.rank());
  }
  throw std::runtime_error("an operation has not ended with an error");
}

void require_lost(const hvd::handle& h, int rank) {
  const hvd::error e = failure_of(h);
  hvd::test::require(e.kind() == error_kind::peer_lost && e.rank() == rank, e.what());
}

template <class Engine>
void require_sum(Engine& engine, const std::string& name, std::size_t n) {
  std::vector<float> v(n, static_cast<float>(engine.rank() + 1));
  engine.allreduce(name, v).wait(std::chrono::seconds(60));
  const int all = engine.size() * (engine.size() + 1) / 2;
  require(v == std::vector<float>(n, static_cast<float>(all)));
}

TEST_CASE("requests in flight end with the loss, and the same names go on with other shapes, counters and a timeline") {
  const private_directory d;
  const auto opts = job_options(d);
  children ranks(3);
  ranks.start_all([&](int r, report& mine) {
    hvd::any_transport comm(hvd::ShmTransport("over@1", r, 3, opts));
    hvd::Engine engine(comm, with_timeline(d));
    require(engine.add_process_set({0, 2}) == 1);
    const auto bucket = engine.alloc_bucket(400);
    require_sum(engine, "x", 100);
    engine.mark_step(8);
    if (r == 1) {
      comm.barrier();
      ::raise(SIGKILL);
    }
    std::vector<float> x(100), y(10), z(10), g(10);
    // "x" and "g" wait for the rank that is killed, "alone" for another one, and "set" does too, in a set without it.
    std::vector<hvd::handle> in_flight{engine.allreduce("x", x), engine.allgather("g", g)};
    if (r == 0) in_flight.push_back(engine.allreduce("alone", y));
    if (r == 0) in_flight.push_back(engine.allreduce("set", z, hvd::sum, {.process_set = 1}));
    comm.barrier();
    for (int i = 0; i != 2; ++i) require_lost(in_flight[static_cast<std::size_t>(i)], 1);
    comm = comm.without_lost();
    require(comm.target<hvd::ShmTransport>() != nullptr);
    engine.continue_over(comm);
    for (const hvd::handle& h : in_flight) require_lost(h, 1);
    require(engine.rank() == r / 2 && engine.size() == 2);
    require_sum(engine, "x", 7);
    std::vector<double> sizes(static_cast<std::size_t>(engine.rank() + 1), 2.0);
    const hvd::handle gathered = engine.allgather("g", sizes);
    gathered.wait(std::chrono::seconds(60));
    require(gathered.output().shape == std::vector<std::size_t>{3});
    // Memory of the group before is an ordinary buffer.
    const std::span<float> old(reinterpret_cast<float*>(bucket.get()), 100);
    std::fill(old.begin(), old.end(), 2.0F);
    engine.allreduce("old", old).wait(std::chrono::seconds(60));
    require(old[0] == 4.0F && old[99] == 4.0F);
    try {
      (void)engine.process_set(1);
      require(false);
    } catch (const hvd::error& e) {
      require(e.kind() == error_kind::invalid_argument);
    }
    require(engine.add_process_set({1, 0}) == 1);
    engine.mark_step(8);
    const hvd::engine_metrics m = engine.metrics();
    require(m.round == 2 && m.steps == 2 && m.samples == 16 && m.in_flight == 0);
    for (const hvd::operation_metrics& o : m.operations) {
      if (o.kind != hvd::operation::allreduce || o.process_set != 0) continue;
      require(o.operations == (r == 0 ? 5U : 4U) && o.failed == (r == 0 ? 2U : 1U));
    }
    mine.progress = 7;
  });
  REQUIRE(ranks.wait(60.0));
  for (const int r : {0, 2}) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].progress == 7);
  }
  const auto events = hvd::test::timeline_events(d.path() + "/timeline.json");
  std::vector<std::pair<int, int>> places;
  std::size_t sums = 0;
  for (const nlohmann::json& e : events) {
    if (e.value("name", "") == "hvd_rank") places.emplace_back(e.at("args").at("rank"), e.at("args").at("size"));
    if (e.value("name", "") == "ROUND") CHECK(e.at("args").at("text") == "round 2 begins with 2 ranks");
    if (e.at("ph") == "E" && e.contains("args") && e["args"].value("shape", "") == "[7]") ++sums;
  }
  std::sort(places.begin(), places.end());
  CHECK(places == std::vector<std::pair<int, int>>{{0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}});
  CHECK(hvd::test::count(events, "i", "ROUND") == 1);
  CHECK(sums == 2);
}

TEST_CASE("a loss that the program has learned elsewhere ends requests of the engine, too, at once") {
  const private_directory d;
  const auto opts = job_options(d);
  children ranks(3);
  ranks.start_all([&](int r, report& mine) {
    hvd::ShmTransport comm("over@2", r, 3, opts);
    hvd::Engine engine(comm);
    std::vector<float> x(10);
    hvd::handle late;
    if (r == 0) late = engine.allreduce("x", x);
    comm.barrier();
    if (r == 2) ::raise(SIGKILL);
    try {
      for (;;) comm.barrier();
    } catch (const hvd::error& e) {
      require(is_loss(e));
    }
    comm = comm.without_lost();
    engine.continue_over(comm);
    if (r == 0) require_lost(late, 2);
    require_sum(engine, "x", 5);
    mine.progress = 7;
  });
  REQUIRE(ranks.wait(60.0));
  for (const int r : {0, 1}) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].progress == 7);
  }
}

TEST_CASE("a second rank is killed at any time while the next group and its engine are made") {
  constexpr int size = 4;
  const int rounds = hvd::test::sanitized ? 10 : 40;
  int several = 0;
  for (int round = 0; round != rounds; ++round) {
    const private_directory d;
    const auto opts = job_options(d);
    children ranks(size);
    ranks.start_all([&](int r, report& mine) {
      hvd::ShmTransport comm("over@3", r, size, opts);
      hvd::Engine engine(comm, with_timeline(d, round % 2 == 0));
      require_sum(engine, "x", 3);
      comm.barrier();
      mine.progress = 1;
      if (r == 1) ::raise(SIGKILL);
      for (bool behind = false;;) {
        try {
          if (behind) {
            mine.progress = 2;
            comm = comm.without_lost();
            engine.continue_over(comm);
          }
          behind = true;
          // In each group, until it is the one of the last two.
          for (std::size_t n = 10;; ++n) {
            require_sum(engine, "x", n);
            if (comm.size() == 2) break;
          }
          break;
        } catch (const hvd::error& e) {
          if (!is_loss(e)) throw;
        }
      }
      mine.at = static_cast<double>(engine.metrics().round);
      mine.progress = 7;
    });
    REQUIRE(ranks.wait_while(60.0, [&] { return ranks[0].progress != 2; }));
    hvd::test::pause_for(0.012 * round / rounds);
    ranks.kill(3);
    REQUIRE(ranks.wait(60.0));
    CAPTURE(round);
    for (const int r : {0, 2}) {
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].progress == 7);
      CHECK((ranks[r].at == 2.0 || ranks[r].at == 3.0));
    }
    CHECK(ranks[0].at == ranks[2].at);
    several += ranks[0].at == 3.0 ? 1 : 0;
    const auto events = hvd::test::timeline_events(d.path() + "/timeline.json");
    std::string last;
    for (const nlohmann::json& e : events) {
      if (e.value("name", "") == "ROUND") last = e.at("args").at("text");
    }
    CHECK(last == "round " + std::to_string(static_cast<int>(ranks[0].at)) + " begins with 2 ranks");
  }
  MESSAGE("rounds with an engine of three: " << several);
}

TEST_CASE("an engine that cannot go on has ended, and goes on over another group") {
  CHECK_NOTHROW(hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, {});
    std::vector<float> x(3);
    hvd::handle late;
    if (comm.rank() == 0) late = engine.allreduce("x", x);
    std::optional<hvd::ThreadTransport> next(comm.split(0, comm.rank()));
    if (comm.rank() == 0) {
      try {
        engine.continue_over(*next);
        require(false);
      } catch (const hvd::error& e) {
        require(e.kind() == error_kind::peer_lost && e.rank() == 1);
      }
      require(is_loss(failure_of(late)));
      try {
        (void)engine.allreduce("x", x);
        require(false);
      } catch (const hvd::error& e) {
        require(e.kind() == error_kind::aborted && std::string(e.what()) == "hvd: the engine was shut down");
      }
    }
    next.reset();  // rank 0 of the test waits for this
    next.emplace(comm.split(0, -comm.rank()));
    engine.continue_over(*next);
    require(engine.rank() == 1 - comm.rank() && engine.metrics().round == 2);
    require_sum(engine, "x", 5);
  }));
}

}  // namespace continue_over_test
