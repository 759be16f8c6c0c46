// tests/gather.cpp: the ways to call gather and gather_v, and what they refuse.
#include <hvd/gather.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace hvd::test;

TEST_CASE("the root gets all blocks in rank order") {
  everywhere([](auto& comm) {
    const auto p = static_cast<std::size_t>(comm.size());
    for (const std::size_t each : {std::size_t{1}, std::size_t{13}, std::size_t{5000}}) {
      for (int root = 0; root != comm.size(); ++root) {
        const std::vector<float> in = ramp(comm.rank(), each);
        std::vector<float> out(comm.rank() == root ? each * p : 0);
        hvd::gather(comm, in, out, root);
        if (comm.rank() == root) CHECK(out == ramps(comm.size(), each));
      }
    }
    std::vector<float> untouched(2 * p, -1.0f);
    hvd::gather(comm, ramp(comm.rank(), 2), untouched);  // rank 0, unless said otherwise
    CHECK(untouched == (comm.rank() == 0 ? ramps(comm.size(), 2) : std::vector<float>(2 * p, -1.0f)));
  });
}

TEST_CASE("in place on the root: the input is its own block of the output") {
  everywhere([](auto& comm) {
    const int root = comm.size() - 1;
    const auto own = ramp<double>(comm.rank(), 7);
    std::vector<double> all(7 * static_cast<std::size_t>(comm.size()), -1.0);
    const auto mine = std::span(all).subspan(7 * static_cast<std::size_t>(comm.rank()), 7);
    std::copy(own.begin(), own.end(), mine.begin());
    hvd::gather(comm, mine, all, root);
    if (comm.rank() == root) CHECK(all == ramps<double>(comm.size(), 7));
  });
}

TEST_CASE("how, and pointers; null but on the root") {
  everywhere([](auto& comm) {
    const std::vector<std::int64_t> in = ramp<std::int64_t>(comm.rank(), 3);
    std::vector<std::int64_t> out(3 * static_cast<std::size_t>(comm.size()));
    const int root = comm.size() - 1;
    hvd::gather(comm, in.data(), comm.rank() == root ? out.data() : nullptr, 3, root, hvd::tree{});
    if (comm.rank() == root) CHECK(out == ramps<std::int64_t>(comm.size(), 3));
    hvd::gather(comm, in.data(), out.data(), 3);
    if (comm.rank() == 0) CHECK(out == ramps<std::int64_t>(comm.size(), 3));
  });
}

TEST_CASE("blocks of a size each, some empty") {
  everywhere([](auto& comm) {
    std::vector<std::size_t> counts;
    std::vector<float> want;
    for (int q = 0; q != comm.size(); ++q) {
      counts.push_back(static_cast<std::size_t>(q * 3));
      for (const float v : ramp(q, counts.back())) want.push_back(v);
    }
    const std::vector<float> in = ramp(comm.rank(), counts[static_cast<std::size_t>(comm.rank())]);
    for (int root = 0; root != comm.size(); ++root) {
      std::vector<float> out(comm.rank() == root ? want.size() : 0);
      hvd::gather_v(comm, in, out, counts, root);
      if (comm.rank() == root) CHECK(out == want);
    }
    std::vector<float> out(want.size());
    hvd::gather_v(comm, in, out, counts);
    if (comm.rank() == 0) CHECK(out == want);
  });
}

TEST_CASE("nothing to gather") {
  everywhere([](auto& comm) {
    std::vector<float> none;
    hvd::gather(comm, none, none, comm.size() - 1);
    const std::vector<std::size_t> zeros(static_cast<std::size_t>(comm.size()), 0);
    hvd::gather_v(comm, none, none, zeros);
    comm.barrier();
  });
}

TEST_CASE("what gather refuses on every rank") {
  everywhere([](auto& comm) {
    const auto say = [&](const std::string& why) { return refused(hvd::operation::gather, comm, why); };
    const auto say_v = [&](const std::string& why) { return refused("gather_v", comm, why); };
    const auto p = static_cast<std::size_t>(comm.size());
    std::vector<float> in(2, 1.0f), out(2 * p);
    CHECK(complaint([&] { hvd::gather(comm, in, out, -1); }) ==
          say("root -1 is out of range; allowed: 0 to " + std::to_string(p - 1)).c_str());
    CHECK(complaint([&] { hvd::gather(comm, in, out, comm.size()); }) ==
          say("root " + std::to_string(p) + " is out of range; allowed: 0 to " + std::to_string(p - 1)).c_str());
    CHECK(complaint([&] { hvd::gather(comm, static_cast<const float*>(nullptr), out.data(), 2); }) ==
          say("input is null but has 2 elements").c_str());
    const std::vector<std::size_t> none, threes(p, 3);
    CHECK(complaint([&] { hvd::gather_v(comm, in, out, none); }) ==
          say_v("counts has 0 entries; allowed: one for each of the " + std::to_string(p) + " ranks").c_str());
    CHECK(complaint([&] { hvd::gather_v(comm, in, out, threes, 7); }) == doctest::Contains("root 7 is out of range"));
    CHECK(complaint([&] { hvd::gather_v(comm, in, out, threes); }) ==
          say_v("input has 2 elements; allowed: 3 (this rank's count)").c_str());
    hvd::gather(comm, in, out);
  });
}

TEST_CASE("what gather refuses on the root; with HVD_CHECK the others learn it") {
  everywhere(
      [](auto& comm) {
        const auto p = static_cast<std::size_t>(comm.size());
        std::vector<float> in(2, 1.0f), out(2 * p);
        const auto short_output = complaint([&] { hvd::gather(comm, in, std::span(out).first(1)); });
        std::vector<float> both(2 * p + 1, 1.0f);
        const auto inside = std::span(both).subspan(at_run_time(1), 2);
        const auto overlap = complaint([&] { hvd::gather(comm, inside, std::span(both).first(2 * p)); });
        if (comm.rank() == 0) {
          CHECK(short_output ==
                refused(hvd::operation::gather, comm,
                        "output has 1 elements; allowed: " + std::to_string(2 * p) + " (the blocks of all ranks)")
                    .c_str());
          CHECK(overlap == doctest::Contains("input and output overlap"));
        } else {
          CHECK(short_output == doctest::Contains("rank 0 called gather with invalid arguments"));
          CHECK(overlap == doctest::Contains("rank 0 called gather with invalid arguments"));
        }
        hvd::gather(comm, in, out);
      },
      true);
}
