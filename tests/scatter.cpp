// tests/scatter.cpp: the ways to call scatter and scatter_v, and what they refuse.
#include <hvd/scatter.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace hvd::test;

TEST_CASE("every rank gets its block of the root's") {
  everywhere([](auto& comm) {
    for (const std::size_t each : {std::size_t{1}, std::size_t{13}, std::size_t{5000}}) {
      for (int root = 0; root != comm.size(); ++root) {
        const std::vector<float> in = comm.rank() == root ? ramps(comm.size(), each) : std::vector<float>();
        std::vector<float> out(each);
        hvd::scatter(comm, in, out, root);
        CHECK(out == ramp(comm.rank(), each));
      }
    }
    std::vector<float> in = ramps(comm.size(), 2), out(2);
    if (comm.rank() != 0) in.assign(in.size(), -1.0f);  // not read
    hvd::scatter(comm, in, out);
    CHECK(out == ramp(comm.rank(), 2));
  });
}

TEST_CASE("in place on the root: the output is its own block of the input") {
  everywhere([](auto& comm) {
    const int root = comm.size() - 1;
    std::vector<double> all = ramps<double>(comm.size(), 7);
    const auto mine = std::span(all).subspan(7 * static_cast<std::size_t>(comm.rank()), 7);
    if (comm.rank() != root) std::fill(all.begin(), all.end(), -1.0);
    hvd::scatter(comm, all, mine, root);
    if (comm.rank() == root) CHECK(all == ramps<double>(comm.size(), 7));
    CHECK(std::vector<double>(mine.begin(), mine.end()) == ramp<double>(comm.rank(), 7));
  });
}

TEST_CASE("how, and pointers; null but on the root") {
  everywhere([](auto& comm) {
    const std::vector<std::int64_t> in = ramps<std::int64_t>(comm.size(), 3);
    std::vector<std::int64_t> out(4, -1);
    const int root = comm.size() - 1;
    hvd::scatter(comm, comm.rank() == root ? in.data() : nullptr, out.data(), 3, root, hvd::tree{});
    CHECK(out[3] == -1);
    out.resize(3);
    CHECK(out == ramp<std::int64_t>(comm.rank(), 3));
    out.assign(3, 0);
    hvd::scatter(comm, in.data(), out.data(), 3);
    CHECK(out == ramp<std::int64_t>(comm.rank(), 3));
  });
}

TEST_CASE("blocks of a size each, some empty") {
  everywhere([](auto& comm) {
    std::vector<std::size_t> counts;
    std::vector<float> all;
    for (int q = 0; q != comm.size(); ++q) {
      counts.push_back(static_cast<std::size_t>(q * 3));
      for (const float v : ramp(q, counts.back())) all.push_back(v);
    }
    const std::size_t own = counts[static_cast<std::size_t>(comm.rank())];
    for (int root = 0; root != comm.size(); ++root) {
      std::vector<float> out(own);
      hvd::scatter_v(comm, comm.rank() == root ? all : std::vector<float>(), out, counts, root);
      CHECK(out == ramp(comm.rank(), own));
    }
    std::vector<float> out(own);
    hvd::scatter_v(comm, all, out, counts);
    CHECK(out == ramp(comm.rank(), own));
  });
}

TEST_CASE("nothing to scatter") {
  everywhere([](auto& comm) {
    std::vector<float> none;
    hvd::scatter(comm, none, none, comm.size() - 1);
    const std::vector<std::size_t> zeros(static_cast<std::size_t>(comm.size()), 0);
    hvd::scatter_v(comm, none, none, zeros);
    comm.barrier();
  });
}

TEST_CASE("what scatter refuses on every rank") {
  everywhere([](auto& comm) {
    const auto say = [&](const std::string& why) { return refused(hvd::operation::scatter, comm, why); };
    const auto say_v = [&](const std::string& why) { return refused("scatter_v", comm, why); };
    const auto p = static_cast<std::size_t>(comm.size());
    std::vector<float> in(2 * p, 1.0f), out(2);
    CHECK(complaint([&] { hvd::scatter(comm, in, out, -1); }) ==
          say("root -1 is out of range; allowed: 0 to " + std::to_string(p - 1)).c_str());
    CHECK(complaint([&] { hvd::scatter(comm, in, out, comm.size()); }) ==
          say("root " + std::to_string(p) + " is out of range; allowed: 0 to " + std::to_string(p - 1)).c_str());
    CHECK(complaint([&] { hvd::scatter(comm, in.data(), static_cast<float*>(nullptr), 2); }) ==
          say("output is null but has 2 elements").c_str());
    const std::vector<std::size_t> none, threes(p, 3);
    CHECK(complaint([&] { hvd::scatter_v(comm, in, out, none); }) ==
          say_v("counts has 0 entries; allowed: one for each of the " + std::to_string(p) + " ranks").c_str());
    CHECK(complaint([&] { hvd::scatter_v(comm, in, out, threes, 7); }) == doctest::Contains("root 7 is out of range"));
    CHECK(complaint([&] { hvd::scatter_v(comm, in, out, threes); }) ==
          say_v("output has 2 elements; allowed: 3 (this rank's count)").c_str());
    hvd::scatter(comm, in, out);
    CHECK(out[1] == 1.0f);
  });
}

TEST_CASE("what scatter refuses on the root; with HVD_CHECK the others learn it") {
  everywhere(
      [](auto& comm) {
        const auto p = static_cast<std::size_t>(comm.size());
        std::vector<float> in(2 * p, 1.0f), out(2);
        const auto short_input = complaint([&] { hvd::scatter(comm, std::span(in).first(1), out); });
        std::vector<float> both(2 * p + 1, 1.0f);
        const auto inside = std::span(both).subspan(at_run_time(1), 2);
        const auto overlap = complaint([&] { hvd::scatter(comm, std::span(both).first(2 * p), inside); });
        if (comm.rank() == 0) {
          CHECK(short_input ==
                refused(hvd::operation::scatter, comm,
                        "input has 1 elements; allowed: " + std::to_string(2 * p) + " (the blocks of all ranks)")
                    .c_str());
          CHECK(overlap == doctest::Contains("input and output overlap"));
        } else {
          CHECK(short_input == doctest::Contains("rank 0 called scatter with invalid arguments"));
          CHECK(overlap == doctest::Contains("rank 0 called scatter with invalid arguments"));
        }
        hvd::scatter(comm, in, out);
        CHECK(out[1] == 1.0f);
      },
      true);
}
