// tests/engine/random_programs.cpp: random programs on threads and on simulated ranks.
#include <hvd/transport/simulated.hpp>

#include <engine/random_programs.hpp>

#include <doctest/doctest.h>

#include <cstdint>

using namespace hvd::test;

TEST_CASE("engine: random programs on threads") {
  for (std::uint64_t seed = 0; seed != seeds(2000); ++seed) {
    CAPTURE(seed);
    const watchdog w(seed);
    CHECK_NOTHROW(hvd::thread_run(
        static_cast<int>(1 + seed % 4), [&](hvd::ThreadTransport& comm) { run_program(comm, seed, true); },
        long_deadline()));
  }
}

TEST_CASE("engine: random programs on simulated ranks") {
  for (std::uint64_t seed = 0; seed != seeds(300); ++seed) {
    CAPTURE(seed);
    const watchdog w(seed);
    CHECK_NOTHROW(hvd::simulate(static_cast<int>(1 + seed % 9), {.ranks_per_host = 2},
                                [&](hvd::SimulatedTransport& comm) { run_program(comm, seed, false); }));
  }
}
