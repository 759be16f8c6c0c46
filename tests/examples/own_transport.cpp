// tests/examples/own_transport.cpp: the transport of example 09 under the conformance body, and how it fails.
#include <examples/with_private_memory.hpp>
#include <transport/conformance_algorithms.hpp>

#define main own_transport_main  // the example is a program; here it lends its transport
#include <examples/09_own_transport.cpp>
#undef main

#include <csignal>

using namespace hvd::test;

static_assert(hvd::PointToPoint<SocketTransport> && !hvd::PeerMemory<SocketTransport>);

namespace {

/// f(comm, started, hasty) on processes, where `hasty` gives up soon.
template <class F>
int run_sockets(int ranks, const F& f) {
  std::vector<std::vector<Socket>> to(static_cast<std::size_t>(ranks)), from(static_cast<std::size_t>(ranks));
  for (auto& out_of_one : to) {
    for (auto& into_one : from) {
      const auto [out, in] = make_sockets();
      out_of_one.push_back(out);
      into_one.push_back(in);
    }
  }
  return hvd::fork_run(ranks, [&](hvd::ShmTransport& started) {
    const auto rank = static_cast<std::size_t>(started.rank());
    SocketTransport comm = SocketTransport(started.rank(), to[rank], from[rank]).split(0, started.rank());
    f(comm, started, SocketTransport(started.rank(), to[rank], from[rank], 50));
  });
}

struct on_sockets {
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4, 5, 8};
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& = {}) {
    CHECK(run_sockets(size, [&](SocketTransport& sockets, auto&, const auto&) {
            with_private_memory<SocketTransport> comm(std::move(sockets));
            f(comm);
          }) == 0);
  }
};

/// The kind of the error that f throws, and the rank that it names.
template <class F>
void expect(hvd::error_kind kind, int culprit, F f) {
  try {
    f();
  } catch (const hvd::error& e) {
    return require(e.kind() == kind && (culprit < 0 || e.rank() == culprit), e.what());
  }
  require(false, "nothing was thrown");
}

}  // namespace

TEST_CASE("sockets: every collective, 4 bytes an element") {
  conformance_collectives<on_sockets, std::int32_t, hvd::sum_t>(on_sockets::sizes, false);
}
TEST_CASE("sockets: every collective, elements of 12 bytes and an operation that does not commute") {
  conformance_collectives<on_sockets, affine, compose>({2, 3, 5, 8}, false);
}
TEST_CASE("sockets: every root") { conformance_roots<on_sockets>(); }
TEST_CASE("sockets: blocks of different sizes") { conformance_uneven_blocks<on_sockets>(); }
TEST_CASE("sockets: several MiB") { conformance_large<on_sockets>({2, 3, 8}); }
TEST_CASE("sockets: mixed collectives in random order") { conformance_random_order<on_sockets>(); }
TEST_CASE("sockets: groups of a group") { conformance_split<on_sockets>(); }
TEST_CASE("sockets: messages") { conformance_messages<on_sockets>(); }
TEST_CASE("sockets: barrier") { conformance_barrier<on_sockets>(); }
TEST_CASE("sockets: ring") {
  conformance_over_messages<on_sockets, std::int32_t, hvd::sum_t>(hvd::ring{.chunk_bytes = 1000});
}
TEST_CASE("sockets: tree") { conformance_over_messages<on_sockets, affine, compose>(hvd::tree{.chunk_bytes = 1000}); }

TEST_CASE("sockets: a killed rank is named by those who wait for it") {
  const int code = run_sockets(4, [](SocketTransport& comm, auto&, const auto&) {
    if (comm.rank() == 1) std::raise(SIGKILL);
    int x = 0;
    expect(hvd::error::peer_lost, 1, [&] { hvd::recv(comm, std::span(&x, 1), 1); });
  });
  CHECK(code == 128 + SIGKILL);
}
TEST_CASE("sockets: a killed rank ends a collective for all others") {
  const int code = run_sockets(5, [](SocketTransport& comm, auto&, const auto&) {
    if (comm.rank() == 4) std::raise(SIGKILL);
    std::vector<float> x(100000);
    expect(hvd::error::peer_lost, -1, [&] { hvd::allreduce(comm, x, hvd::sum, hvd::ring{}); });
    expect(hvd::error::peer_lost, -1, [&] { hvd::allreduce(comm, x, hvd::sum, hvd::ring{}); });
  });
  CHECK(code == 128 + SIGKILL);
}
TEST_CASE("sockets: a silent rank is named when the time is over") {
  const int code = run_sockets(2, [](auto&, hvd::ShmTransport& started, SocketTransport hasty) {
    int x = 0;
    if (hasty.rank() == 0) expect(hvd::error::timeout, 1, [&] { hvd::recv(hasty, std::span(&x, 1), 1); });
    started.barrier();
  });
  CHECK(code == 0);
}
TEST_CASE("sockets: a message of another length is refused") {
  const int code = run_sockets(2, [](SocketTransport& comm, hvd::ShmTransport& started, const auto&) {
    for (const std::size_t sent : {0, 5}) {
      auto pair = comm.split(0, comm.rank());
      std::vector<std::byte> x(7);
      if (comm.rank() == 0) {
        try {
          hvd::send(pair, std::span(x).first(sent), 1);
        } catch (const hvd::error& e) {  // rank 1 has seen the length and given up before the rest was sent
          require(e.kind() == hvd::error::peer_lost, e.what());
        }
      }
      if (comm.rank() == 1) expect(hvd::error::mismatch, 0, [&] { hvd::recv(pair, x, 0); });
      started.barrier();
    }
  });
  CHECK(code == 0);
}
TEST_CASE("sockets: shared memory is agreed over them") {
  const int code = run_sockets(3, [](SocketTransport& comm, auto&, const auto&) {
    hvd::ShmTransport fast(comm);
    int x = comm.rank();
    hvd::allreduce(fast, std::span(&x, 1));
    require(x == 3, "a wrong sum");
  });
  CHECK(code == 0);
}
