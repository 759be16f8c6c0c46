// tests/transport/tcp.cpp: TCP under the conformance body, and what is particular to it: meeting, losing, secrets.
#include <transport/conformance.hpp>
#include <transport/launchers.hpp>

#include <hvd/detail/siphash.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/transport/tcp.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tcp_tests {

using namespace hvd::test;
using hvd::TcpTransport;

constexpr const char* secret = "0123456789abcdef0123456789abcdef";

/// Processes with sockets on the loopback device. Rank 0 tells the others its port over shared memory.
struct on_tcp {
  using transport = TcpTransport;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4};
  static TcpTransport connect(hvd::ShmTransport& started, const hvd::failure_policy& how) {
    char address[64] = {};
    if (started.rank() == 0) {
      hvd::TcpListener listener("127.0.0.1:0", secret);
      listener.address().copy(address, sizeof address - 1);
      hvd::broadcast(started, address, 0);
      return TcpTransport(std::move(listener), started.size(), how);
    }
    hvd::broadcast(started, address, 0);
    return TcpTransport(started.rank(), started.size(), address, secret, how);
  }
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& opts = long_deadline()) {
    CHECK(hvd::fork_run(
              size,
              [&](hvd::ShmTransport& started) {
                TcpTransport comm = connect(started, opts.failure);
                f(comm);
              },
              opts) == 0);
  }
};

}  // namespace tcp_tests

using namespace tcp_tests;

TEST_CASE("TCP: every collective, 4 bytes an element") {
  conformance_collectives<on_tcp, std::int32_t, hvd::sum_t>(on_tcp::sizes, false);
}
TEST_CASE("TCP: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<on_tcp, affine, compose>({2, 3, 4}, false);
}
TEST_CASE("TCP: roots, blocks of different sizes, several MiB, random order") {
  conformance_roots<on_tcp>();
  conformance_uneven_blocks<on_tcp>();
  conformance_large<on_tcp>({2, 4});
  conformance_random_order<on_tcp>();
}
TEST_CASE("TCP: groups of a group") { conformance_split<on_tcp>(); }
TEST_CASE("TCP: a limit for one call") { conformance_limit<on_tcp>(); }
TEST_CASE("TCP: barrier") { conformance_barrier<on_tcp>(); }
TEST_CASE("TCP: messages, and whether one is there") {
  conformance_messages<on_tcp>();
  conformance_probing<on_tcp>();
}
TEST_CASE("TCP: two groups in two threads") { conformance_two_threads<on_tcp>({2, 4}); }

TEST_CASE("TCP: messages before a barrier are received after it") {
  on_tcp::run(3, [](TcpTransport& comm) {
    const int next = (comm.rank() + 1) % 3, before = (comm.rank() + 2) % 3;
    std::vector<int> out(1000, comm.rank()), in(1000);
    hvd::send(comm, out, next);
    for (int i = 0; i != 3; ++i) comm.barrier();
    TcpTransport part = comm.split(0, -comm.rank());
    hvd::recv(comm, in, before);
    require(in == std::vector<int>(1000, before), "another message");
    require(part.rank() == 2 - comm.rank(), "another order");
  });
}

TEST_CASE("TCP: under shared memory, as between hosts") {
  using two_levels = hvd::Hierarchical<hvd::ShmTransport, TcpTransport>;
  on_tcp::run(4, [](TcpTransport& comm) {
    TcpTransport near = comm.split(comm.rank() / 2, comm.rank());
    hvd::ShmTransport local(near);
    two_levels both(std::move(comm), std::move(local));
    require(both.hosts() == 2 && both.lanes() == 2, "other hosts");
    std::vector<double> x(70'001, both.rank() + 1);
    hvd::allreduce(both, x);
    require(x == std::vector<double>(70'001, 10), "another sum");
    two_levels one = two_levels::over(std::move(near));
    require(one.hosts() == 1 && one.size() == 2, "two processes of one host were not found to be on one");
  });
}

TEST_CASE("TCP: a rank that is killed is named by all, at once") {
  const hvd::test::left_behind seen(4);
  static_cast<void>(hvd::fork_run(4, [&](hvd::ShmTransport& started) {
    TcpTransport comm = on_tcp::connect(started, long_deadline().failure);
    comm.barrier();
    if (comm.rank() == 2) std::raise(SIGKILL);
    const auto since = std::chrono::steady_clock::now();
    try {
      std::vector<float> x(1 << 20);
      for (;;) hvd::allreduce(comm, x);
    } catch (const hvd::error& e) {
      const bool quick = std::chrono::steady_clock::now() - since < std::chrono::seconds(10);
      seen[static_cast<std::size_t>(comm.rank())] =
          e.kind() == hvd::error::peer_lost && e.rank() == 2 && quick ? 1 : 2;
      if (e.rank() != 2) std::fprintf(stderr, "%s\n", e.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
  }));
  for (const std::size_t r : {0, 1, 3}) CHECK(seen[r] == 1);
}

TEST_CASE("TCP: a rank that has left is no loss for those that do not need it") {
  on_tcp::run(3, [](TcpTransport& comm) {
    if (comm.rank() == 0) return;
    std::vector<int> x(10, comm.rank());
    const int peer = 3 - comm.rank();
    for (int i = 0; i != 50; ++i) {
      if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::vector<int> in(10);
      comm.exchange(reinterpret_cast<const std::byte*>(x.data()), 40, peer, reinterpret_cast<std::byte*>(in.data()), 40,
                    peer);
      require(in == std::vector<int>(10, peer), "another message");
    }
    try {
      hvd::recv(comm, x, 0);
      require(false, "received from a rank that has left");
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::peer_lost && e.rank() == 0, e.what());
    }
  });
}
