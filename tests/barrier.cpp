// tests/barrier.cpp: nobody leaves a barrier before everybody has come.
#include <hvd/barrier.hpp>

#include <support/front_door.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

using namespace hvd::test;

TEST_CASE("nobody leaves before everybody has come") {
  for (const bool check : {false, true}) {
    for (const int ranks : {2, 3, 5}) {
      std::atomic<int> arrived{0};
      std::atomic<int> early{0};
      hvd::thread_run(
          ranks,
          [&](hvd::ThreadTransport& comm) {
            for (int round = 1; round <= 100; ++round) {
              if (round % 25 == comm.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
              ++arrived;
              hvd::barrier(comm);
              early += arrived < round * ranks ? 1 : 0;
            }
          },
          with_check(check));
      CAPTURE(check);
      CAPTURE(ranks);
      CHECK(early == 0);
      CHECK(arrived == 100 * ranks);
    }
  }
}

TEST_CASE("a rank alone waits for nobody") {
  hvd::SelfTransport alone;
  hvd::barrier(alone);
  hvd::thread_run(1, [](hvd::ThreadTransport& comm) { hvd::barrier(comm); });
}

TEST_CASE("a rank that left is missed at the barrier") {
  std::atomic<int> missed{0};
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    if (comm.rank() == 1) return;
    try {
      hvd::barrier(comm);
    } catch (const hvd::error& e) {
      if (e.kind() == hvd::error_kind::peer_lost && e.rank() == 1) ++missed;
    }
  });
  CHECK(missed == 2);
}
