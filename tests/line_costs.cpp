// tests/line_costs.cpp: what cache lines cost: written, read, agreed on, measured.
#include <hvd/allgather.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/alltoall.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/gather.hpp>
#include <hvd/launch.hpp>
#include <hvd/line_costs.hpp>
#include <hvd/reduce.hpp>
#include <hvd/reduce_scatter.hpp>
#include <hvd/scatter.hpp>
#include <hvd/transport/shm.hpp>

#include "support/processes.hpp"
#include "support/require.hpp"
#include "support/skip.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sched.h>

namespace {

using hvd::error_kind;
using hvd::line_costs;
using hvd::parse_line_costs;
using hvd::ShmTransport;
using hvd::test::children;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;

hvd::sharing_options with_costs(const private_directory& d, const line_costs& lines) {
  hvd::sharing_options o;
  o.memory.directory = d.path();
  o.failure.timeout = std::chrono::seconds(20);
  o.lines = lines;
  return o;
}

constexpr line_costs xeon{106000, 6800, 9000}, epyc{100000, 7500, 2000};

/// Binds the calling process to the `which`-th of its CPUs; false if it has fewer.
bool bind_to(int which) {
  cpu_set_t all, one;
  require(::sched_getaffinity(0, sizeof all, &all) == 0, "no CPUs");
  int cpu = 0;
  for (; cpu != CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && which-- == 0) break;
  }
  if (cpu == CPU_SETSIZE) return false;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  return ::sched_setaffinity(0, sizeof one, &one) == 0;
}

/// All collectives at all sizes where protocols change, with every root.
void check_collectives(ShmTransport& comm) {
  const int np = comm.size(), r = comm.rank();
  const auto p = static_cast<std::size_t>(np);
  for (const std::size_t n : std::initializer_list<std::size_t>{1, 14, 15, 541, 542, 543, 1023, 1024, 8192, 12288,
                                                                20'000, 100'000, 300'000}) {
    const auto value = [n](int rank, std::size_t i) { return rank * 1'000'003 + static_cast<int>(i * 7 + n); };
    const auto sum = [&](std::size_t i) {
      int s = 0;
      for (int q = 0; q != np; ++q) s += value(q, i);
      return s;
    };
    std::vector<int> own(n), each(n * p);
    for (std::size_t i = 0; i != n; ++i) own[i] = value(r, i);
    for (std::size_t i = 0; i != n * p; ++i) each[i] = value(r, i);
    for (int root = 0; root != np; ++root) {
      std::vector<int> out(n, -1), all(n * p, -1);
      hvd::allreduce(comm, own, out);
      for (std::size_t i = 0; i != n; ++i) require(out[i] == sum(i), "allreduce");
      hvd::reduce(comm, own, out, hvd::sum, root);
      for (std::size_t i = 0; r == root && i != n; ++i) require(out[i] == sum(i), "reduce");
      hvd::broadcast(comm, own, out, root);
      for (std::size_t i = 0; i != n; ++i) require(out[i] == value(root, i), "broadcast");
      hvd::gather(comm, own, all, root);
      for (std::size_t i = 0; r == root && i != n * p; ++i) {
        require(all[i] == value(static_cast<int>(i / n), i % n), "gather");
      }
      hvd::allgather(comm, own, all);
      for (std::size_t i = 0; i != n * p; ++i) {
        require(all[i] == value(static_cast<int>(i / n), i % n), "allgather");
      }
      hvd::alltoall(comm, each, all);
      for (std::size_t i = 0; i != n * p; ++i) {
        require(all[i] == value(static_cast<int>(i / n), i % n + static_cast<std::size_t>(r) * n), "alltoall");
      }
      hvd::scatter(comm, each, out, root);
      for (std::size_t i = 0; i != n; ++i) {
        require(out[i] == value(root, i + static_cast<std::size_t>(r) * n), "scatter");
      }
      hvd::reduce_scatter(comm, each, out);
      for (std::size_t i = 0; i != n; ++i) {
        require(out[i] == sum(i + static_cast<std::size_t>(r) * n), "reduce_scatter");
      }
    }
  }
}

}  // namespace

TEST_CASE("what is written is read, in any order") {
  CHECK(to_string(xeon) == "transfer_ps=106000,rewrite_ps=6800,touched_ps=9000");
  CHECK(parse_line_costs("X", to_string(xeon)) == xeon);
  CHECK(parse_line_costs("X", "touched_ps=3,transfer_ps=1,rewrite_ps=2") == line_costs{1, 2, 3});
  CHECK(parse_line_costs("X", "transfer_ps=1,rewrite_ps=2,touched_ps=100000000").touched == 100000000);
}

TEST_CASE("what cannot be costs of lines is refused with variable, value and remedy") {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_line_costs("HVD_LINE_COSTS", text);
    } catch (const hvd::error& e) {
      CHECK(e.kind() == error_kind::invalid_argument);
      return e.what();
    }
    return "not refused";
  };
  for (const char* const text :
       {"", "0", "garbage", "106000/6800/9000", "transfer_ps=1", "transfer_ps=1,rewrite_ps=2", "transfer_ps=1,,",
        "transfer_ps=1,rewrite_ps=2,touched_ps=3,other_ps=4", "=", ",", "transfer_ps", "transfer_ps=1 ,rewrite_ps=2"}) {
    CAPTURE(text);
    const std::string said = refusal(text);
    CHECK(said.find("HVD_LINE_COSTS=\"") != std::string::npos);
    CHECK(said.find("allowed: ") != std::string::npos);
  }
  for (const char* const value : {"0", "-1", "100000001", "99999999999999999999", "1.5", "x", ""}) {
    CAPTURE(value);
    const std::string said = refusal(std::string("transfer_ps=1,rewrite_ps=2,touched_ps=") + value);
    CHECK(said.find("touched_ps in picoseconds (here 1 to 100000000)") != std::string::npos);
  }
}

TEST_CASE("touching pays where it makes the next store cheaper by more than it costs; not known, it is done") {
  CHECK(!xeon.touching_pays());
  CHECK(epyc.touching_pays());
  CHECK(line_costs{}.touching_pays());
  CHECK(line_costs{1, 1000, 799}.touching_pays());
  CHECK(!line_costs{1, 1000, 800}.touching_pays());
  CHECK(line_costs{1, 4'000'000'000, 3'000'000'000}.touching_pays());
}

TEST_CASE("all ranks go by what they are given, and so do groups that are split off, and threads") {
  const private_directory d;
  hvd::fork_run(3, [&](ShmTransport& parent) {
    ShmTransport comm(parent, with_costs(d, xeon));
    require(comm.peers().costs() == xeon, "not what was given");
    ShmTransport part = comm.split(comm.rank() / 2, 0);
    require(part.peers().costs() == xeon, "a split has other costs");
  });
  hvd::sharing_options o;
  o.lines = epyc;
  hvd::thread_run(
      2,
      [](hvd::ThreadTransport& comm) {
        require(comm.peers().costs() == epyc, "not what was given");
        hvd::ThreadTransport part = comm.split(0, 0);
        require(part.peers().costs() == epyc, "a split has other costs");
      },
      o);
}

TEST_CASE("costs that differ are an error on all ranks, which leaves nothing behind") {
  const private_directory d;
  for (const int other : {0, 1, 2}) {
    children ranks(3);
    ranks.start_all(
        [&](int r, report&) { ShmTransport comm("differ@1", r, 3, with_costs(d, r == other ? xeon : line_costs{})); });
    REQUIRE(ranks.wait(20.0));
    for (int r = 0; r != 3; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].is(error_kind::mismatch));
      CHECK(ranks[r].culprit == (other == 0 ? 1 : other));
      CHECK(ranks[r].says("HVD_LINE_COSTS is "));
      CHECK(ranks[r].says("rewrite_ps=6800"));
      CHECK(ranks[r].says("set it to the same on all ranks, or on none"));
    }
    CHECK(d.empty());
  }
}

TEST_CASE("all ranks have measured the same, and any costs give right results") {
  for (const int np : {2, 3, 4}) {
    hvd::fork_run(np, [&](ShmTransport& comm) {
      std::vector<std::uint64_t> own{comm.peers().costs().transfer, comm.peers().costs().rewrite,
                                     comm.peers().costs().touched};
      std::vector<std::uint64_t> least = own, most = own;
      hvd::allreduce(comm, least, hvd::min);
      hvd::allreduce(comm, most, hvd::max);
      require(least == most, "ranks go by different costs");
      const bool all = own[0] != 0 && own[1] != 0 && own[2] != 0;
      require(all || own == std::vector<std::uint64_t>(3), "known by half");
    });
  }
}

TEST_CASE("all collectives give the same with any costs, at all sizes where protocols change") {
  for (const line_costs& lines : {xeon, epyc}) {
    for (const int np : {2, 3}) {
      const private_directory d;
      children ranks(np);
      ranks.start_all([&](int r, report&) {
        ShmTransport comm("costs@1", r, np, with_costs(d, lines));
        check_collectives(comm);
      });
      REQUIRE(ranks.wait(100.0));
      for (int r = 0; r != np; ++r) {
        CAPTURE(ranks[r].text());
        CHECK(ranks[r].kind == report::nothing);
      }
    }
  }
}

/// Stands in for a CPU with efficiency cores: rank 1 shares its core with a process that never sleeps.
TEST_CASE("a rank on a slower core than the others gets and gives the same results") {
  cpu_set_t all;
  REQUIRE(::sched_getaffinity(0, sizeof all, &all) == 0);
  if (CPU_COUNT(&all) < 2) {
    hvd::test::skip("one CPU");
    return;
  }
  const private_directory d;
  children busy(1);
  busy.start(0, [](report&) {
    require(bind_to(1), "cannot be bound");
    for (volatile bool spins = true; spins;) continue;
  });
  children ranks(2);
  ranks.start_all([&](int r, report&) {
    require(bind_to(r), "cannot be bound");
    ShmTransport comm("slower@1", r, 2, with_costs(d, {}));
    check_collectives(comm);
  });
  CHECK(ranks.wait(100.0));
  for (int r = 0; r != 2; ++r) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].kind == report::nothing);
  }
  busy.kill(0, SIGKILL);
  CHECK(busy.wait(20.0));
}

TEST_CASE("a copy is right wherever source and target lie in their pages") {
  std::vector<std::byte> from(3 * 4096), to(3 * 4096);
  for (std::size_t i = 0; i != from.size(); ++i) from[i] = static_cast<std::byte>(i * 31 + i / 256);
  for (std::size_t shift = 0; shift != 70; ++shift) {
    for (const std::size_t bytes : std::initializer_list<std::size_t>{0, 1, 63, 2047, 2048, 2049, 4095, 4096, 5000}) {
      const auto address = reinterpret_cast<std::uintptr_t>(to.data());
      const std::size_t source = (8192 - shift + address - reinterpret_cast<std::uintptr_t>(from.data())) % 4096;
      std::fill(to.begin(), to.end(), std::byte{0xee});
      hvd::detail::copy_bytes(to.data(), from.data() + source, bytes);
      CHECK(std::equal(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(bytes),
                       from.begin() + static_cast<std::ptrdiff_t>(source)));
      CHECK(to[bytes] == std::byte{0xee});
    }
  }
}

TEST_CASE("where memory is too little to measure, or ranks outnumber CPUs, nothing is known, and all works") {
  for (const bool little : {true, false}) {
    const private_directory d;
    children ranks(2);
    ranks.start_all([&](int r, report&) {
      auto o = with_costs(d, {});
      if (little) {
        o.memory.staging_bytes = 32 << 10;
      } else {
        require(bind_to(0), "cannot be bound");
      }
      ShmTransport comm("unknown@1", r, 2, o);
      require(!comm.peers().costs().known(), "measured");
      std::vector<int> v(100'000, r);
      hvd::broadcast(comm, v, 1);
      require(v.front() == 1 && v.back() == 1, "wrong data");
    });
    REQUIRE(ranks.wait(20.0));
    for (int r = 0; r != 2; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].kind == report::nothing);
    }
  }
}

TEST_CASE("a rank that is stopped while a group starts and measures is named by the deadline") {
  for (int round = 0; round != 8; ++round) {
    const private_directory d;
    children ranks(2);
    ranks.start_all([&](int r, report& mine) {
      auto o = with_costs(d, {});
      o.failure.timeout = o.failure.start_timeout = std::chrono::duration<double>(0.5);
      ShmTransport comm("stopped@1", r, 2, o);
      mine.progress = 1;
      comm.barrier();
    });
    hvd::test::pause_for(0.0005 * round);  // some rounds stop it while it measures
    ranks.kill(1, SIGSTOP);
    REQUIRE(ranks.wait_while(40.0, [&] { return ranks.running(0); }));
    CAPTURE(ranks[0].text());
    CHECK((ranks[0].kind == report::nothing || ranks[0].is(error_kind::timeout)));
    if (ranks[0].is(error_kind::timeout)) CHECK(ranks[0].culprit == 1);
    ranks.kill(1, SIGKILL);
    REQUIRE(ranks.wait(20.0));
    CHECK(d.empty());
  }
}
