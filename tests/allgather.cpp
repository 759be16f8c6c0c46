// tests/allgather.cpp: the ways to call allgather and allgather_v, and what they refuse.
#include <hvd/allgather.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

using namespace hvd::test;

namespace {

struct record {
  std::int32_t rank;
  char letter;
};

}  // namespace

TEST_CASE("every rank gets all blocks in rank order") {
  everywhere([](auto& comm) {
    for (const std::size_t each : {std::size_t{1}, std::size_t{13}, std::size_t{5000}}) {
      const std::vector<float> in = ramp(comm.rank(), each);
      std::vector<float> out(each * static_cast<std::size_t>(comm.size()));
      hvd::allgather(comm, in, out);
      CHECK(out == ramps(comm.size(), each));
      CHECK(in == ramp(comm.rank(), each));
    }
  });
}

TEST_CASE("in place: the input is the own block of the output") {
  everywhere([](auto& comm) {
    std::vector<double> v(7 * static_cast<std::size_t>(comm.size()), -1.0);
    const auto mine = std::span(v).subspan(7 * static_cast<std::size_t>(comm.rank()), 7);
    const auto own = ramp<double>(comm.rank(), 7);
    std::copy(own.begin(), own.end(), mine.begin());
    hvd::allgather(comm, mine, v);
    CHECK(v == ramps<double>(comm.size(), 7));
  });
}

TEST_CASE("how, pointers, and elements of any type") {
  everywhere([](auto& comm) {
    const auto p = static_cast<std::size_t>(comm.size());
    const std::vector<std::int64_t> in = ramp<std::int64_t>(comm.rank(), 3);
    std::vector<std::int64_t> out(3 * p + 1, -1);
    hvd::allgather(comm, in.data(), out.data(), 3, hvd::ring{});
    CHECK(out.back() == -1);
    out.pop_back();
    CHECK(out == ramps<std::int64_t>(comm.size(), 3));
    out.assign(3 * p, 0);
    hvd::allgather(comm, in, out, hvd::recursive_doubling{});
    CHECK(out == ramps<std::int64_t>(comm.size(), 3));

    const record mine[1] = {{comm.rank(), static_cast<char>('a' + comm.rank())}};
    std::vector<record> all(p);
    hvd::allgather(comm, mine, all);
    for (std::size_t q = 0; q != p; ++q) {
      CHECK(all[q].rank == static_cast<int>(q));
      CHECK(all[q].letter == static_cast<char>('a' + q));
    }
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
    std::vector<float> out(want.size());
    hvd::allgather_v(comm, in, out, counts);
    CHECK(out == want);
    out.assign(want.size(), 0);
    hvd::allgather_v(comm, in, out, counts, hvd::automatic<>{});
    CHECK(out == want);
  });
}

TEST_CASE("nothing to gather") {
  everywhere([](auto& comm) {
    std::vector<float> none;
    hvd::allgather(comm, none, none);
    const std::vector<std::size_t> zeros(static_cast<std::size_t>(comm.size()), 0);
    hvd::allgather_v(comm, none, none, zeros);
    comm.barrier();
  });
}

TEST_CASE("what allgather refuses") {
  everywhere([](auto& comm) {
    const auto say = [&](const std::string& why) { return refused(hvd::operation::allgather, comm, why); };
    const auto say_v = [&](const std::string& why) { return refused("allgather_v", comm, why); };
    const auto p = static_cast<std::size_t>(comm.size());
    std::vector<float> in(2, 1.0f), out(2 * p);
    CHECK(complaint([&] { hvd::allgather(comm, in, std::span(out).first(1)); }) ==
          say("output has 1 elements; allowed: " + std::to_string(2 * p) + " (ranks x elements of the input)").c_str());
    CHECK(complaint([&] { hvd::allgather(comm, static_cast<const float*>(nullptr), out.data(), 2); }) ==
          say("input is null but has 2 elements").c_str());
    if (comm.size() > 1) {
      const std::size_t other = 2 * static_cast<std::size_t>((comm.rank() + 1) % comm.size());
      CHECK(complaint([&] { hvd::allgather(comm, std::span(out).subspan(other, 2), out); }) ==
            doctest::Contains("input and output overlap"));
    }
    const std::vector<std::size_t> none, twos(p, 2), threes(p, 3);
    CHECK(complaint([&] { hvd::allgather_v(comm, in, out, none); }) ==
          say_v("counts has 0 entries; allowed: one for each of the " + std::to_string(p) + " ranks").c_str());
    CHECK(complaint([&] { hvd::allgather_v(comm, in, out, threes); }) == doctest::Contains("(the sum of counts)"));
    std::vector<float> larger(3 * p);
    CHECK(complaint([&] { hvd::allgather_v(comm, in, larger, threes); }) ==
          say_v("input has 2 elements; allowed: 3 (this rank's count)").c_str());
    hvd::allgather_v(comm, in, out, twos);
    CHECK(out.back() == 1.0f);
  });
}

TEST_CASE("with HVD_CHECK the others learn which function was called with wrong arguments") {
  everywhere(
      [](auto& comm) {
        const auto p = static_cast<std::size_t>(comm.size());
        std::vector<float> in(2, 1.0f), out(2 * p);
        const std::vector<std::size_t> none, twos(p, 2);
        const auto said = complaint([&] { hvd::allgather_v(comm, in, out, comm.rank() == 0 ? none : twos); });
        CHECK(said == (comm.rank() == 0 ? doctest::Contains("allgather_v on rank 0 of ")
                                        : doctest::Contains("rank 0 called allgather_v with invalid arguments")));
      },
      true);
}

TEST_CASE("counts whose sum is no number are refused") {
  // 2^64 - 1 and 3 would have the sum 2, and blocks far outside the buffer.
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    const std::vector<std::size_t> counts{std::numeric_limits<std::size_t>::max(), 3};
    std::vector<char> in(3), out(2);
    CHECK(
        complaint([&] { hvd::allgather_v(comm, in, out, counts); }) ==
        refused("allgather_v", comm,
                "counts add up to more than 9223372036854775807 elements of 1 byte, the most that can be addressed (a "
                "negative count?)")
            .c_str());
  });
}
