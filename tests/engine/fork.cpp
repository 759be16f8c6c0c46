// tests/engine/fork.cpp: the child of a fork gets its error at once from an engine, whatever the parent's threads hold.
#include <hvd/engine.hpp>
#include <hvd/transport/thread.hpp>
#include <support/processes.hpp>
#include <support/skip.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using hvd::test::children;
using hvd::test::report;
using hvd::test::require;

using engine_type = hvd::Engine<hvd::ThreadTransport>;

/// All that a program may call, in a child.
void use(std::optional<engine_type>& engine, hvd::handle in_flight, hvd::handle done,
         std::shared_ptr<std::byte>& bucket, report& r) {
  float x = 1.0f;
  const std::pair<const char*, std::function<void()>> calls[] = {
      {"submit", [&] { static_cast<void>(engine->allreduce("y", std::span(&x, 1))); }},
      {"run", [&] { engine->run({.kind = hvd::operation::barrier, .name = "b"}); }},
      {"join", [&] { static_cast<void>(engine->join()); }},
      {"wait", [&] { in_flight.wait(); }},
      {"wait, limited", [&] { in_flight.wait(std::chrono::milliseconds(1)); }},
      {"process_set", [&] { (void)engine->process_set(0); }},
      {"add_process_set", [&] { engine->add_process_set({0}); }},
      {"remove_process_set", [&] { engine->remove_process_set(1); }},
      {"alloc_bucket", [&] { (void)engine->alloc_bucket(100); }},
      {"start_timeline", [&] { engine->start_timeline("/nowhere/t.json"); }},
  };
  for (const auto& [name, call] : calls) {
    try {
      call();
      require(false, std::string(name) + " has returned");
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::invalid_argument &&
                  std::string(e.what()).find("this process was forked from the one that made it") != std::string::npos,
              std::string(name) + ": " + e.what());
    }
    ++r.progress;
  }
  require(engine->rank() == 0 && engine->size() == 2 && !in_flight.poll() && done.poll(), "what needs no lock");
  done.wait();
  engine->stop_timeline();
  engine->shutdown();
  engine.reset();
  bucket.reset();
  in_flight = {};
}

}  // namespace

TEST_CASE("a child that is forked while threads use the engine gets its error at once") {
  if (hvd::test::sanitized) return hvd::test::skip("a sanitizer's allocator may be locked at the fork");
  const auto group = std::make_shared<hvd::ThreadTransport::group>(2);
  std::atomic<bool> over{false};
  std::thread other([&] {
    hvd::ThreadTransport comm(group, 1);
    engine_type engine(comm);
    float x = 1.0f;
    engine.allreduce("done", std::span(&x, 1)).wait();
    const auto bucket = engine.alloc_bucket(100);
    while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  {
    hvd::ThreadTransport comm(group, 0);
    std::optional<engine_type> engine(std::in_place, comm);
    float x = 1.0f, y = 1.0f;
    const hvd::handle done = engine->allreduce("done", std::span(&x, 1));
    done.wait();
    auto bucket = engine->alloc_bucket(100);
    const hvd::handle in_flight = engine->allreduce("in flight", std::span(&y, 1));
    // One holds the lock of process sets most of the time, one that of the driver, one waits for rank 1 within a call.
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      while (!over) (void)engine->process_set(0);
    });
    threads.emplace_back([&] {
      while (!over) {
        try {
          static_cast<void>(engine->allreduce("in flight", std::span(&y, 1)));
        } catch (const hvd::error&) {  // it is
        }
      }
    });
    threads.emplace_back([&] {
      try {
        engine->add_process_set({0});
      } catch (const hvd::error&) {  // rank 1 ends before
      }
    });
    for (int i = 0; i != 100; ++i) {
      CAPTURE(i);
      children child(1);
      child.start(0, [&](report& r) { use(engine, in_flight, done, bucket, r); });
      const bool ended = child.wait(20.0);
      CHECK_MESSAGE(ended, "the child hangs; calls that came back: " << child[0].progress);
      if (!ended) break;
      CHECK_MESSAGE(child.status(0) == 0, child[0].text());
    }
    over = true;
    other.join();
    for (std::thread& t : threads) t.join();
  }
}
