// The conformance body of the engine on threads, and alone.
#include <engine/conformance.hpp>

#include <ctime>
#include <filesystem>
#include <string>

#include <sys/resource.h>

using namespace hvd::test;

namespace {

struct threads : on_threads {
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  static constexpr bool real_time = true;
};
struct alone : on_self {
  static constexpr bool real_time = true;
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
