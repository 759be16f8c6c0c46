#include <hvd/transport/simulated.hpp>

#include <hvd/algorithm/halving_doubling.hpp>
#include <hvd/algorithm/recursive_doubling.hpp>
#include <hvd/algorithm/ring.hpp>
#include <hvd/algorithm/tree.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/barrier.hpp>
#include <hvd/send_recv.hpp>

#include "support/require.hpp"
#include "support/skip.hpp"
#include "transport/launchers.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

using hvd::error_kind;
using hvd::network;
using hvd::simulate;
using hvd::SimulatedTransport;
using hvd::simulation;
using hvd::simulation_options;

// Powers of two, so that sums of them are exact in any order.
constexpr double latency = 0x1p-18, overhead = 0x1p-20, alpha = latency + overhead;
constexpr double beta = 0x1p-33, gamma = 0x1p-32;
constexpr network flat{
    .inside = {0x1p-22, 0x1p36, 0x1p-24}, .between = {latency, 1 / beta, overhead}, .reduction_rate = 1 / gamma};
constexpr simulation_options empty{.payload = false};

network hosts_of(int ranks, double uplink = 0) {
  network net = flat;
  net.ranks_per_host = ranks;
  net.uplink = uplink;
  return net;
}

// Bytes of a message that nobody reads.
std::byte* anywhere() { return reinterpret_cast<std::byte*>(4096); }

template <class F>
std::string refused(error_kind kind, F&& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    if (e.kind() == kind) return e.what();
    return "another kind: " + std::string(hvd::name(e.kind())) + ": " + e.what();
  }
  return "no error";
}

/// Virtual seconds of one allreduce of `bytes` on floats, no payload.
template <class A>
double allreduce_time(int p, std::size_t bytes, const A& how, const network& net = flat) {
  return simulate(
             p, net,
             [&](SimulatedTransport& comm) {
               const hvd::reduction op = comm.charged(hvd::make_reduction<float>(hvd::sum, p));
               how(comm, hvd::allreduce_call{anywhere(), anywhere(), bytes / 4, op});
             },
             empty)
      .seconds;
}

TEST_CASE("a message takes latency, overhead and bytes / bandwidth, and its sender is free before it is there") {
  for (const std::size_t bytes : {0U, 1U, 4096U, 1U << 20}) {
    for (const int ranks_per_host : {1, 2}) {
      CAPTURE(bytes);
      CAPTURE(ranks_per_host);
      const network::level& level = ranks_per_host == 1 ? flat.between : flat.inside;
      const double busy = level.overhead + static_cast<double>(bytes) / level.bandwidth;
      const simulation s = simulate(2, hosts_of(ranks_per_host), [&](SimulatedTransport& comm) {
        std::vector<std::byte> data(bytes, std::byte(comm.rank()));
        if (comm.rank() == 0) comm.send(data.data(), bytes, 1);
        if (comm.rank() == 1) comm.recv(data.data(), bytes, 0);
        for (const std::byte b : data) hvd::test::require(b == std::byte{0}, "another message");
      });
      CHECK(s.rank_seconds == std::vector{busy, level.latency + busy});
      CHECK(s.seconds == level.latency + busy);
      const auto& traffic = ranks_per_host == 1 ? s.between : s.inside;
      CHECK(traffic.messages == 1);
      CHECK(traffic.bytes == bytes);
      CHECK(s.between.messages + s.inside.messages == 1);
    }
  }
}

TEST_CASE("both directions of a rank at once; two messages into one rank one after the other") {
  const std::size_t n = 1 << 16;
  const double busy = overhead + double(n) * beta;
  const auto pass = [&](int p, auto what) { return simulate(p, flat, what, empty).seconds; };
  CHECK(pass(2, [&](SimulatedTransport& comm) {
          comm.exchange(anywhere(), n, 1 - comm.rank(), anywhere(), n, 1 - comm.rank());
        }) == latency + busy);
  CHECK(pass(5, [&](SimulatedTransport& comm) {
          if (comm.rank() != 0) return comm.send(anywhere(), n, 0);
          for (int from = 4; from != 0; --from) comm.recv(anywhere(), n, from);
        }) == latency + 4 * busy);
  CHECK(pass(5, [&](SimulatedTransport& comm) {
          if (comm.rank() != 0) return comm.recv(anywhere(), n, 0);
          for (int to = 4; to != 0; --to) comm.send(anywhere(), n, to);
        }) == latency + 4 * busy);
}

TEST_CASE("ranks of a host share its uplink, in each direction one") {
  const std::size_t n = 1 << 20;
  const double wire = double(n) * beta;
  // `pairs` ranks of the first host to as many of the second, and back if `both`.
  const auto cross = [&](int pairs, double uplink, bool both) {
    return simulate(
               2 * pairs, hosts_of(pairs, uplink),
               [&](SimulatedTransport& comm) {
                 const int peer = (comm.rank() + pairs) % (2 * pairs);
                 if (both || comm.host() == 0) comm.send(anywhere(), n, peer);
                 if (both || comm.host() == 1) comm.recv(anywhere(), n, peer);
               },
               empty)
        .seconds;
  };
  const double rank = 1 / beta;
  for (const bool both : {false, true}) {
    CHECK(cross(1, 0, both) == alpha + wire);
    CHECK(cross(4, 0, both) == alpha + wire);
    CHECK(cross(4, std::numeric_limits<double>::infinity(), both) == alpha + wire);
    CHECK(cross(1, rank, both) == alpha + wire);
    CHECK(cross(1, rank / 2, both) == alpha + 2 * wire);
    CHECK(cross(4, 4 * rank, both) == alpha + wire);
    // Overheads pass while the uplink is busy, so they count once, or not at all.
    CHECK(cross(2, rank, both) == doctest::Approx(latency + 2 * wire).epsilon(1e-3));
    CHECK(cross(8, 4 * rank, both) == doctest::Approx(latency + 2 * wire).epsilon(1e-3));
    CHECK(cross(2, rank / 2, both) == doctest::Approx(latency + 4 * wire).epsilon(1e-3));
  }
  // First come, first served: the second rank's message begins when half of the first one has passed.
  const simulation s = simulate(
      4, hosts_of(2, rank),
      [&](SimulatedTransport& comm) {
        if (comm.rank() == 1) comm.spend(wire / 2);
        if (comm.host() == 0) comm.send(anywhere(), n, comm.rank() + 2);
        if (comm.host() == 1) comm.recv(anywhere(), n, comm.rank() - 2);
      },
      empty);
  CHECK(s.rank_seconds[2] == alpha + wire);
  CHECK(s.rank_seconds[3] == latency + 2 * wire);
  CHECK(s.rank_seconds[1] == 2 * wire);
}

TEST_CASE("a rank hears in the order of virtual time, whatever the order in which ranks run") {
  // The message of rank 2 is sent later, but over a faster way.
  const simulation s = simulate(
      4, hosts_of(2),
      [&](SimulatedTransport& comm) {
        const std::size_t n = 1 << 20;
        if (comm.rank() == 2) comm.spend(latency / 2);
        if (comm.rank() == 0 || comm.rank() == 2) comm.send(anywhere(), n, 3);
        if (comm.rank() == 3) {
          comm.recv(anywhere(), n, 2);
          const double first = comm.now();
          comm.recv(anywhere(), n, 0);
          const auto& in = flat.inside;
          const double inside = in.latency + in.overhead + double(n) / in.bandwidth;
          hvd::test::require(first == latency / 2 + inside, "the faster message was not first");
          hvd::test::require(comm.now() == first + overhead + double(n) * beta, "the slower one was not second");
        }
      },
      empty);
  CHECK(s.inside.messages == 1);
  CHECK(s.between.messages == 1);
}

TEST_CASE("ring allreduce takes 2(p-1)(alpha + S/p beta) + (p-1) S/p gamma, and more alphas with chunks") {
  for (const int p : {2, 4, 8, 64, 256}) {
    CAPTURE(p);
    const std::size_t block = 1 << 12;
    const double b = double(block), steps = p - 1;
    const std::size_t bytes = block * static_cast<std::size_t>(p);
    CHECK(allreduce_time(p, bytes, hvd::ring{.chunk_bytes = 1 << 20}) ==
          doctest::Approx(2 * steps * (alpha + b * beta) + steps * b * gamma).epsilon(1e-12));
    CHECK(allreduce_time(p, bytes, hvd::ring{.chunk_bytes = block / 4}) ==
          doctest::Approx(steps * (5 * alpha + 2 * b * beta + b * gamma)).epsilon(1e-12));
  }
}

TEST_CASE("recursive doubling takes log2 p (alpha + S (beta + gamma)), and other than powers of two pay twice more") {
  // (Where few ranks form pairs, the others do not wait for them in every step, and it takes less.)
  for (const int p : {2, 4, 7, 8, 64, 100, 256}) {
    CAPTURE(p);
    const std::size_t bytes = 1 << 14;
    const double S = double(bytes);
    const int steps = static_cast<int>(std::bit_width(static_cast<unsigned>(p))) - 1;
    const bool even = std::has_single_bit(static_cast<unsigned>(p));
    const double step = alpha + S * beta + S * gamma;
    CHECK(allreduce_time(p, bytes, hvd::recursive_doubling{}) ==
          doctest::Approx(steps * step + (even ? 0 : step + alpha + S * beta)).epsilon(1e-12));
  }
}

TEST_CASE("halving and doubling takes 2 log2 p alpha + S (p-1)/p (2 beta + gamma)") {
  for (const int p : {2, 4, 8, 64, 256}) {
    CAPTURE(p);
    const std::size_t bytes = 1 << 14;
    const double part = double(bytes) * (p - 1) / p;
    const int steps = static_cast<int>(std::bit_width(static_cast<unsigned>(p))) - 1;
    CHECK(allreduce_time(p, bytes, hvd::halving_doubling{}) ==
          doctest::Approx(2 * steps * alpha + part * (2 * beta + gamma)).epsilon(1e-12));
  }
}

TEST_CASE("broadcast along a binomial tree takes log2 p (alpha + S beta), and a barrier ceil(log2 p) alpha") {
  for (const int p : {2, 4, 8, 64, 256}) {
    CAPTURE(p);
    const std::size_t bytes = 1 << 14;
    const int steps = static_cast<int>(std::bit_width(static_cast<unsigned>(p))) - 1;
    for (const int root : {0, p - 1}) {
      const auto broadcast = [&](SimulatedTransport& comm) {
        hvd::tree{}(comm, hvd::broadcast_call{anywhere(), anywhere(), bytes, root});
      };
      CHECK(simulate(p, flat, broadcast, empty).seconds ==
            doctest::Approx(steps * (alpha + double(bytes) * beta)).epsilon(1e-12));
    }
    const auto meet = [](SimulatedTransport& comm) { comm.barrier(); };
    CHECK(simulate(p, flat, meet).seconds == doctest::Approx(steps * alpha).epsilon(1e-12));
    CHECK(simulate(p + 1, flat, meet).seconds == doctest::Approx((steps + 1) * alpha).epsilon(1e-12));
  }
}

TEST_CASE("kernels are charged for, once, with the bytes of their result") {
  simulate(1, flat, [](SimulatedTransport& comm) {
    const hvd::reduction sums = hvd::make_reduction<std::complex<double>>(hvd::sum, 1);
    const hvd::reduction once = comm.charged(sums);
    const hvd::reduction same = comm.charged(once);
    hvd::test::require(once.fold == same.fold && once.fold != sums.fold, "charged twice");
    const auto other = comm.charged(hvd::make_reduction<float>(hvd::max, 1));
    hvd::test::require(other.fold != once.fold, "two kernels, one place");

    std::array<std::complex<double>, 8> a, b, c;
    a.fill({1, 2});
    b.fill({10, 20});
    const auto raw = [](auto& x) { return reinterpret_cast<std::byte*>(x.data()); };
    same.combine(raw(c), raw(a), raw(b), c.size());
    hvd::test::require(c[7] == std::complex<double>(11, 22), "another sum");
    hvd::test::require(comm.now() == sizeof(c) * gamma, "another time");
    const std::byte* const ins[] = {raw(a), raw(b), raw(c), raw(a)};
    std::byte* const outs[] = {raw(c)};
    once.complete(outs, 1, ins, 4, c.size());
    hvd::test::require(c[7] == std::complex<double>(23, 46), "another sum");
    hvd::test::require(comm.now() == 4 * sizeof(c) * gamma, "three combinations");
  });
  const simulation s = simulate(
      1, flat,
      [](SimulatedTransport& comm) {
        const hvd::reduction op = comm.charged(hvd::make_reduction<float>(hvd::sum, 1));
        op.combine(anywhere(), anywhere(), anywhere(), std::size_t{1} << 40);
      },
      empty);
  CHECK(s.seconds == 0x1p42 * gamma);
}

template <int I>
struct numbered {
  int operator()(int a, int b) const { return a + b * I; }
};

TEST_CASE("there is a limit to what is charged for") {
  simulate(1, flat, [](SimulatedTransport& comm) {
    [&]<int... I>(std::integer_sequence<int, I...>) {
      for (const bool again : {false, true}) {
        const hvd::reduction all[] = {comm.charged(hvd::make_reduction<int>(numbered<I>{}, 1))...};
        hvd::test::require(all[0].fold != all[63].fold, again ? "one kernel, two places" : "two kernels, one place");
      }
    }(std::make_integer_sequence<int, 64>());
    hvd::test::require(
        refused(error_kind::unsupported,
                [&] { static_cast<void>(comm.charged(hvd::make_reduction<int>(numbered<64>{}, 1))); }) ==
            "hvd: charged on rank 0 of 1 (simulated): a simulation charges for at most 64 different kernels",
        "no limit");
  });
}

/// What goes on in a simulation with many messages between random ranks.
simulation random_traffic(unsigned seed) {
  return simulate(
      40, hosts_of(4, 2 / beta),
      [&](SimulatedTransport& comm) {
        std::mt19937 random(seed);  // the same on all ranks
        for (int k = 0; k != 400; ++k) {
          const int from = int(random() % 40), to = int(random() % 40);
          const std::size_t bytes = random() % 100000;
          if (comm.rank() == from) comm.send(anywhere(), bytes, to);
          if (comm.rank() == to) comm.recv(anywhere(), bytes, from);
        }
      },
      empty);
}

TEST_CASE("every run takes the same time") {
  const simulation one = random_traffic(1), again = random_traffic(1), other = random_traffic(2);
  CHECK(one.rank_seconds == again.rank_seconds);
  CHECK(one.seconds > 0);
  CHECK(one.rank_seconds != other.rank_seconds);
  CHECK(one.inside.messages + one.between.messages == 400);
}

TEST_CASE("1,024 ranks, all of whose results are right, by each algorithm") {
  const int p = hvd::test::sanitized ? 128 : 1024;
  const auto run = [&](const auto& how) {
    simulate(p, flat, [&](SimulatedTransport& comm) {
      std::vector<std::int64_t> data(100);
      for (std::size_t i = 0; i != data.size(); ++i) data[i] = comm.rank() * std::int64_t(i);
      hvd::allreduce(comm, data, hvd::sum, how);
      for (std::size_t i = 0; i != data.size(); ++i) {
        hvd::test::require(data[i] == std::int64_t(i) * p * (p - 1) / 2, "another sum");
      }
    });
  };
  run(hvd::recursive_doubling{});
  run(hvd::halving_doubling{});
  run(hvd::tree{});
  run(hvd::ring{});
  run(hvd::automatic<>{});
}

TEST_CASE("more ranks than have a page below their stack") {
  if (hvd::test::sanitized) return hvd::test::skip("a sanitizer's own stacks are too large for 17,000 ranks");
  const simulation s = simulate(17'000, flat, [](SimulatedTransport& comm) { comm.barrier(); });
  CHECK(s.between.messages == 15 * 17'000);
}

TEST_CASE("messages in order, of any length, also to oneself; another length is an error and no end") {
  simulate(2, hosts_of(2), [](SimulatedTransport& comm) {
    const int peer = 1 - comm.rank();
    for (int k = 0; k != 100; ++k) hvd::send(comm, std::array{k, k * comm.rank()}, peer);
    for (int k = 0; k != 100; ++k) {
      std::array<int, 2> got{};
      hvd::recv(comm, got, peer);
      hvd::test::require(got == std::array{k, k * peer}, "another message");
    }
    hvd::send(comm, std::array{1, 2, 3}, comm.rank());
    hvd::send(comm, std::array{4}, comm.rank());
    std::array<int, 1> got{};
    const std::string who = "on rank " + std::to_string(comm.rank()) + " of 2 (simulated)";
    hvd::test::require(refused(error_kind::mismatch, [&] { hvd::recv(comm, got, comm.rank()); }) ==
                           "hvd: recv " + who + ": expected 4 bytes from rank " + std::to_string(comm.rank()) +
                               " but it sent 12; the message was dropped",
                       "no mismatch");
    hvd::recv(comm, got, comm.rank());
    hvd::test::require(got[0] == 4, "another message");
    for (const int nobody : {-1, 2}) {
      const std::string end = who + ": there is no rank " + std::to_string(nobody) + "; allowed: 0 to 1";
      const auto invalid = [&](auto f) { return refused(error_kind::invalid_argument, f); };
      hvd::test::require(invalid([&] { comm.send(nullptr, 0, nobody); }) == "hvd: send " + end, "send");
      hvd::test::require(invalid([&] { comm.recv(nullptr, 0, nobody); }) == "hvd: recv " + end, "recv");
      hvd::test::require(invalid([&] { comm.exchange(nullptr, 0, nobody, nullptr, 0, 0); }) == "hvd: exchange " + end,
                         "exchange to");
      hvd::test::require(invalid([&] { comm.exchange(nullptr, 0, 0, nullptr, 0, nobody); }) == "hvd: exchange " + end,
                         "exchange from");
    }
    hvd::test::require(refused(error_kind::invalid_argument, [&] { comm.spend(-1); }) ==
                           "hvd: spend " + who + ": -1.000000 seconds; allowed: 0 or more",
                       "spend");
  });
}

TEST_CASE("groups of a group: hosts, and messages that are no other group's") {
  const simulation s = simulate(7, hosts_of(3), [](SimulatedTransport& comm) {
    SimulatedTransport local = comm.split(comm.host(), -comm.rank());
    const int sizes[] = {3, 3, 1};
    hvd::test::require(local.size() == sizes[comm.host()], "ranks of a host");
    hvd::test::require(local.rank() == local.size() - 1 - comm.rank() % 3, "by key");
    hvd::test::require(local.host() == comm.host(), "the same host");
    SimulatedTransport again = comm.split(comm.host(), -comm.rank());
    if (local.size() > 1 && local.rank() < 2) {
      const int peer = 1 - local.rank();
      hvd::send(local, std::array{1}, peer);
      hvd::send(again, std::array{2}, peer);
      std::array<int, 1> got{};
      hvd::recv(again, got, peer);
      hvd::test::require(got[0] == 2, "the message of another group");
      hvd::recv(local, got, peer);
      hvd::test::require(got[0] == 1, "the message of another group");
    }
    auto shared = local.alloc_shared<int>(10'000);
    std::fill(shared.begin(), shared.end(), 1);
    hvd::allreduce(local, shared);
    hvd::test::require(shared[9'999] == local.size(), "another sum");
    hvd::test::require(reinterpret_cast<std::uintptr_t>(shared.data()) % 4096 == 0, "not aligned to a page");
  });
  CHECK(s.inside.messages > 0);
}

TEST_CASE("a rank decides whether its messages carry bytes, and its kernels work") {
  simulate(2, flat, [](SimulatedTransport& comm) {
    const bool on = comm.rank() == 0;
    comm.payload(on);
    hvd::test::require(comm.payload() == on, "not set");
    int mine = 1 + comm.rank(), got = -1;
    auto* const out = reinterpret_cast<std::byte*>(&mine);
    auto* const in = reinterpret_cast<std::byte*>(&got);
    comm.exchange(out, 4, 1 - comm.rank(), in, 4, 1 - comm.rank());
    hvd::test::require(got == (on ? -1 : 1), "bytes that were not sent");
    comm.charged(hvd::make_reduction<int>(hvd::sum, 2)).combine(in, out, out, 1);
    hvd::test::require(got == (on ? 2 : 1), "a kernel that did not work, or did");
    hvd::test::require(comm.now() == alpha + 4 * beta + 4 * gamma, "another time");
  });
}

TEST_CASE("no memory is an error of the rank that wants it") {
  simulate(1, flat, [](SimulatedTransport& comm) {
    const std::string said =
        refused(error_kind::no_memory, [&] { static_cast<void>(comm.alloc_shared<double>(std::size_t{1} << 61)); });
    hvd::test::require(said.starts_with("hvd: alloc_shared on rank 0 of 1 (simulated): no memory for "), said);
  });
}

// ---- what goes wrong --------------------------------------------------------------------------------------------

/// Counts those that were made and not destroyed.
struct alive {
  explicit alive(int& n) : count(n) { ++count; }
  alive(const alive&) = delete;
  alive& operator=(const alive&) = delete;
  ~alive() { --count; }
  int& count;
};

TEST_CASE("ranks that all wait get an error that names what each waits for") {
  int living = 0;
  std::array<std::string, 3> said;
  std::array<int, 3> culprit{};
  const std::string thrown = refused(error_kind::timeout, [&] {
    simulate(3, flat, [&](SimulatedTransport& comm) {
      const alive object(living);
      comm.barrier();
      try {
        comm.recv(nullptr, 0, (comm.rank() + 1) % 3);
      } catch (const hvd::error& e) {
        said[static_cast<std::size_t>(comm.rank())] = e.what();
        culprit[static_cast<std::size_t>(comm.rank())] = e.rank();
        hvd::test::require(refused(error_kind::timeout, [&] { comm.barrier(); })
                                   .find("barrier on rank " + std::to_string(comm.rank())) != std::string::npos,
                           "not finished");
        throw;
      }
    });
  });
  CHECK(
      thrown ==
      "hvd: recv on rank 0 of 3 (simulated): no rank can go on: rank 0 waits in recv for rank 1, rank 1 waits in recv "
      "for rank 2, rank 2 waits in recv for rank 0");
  CHECK(said[0] == thrown);
  CHECK(said[2].starts_with("hvd: recv on rank 2 of 3 (simulated): no rank can go on: rank 0 waits"));
  CHECK(culprit == std::array{1, 2, 0});
  CHECK(living == 0);
}

TEST_CASE("a rank that has returned is lost to those who wait for it, and to nobody else") {
  std::array<std::string, 3> said;
  std::array<int, 3> culprit{};
  simulate(3, flat, [&](SimulatedTransport& comm) {
    SimulatedTransport reversed = comm.split(0, -comm.rank());
    if (comm.rank() == 1) return;
    try {
      reversed.exchange(nullptr, 0, 1, nullptr, 0, 1);
    } catch (const hvd::error& e) {
      said[static_cast<std::size_t>(comm.rank())] = std::string(hvd::name(e.kind())) + " " + e.what();
      culprit[static_cast<std::size_t>(comm.rank())] = e.rank();
    }
  });
  CHECK(said[0] ==
        "peer_lost hvd: exchange on rank 2 of 3 (simulated): no rank can go on: rank 0 waits in exchange for rank 1, "
        "which has returned, rank 2 waits in exchange for rank 1, which has returned");
  CHECK(said[2].starts_with("peer_lost hvd: exchange on rank 0 of 3 (simulated)"));
  CHECK(culprit == std::array{1, 0, 1});
}

TEST_CASE("what is there is known at every moment, and only then") {
  const std::size_t n = 1 << 16;
  const double busy = overhead + double(n) * beta;
  for (const double uplink : {0.0, 0x1p34}) {
    CAPTURE(uplink);
    simulate(3, hosts_of(1, uplink), [&](SimulatedTransport& comm) {
      std::vector<std::byte> data(n);
      const auto arrives = [](SimulatedTransport& c, int peer, double at) {
        // Right before it is not there, then its beginning is.
        c.spend(at * (1 - 0x1p-40) - c.now());
        hvd::test::require(!c.arrived(peer), "too early");
        c.spend(at - c.now());
        hvd::test::require(c.arrived(peer) && c.arrived(peer), "too late");
        hvd::test::require(c.now() == at, "to ask takes time");
      };
      if (comm.rank() == 0) {
        arrives(comm, 1, latency);
        hvd::test::require(!comm.arrived(2), "of another rank");
        comm.recv(data.data(), n, 1);
        hvd::test::require(comm.now() == latency + busy, "not as long as without a question");
        hvd::test::require(!comm.arrived(1), "the message was taken");
        arrives(comm, 2, 1 + latency);
        comm.recv(data.data(), n, 2);
      } else {
        comm.spend(comm.rank() - 1);
        comm.send(data.data(), n, 0);
      }
    });
  }
}

TEST_CASE("a rank waits for whichever message comes first, as long as recv of it would") {
  const std::size_t n = 1 << 16;
  const double busy = overhead + double(n) * beta;
  std::vector<int> order;
  const simulation s = simulate(4, flat, [&](SimulatedTransport& comm) {
    std::vector<std::byte> data(n);
    if (comm.rank() != 0) {
      comm.spend(4 - comm.rank());
      return comm.send(data.data(), n, 0);
    }
    std::vector<int> missing{1, 2, 3};
    while (!missing.empty()) {
      comm.await_arrival(missing);
      const double then = comm.now();
      comm.await_arrival(missing);  // it is there already
      for (const int from : std::vector(missing)) {
        if (!comm.arrived(from)) continue;
        comm.recv(data.data(), n, from);
        order.push_back(from);
        std::erase(missing, from);
      }
      hvd::test::require(comm.now() == then, "recv takes time again");
      hvd::test::require(then == static_cast<double>(order.size()) + latency + busy, "at another time");
    }
    // Others than those that are waited for do not end a wait; a message to itself does.
    comm.send(nullptr, 0, 0);
    comm.await_arrival(std::array{0});
    comm.recv(nullptr, 0, 0);
  });
  CHECK(order == std::vector{3, 2, 1});
  CHECK(s.rank_seconds[1] == 3 + busy);

  simulate(3, flat, [](SimulatedTransport& comm) {
    if (comm.rank() == 2) comm.spend(5);
    if (comm.rank() != 0) return comm.send(nullptr, 0, 0);
    comm.await_arrival(std::array{2});
    hvd::test::require(comm.now() == 5 + alpha, "another message has ended the wait");
    hvd::test::require(comm.arrived(1), "the other message is lost");
    const auto wrong = [&](std::vector<int> peers) {
      return refused(error_kind::invalid_argument, [&] { comm.await_arrival(peers); });
    };
    hvd::test::require(wrong({1, 3}) == "hvd: await_arrival on rank 0 of 3 (simulated): there is no rank 3; allowed: "
                                        "0 to 2",
                       wrong({1, 3}));
    hvd::test::require(wrong({}) ==
                           "hvd: await_arrival on rank 0 of 3 (simulated): no ranks to wait for; name at least one",
                       wrong({}));
  });
}

TEST_CASE("ranks that all wait for any message get an error that names what each waits for") {
  std::array<std::string, 3> said, then;
  std::array<int, 3> culprit{};
  const std::string thrown = refused(error_kind::timeout, [&] {
    simulate(3, flat, [&](SimulatedTransport& comm) {
      const int r = comm.rank();
      comm.check();
      try {
        if (r == 0) comm.recv(nullptr, 0, 2);
        comm.await_arrival(r == 1 ? std::vector{2, 0} : std::vector{2});
      } catch (const hvd::error& e) {
        said[static_cast<std::size_t>(r)] = e.what();
        culprit[static_cast<std::size_t>(r)] = e.rank();
        then[static_cast<std::size_t>(r)] = refused(error_kind::timeout, [&] { comm.check(); }) + "|" +
                                            refused(error_kind::timeout, [&] { static_cast<void>(comm.arrived(r)); });
        throw;
      }
    });
  });
  const std::string why =
      " of 3 (simulated): no rank can go on: rank 0 waits in recv for rank 2, rank 1 waits in await_arrival for rank 0 "
      "or rank 2, rank 2 waits in await_arrival for rank 2";
  CHECK(thrown == "hvd: recv on rank 0" + why);
  CHECK(said[1] == "hvd: await_arrival on rank 1" + why);
  CHECK(culprit == std::array{2, 0, 2});
  CHECK(then[2] == "hvd: check on rank 2" + why + "|hvd: arrived on rank 2" + why);

  // One of those that are waited for has returned, another has not.
  std::string lost;
  simulate(3, flat, [&](SimulatedTransport& comm) {
    if (comm.rank() == 2) return;
    lost = refused(error_kind::peer_lost, [&] { comm.await_arrival(std::array{1 - comm.rank(), 2}); });
  });
  CHECK(lost ==
        "hvd: await_arrival on rank 1 of 3 (simulated): no rank can go on: rank 0 waits in await_arrival for rank 1 or "
        "rank 2, which has returned, rank 1 waits in await_arrival for rank 0 or rank 2, which has returned");
}

TEST_CASE("what a rank throws ends the simulation, after all others have ended with its name") {
  int living = 0, done = 0;
  std::vector<std::string> said(40);
  std::vector<int> culprit(40, -2);
  try {
    simulate(40, flat, [&](SimulatedTransport& comm) {
      const alive object(living);
      comm.barrier();
      if (comm.rank() == 7) throw std::out_of_range("a mistake");
      try {
        // In a ring all wait, directly or not, for the one that failed; rank 8 needs nobody.
        if (comm.rank() != 8) comm.recv(nullptr, 0, (comm.rank() + 39) % 40);
        comm.send(nullptr, 0, (comm.rank() + 1) % 40);
        ++done;
      } catch (const hvd::error& e) {
        said[static_cast<std::size_t>(comm.rank())] = std::string(hvd::name(e.kind())) + " " + e.what();
        culprit[static_cast<std::size_t>(comm.rank())] = e.rank();
        throw;
      }
    });
    FAIL("no exception");
  } catch (const std::out_of_range& e) {
    CHECK(std::string(e.what()) == "a mistake");
  }
  CHECK(living == 0);
  CHECK(done == 39);
}

TEST_CASE("those who wait in vain after a rank has failed are told who it was") {
  std::vector<std::string> said(40);
  std::vector<int> culprit(40, -2);
  CHECK_THROWS_AS(simulate(40, flat,
                           [&](SimulatedTransport& comm) {
                             if (comm.rank() == 7) throw std::out_of_range("a mistake");
                             try {
                               comm.barrier();
                             } catch (const hvd::error& e) {
                               const auto r = static_cast<std::size_t>(comm.rank());
                               said[r] = std::string(hvd::name(e.kind())) + " " + e.what();
                               culprit[r] = e.rank();
                               throw;
                             }
                           }),
                  std::out_of_range);
  for (std::size_t r = 0; r != 40; ++r) {
    if (r == 7) continue;
    CAPTURE(said[r]);
    CHECK(said[r].starts_with("peer_lost hvd: barrier on rank " + std::to_string(r) +
                              " of 40 (simulated): rank 7 of the simulation has failed, and no rank can go on: rank 0 "
                              "waits in barrier for rank "));
    CHECK(said[r].ends_with(", and 23 more wait"));
    CHECK(said[r].find("rank 8 waits in barrier for rank 7, which has failed") != std::string::npos);
    CHECK(culprit[r] == 7);
  }
}

TEST_CASE("each rank has exceptions of its own, also while it handles one") {
  simulate(3, flat, [](SimulatedTransport& comm) {
    const std::string mine = "of rank " + std::to_string(comm.rank());
    for (int round = 0; round != 3; ++round) {
      try {
        try {
          throw std::runtime_error(mine);
        } catch (...) {
          comm.barrier();
          if (comm.rank() == round) comm.spend(1);  // another order each time
          comm.barrier();
          throw;
        }
      } catch (const std::runtime_error& e) {
        hvd::test::require(e.what() == mine, "caught the exception of another rank");
      }
      hvd::test::require(std::uncaught_exceptions() == 0 && std::current_exception() == nullptr, "left over");
    }
    struct late {
      SimulatedTransport& comm;
      ~late() { comm.barrier(); }
    };
    try {
      const late at_end{comm};
      throw std::runtime_error(mine);
    } catch (const std::runtime_error& e) {
      hvd::test::require(e.what() == mine, "caught the exception of another rank");
    }
  });
}

TEST_CASE("a simulation in a rank of a simulation") {
  const simulation s = simulate(3, flat,
                                [](SimulatedTransport& comm) {
                                  comm.barrier();
                                  const simulation inner =
                                      simulate(4, flat, [](SimulatedTransport& c) { hvd::barrier(c); });
                                  comm.spend(inner.seconds);
                                  comm.barrier();
                                },
                                {.stack_bytes = 1 << 20});
  CHECK(s.seconds == doctest::Approx(6 * alpha).epsilon(1e-12));
}

TEST_CASE("numbers that mean nothing are named, with those that are allowed") {
  const auto said = [](int np, const network& net, const simulation_options& opts = {}) {
    return refused(error_kind::invalid_argument, [&] {
      simulate(
          np, net, [](SimulatedTransport&) {}, opts);
    });
  };
  for (const auto& [np, is] : {std::pair(0, "0"), std::pair(-3, "-3"), std::pair(65537, "65537")}) {
    CHECK(said(np, flat) == "hvd: simulate: the number of ranks is " + std::string(is) + "; allowed: 1 to 65536");
  }
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  const auto with = [&](auto change) {
    network net = flat;
    change(net);
    return said(1, net);
  };
  CHECK(with([](network& n) { n.ranks_per_host = 0; }) == "hvd: simulate: ranks_per_host is 0; allowed: 1 or more");
  CHECK(with([](network& n) { n.inside.latency = -1e-6; }) ==
        "hvd: simulate: inside.latency is -1e-06; allowed: 0 or more seconds");
  CHECK(with([](network& n) { n.between.latency = inf; }) ==
        "hvd: simulate: between.latency is inf; allowed: 0 or more seconds");
  CHECK(with([](network& n) { n.inside.overhead = nan; }) ==
        "hvd: simulate: inside.overhead is nan; allowed: 0 or more seconds");
  CHECK(with([](network& n) { n.between.overhead = -1; }) ==
        "hvd: simulate: between.overhead is -1; allowed: 0 or more seconds");
  CHECK(with([](network& n) { n.inside.bandwidth = 0; }) ==
        "hvd: simulate: inside.bandwidth is 0; allowed: bytes per second above 0, or infinity");
  CHECK(with([](network& n) { n.between.bandwidth = nan; }) ==
        "hvd: simulate: between.bandwidth is nan; allowed: bytes per second above 0, or infinity");
  CHECK(with([](network& n) { n.uplink = -1; }) ==
        "hvd: simulate: uplink is -1; allowed: bytes per second above 0, or 0 or infinity for none");
  CHECK(with([](network& n) { n.reduction_rate = 0; }) ==
        "hvd: simulate: reduction_rate is 0; allowed: bytes per second above 0, or infinity");
  CHECK(said(1, flat, {.stack_bytes = 1000}) == "hvd: simulate: stack_bytes is 1000; allowed: 16384 to 1073741824");
  CHECK(with([](network& n) {
          n = {.inside = {0, inf, 0}, .between = {0, inf, 0}, .reduction_rate = inf};
        }) == "no error");
}

}  // namespace
