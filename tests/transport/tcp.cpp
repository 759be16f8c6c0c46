// tests/transport/tcp.cpp: TCP under the conformance body, and what is particular to it: meeting, losing, secrets.
#include <transport/conformance.hpp>
#include <transport/launchers.hpp>

#include <hvd/detail/siphash.hpp>
#include <hvd/engine.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/transport/tcp.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
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
using namespace std::chrono_literals;

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
    const auto since = std::chrono::steady_clock::now();
    try {
      comm.barrier();
      if (comm.rank() == 2) std::raise(SIGKILL);
      std::vector<float> x(1 << 20);
      for (;;) hvd::allreduce(comm, x);
    } catch (const hvd::error& e) {
      const bool quick = std::chrono::steady_clock::now() - since < std::chrono::seconds(10);
      seen[static_cast<std::size_t>(comm.rank())] = e.kind() == hvd::error::peer_lost && e.rank() == 2 && quick ? 1 : 2;
      if (e.rank() != 2) std::fprintf(stderr, "%s\n", e.what());
    }
  }));
  for (const std::size_t r : {0, 1, 3}) CHECK(seen[r] == 1);
}

TEST_CASE(
    "TCP: a rank that is killed is named by one that only asks for its message, and by one that asks for that one's") {
  const hvd::test::left_behind seen(3);
  static_cast<void>(hvd::fork_run(3, [&](hvd::ShmTransport& started) {
    TcpTransport comm = on_tcp::connect(started, long_deadline().failure);
    const int rank = comm.rank();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    try {
      comm.barrier();
      if (rank == 2) std::raise(SIGKILL);
      while (!comm.arrived(rank == 0 ? 2 : 0) && std::chrono::steady_clock::now() < until) {
        std::this_thread::sleep_for(1ms);
      }
    } catch (const hvd::error& e) {
      seen[static_cast<std::size_t>(rank)] = e.kind() == hvd::error::peer_lost && e.rank() == 2 ? 1 : 2;
    }
  }));
  CHECK((seen[0] == 1 && seen[1] == 1));
}

// The engine asks for what has arrived, and does not wait in a receive.
TEST_CASE("TCP: an engine names a rank that is killed, at once, and after seconds one that has left") {
  for (const bool killed : {true, false}) {
    const hvd::test::left_behind seen(4);
    static_cast<void>(hvd::fork_run(4, [&](hvd::ShmTransport& started) {
      TcpTransport comm = on_tcp::connect(started, long_deadline().failure);
      const auto rank = static_cast<std::size_t>(comm.rank());
      auto since = std::chrono::steady_clock::now();
      try {
        hvd::Engine engine(comm);
        std::vector<float> x(10, 1);
        engine.allreduce("first", x).wait();
        if (rank == 2 && killed) std::raise(SIGKILL);
        if (rank == 2) return;
        since = std::chrono::steady_clock::now();
        engine.allreduce("second", x).wait();
      } catch (const hvd::error& e) {
        const bool quick = std::chrono::steady_clock::now() - since < (killed ? 4s : 20s);
        seen[rank] = e.kind() == hvd::error::peer_lost && e.rank() == 2 && quick ? 1 : 2;
        if (seen[rank] != 1) std::fprintf(stderr, "%s\n", e.what());
      }
    }));
    for (const std::size_t r : {0, 1, 3}) CHECK(seen[r] == 1);
  }
}

TEST_CASE("TCP: a rank that ends a group because of another one names that one to those that wait or ask") {
  for (const auto kind : {hvd::error::peer_lost, hvd::error::timeout, hvd::error::mismatch}) {
    on_tcp::run(4, [&](TcpTransport& comm) {
      const int rank = comm.rank();
      try {
        if (rank == 1) comm.abort(kind, 2);
        if (rank == 2) comm.barrier();
        if (rank == 3) {
          while (!comm.arrived(1)) std::this_thread::sleep_for(1ms);
        }
        std::vector<int> x(10);
        hvd::recv(comm, x, 1);
      } catch (const hvd::error& e) {
        require(e.kind() == kind && e.rank() == 2, e.what());
        return;
      }
      require(false, "the group did not end");
    });
  }
}

TEST_CASE("TCP: a rank that looks late names the rank that was killed, not one that ended because of it") {
  const hvd::test::left_behind seen(3);
  static_cast<void>(hvd::fork_run(3, [&](hvd::ShmTransport& started) {
    TcpTransport comm = on_tcp::connect(started, long_deadline().failure);
    std::vector<int> big(300'000), small(10);  // 1.2 MB, more than is on its way at once
    const int rank = comm.rank();
    try {
      comm.barrier();
      if (rank == 2) std::raise(SIGKILL);
      if (rank == 0) std::this_thread::sleep_for(500ms);
      const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
      comm.exchange(bytes(small), 40, 1 - rank, bytes(big), 40, 1 - rank);
      hvd::recv(comm, small, 2);
    } catch (const hvd::error& e) {
      seen[static_cast<std::size_t>(rank)] = e.kind() == hvd::error::peer_lost && e.rank() == 2 ? 1 : 2;
    }
  }));
  CHECK((seen[0] == 1 && seen[1] == 1));
}

TEST_CASE("TCP: a message to a rank that has left is refused") {
  on_tcp::run(2, [](TcpTransport& comm) {
    if (comm.rank() == 0) return;
    std::vector<int> big(1'000'000);
    std::this_thread::sleep_for(50ms);
    try {
      for (int i = 0; i != 3; ++i) hvd::send(comm, big, 0);
      require(false, "sent to a rank that has left");
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::peer_lost && e.rank() == 0, e.what());
    }
  });
}

TEST_CASE("TCP: a message to itself that was not sent leaves the streams whole") {
  on_tcp::run(2, [](TcpTransport& comm) {
    std::vector<int> out(1'000'000, comm.rank()), in(out.size());
    const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
    const int peer = 1 - comm.rank();
    try {
      comm.exchange(bytes(out), out.size() * 4, peer, bytes(in), 4, comm.rank());
      require(false, "received what nobody has sent");
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::invalid_argument, e.what());
    }
    comm.exchange(bytes(out), out.size() * 4, peer, bytes(in), in.size() * 4, peer);
    require(in == std::vector<int>(in.size(), peer), "another message");
  });
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

namespace {

/// A channel, and messages with memory of their own.
class mail {
 public:
  struct letter {
    std::vector<int> data;
    std::shared_ptr<hvd::detail::tagged_message> what = std::make_shared<hvd::detail::tagged_message>();
  };

  explicit mail(TcpTransport& comm) : rank_(comm.rank()), channel_(comm.tagged_messages()) {}
  letter send(std::size_t n, int to, int tag) { return post({content(n, rank_, tag)}, true, to, tag, 30s); }
  letter recv(std::size_t n, int from, int tag, std::chrono::milliseconds limit = 30s) {
    return post({std::vector<int>(n)}, false, from, tag, limit);
  }
  void look() { channel_->progress(); }
  void finish(const letter& l) {
    while (!l.what->done) {
      if (!channel_->progress()) channel_->wait([] { return false; });
    }
  }
  static std::vector<int> content(std::size_t n, int from, int tag) {
    std::vector<int> v(n);
    for (std::size_t i = 0; i != n; ++i) v[i] = static_cast<int>(i) * 7 + from * 31 + tag;
    return v;
  }

 private:
  letter post(letter l, bool sends, int peer, int tag, std::chrono::milliseconds limit) {
    l.what->sends = sends;
    l.what->data = reinterpret_cast<std::byte*>(l.data.data());
    l.what->bytes = l.data.size() * sizeof(int);
    l.what->peer = peer;
    l.what->tag = tag;
    l.what->deadline = hvd::detail::tagged_message::clock::now() + limit;
    channel_->post(l.what);
    return l;
  }
  int rank_;
  std::unique_ptr<hvd::detail::message_channel> channel_;
};

}  // namespace

TEST_CASE("TCP: tagged messages, in any order and of any length") {
  on_tcp::run(3, [](TcpTransport& comm) {
    mail m(comm);
    const int next = (comm.rank() + 1) % 3, before = (comm.rank() + 2) % 3;
    for (const std::size_t n : {std::size_t{0}, std::size_t{5}, std::size_t{1'000'000}}) {
      const auto a = m.send(n, next, 1), b = m.send(n + 1, next, 2), c = m.send(n + 2, next, 1);
      const auto of_2 = m.recv(n + 1, -1, 2), first = m.recv(n, before, 1), second = m.recv(n + 2, before, 1);
      for (const auto* l : {&a, &b, &c, &of_2, &first, &second}) {
        m.finish(*l);
        require(!l->what->problem, "it failed");
      }
      require(of_2.data == mail::content(n + 1, before, 2) && of_2.what->source == before, "another one with tag 2");
      require(first.data == mail::content(n, before, 1), "another first with tag 1");
      require(second.data == mail::content(n + 2, before, 1), "another second with tag 1");
      comm.barrier();
    }
  });
}

TEST_CASE("TCP: a tagged message that nobody has asked for before a part of it came") {
  on_tcp::run(2, [](TcpTransport& comm) {
    mail m(comm);
    constexpr std::size_t n = 10'000'000;  // takes longer than the first looks
    if (comm.rank() == 0) {
      m.finish(m.send(n, 1, 5));
    } else {
      const auto other = m.recv(1, 0, 6);  // so that something is in flight
      for (int i = 0; i != 20; ++i) {
        m.look();
        std::this_thread::sleep_for(1ms);
      }
      const auto big = m.recv(n, 0, 5);
      m.finish(big);
      require(!big.what->problem && big.data == mail::content(n, 0, 5), "another message");
    }
  });
}

TEST_CASE("TCP: tagged messages of another length, and those that do not come in time") {
  on_tcp::run(2, [](TcpTransport& comm) {
    mail m(comm);
    const int peer = 1 - comm.rank();
    const auto late = m.recv(3, peer, 9, 50ms);
    const auto out = m.send(100'000, peer, 4), in = m.recv(99'999, peer, 4);
    for (const auto* l : {&late, &out, &in}) m.finish(*l);
    require(late.what->problem && late.what->problem->kind() == hvd::error::timeout, "no timeout");
    require(in.what->problem && in.what->problem->kind() == hvd::error::mismatch && in.what->problem->rank() == peer,
            "no mismatch");
    const auto after = m.send(10, peer, 4), good = m.recv(10, peer, 4);
    for (const auto* l : {&after, &good}) m.finish(*l);
    require(good.data == mail::content(10, peer, 4), "another message after one of another length");
    comm.barrier();
  });
}

TEST_CASE("TCP: tagged messages, the last of ranks that leave, and none from any rank after that") {
  on_tcp::run(3, [](TcpTransport& comm) {
    mail m(comm);
    if (comm.rank() != 0) {
      const auto unasked = m.send(1, 0, 3), asked = m.send(100, 0, 1);
      for (const auto* l : {&unasked, &asked}) m.finish(*l);
      return;
    }
    const auto late = m.send(1'000'000, 1, 2);
    for (int i = 0; i != 2; ++i) {
      const auto in = m.recv(100, -1, 1);
      m.finish(in);
      require(!in.what->problem && in.data == mail::content(100, in.what->source, 1), "another message");
    }
    const auto none = m.recv(1, -1, 4);
    m.finish(none);
    require(none.what->problem && none.what->problem->kind() == hvd::error::peer_lost, "no error");
    m.finish(late);
    require(late.what->problem && late.what->problem->rank() == 1, "sent to a rank that has left");
  });
}

TEST_CASE("TCP: tagged messages name a rank that is killed") {
  const hvd::test::left_behind seen(3);
  static_cast<void>(hvd::fork_run(3, [&](hvd::ShmTransport& started) {
    TcpTransport comm = on_tcp::connect(started, long_deadline().failure);
    mail m(comm);
    try {
      comm.barrier();  // a rank may notice the end of another one in here
      if (comm.rank() == 1) std::raise(SIGKILL);
      m.finish(m.recv(10, 1, 0));
    } catch (const hvd::error& e) {
      seen[static_cast<std::size_t>(comm.rank())] = e.kind() == hvd::error::peer_lost && e.rank() == 1 ? 1 : 2;
    }
  }));
  CHECK((seen[0] == 1 && seen[2] == 1));
}

TEST_CASE("TCP: who does not know the secret does not come in, and delays nobody") {
  hvd::TcpListener listener("127.0.0.1:0", secret);
  const std::string address = listener.address();
  std::vector<hvd::detail::tcp_socket> strangers;  // one says nothing, one says something else
  for (const std::string_view says : {std::string_view(), std::string_view("GET / HTTP/1.0\r\n\r\n")}) {
    strangers.push_back(hvd::detail::tcp_socket::open(AF_INET));
    const hvd::detail::tcp_address at(address);
    ::connect(strangers.back().fd(), at.data(), at.size());
    CHECK(strangers.back().write_all(says.data(), says.size(), hvd::detail::tcp_clock::now() + 1s));
  }
  const auto since = std::chrono::steady_clock::now();
  std::thread first([&] { CHECK(TcpTransport(std::move(listener), 2, {.start_timeout = 20s}).size() == 2); });
  CHECK_THROWS_WITH_AS(TcpTransport(1, 2, address, "another secret, also of a good length", {.start_timeout = 5s}),
                       doctest::Contains("does not know this job's secret"), hvd::error);
  CHECK(TcpTransport(1, 2, address, secret, {.start_timeout = 20s}).size() == 2);
  first.join();
  CHECK(std::chrono::steady_clock::now() - since < 5s);
}

TEST_CASE("TCP: where the environment says, and there again") {
  CHECK(hvd::fork_run(2, [](hvd::ShmTransport& started) {
          char address[64] = {};
          if (started.rank() == 0) hvd::TcpListener("127.0.0.1:0", secret).address().copy(address, sizeof address - 1);
          hvd::broadcast(started, address, 0);
          ::setenv("HOROVOD_SIZE", "2", 1);
          ::setenv("HOROVOD_RANK", started.rank() == 0 ? "0" : "1", 1);
          ::setenv("HVD_TCP_SECRET", secret, 1);
          CHECK_THROWS_WITH_AS(TcpTransport::from_environment(), doctest::Contains("HVD_TCP_ADDRESS is not set"),
                               hvd::error);
          ::setenv("HVD_TCP_ADDRESS", address, 1);
          for (int again = 0; again != 3; ++again) {
            TcpTransport comm = TcpTransport::from_environment();
            int sum = comm.rank() + 1;
            hvd::allreduce(comm, std::span(&sum, 1));
            CHECK(sum == 3);
          }
        }) == 0);
}

TEST_CASE("TCP: a secret that could be guessed is refused") {
  CHECK_THROWS_WITH_AS(
      TcpTransport(0, 2, "127.0.0.1:0", "secret"),
      "hvd: the secret of a job over TCP has 6 characters; allowed: at least 16, which nobody can guess", hvd::error);
  CHECK_THROWS_WITH_AS(TcpTransport(2, 2, "127.0.0.1:0", secret), doctest::Contains("rank 2 of 2; allowed:"),
                       hvd::error);
  CHECK_THROWS_WITH_AS(TcpTransport(0, 2, "127.0.0.1", secret),
                       "hvd: address=\"127.0.0.1\" has no port; allowed: HOST:PORT", hvd::error);
  const hvd::TcpListener first("127.0.0.1:0", secret);
  CHECK_THROWS_WITH_AS(hvd::TcpListener(first.address(), secret), doctest::Contains("another program uses this port"),
                       hvd::error);
}

TEST_CASE("TCP: all that come learn what is wrong at the start") {
  const auto complaint = [](const auto& f) {
    try {
      f();
    } catch (const hvd::error& e) {
      return doctest::String((std::string(name(e.kind())) + ": " + e.what()).c_str());
    }
    return doctest::String("no error");
  };
  const auto both = [&](int own_size, int size, int rank, std::string_view wanted) {
    hvd::TcpListener listener("127.0.0.1:0", secret);
    const std::string address = listener.address();
    std::thread other([&] {
      CHECK(complaint([&] { TcpTransport(rank, size, address, secret, {.start_timeout = 30s}); }) ==
            doctest::Contains(std::string(wanted).c_str()));
    });
    CHECK(complaint([&] { TcpTransport(std::move(listener), own_size, {.start_timeout = 3s}); }) ==
          doctest::Contains(std::string(wanted).c_str()));
    other.join();
  };
  both(2, 3, 1, "mismatch: hvd: TcpTransport: rank 0 is of 2 ranks and rank 1 of 3; give all ranks the same number");
  both(3, 3, 1, "timeout: hvd: TcpTransport: rank(s) 2 of 3 did not connect in time (HOROVOD_START_TIMEOUT)");
  hvd::TcpListener listener("127.0.0.1:0", secret);
  const std::string address = listener.address();
  const auto twice = [&] {
    CHECK(complaint([&] { TcpTransport(1, 3, address, secret, {.start_timeout = 20s}); }) !=
          doctest::Contains("no error"));
  };
  std::thread first(twice), second(twice);
  CHECK(complaint([&] { TcpTransport(std::move(listener), 3, {.start_timeout = 20s}); }) ==
        "mismatch: hvd: TcpTransport: two processes claim rank 1; each rank needs its own number");
  first.join();
  second.join();
}

TEST_CASE("TCP: a rank that is killed on another host is named, not those that end because of it") {
  using two_levels = hvd::Hierarchical<hvd::ShmTransport, TcpTransport>;
  const hvd::test::left_behind seen(4);
  static_cast<void>(hvd::fork_run(4, [&](hvd::ShmTransport& started) {
    TcpTransport comm = on_tcp::connect(started, long_deadline().failure);
    TcpTransport near = comm.split(comm.rank() / 2, comm.rank());
    hvd::ShmTransport local(near);
    const int rank = comm.rank();
    try {
      two_levels both(std::move(comm), std::move(local));
      std::vector<float> x(100'000);
      hvd::allreduce(both, x);
      if (rank == 3) std::raise(SIGKILL);
      for (;;) hvd::allreduce(both, x);
    } catch (const hvd::error& e) {
      seen[static_cast<std::size_t>(rank)] = e.kind() == hvd::error::peer_lost && e.rank() == 3 ? 1 : 2;
      if (e.rank() != 3) std::fprintf(stderr, "%s\n", e.what());
    }
  }));
  for (const std::size_t r : {0, 1, 2}) CHECK(seen[r] == 1);
}
