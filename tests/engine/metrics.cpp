// tests/engine/metrics.cpp: an engine counts what it does, and shows waits, steps and stalls in its timeline.
#include <hvd/engine.hpp>
#include <hvd/launch.hpp>
#include <support/processes.hpp>
#include <support/timeline_reader.hpp>

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using hvd::test::private_directory;

hvd::operation_metrics of(const hvd::engine_metrics& m, hvd::operation kind, int set = 0) {
  for (const hvd::operation_metrics& o : m.operations) {
    if (o.kind == kind && o.process_set == set) return o;
  }
  return {};
}

}  // namespace

TEST_CASE("operations and bytes are counted by kind and process set") {
  for (const int np : {1, 2, 3}) {
    CAPTURE(np);
    hvd::thread_run(np, [&](hvd::ThreadTransport& comm) {
      hvd::Engine engine(comm, {});
      CHECK(engine.metrics().operations.empty());
      std::vector<float> v(3, 1.0f), w(5, 1.0f);
      std::vector<double> d(7, 1.0);
      engine.allreduce("v", v).wait();
      engine.allreduce("list", hvd::tensors(v, w)).wait();
      engine.allgather("d", d).wait();
      engine.broadcast("w", w, 0).wait();
      engine.barrier().wait();
      const int set = engine.add_process_set({0});
      if (comm.rank() == 0) engine.allreduce("w", w, hvd::sum, {.process_set = set}).wait();
      const hvd::engine_metrics m = engine.metrics();
      CHECK(of(m, hvd::operation::allreduce).operations == 2);
      CHECK(of(m, hvd::operation::allreduce).bytes == 12 + 32);
      CHECK(of(m, hvd::operation::allreduce).failed == 0);
      CHECK(of(m, hvd::operation::allgather).operations == 1);
      CHECK(of(m, hvd::operation::allgather).bytes == 56);
      CHECK(of(m, hvd::operation::broadcast).bytes == 20);
      CHECK(of(m, hvd::operation::barrier).operations == 1);
      CHECK(of(m, hvd::operation::barrier).bytes == 0);
      CHECK(of(m, hvd::operation::allreduce, set).operations == (comm.rank() == 0 ? 1 : 0));
      CHECK(of(m, hvd::operation::allreduce, set).bytes == (comm.rank() == 0 ? 20 : 0));
      CHECK(m.steps == 0);
      engine.mark_step();
      engine.mark_step(32);
      CHECK(engine.metrics().steps == 2);
      CHECK(engine.metrics().samples == 32);
      CHECK(engine.metrics().in_flight == 0);
      CHECK(engine.metrics().oldest == 0ns);
      engine.shutdown();
      CHECK(engine.metrics().operations.empty());
    });
  }
}

TEST_CASE("a timeline tells which ranks a process set has, also of sets that were there before it") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, {});
    engine.add_process_set({0, 2});
    engine.start_timeline(path);
    engine.add_process_set({1});
    engine.barrier().wait();
    engine.shutdown();
    engine.stop_timeline();
  });
  std::vector<nlohmann::json> sets(3);
  for (const auto& e : hvd::test::timeline_events(path)) {
    if (e.value("name", "") == "hvd_process_set") sets.at(e.at("tid")).push_back(e.at("args"));
  }
  const nlohmann::json expected = {{{"set", 1}, {"ranks", {0, 2}}}, {{"set", 2}, {"ranks", {1}}}};
  for (const auto& of_rank : sets) CHECK(of_rank == expected);
}

TEST_CASE("an operation that fails is counted as such") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, {});
    std::vector<float> v(comm.rank() == 0 ? 3 : 4, 1.0f);
    CHECK_THROWS_AS(engine.allreduce("v", v).wait(), hvd::error);
    CHECK(of(engine.metrics(), hvd::operation::allreduce).operations == 1);
    CHECK(of(engine.metrics(), hvd::operation::allreduce).failed == 1);
  });
}

TEST_CASE("what a lost rank has ended is counted as failed") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, {});
    std::vector<float> v(3, 1.0f);
    engine.allreduce("v", v).wait();
    if (comm.rank() == 1) return;  // its engine ends
    CHECK_THROWS_AS(engine.allreduce("v", v).wait(), hvd::error);
    CHECK(of(engine.metrics(), hvd::operation::allreduce).operations == 2);
    CHECK(of(engine.metrics(), hvd::operation::allreduce).failed == 1);
    CHECK(of(engine.metrics(), hvd::operation::allreduce).bytes == 24);
  });
}

TEST_CASE("time that the program waits is exposed, and what is in flight is told") {
  const private_directory folder;
  const std::string path = folder.path() + "/t.json";
  std::atomic<bool> waited{false};
  hvd::thread_run(2, [&](hvd::ThreadTransport& comm) {
    hvd::engine_options o;
    o.stall_warning = 20ms;
    o.timeline = path;
    o.report = [](const std::string&) {};
    o.host = comm.rank() == 0 ? "a" : "b";
    hvd::Engine engine(comm, o);
    std::vector<float> v(3, 1.0f);
    if (comm.rank() == 1) {
      while (!waited) std::this_thread::sleep_for(1ms);
    }
    const hvd::handle h = engine.allreduce("late", v);
    if (comm.rank() == 0) {
      CHECK_THROWS_AS(h.wait(30ms), hvd::error);  // a wait that ends too early
      while (engine.metrics().stalls == 0) std::this_thread::sleep_for(1ms);
      const hvd::engine_metrics m = engine.metrics();
      CHECK(m.in_flight == 1);
      CHECK(m.oldest >= 20ms);
      CHECK(of(m, hvd::operation::allreduce).operations == 0);
      CHECK(of(m, hvd::operation::allreduce).waits == 0);
      CHECK(of(m, hvd::operation::allreduce).exposed >= 30ms);
      waited = true;
    }
    h.wait();
    engine.mark_step(5);
    const hvd::operation_metrics m = of(engine.metrics(), hvd::operation::allreduce);
    CHECK(m.operations == 1);
    CHECK(m.waits <= 1);
  });
  std::vector<std::string> hosts(2), stalls;
  std::uint64_t samples = 0;
  double waited_us = 0;
  for (const auto& e : hvd::test::timeline_events(path)) {
    const std::string name = e.value("name", "");
    if (name == "hvd_rank") hosts.at(e.at("tid")) = e.at("args").at("host");
    if (name == "STALL") stalls.push_back(e.at("args").at("text"));
    if (name == "STEP") samples += e.at("args").at("samples").get<std::uint64_t>();
    if (name == "WAIT" && e.at("tid") == 0) {
      CHECK(e.at("args").at("tensor") == "late");
      waited_us += e.at("dur").get<double>();
    }
  }
  CHECK(hosts == std::vector<std::string>{"a", "b"});
  CHECK(samples == 10);
  CHECK(waited_us >= 30'000);
  REQUIRE(!stalls.empty());
  CHECK_MESSAGE(stalls[0].find("\"late\"") != std::string::npos, stalls[0]);
  CHECK_MESSAGE(stalls[0].find("not submitted by rank 1") != std::string::npos, stalls[0]);
}
