// Ranks of a group are killed, and those that are left go on in a group of their own: the same one for all of them.
#include <hvd/hvd.hpp>

#include "support/any_operation.hpp"
#include "support/processes.hpp"
#include "support/require.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <source_location>
#include <string>
#include <vector>

namespace without_lost_test {

using hvd::error_kind;
using hvd::test::children;
using hvd::test::now;
using hvd::test::pause_for;
using hvd::test::private_directory;
using hvd::test::report;

void require(bool holds, std::source_location where = std::source_location::current()) {
  hvd::test::require(holds, "does not hold", where);
}

hvd::sharing_options job_options(const private_directory& d, double timeout = 60.0) {
  hvd::sharing_options o;
  o.memory.directory = d.path();
  o.failure.timeout = std::chrono::duration<double>(timeout);
  o.failure.start_timeout = std::chrono::duration<double>(timeout);
  o.failure.check = false;
  return o;
}

std::string new_job() {
  static int number = 0;
  return "left-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

// Works until `ends`, which the group agrees on, and goes on without those that are lost. Reports the first numbers of
// the ranks in the last group, as bits.
void survive(const std::string& job, int rank, int size, const hvd::sharing_options& opts, report& mine,
             const report& ends) {
  hvd::ShmTransport comm(job, rank, size, opts);
  mine.progress = 1;
  std::mt19937 dice;
  for (bool fresh = true;;) {
    try {
      if (fresh) {
        std::array<std::uint32_t, 1> seed{std::random_device()()};
        hvd::broadcast(comm, seed);
        dice.seed(seed[0]);
        fresh = false;
      }
      std::array<int, 1> over{ends.progress};
      hvd::allreduce(comm, over, hvd::max);
      if (over[0] == 0) {
        hvd::test::any_operation(comm, dice);
        continue;
      }
      std::array<int, 1> members{1 << rank};
      hvd::allreduce(comm, members);
      mine.progress = members[0];
      return;
    } catch (const hvd::error& e) {
      require(e.kind() == error_kind::peer_lost || e.kind() == error_kind::aborted);
      comm = comm.without_lost();
      fresh = true;
    }
  }
}

// The campaign (tests/campaign/survivors.py) gives other seeds, and more rounds.
unsigned chosen(const char* variable, unsigned otherwise) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 10)) : otherwise;
}

TEST_CASE("ranks killed at any time, while the others make their next group, too: all that are left are in one group") {
  std::mt19937 dice(chosen("HVD_TEST_SEED", 20261128));
  const unsigned rounds = chosen("HVD_TEST_ROUNDS", 100);
  for (unsigned round = 0; round != rounds; ++round) {
    const private_directory d;
    const int size = 2 + static_cast<int>(dice() % 7);
    const int kills = 1 + static_cast<int>(dice() % static_cast<unsigned>(size - 1));
    std::vector<int> order(static_cast<std::size_t>(size));
    for (int r = 0; r != size; ++r) order[static_cast<std::size_t>(r)] = r;
    std::shuffle(order.begin(), order.end(), dice);
    const auto opts = job_options(d);
    const std::string job = new_job();
    children ranks(size + 1);  // the last one is only the place where the end is told
    for (int r = 0; r != size; ++r) {
      ranks.start(r, [&, r](report& mine) { survive(job, r, size, opts, mine, ranks[size]); });
    }
    REQUIRE(ranks.wait_while(20.0, [&] {
      bool all = true;
      for (int r = 0; r != size; ++r) all = all && ranks[r].progress != 0;
      return !all;
    }));
    int left = (1 << size) - 1;
    for (int k = 0; k != kills; ++k) {
      pause_for(static_cast<double>(dice() % 3000) * 1e-6);
      const int victim = order[static_cast<std::size_t>(k)];
      ranks.kill(victim);
      left &= ~(1 << victim);
    }
    ranks[size].progress = 1;
    REQUIRE_MESSAGE(ranks.wait(20.0), "a survivor hangs");
    for (int r = 0; r != size; ++r) {
      if ((left >> r & 1) == 0) continue;
      CAPTURE(round);
      CAPTURE(r);
      CAPTURE(ranks[r].text());
      CHECK(ranks.status(r) == 0);
      CHECK(ranks[r].progress == left);
    }
    CHECK_MESSAGE(d.files().empty(), "files are left");
  }
}

TEST_CASE("if nobody is lost, all ranks make the same group again, and the one before has ended") {
  CHECK(hvd::fork_run(3, [](hvd::ShmTransport& comm) {
          hvd::ShmTransport next = comm.without_lost();
          require(next.rank() == comm.rank() && next.size() == 3);
          std::array<int, 1> sum{next.rank()};
          hvd::allreduce(next, sum);
          require(sum[0] == 3);
          try {
            comm.barrier();
            require(false);
          } catch (const hvd::error& e) {
            require(e.kind() == error_kind::aborted);
          }
          hvd::ShmTransport alone("alone@" + std::to_string(::getpid()), 0, 1);
          require(alone.without_lost().size() == 1);
        }) == 0);
}

TEST_CASE("a rank that is alive and does not come: an error that names it, on all others") {
  const private_directory d;
  const std::string job = new_job();
  const auto opts = job_options(d, 0.5);
  children ranks(3);
  ranks.start_all([&](int r, report& mine) {
    hvd::ShmTransport comm(job, r, 3, opts);
    mine.progress = 1;
    if (r == 1) return pause_for(30.0);
    static_cast<void>(comm.without_lost());
  });
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks.running(0) || ranks.running(2); }));
  for (const int r : {0, 2}) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].is(error_kind::timeout));
    CHECK(ranks[r].culprit == 1);
    CHECK(ranks[r].says("without_lost on rank " + std::to_string(r) + " of 3"));
    CHECK(ranks[r].says("rank 1 did not come within 0.5 s (HOROVOD_START_TIMEOUT)"));
  }
}

TEST_CASE("a group of survivors is a group like any other: split, messages, shared arrays, and the next loss") {
  const private_directory d;
  const std::string job = new_job();
  const auto opts = job_options(d);
  children ranks(4);
  ranks.start_all([&](int r, report& mine) {
    hvd::ShmTransport comm(job, r, 4, opts);
    comm.barrier();
    if (r == 1) ::raise(SIGKILL);
    try {
      for (;;) comm.barrier();
    } catch (const hvd::error& e) {
      require(e.kind() == error_kind::peer_lost && e.rank() == 1);
    }
    comm = comm.without_lost();
    require(comm.size() == 3 && comm.rank() == (r == 0 ? 0 : r - 1));
    auto shared = comm.alloc_shared<float>(100);
    std::fill(shared.begin(), shared.end(), 2.0F);
    hvd::allreduce(comm, shared);
    require(shared[99] == 6.0F);
    hvd::ShmTransport part = comm.split(comm.rank() == 0 ? 0 : 1, 0);
    require(part.size() == (comm.rank() == 0 ? 1 : 2));
    part.barrier();
    comm.barrier();
    if (r == 3) ::raise(SIGKILL);
    try {
      for (;;) comm.barrier();
    } catch (const hvd::error& e) {
      require(e.kind() == error_kind::peer_lost && e.rank() == 2);
    }
    comm = comm.without_lost();
    require(comm.size() == 2);
    comm.barrier();
    mine.progress = 7;
  });
  REQUIRE(ranks.wait(20.0));
  for (const int r : {0, 2}) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].progress == 7);
  }
  CHECK(d.files().empty());
}

}  // namespace without_lost_test
