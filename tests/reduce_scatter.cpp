// tests/reduce_scatter.cpp: the ways to call reduce_scatter and reduce_scatter_v, and what they refuse.
#include <hvd/reduce_scatter.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

using namespace hvd::test;

namespace {

// `count` elements of `v` from `start`.
template <class E>
std::vector<E> part(const std::vector<E>& v, std::size_t start, std::size_t count) {
  return {v.begin() + static_cast<std::ptrdiff_t>(start), v.begin() + static_cast<std::ptrdiff_t>(start + count)};
}

// Blocks of 2, 5, 8, ... elements.
std::vector<std::size_t> counts_of(int ranks) {
  std::vector<std::size_t> counts;
  for (int q = 0; q != ranks; ++q) counts.push_back(static_cast<std::size_t>(2 + 3 * q));
  return counts;
}

}  // namespace

TEST_CASE("every rank gets its block") {
  everywhere([](auto& comm) {
    for (const std::size_t each : {std::size_t{1}, std::size_t{13}, std::size_t{5000}}) {
      const std::size_t all = each * static_cast<std::size_t>(comm.size());
      const std::vector<float> in = ramp(comm.rank(), all);
      std::vector<float> out(each);
      hvd::reduce_scatter(comm, in, out);
      CHECK(out == part(ramp_sum(comm.size(), all), each * static_cast<std::size_t>(comm.rank()), each));
      CHECK(in == ramp(comm.rank(), all));
    }
  });
}

TEST_CASE("in place: the output is the own block of the input, and the rest stays") {
  everywhere([](auto& comm) {
    const std::size_t all = 10 * static_cast<std::size_t>(comm.size());
    const std::size_t mine = 10 * static_cast<std::size_t>(comm.rank());
    std::vector<std::int32_t> v = ramp<std::int32_t>(comm.rank(), all);
    hvd::reduce_scatter(comm, v, std::span(v).subspan(mine, 10), hvd::max);
    std::vector<std::int32_t> want = ramp<std::int32_t>(comm.rank(), all);
    const auto highest = ramp<std::int32_t>(comm.size() - 1, all);
    for (std::size_t i = mine; i != mine + 10; ++i) want[i] = highest[i];
    CHECK(v == want);
  });
}

TEST_CASE("the operation, how, and pointers") {
  everywhere([](auto& comm) {
    const std::size_t all = 3 * static_cast<std::size_t>(comm.size());
    const std::vector<double> in = ramp<double>(comm.rank(), all);
    std::vector<double> out(3);
    hvd::reduce_scatter(comm, in, out, hvd::average, hvd::ring{});
    CHECK(out[0] == (3.0 * comm.rank() + 1) * (comm.size() + 1) / 2);
    hvd::reduce_scatter(comm, in.data(), out.data(), 3);
    CHECK(out == part(ramp_sum<double>(comm.size(), all), 3 * static_cast<std::size_t>(comm.rank()), 3));
    hvd::reduce_scatter(comm, in.data(), out.data(), 3, hvd::min, hvd::automatic<>{});
    CHECK(out == part(ramp<double>(0, all), 3 * static_cast<std::size_t>(comm.rank()), 3));
  });
}

TEST_CASE("blocks of a size each") {
  everywhere([](auto& comm) {
    const std::vector<std::size_t> counts = counts_of(comm.size());
    const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    const auto rank = static_cast<std::size_t>(comm.rank());
    const std::size_t start = std::accumulate(counts.begin(), counts.begin() + comm.rank(), std::size_t{0});
    std::vector<float> v = ramp(comm.rank(), all);
    std::vector<float> out(counts[rank]);
    hvd::reduce_scatter_v(comm, v, out, counts);
    CHECK(out == part(ramp_sum(comm.size(), all), start, counts[rank]));
    hvd::reduce_scatter_v(comm, v, std::span(v).subspan(start, counts[rank]), counts, hvd::sum, hvd::automatic<>{});
    CHECK(part(v, start, counts[rank]) == out);
  });
}

TEST_CASE("some blocks, or all, are empty") {
  everywhere([](auto& comm) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(comm.size()), 0);
    counts.back() = 4;
    const std::vector<float> in = ramp(comm.rank(), 4);
    std::vector<float> out(comm.rank() == comm.size() - 1 ? 4 : 0);
    hvd::reduce_scatter_v(comm, in, out, counts);
    if (!out.empty()) CHECK(out == ramp_sum(comm.size(), 4));
    std::vector<float> none;
    hvd::reduce_scatter(comm, none, none);
    comm.barrier();
  });
}

TEST_CASE("what reduce_scatter refuses") {
  everywhere([](auto& comm) {
    const auto say = [&](const std::string& why) { return refused(hvd::operation::reduce_scatter, comm, why); };
    const auto say_v = [&](const std::string& why) { return refused("reduce_scatter_v", comm, why); };
    const auto p = static_cast<std::size_t>(comm.size());
    std::vector<float> in(2 * p, 1.0f), out(2), one(1);
    CHECK(complaint([&] { hvd::reduce_scatter(comm, in, one); }) ==
          say("input has " + std::to_string(2 * p) + " elements; allowed: " + std::to_string(p) +
              " (ranks x elements of the output)")
              .c_str());
    CHECK(complaint([&] { hvd::reduce_scatter(comm, in.data(), static_cast<float*>(nullptr), 2); }) ==
          say("output is null but has 2 elements").c_str());
    if (comm.size() > 1) {  // another rank's block is no place for the output
      const std::size_t other = 2 * static_cast<std::size_t>((comm.rank() + 1) % comm.size());
      CHECK(complaint([&] { hvd::reduce_scatter(comm, in, std::span(in).subspan(other, 2)); }) ==
            doctest::Contains("input and output overlap"));
    }
    const std::vector<std::size_t> too_many(p + 1, 2), twos(p, 2), ones(p, 1);
    CHECK(complaint([&] { hvd::reduce_scatter_v(comm, in, out, too_many); }) ==
          say_v("counts has " + std::to_string(p + 1) + " entries; allowed: one for each of the " + std::to_string(p) +
                " ranks")
              .c_str());
    CHECK(complaint([&] { hvd::reduce_scatter_v(comm, in, out, ones); }) ==
          doctest::Contains(("allowed: " + std::to_string(p) + " (the sum of counts)").c_str()));
    CHECK(complaint([&] { hvd::reduce_scatter_v(comm, in, one, twos); }) ==
          say_v("output has 1 elements; allowed: 2 (this rank's count)").c_str());
    hvd::reduce_scatter(comm, in, out);
    CHECK(out[1] == static_cast<float>(comm.size()));
  });
}
