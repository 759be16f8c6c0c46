#include <hvd/transport/thread.hpp>

#include <hvd/launch.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/barrier.hpp>
#include <hvd/send_recv.hpp>

#include "support/processes.hpp"
#include "support/require.hpp"
#include "support/skip.hpp"

#include <algorithm>
#include <cstddef>
#include <doctest/doctest.h>
#include <stdexcept>

#include <sys/resource.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

namespace {

using hvd::error_kind;
using hvd::ThreadTransport;
using namespace std::chrono_literals;

template <class F>
std::string refused(error_kind kind, F&& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    if (e.kind() == kind) return e.what();
    return "another kind: " + std::string(e.what());
  }
  return "no error";
}

hvd::sharing_options with_timeout(std::chrono::duration<double> timeout) {
  hvd::sharing_options o;
  o.failure.timeout = timeout;
  o.failure.check = false;
  return o;
}

// Runs f(r) in a thread for each rank.
template <class F>
void in_threads(int n, F f) {
  std::vector<std::thread> threads;
  for (int r = 0; r != n; ++r) threads.emplace_back(f, r);
  for (auto& t : threads) t.join();
}

TEST_CASE("ranks out of range and ranks that are taken are refused") {
  const auto group = std::make_shared<ThreadTransport::group>(2);
  const auto join = [&](int r) { return refused(error_kind::invalid_argument, [&] { ThreadTransport(group, r); }); };
  CHECK(join(2) == "hvd: rank 2 is out of range; allowed: 0 to 1");
  CHECK(join(-1) == "hvd: rank -1 is out of range; allowed: 0 to 1");
  const ThreadTransport taken(group, 1);
  CHECK(join(1) == "hvd: rank 1 of a group of threads is taken");
  CHECK(refused(error_kind::invalid_argument, [] { ThreadTransport::group(0); }).find("1 to 4096") !=
        std::string::npos);
}

TEST_CASE("a rank that ends is lost to those who wait for it, and to nobody else") {
  const auto group = std::make_shared<ThreadTransport::group>(3, with_timeout(30s));
  std::array<std::string, 3> said;
  std::array<int, 3> culprit{};
  in_threads(3, [&](int r) {
    ThreadTransport comm(group, r);
    std::vector<int> data(5000, 1);
    hvd::allreduce(comm, data);
    if (r == 1) return;
    try {
      hvd::barrier(comm);
    } catch (const hvd::error& e) {
      said[static_cast<std::size_t>(r)] = std::string(hvd::name(e.kind())) + " " + e.what();
      culprit[static_cast<std::size_t>(r)] = e.rank();
    }
  });
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CAPTURE(said[r]);
    CHECK(said[r].starts_with("peer_lost hvd: barrier on rank " + std::to_string(r) + " of 3 (threads)"));
    CHECK(culprit[r] == 1);
  }
}

TEST_CASE("a rank that ends is found without a wait, but what it has sent is there") {
  const auto group = std::make_shared<ThreadTransport::group>(3, with_timeout(30s));
  std::atomic<int> looked{0};
  std::array<std::string, 3> said;
  in_threads(3, [&](int r) {
    ThreadTransport comm(group, r);
    int number = 7;
    if (r == 1) {
      while (looked != 2) std::this_thread::sleep_for(1ms);
      return comm.send(reinterpret_cast<std::byte*>(&number), sizeof number, 0);
    }
    comm.check();  // whether the others are there yet or not
    ++looked;
    if (r == 0) {
      while (!comm.arrived(1)) std::this_thread::sleep_for(1ms);
      comm.recv(reinterpret_cast<std::byte*>(&number), sizeof number, 1);
    }
    try {
      for (const auto until = std::chrono::steady_clock::now() + 30s; std::chrono::steady_clock::now() < until;) {
        comm.check();
      }
    } catch (const hvd::error& e) {
      said[static_cast<std::size_t>(r)] =
          std::string(hvd::name(e.kind())) + " " + std::to_string(e.rank()) + " " + e.what();
    }
  });
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CAPTURE(said[r]);
    CHECK(said[r].starts_with("peer_lost 1 hvd: check on rank " + std::to_string(r) +
                              " of 3 (threads): rank 1 has exited or was killed"));
  }
}

TEST_CASE("other threads see for whom a rank waits") {
  const auto group = std::make_shared<ThreadTransport::group>(3, with_timeout(30s));
  ThreadTransport comm(group, 0), other(group, 2);
  CHECK(comm.waiting_for() == -1);
  std::byte b{};
  std::thread stuck([&] { comm.recv(&b, 1, 2); });
  const auto until = std::chrono::steady_clock::now() + 30s;
  while (comm.waiting_for() != 2 && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
  CHECK(comm.waiting_for() == 2);
  CHECK(other.waiting_for() == -1);
  other.send(&b, 1, 0);
  stuck.join();
  CHECK(comm.waiting_for() == -1);

  std::thread fails([&] { CHECK(refused(error_kind::peer_lost, [&] { comm.recv(&b, 1, 2); }) != "no error"); });
  { const ThreadTransport ends(std::move(other)); }
  fails.join();
  CHECK(comm.waiting_for() == -1);
}

TEST_CASE("a rank that does not come is a timeout that names it, and then stays the reason") {
  const auto group = std::make_shared<ThreadTransport::group>(3, with_timeout(200ms));
  std::atomic<int> late{0};
  in_threads(3, [&](int r) {
    ThreadTransport comm(group, r);
    if (r == 2) {
      while (late != 2) std::this_thread::sleep_for(1ms);
      return;
    }
    std::vector<float> data(100);
    const std::string first = refused(error_kind::timeout, [&] { hvd::allreduce(comm, data); });
    const std::string then = refused(error_kind::timeout, [&] { hvd::barrier(comm); });
    ++late;
    if (first.find("allreduce on rank " + std::to_string(r)) == std::string::npos ||
        first.find("rank 2 did not answer within 0.2") == std::string::npos ||
        then.find("barrier on rank") == std::string::npos || then.find("failed before") == std::string::npos) {
      throw std::logic_error(first + "\n" + then);
    }
  });
}

TEST_CASE("alloc_shared is zero, shared, freed in any order, and outlives its transport") {
  hvd::thread_run(3, [](ThreadTransport& comm) {
    std::vector<hvd::shared_array<int>> kept;
    for (int round = 0; round != 20; ++round) {
      auto a = comm.alloc_shared<int>(20'000);
      auto b = comm.alloc_shared<int>(17);
      for (const int v : a) {
        if (v != 0) throw std::logic_error("not zero");
      }
      std::fill(a.begin(), a.end(), comm.rank());
      hvd::allreduce(comm, a);
      if (a[0] != 3 || a[19'999] != 3) throw std::logic_error("wrong sum");
      if (round % 3 == comm.rank()) kept.push_back(std::move(b));
    }
    hvd::barrier(comm);
  });
}

TEST_CASE("split on threads, in all ways at once, then parts in any order") {
  hvd::thread_run(5, [](ThreadTransport& comm) {
    for (int round = 0; round != 20; ++round) {
      auto part = comm.split(comm.rank() % 2, -comm.rank());
      std::array<int, 1> data{comm.rank()};
      hvd::allreduce(part, data);
      if (data[0] != (comm.rank() % 2 == 0 ? 6 : 4)) throw std::logic_error("wrong sum in a part");
      if (part.size() != (comm.rank() % 2 == 0 ? 3 : 2)) throw std::logic_error("wrong size of a part");
      auto alone = part.split(part.rank(), 0);
      hvd::barrier(alone);
    }
  });
}

// For ThreadSanitizer: what one rank hands to the others must live until they have it, also when the group fails.
TEST_CASE("a rank that ends in the middle of split or alloc_shared leaves nobody with a dangling pointer") {
  for (int round = 0; round != 40; ++round) {
    const auto group = std::make_shared<ThreadTransport::group>(3, with_timeout(30s));
    std::atomic<int> lost{0};
    in_threads(3, [&](int r) {
      ThreadTransport comm(group, r);
      hvd::barrier(comm);
      const auto joined = [&] {
        if (round % 2 == 0) {
          auto part = comm.split(0, r);
          hvd::barrier(part);
        } else {
          auto a = comm.alloc_shared<int>(10'000);
          hvd::allreduce(comm, a);
        }
      };
      if (r != 1) {
        try {
          joined();
        } catch (const hvd::error&) {
          ++lost;
        }
        return;
      }
      // Rank 1 goes only as far as the first half.
      if (round % 2 == 0) {
        hvd::detail::plan_split(comm.peers(), 0, r, 0);
      } else {
        hvd::detail::peer_memory::scope scope(comm.peers(), "alloc_shared");
        hvd::detail::descriptor d;
        d.kind = hvd::operation::alloc_shared;
        d.count = 10'000;
        d.element_bytes = sizeof(int);
        hvd::detail::agree(comm.peers(), d, scope);
        scope.leave();
      }
      hvd::detail::share(comm.peers(), 0, round % 2 == 0 ? hvd::operation::split : hvd::operation::alloc_shared);
    });
    CHECK(lost == 2);
  }
}

TEST_CASE("a moved transport works, and moving onto one ends its group") {
  const auto a = std::make_shared<ThreadTransport::group>(2, with_timeout(30s));
  const auto b = std::make_shared<ThreadTransport::group>(2, with_timeout(30s));
  std::array<std::string, 2> said;
  in_threads(2, [&](int r) {
    ThreadTransport first(a, r);
    ThreadTransport moved(std::move(first));
    hvd::barrier(moved);
    ThreadTransport second(b, r);
    if (r == 0) {
      moved = std::move(second);
      hvd::barrier(moved);
    } else {
      said[1] = refused(error_kind::peer_lost, [&] { hvd::barrier(moved); });
      hvd::barrier(second);
    }
  });
  CHECK(said[1].find("rank 0 has exited") != std::string::npos);
}

TEST_CASE("split and alloc_shared without memory: no_memory on every rank, and the group goes on") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  hvd::test::skip("sanitizers reserve more address space than any limit allows");
#else
  hvd::test::children one(1);
  one.start(0, [](hvd::test::report&) {
    hvd::sharing_options opts = with_timeout(20s);
    opts.memory.staging_bytes = std::size_t{256} << 20;
    hvd::thread_run(
        3,
        [](ThreadTransport& comm) {
          std::vector<int> data(1000, 1);
          hvd::barrier(comm);
          if (comm.rank() == 0) {
            std::size_t pages = 0;
            std::ifstream("/proc/self/statm") >> pages;
            const rlimit limit{pages * 4096 + (std::size_t{64} << 20), RLIM_INFINITY};
            hvd::test::require(::setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
          }
          hvd::barrier(comm);
          for (int round = 0; round != 3; ++round) {
            const std::string split = refused(error_kind::no_memory, [&] { (void)comm.split(0, -comm.rank()); });
            const std::string alloc =
                refused(error_kind::no_memory, [&] { (void)comm.alloc_shared<char>(std::size_t{64} << 20); });
            hvd::test::require(split.starts_with("hvd: split on rank"), split);
            hvd::test::require(alloc.starts_with("hvd: alloc_shared on rank"), alloc);
            hvd::allreduce(comm, data, hvd::max);
          }
        },
        opts);
  });
  REQUIRE(one.wait(60.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
#endif
}

}  // namespace

TEST_CASE("a rank that comes after the others have given up does not write into their buffers") {
  std::atomic<int> stage{0};
  const auto reach = [&](int wanted) {
    while (stage.load() < wanted) std::this_thread::yield();
  };
  bool untouched = false, late_threw = false;
  hvd::thread_run(2,
                  [&](hvd::ThreadTransport& comm) {
                    auto data = comm.alloc_shared<float>(100000);
                    try {
                      if (comm.rank() == 1) reach(1);
                      hvd::allreduce(comm, data);
                    } catch (const hvd::error&) {
                      late_threw = late_threw || comm.rank() == 1;
                    }
                    if (comm.rank() == 0) {
                      for (float& x : data) x = 7.0f;
                      stage = 1;
                      reach(2);
                      untouched = std::all_of(data.begin(), data.end(), [](float x) { return x == 7.0f; });
                    } else {
                      stage = 2;
                    }
                  },
                  {.failure = {.timeout = std::chrono::milliseconds(100)}});
  CHECK(late_threw);
  CHECK(untouched);
}

TEST_CASE("a message to oneself that cannot fit is refused, and the group stays usable") {
  CHECK_NOTHROW(hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    std::vector<std::byte> large(std::size_t{1} << 20), got(large.size());
    try {
      comm.send(large.data(), large.size(), comm.rank());
      throw std::runtime_error("it was sent");
    } catch (const hvd::error& e) {
      if (e.kind() != hvd::error_kind::invalid_argument) throw;
    }
    comm.exchange(large.data(), large.size(), comm.rank(), got.data(), got.size(), comm.rank());
    comm.barrier();
  }));
}
