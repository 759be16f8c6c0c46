// tests/engine/agreement.cpp: rounds in which ranks learn what all of them have submitted.
#include <hvd/engine/agreement.hpp>
#include <hvd/launch.hpp>

#include <support/require.hpp>
#include <transport/launchers.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace hvd::test;
using namespace std::chrono_literals;
using hvd::detail::agreement;
using words = std::vector<std::uint64_t>;

namespace {

auto later() { return std::chrono::steady_clock::now() + 60s; }

bool finish(agreement& a, std::chrono::steady_clock::time_point until = later()) {
  std::atomic<int> waited_for = -1;
  const bool done = a.finish(until, hvd::detail::paces::round, waited_for);
  require(waited_for == -1, "still waiting");
  return done;
}

}  // namespace

TEST_CASE("engine rounds: everybody learns what anybody has, of any length") {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    hvd::thread_run(size, [&](hvd::ThreadTransport& comm) {
      hvd::detail::erased_transport_on view(comm);
      agreement a(view);
      const auto rank = static_cast<std::size_t>(comm.rank());
      for (std::size_t length = 1; length < 400; length += 57) {
        words mine(length), all(length);
        mine[rank % length] |= std::uint64_t{1} << rank;
        for (std::size_t r = 0; r != static_cast<std::size_t>(size); ++r) all[r % length] |= std::uint64_t{1} << r;
        require(!a.under_way(), "in a round before it begins");
        a.begin(mine);
        require(finish(a), "a round without an end");
        require(!a.under_way() && a.words() == all, "wrong words");
      }
      // Texts, in the order of ranks.
      std::string expected;
      for (int r = 0; r != size; ++r)
        expected += std::string(static_cast<std::size_t>(r * 1000), static_cast<char>('a' + r));
      const std::string text = a.merge(std::string(rank * 1000, static_cast<char>('a' + comm.rank())),
                                       [](const std::string& left, const std::string& right) { return left + right; });
      require(text == expected, "a wrong text");
    });
  }
}

TEST_CASE("engine rounds: texts come in pieces, and a length is not believed before they have come") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    const auto joined = [](const std::string& left, const std::string& right) { return left + right; };
    hvd::detail::erased_transport_on view(comm);
    agreement a(view);
    for (const std::size_t length : {std::size_t{65535}, std::size_t{65536}, std::size_t{200'000}}) {
      const std::string text = a.merge(std::string(length, comm.rank() == 0 ? 'a' : 'b'), joined);
      require(text == std::string(length, 'a') + std::string(length, 'b'), "a wrong text");
    }
    if (comm.rank() == 1) {  // announces 128 MiB
      const std::uint64_t length = std::uint64_t{1} << 27;
      const std::string text(65536, 'x');
      comm.send(reinterpret_cast<const std::byte*>(&length), sizeof length, 0);
      comm.send(reinterpret_cast<const std::byte*>(text.data()), text.size(), 0);
      comm.send(reinterpret_cast<const std::byte*>(text.data()), 1, 0);
      return;
    }
    try {
      a.merge("", joined);
      require(false, "nothing was thrown");
    } catch (const hvd::error& e) {
      require(std::string(e.what()).find("expected 65536 bytes from rank 1 but it sent 1;") != std::string::npos,
              e.what());
    }
  });
}

TEST_CASE("engine rounds: a rank that sleeps is woken by whoever begins") {
  hvd::thread_run(3, [](hvd::ThreadTransport& comm) {
    hvd::detail::erased_transport_on view(comm);
    agreement a(view);
    for (int turn = 0; turn != 20; ++turn) {
      if (comm.rank() != turn % 3) {
        a.sleep(later(), [] { return false; });
        require(a.called(), "woken without a reason");
      }
      a.begin({1});
      require(finish(a), "a round without an end");
      comm.barrier();
    }
  });
}

TEST_CASE("engine rounds: a round can be left and gone on with") {
  hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    hvd::detail::erased_transport_on view(comm);
    agreement a(view);
    if (comm.rank() == 0) {
      a.begin({1});
      require(!finish(a, std::chrono::steady_clock::now()), "an end without the other rank");
      require(a.under_way(), "not in a round that has begun");
      comm.barrier();
    } else {
      comm.barrier();
      a.begin({2});
    }
    require(finish(a) && a.words() == words{3}, "wrong words");
  });
}

TEST_CASE("engine rounds: a rank that is done may go while others wait for a third") {
  // Rank 0 stops in the middle of the round. Rank 1 can end it, and goes; rank 2 waits for rank 0.
  std::atomic<bool> gone = false;
  const auto group = std::make_shared<hvd::ThreadTransport::group>(4, long_deadline());
  std::vector<std::string> failures(4);
  std::vector<std::thread> threads;
  for (int r = 0; r != 4; ++r) {
    threads.emplace_back([&, r] {
      try {
        {
          hvd::ThreadTransport comm(group, r);
          hvd::detail::erased_transport_on view(comm);
          agreement a(view);
          comm.barrier();
          a.begin({std::uint64_t{1} << r});
          if (r == 0) {
            while (!gone) std::this_thread::yield();
            std::this_thread::sleep_for(150ms);  // rank 2 looks at its peers meanwhile
          }
          require(finish(a) && a.words() == words{15}, "wrong words");
        }
        if (r == 1) gone = true;
      } catch (const std::exception& e) {
        failures[static_cast<std::size_t>(r)] = e.what();
        if (r == 1) gone = true;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::string& f : failures) CHECK(f == "");
}

TEST_CASE("engine rounds: a rank that goes before its time is an error on those who wait for it") {
  for (const bool asleep : {false, true}) {
    const auto group = std::make_shared<hvd::ThreadTransport::group>(2, long_deadline());
    std::string failure;
    std::thread other([&] {
      hvd::ThreadTransport comm(group, 1);
      hvd::detail::erased_transport_on view(comm);
      const agreement a(view);
    });
    {
      hvd::ThreadTransport comm(group, 0);
      hvd::detail::erased_transport_on view(comm);
      agreement a(view);
      try {
        if (asleep) {
          a.sleep(later(), [] { return false; });
        } else {
          a.begin({1});
          finish(a);
        }
      } catch (const hvd::error& e) {
        failure = e.what();
        CHECK(e.kind() == hvd::error::peer_lost);
        CHECK(e.rank() == 1);
      }
    }
    other.join();
    CHECK(failure.find("rank 1 has exited or was killed") != std::string::npos);
  }
}
