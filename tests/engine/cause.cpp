// tests/engine/cause.cpp: of ranks that end one after the other, the one that was lost first is named.
#include <hvd/engine.hpp>
#include <hvd/engine/driver.hpp>
#include <hvd/launch.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using hvd::error;
using hvd::detail::cause;
using hvd::detail::joined;

hvd::engine_options unwatched() {
  hvd::engine_options o;
  o.watch = false;
  return o;
}

struct caught {
  hvd::error_kind kind;
  int rank;
  std::string what;
};
template <class F>
std::optional<caught> error_of(F&& f) {
  try {
    f();
  } catch (const error& e) {
    return caught{e.kind(), e.rank(), e.what()};
  }
  return std::nullopt;
}
/// Counts what is wrong, as assertions are not for several threads.
struct verdicts {
  std::mutex mutex;
  std::vector<std::string> wrong;
  void expect(const std::optional<caught>& e, hvd::error_kind kind, int rank, const std::string& part) {
    if (e && e->kind == kind && e->rank == rank && e->what.find(part) != std::string::npos) return;
    const std::lock_guard lock(mutex);
    wrong.push_back(e ? joined({hvd::name(e->kind), ", rank ", e->rank, ": ", e->what}) : "no error");
  }
  void check() {
    for (const std::string& w : wrong) CHECK_MESSAGE(false, w);
    CHECK(wrong.empty());
  }
};

std::unique_ptr<hvd::detail::erased_transport> over(const std::shared_ptr<hvd::ThreadTransport::group>& group,
                                                    int rank) {
  return std::make_unique<hvd::detail::erased_transport_of<hvd::ThreadTransport>>(hvd::ThreadTransport(group, rank));
}

}  // namespace

TEST_CASE("a rank that ends because another was lost is not named by those who waited for it in a process set") {
  verdicts all;
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, unwatched());
    std::vector<float> v(3, 1.0f);
    const int set = engine.add_process_set({0, 1});
    engine.barrier().wait();
    if (comm.rank() == 2) return;  // the one to name
    // Rank 1 learns of it in the whole group, and ends. Rank 0 waits for rank 1, in a set of which rank 2 is no part.
    const auto e =
        error_of([&] { engine.allreduce("x", v, hvd::sum, {.process_set = comm.rank() == 0 ? set : 0}).wait(); });
    all.expect(e, error::peer_lost, 2,
               comm.rank() == 0 ? "allreduce \"x\" on rank 0 of 2: rank 2 of all 3 has exited or was killed"
                                : "allreduce \"x\" on rank 1 of 3: rank 2 has exited or was killed");
    if (comm.rank() == 1) return;
    // And whatever this rank does later.
    all.expect(error_of([&] { engine.allreduce("y", v, hvd::sum, {.process_set = set}).wait(); }), error::peer_lost, 2,
               "allreduce \"y\" on rank 0 of 2: rank 2 of all 3");
    all.expect(error_of([&] { engine.allreduce("y", v).wait(); }), error::peer_lost, 2, "rank 2 has exited");
  });
  all.check();
}

TEST_CASE("the same through several process sets") {
  verdicts all;
  hvd::thread_run(5, [&](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, unwatched());
    std::vector<float> v(3, 1.0f);
    std::vector<int> sets;
    for (int r = 0; r != 4; ++r) sets.push_back(engine.add_process_set({r + 1, r}));
    engine.barrier().wait();
    if (comm.rank() == 4) return;
    // Each waits for the one above it.
    const int set = sets[static_cast<std::size_t>(comm.rank())];
    all.expect(error_of([&] { engine.allreduce("x", v, hvd::sum, {.process_set = set}).wait(); }), error::peer_lost, 4,
               "on rank 1 of 2: rank 4 of all 5 has exited");
  });
  all.check();
}

TEST_CASE("errors in a process set count in the whole group") {
  verdicts all;
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, unwatched());
    std::vector<float> v(3, 1.0f);
    const int set = engine.add_process_set({2, 1});
    engine.barrier().wait();
    if (comm.rank() != 1) return;
    const auto e = error_of([&] { engine.allreduce("x", v, hvd::sum, {.process_set = set}).wait(); });
    all.expect(e, error::peer_lost, 2, "allreduce \"x\" on rank 1 of 2: rank 2 of all 3 has exited");
  });
  all.check();
}

TEST_CASE("a rank that shuts its engine down while others wait is named by all of them") {
  verdicts all;
  hvd::thread_run(4, [&](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, unwatched());
    std::vector<float> v(3, 1.0f);
    engine.barrier().wait();
    if (comm.rank() == 2) return engine.shutdown();
    all.expect(error_of([&] { engine.allreduce("x", v).wait(); }), error::peer_lost, 2,
               "rank 2 has exited or was killed, or has shut its engine down; see its own output, unless");
  });
  all.check();
}

TEST_CASE("a process set that all ranks remove is no reason to name anybody") {
  verdicts all;
  std::atomic<int> failed{0};
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, unwatched());
    std::vector<float> v(3, 1.0f);
    for (int i = 0; i != 20; ++i) {
      const int set = engine.add_process_set({0, 1, 2});
      hvd::handle left;
      if (comm.rank() == 0) left = engine.allreduce("x", v, hvd::sum, {.process_set = set});
      engine.remove_process_set(set);
      if (comm.rank() == 0) {
        const auto e = error_of([&] { left.wait(); });
        failed += e && e->kind == error::aborted ? 1 : 100;
      }
    }
    engine.barrier().wait();
    if (comm.rank() == 2) return;
    all.expect(error_of([&] { engine.allreduce("x", v).wait(); }), error::peer_lost, 2, "rank 2 has exited");
  });
  CHECK(failed == 20);
  all.check();
}

TEST_CASE("all groups of a driver get the cause that was found in one of them") {
  // Drivers without a thread of their own, so that rank 0 looks when rank 1 has found out and before it has looked
  // itself.
  const auto control = std::make_shared<hvd::ThreadTransport::group>(3);
  const auto data = std::make_shared<hvd::ThreadTransport::group>(3);
  verdicts all;
  hvd::engine_options o = unwatched();
  o.thread = false;
  std::atomic<int> step{0};
  std::vector<std::thread> ranks;
  for (int r = 0; r != 3; ++r) {
    ranks.emplace_back([&, r] {
      hvd::Timeline timeline;
      auto driver = std::make_shared<hvd::detail::driver>(over(control, r), over(data, r), nullptr, o, timeline,
                                                          hvd::detail::driver_members{0, {0, 1, 2}, 3},
                                                          std::make_shared<hvd::detail::cause_board>());
      if (r == 2) return;
      if (r == 1) {
        hvd::request q;
        q.kind = hvd::operation::barrier;
        const auto end = driver->submit(std::move(q), false);
        all.expect(error_of([&] { hvd::handle(end, driver).wait(); }), error::peer_lost, 2, "rank 2 has exited");
        step = 1;
        while (step != 2) std::this_thread::yield();
        return;
      }
      while (step != 1) std::this_thread::yield();
      all.expect(error_of([&] { driver->data().check(); }), error::peer_lost, 2, "rank 2 has exited or was killed");
      step = 2;
    });
  }
  for (std::thread& t : ranks) t.join();
  all.check();
}

TEST_CASE("a rank that gives up without knowing whom it waits for is said to have given up, not to have failed") {
  const auto control = std::make_shared<hvd::ThreadTransport::group>(2);
  const auto data = std::make_shared<hvd::ThreadTransport::group>(2);
  verdicts all;
  hvd::engine_options o = unwatched();
  o.thread = false;
  std::atomic<bool> gave_up{false};
  std::vector<std::thread> ranks;
  for (int r = 0; r != 2; ++r) {
    ranks.emplace_back([&, r] {
      hvd::Timeline timeline;
      auto driver = std::make_shared<hvd::detail::driver>(over(control, r), over(data, r), nullptr, o, timeline,
                                                          hvd::detail::driver_members{0, {0, 1}, 2},
                                                          std::make_shared<hvd::detail::cause_board>());
      if (r == 0) {
        driver->give_up(error(error::timeout, "it took too long"));
        gave_up = true;
        return;
      }
      while (!gave_up) std::this_thread::yield();
      hvd::request q;
      q.kind = hvd::operation::barrier;
      const auto end = driver->submit(std::move(q), false);
      all.expect(error_of([&] { hvd::handle(end, driver).wait(); }), error::aborted, 0, "rank 0 has given up");
    });
  }
  for (std::thread& t : ranks) t.join();
  all.check();
}

TEST_CASE("a word that no rank has written says nothing") {
  for (int kind = 0; kind != 8; ++kind) {
    for (const int rank : {0, 1, 4095}) {
      const auto c = cause::from(cause{static_cast<hvd::error_kind>(kind), rank}.packed(), 4096);
      REQUIRE(c);
      CHECK(static_cast<int>(c->kind) == kind);
      CHECK(c->rank == rank);
    }
  }
  CHECK(!cause::from(0, 4));
  CHECK(!cause::from(9, 4));                                    // no such kind
  CHECK(!cause::from(cause{error::peer_lost, 4}.packed(), 4));  // no such rank
  CHECK(!cause::from(~std::uint64_t{0}, 4096));
  CHECK(!cause::from(std::uint64_t{1} << 63 | 3, 4096));
}
