// tests/send_recv.cpp: messages between two ranks.
#include <hvd/send_recv.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace hvd::test;

TEST_CASE("a message around a ring") {
  everywhere([](auto& comm) {
    const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
    for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{100000}}) {
      const std::vector<float> out = ramp(comm.rank(), count);
      std::vector<float> in(count);
      // With large messages somebody has to receive first.
      if (comm.rank() == 0) hvd::send(comm, out, next);
      hvd::recv(comm, in, before);
      if (comm.rank() != 0) hvd::send(comm, out, next);
      CHECK(in == ramp(before, count));
    }
  });
}

TEST_CASE("messages arrive in order, whatever their type and length") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    if (comm.rank() == 0) {
      for (int i = 0; i != 200; ++i) {
        const int number[1] = {i};
        hvd::send(comm, number, 1);
        hvd::send(comm, std::vector<std::uint8_t>(static_cast<std::size_t>(i % 7), static_cast<std::uint8_t>(i)), 1);
      }
    } else {
      bool right = true;
      for (int i = 0; i != 200; ++i) {
        int number[1] = {-1};
        hvd::recv(comm, number, 0);
        std::vector<std::uint8_t> bytes(static_cast<std::size_t>(i % 7));
        hvd::recv(comm, bytes, 0);
        const std::vector<std::uint8_t> want(bytes.size(), static_cast<std::uint8_t>(i));
        right = right && number[0] == i && bytes == want;
      }
      CHECK(right);
    }
  });
}

TEST_CASE("messages of different senders do not mix") {
  hvd::thread_run(3, [](hvd::ThreadTransport& comm) {
    if (comm.rank() != 0) {
      hvd::send(comm, ramp(comm.rank(), 5000), 0);
    } else {
      for (const int from : {2, 1}) {
        std::vector<float> v(5000);
        hvd::recv(comm, std::span(v), from);
        CHECK(v == ramp(from, 5000));
      }
    }
  });
}

TEST_CASE("a message to itself, and an empty one") {
  everywhere([](auto& comm) {
    const std::vector<double> out = ramp<double>(comm.rank(), 10);
    std::vector<double> in(10), none;
    hvd::send(comm, out, comm.rank());
    hvd::recv(comm, in, comm.rank());
    CHECK(in == out);
    hvd::send(comm, none, comm.rank());
    hvd::recv(comm, none, comm.rank());
  });
}

TEST_CASE("a message of another length is a mismatch, and the next one arrives") {
  everywhere([](auto& comm) {
    const std::vector<float> five(5, 1.0f), four(4, 2.0f);
    std::vector<float> in(4);
    hvd::send(comm, five, comm.rank());
    const auto said = complaint([&] { hvd::recv(comm, in, comm.rank()); });
    CHECK(said == doctest::Contains("mismatch: hvd: recv on rank "));
    CHECK(said == doctest::Contains(
                      ("expected 16 bytes from rank " + std::to_string(comm.rank()) + " but it sent 20").c_str()));
    hvd::send(comm, four, comm.rank());
    hvd::recv(comm, in, comm.rank());
    CHECK(in == four);
  });
}

TEST_CASE("what send and recv refuse") {
  everywhere([](auto& comm) {
    std::vector<float> v(3);
    const std::string range = " is out of range; allowed: 0 to " + std::to_string(comm.size() - 1);
    CHECK(complaint([&] { hvd::send(comm, v, comm.size()); }) ==
          refused(hvd::operation::send, comm, "peer " + std::to_string(comm.size()) + range).c_str());
    CHECK(complaint([&] { hvd::recv(comm, v, -1); }) == refused(hvd::operation::recv, comm, "peer -1" + range).c_str());
    CHECK(complaint([&] { hvd::send(comm, std::span<const float>(static_cast<float*>(nullptr), 2), 0); }) ==
          refused(hvd::operation::send, comm, "buffer is null but has 2 elements").c_str());
    CHECK(complaint([&] { hvd::recv(comm, std::span<float>(static_cast<float*>(nullptr), 2), 0); }) ==
          refused(hvd::operation::recv, comm, "buffer is null but has 2 elements").c_str());
  });
}
