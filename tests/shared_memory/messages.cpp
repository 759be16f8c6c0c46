#include <hvd/shared_memory/messages.hpp>

#include <hvd/launch.hpp>

#include "support/require.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using hvd::error_kind;
using hvd::ThreadTransport;
using hvd::test::require;

hvd::sharing_options options(double timeout = 30.0) {
  hvd::sharing_options o;
  o.memory.staging_bytes = 128 << 10;
  o.failure.timeout = std::chrono::duration<double>(timeout);
  o.failure.check = false;
  return o;
}

std::vector<std::byte> message(std::size_t n, int from, int number) {
  std::vector<std::byte> m(n);
  for (std::size_t i = 0; i != n; ++i) {
    m[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(from * 31 + number * 13));
  }
  return m;
}

// Around nothing, a fragment, the slots of a channel, and much more.
std::vector<std::size_t> lengths_around_slots(const hvd::detail::peer_memory& m) {
  const std::size_t slot = m.shape().slot_bytes, all = slot * hvd::detail::slots_per_channel;
  return {0, 1, 63, slot - 1, slot, slot + 1, all - 1, all, all + 1, 10 * all + 17};
}

TEST_CASE("messages of any length arrive whole and in order") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        const auto sizes = lengths_around_slots(comm.peers());
        for (int round = 0; round != 5; ++round) {
          for (const int sender : {0, 1}) {
            for (const std::size_t n : sizes) {
              const auto wanted = message(n, sender, round);
              if (comm.rank() == sender) {
                comm.send(wanted.data(), n, 1 - sender);
              } else {
                std::vector<std::byte> got(n + 1, std::byte{0x5a});
                comm.recv(got.data(), n, sender);
                require(std::equal(wanted.begin(), wanted.end(), got.begin()), "another message");
                require(got[n] == std::byte{0x5a}, "written past the end");
              }
            }
          }
        }
      },
      options());
}

TEST_CASE("exchange in a ring, with neighbours, and with oneself, more than the slots hold") {
  hvd::thread_run(
      4,
      [](ThreadTransport& comm) {
        const int p = comm.size(), r = comm.rank();
        for (const std::size_t n : lengths_around_slots(comm.peers())) {
          for (const int step : {0, 1, 2, 3}) {
            const int to = (r + step) % p, from = (r + p - step) % p;
            const std::size_t out_bytes = n + static_cast<std::size_t>(r),
                              in_bytes = n + static_cast<std::size_t>(from);
            const auto out = message(out_bytes, r, step), wanted = message(in_bytes, from, step);
            std::vector<std::byte> in(in_bytes);
            comm.exchange(out.data(), out_bytes, to, in.data(), in_bytes, from);
            require(in == wanted, "another message");
          }
        }
      },
      options());
}

TEST_CASE("a message of another length is a mismatch that says both, and the next one arrives") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        const auto sizes = lengths_around_slots(comm.peers());
        for (const std::size_t sent : sizes) {
          for (const std::size_t expected : sizes) {
            if (sent == expected) continue;
            if (comm.rank() == 0) {
              comm.send(message(sent, 0, 0).data(), sent, 1);
              comm.send(message(100, 0, 1).data(), 100, 1);
              continue;
            }
            std::vector<std::byte> got(expected + 64, std::byte{0x5a});
            try {
              comm.recv(got.data(), expected, 0);
              require(false, "no error");
            } catch (const hvd::error& e) {
              const std::string text = e.what();
              require(e.kind() == hvd::error_kind::mismatch && e.rank() == 0, text);
              require(text.find("expected " + std::to_string(expected) + " bytes from rank 0 but it sent " +
                                std::to_string(sent)) != std::string::npos,
                      text);
            }
            for (const std::byte b : got) require(b == std::byte{0x5a}, "a dropped message was written");
            std::vector<std::byte> next(100);
            comm.recv(next.data(), 100, 0);
            require(next == message(100, 0, 1), "the next message is another one");
          }
        }
      },
      options());
}

TEST_CASE("a slot with another number than that of the fragment ends the group, however long the message says it is") {
  const auto group = std::make_shared<ThreadTransport::group>(2, options());
  ThreadTransport to(group, 0), from(group, 1);
  std::byte data[8]{};
  from.send(data, sizeof data, 0);
  hvd::detail::slot& s = hvd::detail::channel_view{to.peers()}.at(1, 0, 0);
  s.message_bytes = 1000 * to.peers().shape().slot_bytes;
  for (std::uint64_t f = 0; f != hvd::detail::slots_per_channel; ++f) {
    hvd::detail::channel_view{to.peers()}.at(1, 0, f).stamp = std::uint64_t{1} << 40;
  }
  try {
    to.recv(data, sizeof data, 1);
    FAIL("no error");
  } catch (const hvd::error& e) {
    CHECK(e.kind() == error_kind::mismatch);
    CHECK(e.rank() == 1);
  }
  CHECK(to.peers().failed());
  CHECK(from.peers().aborted());
}

TEST_CASE("ranks that do not exist are refused, and nothing is sent") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        std::array<std::byte, 4> b{};
        for (const int peer : {-1, 2, 1000}) {
          const auto refused = [&](auto&& call) {
            try {
              call();
            } catch (const hvd::error& e) {
              require(e.kind() == hvd::error_kind::invalid_argument, e.what());
              require(std::string(e.what()).find("there is no rank " + std::to_string(peer)) != std::string::npos,
                      e.what());
              return;
            }
            require(false, "no error");
          };
          refused([&] { comm.send(b.data(), 4, peer); });
          refused([&] { comm.recv(b.data(), 4, peer); });
          refused([&] { comm.exchange(b.data(), 4, peer, b.data(), 4, 1 - comm.rank()); });
          refused([&] { comm.exchange(b.data(), 4, 1 - comm.rank(), b.data(), 4, peer); });
        }
        comm.exchange(b.data(), 4, 1 - comm.rank(), b.data(), 4, 1 - comm.rank());
      },
      options());
}

TEST_CASE("once the group has failed, who looks for a message learns why, but not before the last that is there") {
  hvd::thread_run(
      2,
      [](ThreadTransport& comm) {
        std::array<std::byte, 4> b{};
        const auto caught = [&](auto&& call) -> std::string {
          try {
            call();
          } catch (const hvd::error& e) {
            require(e.kind() == error_kind::timeout && e.rank() == 1, e.what());
            return e.what();
          }
          return "";
        };
        std::string text;
        if (comm.rank() == 0) {
          comm.send(b.data(), 4, 1);
          require(!caught([&] { comm.recv(b.data(), 4, 1); }).empty(), "no timeout");
          text = caught([&] { static_cast<void>(comm.arrived(1)); });
          require(text.starts_with("hvd: arrived on rank 0 of 2 (threads): the group failed before"), text);
          text = caught([&] { comm.check(); });
          require(text.starts_with("hvd: check on rank 0 of 2 (threads): the group failed before"), text);
        } else {
          while (!comm.arrived(0)) std::this_thread::yield();
          comm.recv(b.data(), 4, 0);
          while (text.empty()) text = caught([&] { require(!comm.arrived(0), "a message that nobody has sent"); });
          require(text == "hvd: arrived on rank 1 of 2 (threads): rank 0 waited 0.1 s for this rank to send (raise "
                          "HVD_TIMEOUT or failure_policy::timeout if it is only slow)",
                  text);
        }
      },
      options(0.1));
}

TEST_CASE("nobody takes, nobody sends: timeouts that say which") {
  for (const bool sending : {true, false}) {
    std::string said;
    std::atomic<bool> ended{false};
    CHECK_THROWS(hvd::thread_run(
        2,
        [&](ThreadTransport& comm) {
          std::vector<std::byte> b(1 << 20);
          if (comm.rank() == 1) {
            while (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return;
          }
          try {
            sending ? comm.send(b.data(), b.size(), 1) : comm.recv(b.data(), b.size(), 1);
          } catch (const hvd::error& e) {
            said = std::string(hvd::name(e.kind())) + " " + e.what();
            ended = true;
            throw;
          }
        },
        options(0.1)));
    CAPTURE(said);
    CHECK(said.starts_with(sending ? "timeout hvd: send on rank 0 of 2" : "timeout hvd: recv on rank 0 of 2"));
    CHECK(said.ends_with(sending
                             ? "waiting for rank 1 to receive; a send may wait for its recv: if two ranks both send "
                               "first, use exchange"
                             : "waiting for rank 1 to send"));
  }
}

}  // namespace
