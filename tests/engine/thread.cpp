// The conformance body of the engine on threads, and alone.
#include <engine/conformance.hpp>

#include <chrono>
#include <thread>

#include <sys/resource.h>

using namespace hvd::test;

namespace {

struct threads : on_threads {
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  static constexpr bool real_time = true, one_process = true;
};
struct alone : on_self {
  static constexpr bool real_time = true, one_process = true;
};

}  // namespace

TEST_CASE("engine, threads: every operation, type and reduction") { conformance_operations<threads>(); }
TEST_CASE("engine, threads: typed calls") { conformance_front_doors<threads>(); }
TEST_CASE("engine, threads: the same bits on all ranks") { conformance_same_bits<threads>(); }
TEST_CASE("engine, threads: adasum") { conformance_adasum<threads>(); }
TEST_CASE("engine, threads: shapes that change, priorities") { conformance_changes<threads>(); }
TEST_CASE("engine, threads: callbacks") { conformance_callbacks<threads>(); }
TEST_CASE("engine, threads: refused at once, limits of waits") { conformance_refused_here<threads>(); }
TEST_CASE("engine, threads: mismatches") { conformance_mismatches<threads>(); }
TEST_CASE("engine, threads: join") { conformance_join<threads>(); }
TEST_CASE("engine, threads: process sets") { conformance_process_sets<threads>(); }
TEST_CASE("engine, threads: process sets do not wait for each other") { conformance_independent_sets<threads>(); }
TEST_CASE("engine, threads: several threads, two engines") { conformance_threads<threads>(); }
TEST_CASE("engine, threads: shutdown") { conformance_shutdown<threads>(); }
TEST_CASE("engine, threads: a rank that goes while others wait") { conformance_left<threads>(); }

TEST_CASE("engine, alone: all of it") {
  conformance_operations<alone>();
  conformance_front_doors<alone>();
  conformance_adasum<alone>();
  conformance_changes<alone>();
  conformance_callbacks<alone>();
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
