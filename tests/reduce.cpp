// tests/reduce.cpp: the ways to call reduce, and what it refuses.
#include <hvd/reduce.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace hvd::test;

TEST_CASE("in place to rank 0: elsewhere nothing changes") {
  everywhere([](auto& comm) {
    std::vector<float> v = ramp(comm.rank(), 100);
    hvd::reduce(comm, v);
    CHECK(v == (comm.rank() == 0 ? ramp_sum(comm.size(), 100) : ramp(comm.rank(), 100)));
  });
}

TEST_CASE("out of place to every root; only the root has an output") {
  everywhere([](auto& comm) {
    for (int root = 0; root != comm.size(); ++root) {
      const std::vector<double> in = ramp<double>(comm.rank(), 5000);
      std::vector<double> out(comm.rank() == root ? 5000 : 0);
      hvd::reduce(comm, in, out, hvd::sum, root);
      if (comm.rank() == root) CHECK(out == ramp_sum<double>(comm.size(), 5000));
      CHECK(in == ramp<double>(comm.rank(), 5000));
      std::vector<double> everywhere_one(5000, -1.0);
      hvd::reduce(comm, in, everywhere_one, hvd::min, root, hvd::tree{});
      CHECK(everywhere_one[1] == (comm.rank() == root ? 2.0 : -1.0));
    }
  });
}

TEST_CASE("in place with operation, root and how") {
  everywhere([](auto& comm) {
    const int root = comm.size() - 1;
    std::vector<std::int64_t> v(3, comm.rank());
    hvd::reduce(comm, std::span(v), hvd::max, root, hvd::automatic<>{});
    CHECK(v[2] == comm.rank());  // the largest rank is the root
    hvd::reduce(comm, v, hvd::sum, root);
    CHECK(v[0] == (comm.rank() == root ? comm.size() * (comm.size() - 1) / 2 : comm.rank()));
  });
}

TEST_CASE("pointers with a count; null but on the root") {
  everywhere([](auto& comm) {
    const int root = comm.size() - 1;
    const std::vector<float> in = ramp(comm.rank(), 9);
    std::vector<float> out(9);
    hvd::reduce(comm, in.data(), comm.rank() == root ? out.data() : nullptr, 9, hvd::sum, root);
    if (comm.rank() == root) CHECK(out == ramp_sum(comm.size(), 9));
    hvd::reduce(comm, in.data(), out.data(), 9);
    if (comm.rank() == 0) CHECK(out == ramp_sum(comm.size(), 9));
  });
}

TEST_CASE("nothing to reduce") {
  everywhere([](auto& comm) {
    std::vector<float> none;
    hvd::reduce(comm, none);
    hvd::reduce(comm, none, none, hvd::max, comm.size() - 1);
    comm.barrier();
  });
}

TEST_CASE("what reduce refuses on every rank") {
  everywhere([](auto& comm) {
    const auto say = [&](const std::string& why) { return refused(hvd::operation::reduce, comm, why); };
    std::vector<float> v(4, 1.0f);
    const std::string allowed = " is out of range; allowed: 0 to " + std::to_string(comm.size() - 1);
    CHECK(complaint([&] { hvd::reduce(comm, v, hvd::sum, -1); }) == say("root -1" + allowed).c_str());
    CHECK(complaint([&] { hvd::reduce(comm, v, hvd::sum, comm.size()); }) ==
          say("root " + std::to_string(comm.size()) + allowed).c_str());
    CHECK(complaint([&] { hvd::reduce(comm, static_cast<const float*>(nullptr), v.data(), 4); }) ==
          say("input is null but has 4 elements").c_str());
    hvd::reduce(comm, v);
    if (comm.rank() == 0) CHECK(v[0] == static_cast<float>(comm.size()));
  });
}

TEST_CASE("what reduce refuses on the root; with HVD_CHECK the others learn it") {
  everywhere(
      [](auto& comm) {
        std::vector<float> v(4, 1.0f), three(3);
        const auto short_output = complaint([&] { hvd::reduce(comm, v, three); });
        const auto overlap =
            complaint([&] { hvd::reduce(comm, std::span(v).first(3), std::span(v).last(at_run_time(3)), hvd::sum); });
        if (comm.rank() == 0) {
          CHECK(short_output ==
                refused(hvd::operation::reduce, comm, "output has 3 elements; allowed: 4 (as the input)").c_str());
          CHECK(overlap == doctest::Contains("input and output overlap"));
        } else {
          CHECK(short_output == doctest::Contains("rank 0 called reduce with invalid arguments"));
          CHECK(overlap == doctest::Contains("rank 0 called reduce with invalid arguments"));
        }
        hvd::reduce(comm, v);
        if (comm.rank() == 0) CHECK(v[0] == static_cast<float>(comm.size()));
      },
      true);
}
