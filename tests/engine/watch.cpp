// tests/engine/watch.cpp: ranks that are late, stuck in a collective, or stopped are named while the others wait.
#include <hvd/engine.hpp>
#include <hvd/launch.hpp>
#include <support/processes.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using namespace std::chrono_literals;

/// What watches say, in the order in which they say it.
struct reports {
  std::mutex mutex;
  std::vector<std::string> all;
  std::function<void(const std::string&)> writer() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      all.push_back(text);
    };
  }
  std::string until(const std::string& word) {
    return until([&](const std::string& text) { return text.find(word) != std::string::npos; }, word);
  }
  template <class F>
  std::string until(const F& meant, const std::string& word) {  // at most 30 s
    for (int i = 0; i != 3000; ++i) {
      {
        const std::lock_guard lock(mutex);
        for (const std::string& text : all) {
          if (meant(text)) return text;
        }
      }
      std::this_thread::sleep_for(10ms);
    }
    return "nobody reported '" + word + "'";
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

hvd::engine_options short_deadline() {
  hvd::engine_options o;
  o.stall_warning = 100ms;
  return o;
}

}  // namespace

TEST_CASE("a tensor that some ranks have not submitted") {
  for (const int np : {2, 3, 4}) {
    CAPTURE(np);
    reports said;
    std::atomic<bool> reported{false};
    hvd::thread_run(np, [&](hvd::ThreadTransport& comm) {
      hvd::engine_options o = short_deadline();
      o.report = said.writer();
      hvd::Engine engine(comm, o);
      std::vector<float> v(3, 1.0f), w(5, 1.0f);
      engine.allreduce("early", w).wait();
      const int late = np - 1;
      if (comm.rank() == late) {
        while (!reported) std::this_thread::sleep_for(1ms);
      }
      const hvd::handle h = engine.allreduce("layer 7", v);
      if (comm.rank() == 0) {
        const std::string text = said.until("layer 7");
        CHECK_MESSAGE(has(text, hvd::detail::joined({"rank 0 of ", np})), text);
        CHECK_MESSAGE(has(text, "allreduce \"layer 7\""), text);
        CHECK_MESSAGE(has(text, np == 2   ? "submitted by rank 0;"
                                : np == 3 ? "submitted by ranks 0, 1;"
                                          : "submitted by ranks 0-2;"),
                      text);
        CHECK_MESSAGE(has(text, hvd::detail::joined({"not submitted by rank ", late})), text);
        CHECK_MESSAGE(!has(text, "early"), text);
        CHECK_MESSAGE(has(text, "negotiating"), text);
        reported = true;
      }
      h.wait();
      CHECK(v == std::vector<float>(3, static_cast<float>(np)));
    });
    const std::lock_guard lock(said.mutex);
    for (const std::string& text : said.all) CHECK_MESSAGE(has(text, "rank 0 of"), text);  // the lowest alone reports
  }
}

TEST_CASE("a rank that is stuck inside a collective") {
  reports said;
  std::atomic<bool> reported{false};
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    hvd::engine_options o = short_deadline();
    o.report = said.writer();
    o.fusion_threshold = 0;  // one collective for each tensor
    hvd::Engine engine(comm, o);
    std::vector<float> first(30000, 1.0f), second(30000, 2.0f);
    const auto submit = [&](const char* name, std::vector<float>& v, bool hangs) {
      hvd::request r;
      r.name = name;
      hvd::tensor t;
      t.in = reinterpret_cast<const std::byte*>(v.data());
      t.out = reinterpret_cast<std::byte*>(v.data());
      t.shape = {v.size()};
      r.tensors.push_back(t);
      if (hangs) {
        r.done = [&](const hvd::handle&) {
          while (!reported) std::this_thread::sleep_for(1ms);
        };
      }
      return engine.submit(std::move(r));
    };
    // Rank 1's engine does not come back from the first, so that the others wait for it within the second.
    const hvd::handle a = submit("first", first, comm.rank() == 1), b = submit("second", second, false);
    if (comm.rank() == 0) {
      // Before rank 2 is in it as well, a report may say that rank 0 still negotiates.
      const std::string text = said.until("in a collective, waiting for rank 1");
      CHECK_MESSAGE(has(text, "allreduce \"second\""), text);
      CHECK_MESSAGE(has(text, "submitted by ranks 0-2"), text);
      CHECK_MESSAGE(!has(text, "not submitted"), text);
      reported = true;
    }
    a.wait();
    b.wait();
    CHECK(first == std::vector<float>(30000, 3.0f));
    CHECK(second == std::vector<float>(30000, 6.0f));
  });
}

namespace {

/// A process set of three ranks' engines in which rank `late` submits only when rank 1 has reported all of `wanted`.
void check_report_of_set(const std::vector<int>& members, int late, const std::vector<const char*>& wanted) {
  reports said;
  std::atomic<bool> reported{false};
  hvd::thread_run(3, [&](hvd::ThreadTransport& comm) {
    hvd::engine_options o = short_deadline();
    o.report = said.writer();
    hvd::Engine engine(comm, o);
    const int set = engine.add_process_set(members);
    std::vector<float> v(3, 1.0f);
    if (std::find(members.begin(), members.end(), comm.rank()) == members.end()) return;
    if (comm.rank() == late) {
      while (!reported) std::this_thread::sleep_for(1ms);
    }
    const hvd::handle h = engine.allreduce("x", v, hvd::sum, {.process_set = set});
    if (comm.rank() == 1) {
      const std::string text = said.until("\"x\"");
      for (const char* const words : wanted) CHECK_MESSAGE(has(text, words), text);
      reported = true;
    }
    h.wait();
    CHECK(v == std::vector<float>(3, static_cast<float>(members.size())));
  });
}

}  // namespace

TEST_CASE("tensors of a process set are named with ranks of the whole group") {
  check_report_of_set({2, 1}, 2, {"allreduce \"x\" of process set 1", "submitted by rank 1; not submitted by rank 2"});
}

TEST_CASE("the lowest rank that has submitted reports, in whatever order the process set has its ranks") {
  check_report_of_set({2, 1, 0}, 0,
                      {"rank 1 of 3: in flight for ", "submitted by ranks 1, 2; not submitted by rank 0"});
}

TEST_CASE("a stall that lasts ends the job where that is asked for") {
  std::atomic<int> ended{0};
  reports said;
  hvd::thread_run(2, [&](hvd::ThreadTransport& comm) {
    hvd::engine_options o = short_deadline();
    o.stall_shutdown = 300ms;
    o.report = said.writer();
    hvd::Engine engine(comm, o);
    std::vector<float> v(3, 1.0f);
    if (comm.rank() == 0) {
      const hvd::handle h = engine.allreduce("never", v);
      try {
        h.wait();
        CHECK_MESSAGE(false, "no error");
      } catch (const hvd::error& e) {
        CHECK(e.kind() == hvd::error::timeout);
        CHECK_MESSAGE(has(e.what(), "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"), e.what());
      }
      ++ended;
    } else {
      while (ended == 0) std::this_thread::sleep_for(1ms);
      CHECK_THROWS_AS(engine.allreduce("never", v).wait(), hvd::error);  // not for ever: the group is finished
    }
  });
}

namespace {

/// Beside the ranks, which cannot be forked from a process with a second thread.
template <class F>
pid_t in_child(const F& f) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child != 0) return child;
  f();
  ::_exit(0);
}

}  // namespace

TEST_CASE("a rank whose process is stopped does not answer, and is named for that") {
  // Rank 0 tells the process group's parent, through common memory, what its watch has said.
  struct board {
    std::atomic<pid_t> stopped;
    std::atomic<bool> heard;
    char text[2000];
  };
  void* const memory = ::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto& shown = *new (memory) board{};
  const pid_t waker = in_child([&] {
    for (int i = 0; i != 3000 && !shown.heard; ++i) std::this_thread::sleep_for(10ms);
    if (shown.stopped != 0) ::kill(shown.stopped, SIGCONT);
  });
  const int code = hvd::fork_run(3, [&](hvd::ShmTransport& comm) {
    hvd::engine_options o = short_deadline();
    o.report = [&](const std::string& text) {
      if (comm.rank() != 0 || shown.heard || text.find("no answer") == std::string::npos) return;
      std::snprintf(shown.text, sizeof shown.text, "%s", text.c_str());
      shown.heard = true;
    };
    hvd::Engine engine(comm, o);
    std::vector<float> v(3, 1.0f);
    if (comm.rank() == 2) {
      shown.stopped = ::getpid();
      ::kill(::getpid(), SIGSTOP);
    }
    engine.allreduce("x", v).wait();
    return v[0] == 3.0f ? 0 : 1;
  });
  ::waitpid(waker, nullptr, 0);
  CHECK(code == 0);
  CHECK(shown.heard);
  const std::string text = shown.text;
  CHECK_MESSAGE(has(text, "submitted by ranks 0, 1"), text);
  CHECK_MESSAGE(has(text, "no answer from rank 2"), text);
  ::munmap(memory, sizeof(board));
}

TEST_CASE("a stopped rank does not keep the others from giving up") {
  struct board {
    std::atomic<pid_t> stopped;
    std::atomic<int> ended;
  };
  void* const memory = ::mmap(nullptr, sizeof(board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto& shown = *new (memory) board{};
  const pid_t waker = in_child([&] {
    for (int i = 0; i != 3000 && shown.ended != 2; ++i) std::this_thread::sleep_for(10ms);
    if (shown.stopped != 0) ::kill(shown.stopped, SIGCONT);
  });
  hvd::fork_run(3, [&](hvd::ShmTransport& comm) {
    hvd::engine_options o = short_deadline();
    o.stall_warning = 50ms;
    o.stall_shutdown = 1s;  // several questions later
    o.report = [](const std::string&) {};
    hvd::Engine engine(comm, o);
    std::vector<float> v(3, 1.0f);
    if (comm.rank() == 2) {
      shown.stopped = ::getpid();
      ::kill(::getpid(), SIGSTOP);
      return;
    }
    try {
      engine.allreduce("x", v).wait();
    } catch (const hvd::error& e) {
      if (e.kind() == hvd::error::timeout || e.kind() == hvd::error::aborted) ++shown.ended;
    }
  });
  ::waitpid(waker, nullptr, 0);
  CHECK(shown.ended == 2);
  ::munmap(memory, sizeof(board));
}

namespace {

/// Many ranks on few CPUs, one of which is late. What the watches have said, and how long a shutdown took at most.
struct crowd_report {
  std::atomic<int> wrong_sums;
  std::atomic<bool> named;
  std::atomic<double> longest_shutdown;
  char text[4000];
};
template <class Run>
void crowd(const Run& run, int np) {
  CAPTURE(np);
  void* const memory = ::mmap(nullptr, sizeof(crowd_report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto& shown = *new (memory) crowd_report{};
  hvd::sharing_options few;
  few.memory.staging_bytes = 512 << 10;
  few.failure.timeout = 100s;
  few.failure.start_timeout = 100s;
  const int late = np - 2;
  const std::string wanted = hvd::detail::joined({"; not submitted by rank ", late, ";"});
  run(
      [&](auto& comm) {
        hvd::engine_options o;
        o.stall_warning = 200ms;
        o.report = [&](const std::string& text) {  // others may be slow as well, and are named at first
          if (has(text, wanted) && !shown.named.exchange(true))
            std::snprintf(shown.text, sizeof shown.text, "%s", text.c_str());
        };
        hvd::Engine engine(comm, o);
        std::vector<float> v(3, 1.0f);
        const double began = hvd::test::now();
        while (comm.rank() == late && !shown.named && hvd::test::now() - began < 60) std::this_thread::sleep_for(5ms);
        engine.allreduce("layer 7", v).wait();
        if (v != std::vector<float>(3, static_cast<float>(np))) ++shown.wrong_sums;
        const double end = hvd::test::now();
        engine.shutdown();
        const double took = hvd::test::now() - end;
        for (double most = shown.longest_shutdown; took > most;) {
          if (shown.longest_shutdown.compare_exchange_weak(most, took)) break;
        }
      },
      few);
  CHECK(shown.named);
  CHECK(shown.wrong_sums == 0);
  CHECK(shown.longest_shutdown < 20);  // and not until the deadline of 100 s
  const std::string text = shown.text;
  CHECK_MESSAGE(text.starts_with(hvd::detail::joined({"rank 0 of ", np, ": in flight for "})), text);
  CHECK_MESSAGE(text.size() < 1000, text);  // however many ranks wait, each for another one
  ::munmap(memory, sizeof(crowd_report));
}

}  // namespace

TEST_CASE("any number of ranks: the late one is named, and nobody waits for a watch at the end") {
  for (int np = 1; np <= hvd::detail::max_ranks; ++np) {
    REQUIRE(hvd::detail::make_geometry(np, std::size_t{64} << 20).slot_bytes >= hvd::detail::least_slot_bytes);
  }
  for (const int np : {60, 61, 72}) {
    crowd(
        [np](auto f, const auto& o) {
          CHECK(hvd::fork_run(
                    np, [&](hvd::ShmTransport& comm) { f(comm); }, o) == 0);
        },
        np);
  }
  // As threads, which come together faster where there are many: their channels are the same.
  crowd(
      [](auto f, const auto& o) {
        hvd::thread_run(
            256, [&](hvd::ThreadTransport& comm) { f(comm); }, o);
      },
      256);
}

TEST_CASE("a rank reports only what no rank below it has submitted") {
  // Rank 0 has nothing in flight, rank 1 one of two tensors, ranks 2 and 3 both: ranks 1 and 2 report.
  reports said;
  std::atomic<int> named{0};
  hvd::thread_run(5, [&](hvd::ThreadTransport& comm) {
    hvd::engine_options o = short_deadline();
    o.report = said.writer();
    hvd::Engine engine(comm, o);
    std::vector<float> v(3, 1.0f), w(3, 1.0f);
    std::vector<hvd::handle> all;
    const auto submit = [&](bool a, bool b) {
      if (a) all.push_back(engine.allreduce("a", v));
      if (b) all.push_back(engine.allreduce("b", w));
    };
    const bool between = comm.rank() != 0 && comm.rank() != 4;
    submit(between, between && comm.rank() != 1);
    // Others may report more before they know.
    if (comm.rank() == 1 || comm.rank() == 2) {
      const std::string mine = comm.rank() == 1 ? "\"a\"" : "\"b\"", other = comm.rank() == 1 ? "\"b\"" : "\"a\"";
      const std::string start = hvd::detail::joined({"rank ", comm.rank(), " of 5: "});
      const std::string ranks = comm.rank() == 1 ? "submitted by ranks 1-3; not submitted by ranks 0, 4"
                                                 : "submitted by ranks 2, 3; not submitted by ranks 0, 1, 4";
      const std::string text = said.until(
          [&](const std::string& t) { return t.starts_with(start) && has(t, mine) && has(t, ranks) && !has(t, other); },
          start + mine + ", " + ranks);
      CHECK_MESSAGE(text.starts_with(start), text);
      ++named;
    }
    while (named != 2) std::this_thread::sleep_for(1ms);
    submit(!between, !between || comm.rank() == 1);
    for (const hvd::handle& h : all) h.wait();
  });
}

TEST_CASE("options that differ are an error on all ranks, and the transport stays usable") {
  hvd::thread_run(3, [](hvd::ThreadTransport& comm) {
    hvd::engine_options o;
    o.fusion_threshold = comm.rank() == 2 ? 1000 : 2000;
    CHECK_THROWS_WITH_AS(hvd::Engine(comm, o),
                         doctest::Contains("the option fusion_threshold is 2000 on rank 0 and 1000 on rank 2"),
                         hvd::error);
    o.fusion_threshold = 3000;
    o.watch = comm.rank() != 1;
    CHECK_THROWS_WITH_AS(hvd::Engine(comm, o), doctest::Contains("the option watch is 1 on rank 0 and 0 on rank 1"),
                         hvd::error);
    o.watch = true;
    o.autotune = true;
    o.threshold_fixed = comm.rank() == 1;  // of the default value, which alone tells nothing
    CHECK_THROWS_WITH_AS(
        hvd::Engine(comm, o),
        doctest::Contains("the option threshold_fixed (HOROVOD_FUSION_THRESHOLD is set) is 0 on rank 0 and "
                          "1 on rank 1"),
        hvd::error);
    o.threshold_fixed = true;
    o.cycle_fixed = comm.rank() == 2;
    CHECK_THROWS_WITH_AS(hvd::Engine(comm, o),
                         doctest::Contains("the option cycle_fixed (HOROVOD_CYCLE_TIME is set) is 0 on rank 0 and 1 on "
                                           "rank 2"),
                         hvd::error);
    o.autotune = false;  // then it decides nothing
    hvd::Engine engine(comm, o);
    std::vector<float> v(3, 1.0f);
    engine.allreduce("x", v).wait();
    CHECK(v == std::vector<float>(3, 3.0f));
  });
}
