// The conformance body of the engine on threads, and alone.
#include <hvd/any_transport.hpp>

#include <engine/conformance.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/resource.h>

using namespace hvd::test;

namespace {

struct threads : on_threads {
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  static constexpr bool real_time = true, one_process = true;
};
/// Every collective first compares what ranks call.
struct checked_threads : threads {
  template <class F>
  static void run(int size, const F& f) {
    auto opts = long_deadline();
    opts.failure.check = true;
    threads::run(size, f, opts);
  }
};
/// An engine over a transport whose type is chosen at run time.
struct any_threads : threads {
  template <class F>
  static void run(int size, const F& f) {
    threads::run(size, [&](hvd::ThreadTransport& comm) {
      hvd::any_transport any(std::move(comm));
      f(any);
    });
  }
};
struct alone : on_self {
  static constexpr bool real_time = true, one_process = true;
};

}  // namespace

TEST_CASE("engine, threads: every operation, type and reduction") { conformance_operations<threads>(); }
TEST_CASE("engine, threads: typed calls") { conformance_front_doors<threads>(); }
TEST_CASE("engine, threads: the same bits on all ranks") { conformance_same_bits<threads>(); }
TEST_CASE("engine, threads: another type on the wire") { conformance_wire<threads>(); }
TEST_CASE("engine, threads: adasum") { conformance_adasum<threads>(); }
TEST_CASE("engine, threads: shapes that change, priorities") { conformance_changes<threads>(); }
TEST_CASE("engine, threads: callbacks") { conformance_callbacks<threads>(); }
TEST_CASE("engine, threads: names that come again") { conformance_names<threads>(); }
TEST_CASE("engine, threads: refused at once, limits of waits") { conformance_refused_here<threads>(); }
TEST_CASE("engine, threads: mismatches") { conformance_mismatches<threads>(); }
TEST_CASE("engine, threads: join") { conformance_join<threads>(); }
TEST_CASE("engine, threads: process sets") { conformance_process_sets<threads>(); }
TEST_CASE("engine, threads: process sets do not wait for each other") { conformance_independent_sets<threads>(); }
TEST_CASE("engine, threads: several threads, two engines") { conformance_threads<threads>(); }
TEST_CASE("engine, threads: shutdown") { conformance_shutdown<threads>(); }
TEST_CASE("engine, threads: a rank that goes while others wait") { conformance_left<threads>(); }

TEST_CASE("engine, threads: calls compared between ranks") {
  conformance_operations<checked_threads>();
  conformance_join<checked_threads>();
  conformance_process_sets<checked_threads>();
}

TEST_CASE("engine, any transport: all that asks the transport for something") {
  conformance_operations<any_threads>();
  conformance_wire<any_threads>();
  conformance_adasum<any_threads>();
  conformance_process_sets<any_threads>();
  conformance_left<any_threads>();
}

TEST_CASE("engine, any transport: a function of a program takes any engine") {
  threads::run(2, [](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm);
    const auto sum_of_ranks = [](hvd::BasicEngine& e) {
      float x = static_cast<float>(e.rank() + 1);
      e.allreduce("x", std::span(&x, 1)).wait(long_enough);
      return x;
    };
    require(sum_of_ranks(engine) == 3.0f, "another sum");
    hvd::any_transport any(std::move(comm));
    hvd::Engine over_any(any);
    static_assert(std::is_same_v<decltype(over_any), hvd::Engine<hvd::any_transport>>);
    require(sum_of_ranks(over_any) == 3.0f, "another sum over any_transport");
  });
}

TEST_CASE("engine, alone: all of it") {
  conformance_operations<alone>();
  conformance_front_doors<alone>();
  conformance_wire<alone>();
  conformance_adasum<alone>();
  conformance_changes<alone>();
  conformance_callbacks<alone>();
  conformance_names<alone>();
  conformance_join<alone>();
  conformance_process_sets<alone>();
  conformance_threads<alone>();
  conformance_shutdown<alone>();
}

TEST_CASE("engine, threads: 500 engines leave nothing behind") {
  conformance_again<threads>(3, 500);
  conformance_again<alone>(1, 500);
}

TEST_CASE("engine, threads: an idle engine does nothing") {
  threads::run(3, [](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm);
    float x = 1.0f;
    engine.allreduce("x", std::span(&x, 1)).wait(long_enough);
    comm.barrier();
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::getrusage(RUSAGE_SELF, &after);
    const auto microseconds = [](const rusage& r) {
      return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1'000'000 + r.ru_utime.tv_usec + r.ru_stime.tv_usec;
    };
    // Two polls a millisecond would be thousands.
    require(after.ru_nvcsw - before.ru_nvcsw < 100, "an idle engine wakes up");
    require(microseconds(after) - microseconds(before) < 100'000, "an idle engine uses a CPU");
    comm.barrier();
  });
}

TEST_CASE("gradients in a bucket are reduced where they lie") {
  for (const int np : {1, 2, 3, 4}) {
    CAPTURE(np);
    hvd::thread_run(np, [&](hvd::ThreadTransport& comm) {
      hvd::Engine engine(comm);
      const std::shared_ptr<std::byte> memory = engine.alloc_bucket(30000 * sizeof(float));
      const std::span<float> all(reinterpret_cast<float*>(memory.get()), 30000);
      CHECK(std::all_of(all.begin(), all.end(), [](float x) { return x == 0.0f; }));
      const std::span<float> parts[] = {all.first(20000), all.subspan(20000, 9000), all.last(1000)};
      std::vector<float> beside(5000);
      for (int step = 0; step != 3; ++step) {
        std::fill(all.begin(), all.end(), static_cast<float>(comm.rank() + step));
        std::fill(beside.begin(), beside.end(), 1.0f);
        std::vector<hvd::handle> in_flight;
        for (const int i : {comm.rank() % 3, (comm.rank() + 1) % 3, (comm.rank() + 2) % 3}) {
          in_flight.push_back(engine.allreduce("part " + std::to_string(i), parts[i]));
        }
        in_flight.push_back(engine.allreduce("beside", beside));
        for (const hvd::handle& h : in_flight) h.wait();
        const auto expected = static_cast<float>(np * (np - 1) / 2 + np * step);
        CHECK(std::all_of(all.begin(), all.end(), [&](float x) { return x == expected; }));
        CHECK(beside == std::vector<float>(5000, static_cast<float>(np)));
      }
      if (np > 1) {
        CHECK_THROWS_AS(static_cast<void>(engine.alloc_bucket(comm.rank() == 0 ? 64 : 128)), hvd::error);
        engine.barrier().wait();  // the job goes on
      }
    });
  }
}
