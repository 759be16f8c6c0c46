// tests/scan.cpp: the ways to call scan and exscan, and what they refuse. Over every transport:
// support/collective_checker.hpp.
#include <hvd/allreduce.hpp>
#include <hvd/scan.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

using namespace hvd::test;

namespace {

/// The left operand: a rank's result is rank 0's input if ranks are combined in order.
struct left {
  static constexpr bool commutative = false;
  float operator()(float a, float) const { return a; }
};

// What they refuse when compiling: compile_fail/scan_of_average.cpp, compile_fail/exscan_of_average.cpp.
static_assert(hvd::detail::divides_by_ranks<hvd::average_t>);
static_assert(hvd::detail::divides_by_ranks<hvd::scaled_op<hvd::average_t>>);
static_assert(hvd::detail::divides_by_ranks<hvd::non_commutative_op<hvd::average_t>>);
static_assert(!hvd::detail::divides_by_ranks<hvd::sum_t> && !hvd::detail::divides_by_ranks<left>);

}  // namespace

TEST_CASE("each rank has the sum of the ranks up to it") {
  everywhere([](auto& comm) {
    std::vector<float> v = ramp(comm.rank(), 10);
    hvd::scan(comm, v);
    CHECK(v == ramp_sum(comm.rank() + 1, 10));

    const std::vector<double> in = ramp<double>(comm.rank(), 100'000);  // more than one chunk
    std::vector<double> out(in.size());
    hvd::scan(comm, in, out);
    CHECK(out == ramp_sum<double>(comm.rank() + 1, in.size()));
    CHECK(in == ramp<double>(comm.rank(), in.size()));
  });
}

TEST_CASE("the operation, and how") {
  everywhere([](auto& comm) {
    const auto r = static_cast<std::int64_t>(comm.rank());
    std::vector<std::int64_t> v{r + 1, -r};
    hvd::scan(comm, v, hvd::product);
    CHECK(v[0] == (r == 0 ? 1 : r == 1 ? 2 : 6));
    v = {r, -r};
    hvd::scan(comm, v, hvd::min, hvd::recursive_doubling{});
    CHECK(v == std::vector<std::int64_t>{0, -r});
    std::vector<float> f{static_cast<float>(r)}, g{0};
    hvd::scan(comm, f, g, hvd::scaled(hvd::sum, 2.0, 0.5), hvd::automatic<>{});
    CHECK(g[0] == static_cast<float>(r * (r + 1) / 2));
    hvd::scan(comm, f, left{});
    CHECK(f[0] == 0);
  });
}

TEST_CASE("pointers with a count, and nothing at all") {
  everywhere([](auto& comm) {
    const std::vector<std::int32_t> in = ramp<std::int32_t>(comm.rank(), 7);
    std::vector<std::int32_t> out(8, -1), v = in;
    hvd::scan(comm, in.data(), out.data(), 7);
    CHECK(out[6] == ramp_sum<std::int32_t>(comm.rank() + 1, 7)[6]);
    CHECK(out[7] == -1);
    hvd::scan(comm, v.data(), std::size_t{7}, hvd::max);
    CHECK(v == in);
    hvd::scan(comm, static_cast<float*>(nullptr), 0);
  });
}

TEST_CASE("what scan refuses, with the group still usable") {
  everywhere([](auto& comm) {
    const auto say = [&](const char* why) { return refused(hvd::operation::scan, comm, why); };
    std::vector<float> four(4, 1.0f), three(3);
    CHECK(complaint([&] { hvd::scan(comm, four, three); }) ==
          say("output has 3 elements; allowed: 4 (as the input)").c_str());
    CHECK(complaint([&] { hvd::scan(comm, static_cast<float*>(nullptr), 5); }) ==
          say("input is null but has 5 elements").c_str());
    CHECK(complaint([&] { hvd::scan(comm, std::span(four).first(3), std::span(four).last(at_run_time(3))); }) ==
          say("input and output overlap; allowed: no common element, or in place as the collective documents").c_str());
    hvd::scan(comm, four);
    CHECK(four[0] == static_cast<float>(comm.rank() + 1));
  });
}

TEST_CASE("with HVD_CHECK a scan among allreduces is found") {
  everywhere(
      [](auto& comm) {
        if (comm.size() == 1) return;
        std::vector<float> v(4, 1.0f);
        const auto said = complaint([&] { comm.rank() == 1 ? hvd::scan(comm, v) : hvd::allreduce(comm, v); });
        CHECK(said ==
              doctest::Contains("ranks 0 and 1 are in different calls: operation allreduce on rank 0, scan on rank 1"));
      },
      true);
}

TEST_CASE("exscan: each rank has the sum of the ranks before it, and rank 0 what it had") {
  everywhere([](auto& comm) {
    const auto mine = ramp(comm.rank(), 10);
    std::vector<float> v = mine;
    hvd::exscan(comm, v);
    CHECK(v == (comm.rank() == 0 ? mine : ramp_sum(comm.rank(), 10)));

    const std::vector<double> in = ramp<double>(comm.rank(), 100'000);  // more than one chunk
    std::vector<double> out(in.size(), -7);
    hvd::exscan(comm, in, out);
    CHECK(out == (comm.rank() == 0 ? std::vector<double>(in.size(), -7) : ramp_sum<double>(comm.rank(), in.size())));
    CHECK(in == ramp<double>(comm.rank(), in.size()));
  });
}

TEST_CASE("exscan: the operation, and how") {
  everywhere([](auto& comm) {
    const auto r = static_cast<std::int64_t>(comm.rank());
    std::vector<std::int64_t> v{r + 1, -r};
    hvd::exscan(comm, v, hvd::product);
    CHECK(v[0] == (r == 0 ? 1 : r));
    v = {r, -r};
    hvd::exscan(comm, v, hvd::min, hvd::recursive_doubling{});
    CHECK(v == std::vector<std::int64_t>{0, r == 0 ? 0 : 1 - r});
    // Inputs are doubled, results halved twice; a single input, on rank 1, too.
    std::vector<float> f{static_cast<float>(r + 1)}, g{-1};
    for (const bool messages : {false, true}) {
      g[0] = -1;
      const auto op = hvd::scaled(hvd::sum, 2.0, 0.25);
      messages ? hvd::exscan(comm, f, g, op, hvd::recursive_doubling{}) : hvd::exscan(comm, f, g, op);
      CHECK(g[0] == (r == 0 ? -1 : static_cast<float>(r * (r + 1)) / 4));
    }
    hvd::exscan(comm, f, left{});
    CHECK(f[0] == 1);
  });
}

TEST_CASE("exscan: pointers with a count, and nothing at all") {
  everywhere([](auto& comm) {
    const std::vector<std::int32_t> in = ramp<std::int32_t>(comm.rank(), 7);
    std::vector<std::int32_t> out(8, -1), v = in;
    hvd::exscan(comm, in.data(), out.data(), 7);
    CHECK(out[6] == (comm.rank() == 0 ? -1 : ramp_sum<std::int32_t>(comm.rank(), 7)[6]));
    CHECK(out[7] == -1);
    hvd::exscan(comm, v.data(), std::size_t{7}, hvd::max);
    CHECK(v == ramp<std::int32_t>(comm.rank() == 0 ? 0 : comm.rank() - 1, 7));
    hvd::exscan(comm, static_cast<float*>(nullptr), 0);
  });
}

TEST_CASE("what exscan refuses, with the group still usable") {
  everywhere([](auto& comm) {
    const auto say = [&](const char* why) { return refused(hvd::operation::exscan, comm, why); };
    std::vector<float> four(4, 1.0f), three(3);
    CHECK(complaint([&] { hvd::exscan(comm, four, three); }) ==
          say("output has 3 elements; allowed: 4 (as the input)").c_str());
    CHECK(complaint([&] { hvd::exscan(comm, static_cast<float*>(nullptr), 5); }) ==
          say("input is null but has 5 elements").c_str());
    hvd::exscan(comm, four);
    CHECK(four[0] == static_cast<float>(comm.rank() == 0 ? 1 : comm.rank()));
  });
}

TEST_CASE("with HVD_CHECK an exscan among scans is found") {
  everywhere(
      [](auto& comm) {
        if (comm.size() == 1) return;
        std::vector<float> v(4, 1.0f);
        const auto said = complaint([&] { comm.rank() == 1 ? hvd::exscan(comm, v) : hvd::scan(comm, v); });
        CHECK(said ==
              doctest::Contains("ranks 0 and 1 are in different calls: operation scan on rank 0, exscan on rank 1"));
      },
      true);
}
