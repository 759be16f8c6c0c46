// tests/alltoall.cpp: the ways to call alltoall and alltoall_v, and what they refuse.
#include <hvd/alltoall.hpp>

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

// What rank `from` has for rank `to`, element i.
template <class E>
E item(int from, int to, std::size_t i) {
  return static_cast<E>(from * 1000 + to * 100 + static_cast<int>(i % 97));
}

// Blocks of `each` elements for all ranks, and what comes back.
template <class E>
std::vector<E> outgoing(int rank, int ranks, std::size_t each) {
  std::vector<E> v;
  for (int to = 0; to != ranks; ++to) {
    for (std::size_t i = 0; i != each; ++i) v.push_back(item<E>(rank, to, i));
  }
  return v;
}
template <class E>
std::vector<E> incoming(int rank, int ranks, std::size_t each) {
  std::vector<E> v;
  for (int from = 0; from != ranks; ++from) {
    for (std::size_t i = 0; i != each; ++i) v.push_back(item<E>(from, rank, i));
  }
  return v;
}

}  // namespace

TEST_CASE("block r goes to rank r, out of place and in place") {
  everywhere([](auto& comm) {
    for (const std::size_t each : {std::size_t{1}, std::size_t{13}, std::size_t{5000}}) {
      const std::vector<float> in = outgoing<float>(comm.rank(), comm.size(), each);
      std::vector<float> out(in.size());
      hvd::alltoall(comm, in, out);
      CHECK(out == incoming<float>(comm.rank(), comm.size(), each));
      CHECK(in == outgoing<float>(comm.rank(), comm.size(), each));
      std::vector<float> both = in;
      hvd::alltoall(comm, both);
      CHECK(both == out);
    }
  });
}

TEST_CASE("how, and pointers") {
  everywhere([](auto& comm) {
    const std::vector<std::int64_t> in = outgoing<std::int64_t>(comm.rank(), comm.size(), 4);
    const std::vector<std::int64_t> want = incoming<std::int64_t>(comm.rank(), comm.size(), 4);
    std::vector<std::int64_t> out(in.size() + 1, -1);
    hvd::alltoall(comm, in.data(), out.data(), 4);
    CHECK(out.back() == -1);
    out.pop_back();
    CHECK(out == want);
    out.assign(in.size(), 0);
    hvd::alltoall(comm, in.data(), out.data(), 4, hvd::automatic<>{});
    CHECK(out == want);
    out = in;
    hvd::alltoall(comm, std::span(out), hvd::ring{});
    CHECK(out == want);
    out.assign(in.size(), 0);
    hvd::alltoall(comm, in, out, hvd::ring{});
    CHECK(out == want);
  });
}

TEST_CASE("blocks of a size for each pair, some empty") {
  everywhere([](auto& comm) {
    // Rank a sends (a * 3 + b * 2) % 5 elements to rank b.
    const auto count = [](int from, int to) { return static_cast<std::size_t>((from * 3 + to * 2) % 5); };
    std::vector<std::size_t> sends, receives;
    std::vector<double> in, want;
    for (int q = 0; q != comm.size(); ++q) {
      sends.push_back(count(comm.rank(), q));
      receives.push_back(count(q, comm.rank()));
      for (std::size_t i = 0; i != sends.back(); ++i) in.push_back(item<double>(comm.rank(), q, i));
      for (std::size_t i = 0; i != receives.back(); ++i) want.push_back(item<double>(q, comm.rank(), i));
    }
    std::vector<double> out(want.size());
    hvd::alltoall_v(comm, in, out, sends, receives);
    CHECK(out == want);
    out.assign(want.size(), 0.0);
    hvd::alltoall_v(comm, in, out, sends, receives, hvd::ring{});
    CHECK(out == want);
  });
}

TEST_CASE("nothing to send") {
  everywhere([](auto& comm) {
    std::vector<float> none;
    hvd::alltoall(comm, none);
    hvd::alltoall(comm, none, none);
    const std::vector<std::size_t> zeros(static_cast<std::size_t>(comm.size()), 0);
    hvd::alltoall_v(comm, none, none, zeros, zeros);
    comm.barrier();
  });
}

TEST_CASE("what alltoall refuses") {
  everywhere([](auto& comm) {
    const auto say = [&](const std::string& why) { return refused(hvd::operation::alltoall, comm, why); };
    const auto p = static_cast<std::size_t>(comm.size());
    std::vector<float> in(2 * p, 1.0f), out(2 * p);
    CHECK(complaint([&] { hvd::alltoall(comm, in, std::span(out).first(1)); }) ==
          say("output has 1 elements; allowed: " + std::to_string(2 * p) + " (as the input)").c_str());
    if (comm.size() > 1) {
      CHECK(complaint([&] { hvd::alltoall(comm, std::span(in).first(p + 1)); }) ==
            say("input has " + std::to_string(p + 1) + " elements; allowed: a multiple of " + std::to_string(p) +
                ", the number of ranks")
                .c_str());
    }
    CHECK(complaint([&] { hvd::alltoall(comm, static_cast<const float*>(nullptr), out.data(), 2); }) ==
          say("input is null but has " + std::to_string(2 * p) + " elements").c_str());
    std::vector<float> longer(3 * p);
    const auto overlapping = std::span(longer).last(at_run_time(2 * p));
    CHECK(complaint([&] { hvd::alltoall(comm, std::span(longer).first(2 * p), overlapping); }) ==
          doctest::Contains("input and output overlap"));

    const std::vector<std::size_t> too_many(p + 1, 1), twos(p, 2), ones(p, 1);
    CHECK(complaint([&] { hvd::alltoall_v(comm, in, out, too_many, twos); }) ==
          doctest::Contains(("send_counts has " + std::to_string(p + 1) + " entries").c_str()));
    CHECK(complaint([&] { hvd::alltoall_v(comm, in, out, twos, too_many); }) ==
          doctest::Contains(("recv_counts has " + std::to_string(p + 1) + " entries").c_str()));
    CHECK(complaint([&] { hvd::alltoall_v(comm, in, out, ones, twos); }) ==
          doctest::Contains("(the sum of send_counts)"));
    CHECK(complaint([&] { hvd::alltoall_v(comm, in, out, twos, ones); }) ==
          doctest::Contains("(the sum of recv_counts)"));
    CHECK(complaint([&] { hvd::alltoall_v(comm, in, in, twos, twos); }) ==
          doctest::Contains("input and output overlap"));
    hvd::alltoall(comm, in, out);
    CHECK(out == in);
  });
}

TEST_CASE("counts that do not match between ranks are an error on every rank") {
  everywhere([](auto& comm) {
    // Everybody sends 2 to everybody; the last rank expects 1 from rank 0.
    const auto p = static_cast<std::size_t>(comm.size());
    const std::vector<std::size_t> sends(p, 2);
    std::vector<std::size_t> receives(p, 2);
    if (comm.rank() == comm.size() - 1) receives[0] = 1;
    const std::vector<float> in(2 * p, 1.0f);
    std::vector<float> out(std::accumulate(receives.begin(), receives.end(), std::size_t{0}));
    const auto said = complaint([&] { hvd::alltoall_v(comm, in, out, sends, receives); });
    if (comm.size() == 1) {
      CHECK(said == doctest::Contains("invalid_argument: hvd: alltoall_v on rank 0 of 1: recv_counts has 1 elements"));
    } else {
      CHECK(said == doctest::Contains("mismatch: hvd: alltoall on rank "));
      CHECK(said ==
            doctest::Contains(
                ("rank 0 sends 2 elements to rank " + std::to_string(comm.size() - 1) + ", which expects 1").c_str()));
    }
    std::vector<float> again(2 * p, 1.0f);
    hvd::alltoall(comm, again);
  });
}
