// tests/erased_transport.cpp: a transport behind virtual functions has the abilities that it has by itself.
#include <hvd/erased_transport.hpp>
#include <hvd/transport/self.hpp>
#include <hvd/transport/simulated.hpp>
#include <hvd/transport/thread.hpp>

#include <support/require.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

using hvd::operation;
using hvd::detail::erased_transport;
using hvd::test::require;

TEST_CASE("erased: groups, messages and common memory of threads") {
  hvd::thread_run(3, [](hvd::ThreadTransport& comm) {
    auto view = hvd::erase(comm);
    erased_transport& t = view.self();
    require(t.rank() == comm.rank() && t.size() == 3 && !t.simulated() && t.waiting_for() == -1, "another group");
    require(t.peers() == &comm.peers(), "no common memory");
    require(std::string_view(t.activity(operation::allreduce)) == "SHM_ALLREDUCE", "another name");

    const std::unique_ptr<erased_transport> turned = t.split(0, -t.rank());
    require(turned->size() == 3 && turned->rank() == 2 - t.rank() && turned->peers() != t.peers(), "another split");

    const int next = (t.rank() + 1) % 3, before = (t.rank() + 2) % 3;
    std::byte out{static_cast<unsigned char>(t.rank())}, in{};
    t.send(&out, 1, next);
    while (!t.arrived(before)) t.check();
    t.recv(&in, 1, before);
    require(in == std::byte{static_cast<unsigned char>(before)}, "another message");
    t.exchange(&in, 1, before, &out, 1, next);
    require(out == std::byte{static_cast<unsigned char>(t.rank())}, "another message back");
    const auto shared = t.bucket(64);
    require(t.peers()->find_block(shared.data(), 64) != nullptr, "memory is not shared");
  });
}

TEST_CASE("erased: a transport without common memory, and one of simulated ranks") {
  hvd::SelfTransport alone;
  CHECK(hvd::erase(alone).self().peers() == nullptr);
  CHECK(!hvd::erase(alone).self().simulated());
  CHECK(std::string_view(hvd::erase(alone).self().activity(operation::broadcast)) == "P2P_BCAST");
  CHECK_THROWS_WITH_AS(hvd::erase(alone).self().await_arrival({}),
                       doctest::Contains("await_arrival on rank 0 of 1: this transport lacks"), hvd::error);
  CHECK_NOTHROW(hvd::simulate(2, {}, [](hvd::SimulatedTransport& comm) {
    auto view = hvd::erase(comm);
    require(view.self().simulated() && view.self().peers() == nullptr, "not a simulation");
    const int other = 1 - comm.rank();
    std::byte in{}, out{};
    view.self().send(&out, 1, other);
    view.self().await_arrival(std::span(&other, 1));
    view.self().recv(&in, 1, other);
  }));
}
