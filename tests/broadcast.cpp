// tests/broadcast.cpp: the ways to call broadcast, and what it refuses.
#include <hvd/broadcast.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace hvd::test;

TEST_CASE("in place from rank 0") {
  everywhere([](auto& comm) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{9}, std::size_t{20000}}) {
      std::vector<float> v = ramp(comm.rank(), count);
      hvd::broadcast(comm, v);
      CHECK(v == ramp(0, count));
    }
  });
}

TEST_CASE("from every root, in place and not; the input is the root's") {
  everywhere([](auto& comm) {
    for (int root = 0; root != comm.size(); ++root) {
      std::vector<double> v = ramp<double>(comm.rank(), 3000);
      hvd::broadcast(comm, v, root);
      CHECK(v == ramp<double>(root, 3000));
      const std::vector<double> in = comm.rank() == root ? ramp<double>(root + 7, 50) : std::vector<double>();
      std::vector<double> out(50);
      hvd::broadcast(comm, in, out, root);
      CHECK(out == ramp<double>(root + 7, 50));
      hvd::broadcast(comm, ramp<double>(comm.rank(), 50), out, root, hvd::tree{});
      CHECK(out == ramp<double>(root, 50));
    }
  });
}

TEST_CASE("a pointer with a count, and how") {
  everywhere([](auto& comm) {
    std::vector<std::int16_t> v(6, static_cast<std::int16_t>(comm.rank()));
    const int root = comm.size() - 1;
    hvd::broadcast(comm, v.data(), 5, root);
    CHECK(v[4] == root);
    CHECK(v[5] == comm.rank());
    v.assign(6, static_cast<std::int16_t>(comm.rank()));
    hvd::broadcast(comm, v.data(), 6);
    CHECK(v[5] == 0);
    hvd::broadcast(comm, v, 0, hvd::ring{});
    CHECK(v[5] == 0);
  });
}

TEST_CASE("elements of any type, and none at all") {
  everywhere([](auto& comm) {
    struct settings {
      double rate;
      int layers[3];
      bool debug;
    } s[1] = {};
    if (comm.rank() == 0) s[0] = {0.25, {64, 32, 10}, true};
    hvd::broadcast(comm, s);
    CHECK(s[0].rate == 0.25);
    CHECK(s[0].layers[2] == 10);
    CHECK(s[0].debug);

    std::vector<float> none;
    hvd::broadcast(comm, none, comm.size() - 1);
    hvd::broadcast(comm, none, none);
    comm.barrier();
  });
}

TEST_CASE("what broadcast refuses on every rank") {
  everywhere([](auto& comm) {
    const auto say = [&](const std::string& why) { return refused(hvd::operation::broadcast, comm, why); };
    std::vector<float> v(4, 1.0f);
    const std::string allowed = " is out of range; allowed: 0 to " + std::to_string(comm.size() - 1);
    CHECK(complaint([&] { hvd::broadcast(comm, v, -1); }) == say("root -1" + allowed).c_str());
    CHECK(complaint([&] { hvd::broadcast(comm, v, comm.size()); }) ==
          say("root " + std::to_string(comm.size()) + allowed).c_str());
    CHECK(complaint([&] { hvd::broadcast(comm, static_cast<float*>(nullptr), 3); }) ==
          say("output is null but has 3 elements").c_str());
    hvd::broadcast(comm, v);
  });
}

TEST_CASE("what broadcast refuses on the root; with HVD_CHECK the others learn it") {
  everywhere(
      [](auto& comm) {
        std::vector<float> v(4, 1.0f), three(3);
        const auto short_input = complaint([&] { hvd::broadcast(comm, three, v); });
        const auto overlap =
            complaint([&] { hvd::broadcast(comm, std::span(v).first(3), std::span(v).last(at_run_time(3))); });
        if (comm.rank() == 0) {
          CHECK(short_input ==
                refused(hvd::operation::broadcast, comm, "input has 3 elements; allowed: 4 (as the output)").c_str());
          CHECK(overlap == doctest::Contains("input and output overlap"));
        } else {
          CHECK(short_input == doctest::Contains("rank 0 called broadcast with invalid arguments"));
          CHECK(overlap == doctest::Contains("rank 0 called broadcast with invalid arguments"));
        }
        hvd::broadcast(comm, v);
      },
      true);
}
