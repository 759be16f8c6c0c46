// tests/transport/self.cpp: a group of one.
#include <doctest/doctest.h>

#include <hvd/transport/self.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace {

std::array<std::byte, 3> bytes(int first) { return {std::byte(first), std::byte(first + 1), std::byte(first + 2)}; }

template <class F>
std::string message_of(hvd::error_kind kind, F f) {
  try {
    f();
  } catch (const hvd::error& e) {
    CHECK(e.kind() == kind);
    return e.what();
  }
  FAIL("nothing was thrown");
  return {};
}

}  // namespace

TEST_CASE("rank 0 of 1 waits for nobody") {
  hvd::SelfTransport comm;
  CHECK(comm.rank() == 0);
  CHECK(comm.size() == 1);
  comm.barrier();
  CHECK(comm.split(7, -3).size() == 1);
}

TEST_CASE("messages to itself arrive in order") {
  hvd::SelfTransport comm;
  const auto first = bytes(1), second = bytes(10);
  auto got = bytes(0);
  comm.send(first.data(), first.size(), 0);
  comm.send(second.data(), second.size(), 0);
  comm.recv(got.data(), got.size(), 0);
  CHECK(got == first);
  comm.recv(got.data(), got.size(), 0);
  CHECK(got == second);
  comm.exchange(first.data(), first.size(), 0, got.data(), got.size(), 0);
  CHECK(got == first);
  comm.exchange(nullptr, 0, 0, nullptr, 0, 0);
}

TEST_CASE("what cannot arrive is an error and no hang") {
  hvd::SelfTransport comm;
  auto data = bytes(0);
  CHECK(message_of(hvd::error_kind::invalid_argument, [&] { comm.recv(data.data(), 3, 0); }) ==
        "hvd: recv on rank 0 of 1: no message was sent before, and nobody else can send one");
  CHECK(message_of(hvd::error_kind::invalid_argument, [&] { comm.send(data.data(), 3, 1); }) ==
        "hvd: send on rank 0 of 1: there is no rank 1; allowed: 0");
  comm.send(data.data(), 3, 0);
  CHECK(message_of(hvd::error_kind::mismatch, [&] { comm.recv(data.data(), 2, 0); }) ==
        "hvd: recv on rank 0 of 1: expected 2 bytes from rank 0 but it sent 3; the message was dropped");
  comm.exchange(data.data(), 3, 0, data.data(), 3, 0);  // usable
}

TEST_CASE("shared memory is zero, on a page, and outlives the transport") {
  hvd::shared_array<double> kept;
  {
    hvd::SelfTransport comm;
    kept = comm.alloc_shared<double>(1000);
    CHECK(comm.alloc_shared<bool>(3).size() == 3);
    CHECK(comm.alloc_shared<int>(0).empty());
  }
  CHECK(kept.size() == 1000);
  CHECK(reinterpret_cast<std::uintptr_t>(kept.data()) % 4096 == 0);
  for (double& x : kept) {
    CHECK(x == 0.0);
    x = 1.0;
  }
}

TEST_CASE("more shared memory than can be addressed is refused") {
  hvd::SelfTransport comm;
  constexpr std::size_t wraps = (std::size_t{1} << 61) + 2;  // x 8 bytes is 16 in 64 bits
  message_of(hvd::error_kind::no_memory, [&] { static_cast<void>(comm.alloc_shared<double>(wraps)); });
}
