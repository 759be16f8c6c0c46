#include <hvd/launch.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/barrier.hpp>
#include <hvd/engine.hpp>

#include "support/processes.hpp"
#include "support/refusals.hpp"
#include "support/require.hpp"
#include "support/sanitizers.hpp"
#include "support/skip.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>

namespace {

using hvd::error_kind;
using hvd::test::children;
using hvd::test::now;
using hvd::test::pause_for;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;

hvd::sharing_options options_in(const private_directory& d) {
  hvd::sharing_options o;
  o.memory.directory = d.path();
  o.failure.timeout = std::chrono::seconds(30);
  o.failure.start_timeout = std::chrono::seconds(30);
  o.failure.check = false;
  return o;
}

template <class F>
error_kind kind_of(F&& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    return e.kind();
  }
  throw std::logic_error("no error");
}

// What the ranks write to standard error.
template <class F>
std::string errors_of(F&& f) {
  std::FILE* const file = std::tmpfile();
  const int before = ::dup(2);
  ::dup2(::fileno(file), 2);
  f();
  ::dup2(before, 2);
  ::close(before);
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

// ---- all starts -----------------------------------------------------------------------------------------------------

TEST_CASE("in a process without standard streams no file of hvd gets their numbers") {
  const private_directory d;
  children one(1);
  one.start(0, [&](report&) {
    for (const int stream : {0, 1, 2}) ::close(stream);
    const int code = hvd::fork_run(
        2,
        [&](hvd::ShmTransport& comm) {
          auto half = comm.split(0, comm.rank());
          const auto memory = comm.alloc_shared<float>(1000);
          hvd::engine_options opts;
          opts.timeline = d.path() + "/timeline.json";
          opts.autotune = true;
          opts.autotune_log = d.path() + "/log";
          const hvd::Engine engine(comm, opts);
          for (const int stream : {0, 1, 2}) require(::fcntl(stream, F_GETFD) == -1, std::to_string(stream));
        },
        options_in(d));
    require(code == 0, std::to_string(code));
  });
  REQUIRE(one.wait(60.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
}

TEST_CASE("a limit beyond the clock is none; one that is negative or no number is refused") {
  using limits = std::numeric_limits<double>;
  const private_directory d;
  hvd::sharing_options o = options_in(d);
  for (const double seconds : {9.3e9, 1e300, limits::infinity()}) {
    o.failure.timeout = o.failure.start_timeout = std::chrono::duration<double>(seconds);
    const int code = hvd::fork_run(
        2,
        [](hvd::ShmTransport& comm) {
          pause_for(comm.rank() == 1 ? 0.1 : 0.0);
          auto half = comm.split(0, comm.rank());
          hvd::barrier(half);
        },
        o);
    CHECK(code == 0);
    CHECK(hvd::detail::deadline_after(o.failure.timeout) == std::chrono::steady_clock::time_point::max());
  }
  for (const double seconds : {-1.0, limits::quiet_NaN()}) {
    o.failure.start_timeout = std::chrono::duration<double>(seconds);
    CHECK(kind_of([&] { hvd::ShmTransport("limits", 0, 1, o); }) == error_kind::invalid_argument);
    o.failure.timeout = o.failure.start_timeout;
    CHECK(kind_of([&] {
            hvd::thread_run(
                1, [](hvd::ThreadTransport&) {}, o);
          }) == error_kind::invalid_argument);
  }
}

// ---- fork_run -------------------------------------------------------------------------------------------------------

TEST_CASE("fork_run refuses to copy a process of several threads, and says how many and what to do") {
  const private_directory d;
  bool ran = false;
  const auto run = [&] {
    return hvd::fork_run(
        2, [&](hvd::ShmTransport&) { ran = true; }, options_in(d));
  };
  std::atomic<bool> end = false;
  const auto sleep = [&] { end.wait(false); };
  std::thread first(sleep), second(sleep);
  std::string text;
  try {
    run();
  } catch (const hvd::error& e) {
    CHECK(e.kind() == error_kind::unsupported);
    text = e.what();
  }
  end = true;
  end.notify_all();
  first.join();
  second.join();
  CHECK(text ==
        "hvd: fork_run: this process has 3 threads, but a forked rank has only one, and locks of the others would stay "
        "locked; call fork_run before anything starts threads (OpenMP, a BLAS, libtorch, hvd::Engine), or "
        "start the ranks with hvdrun");
  CHECK_FALSE(ran);
  CHECK(run() == 0);
}

TEST_CASE("fork_run runs every rank once, in processes of their own, and returns 0") {
  const private_directory d;
  for (const int np : {1, 2, 3, 5}) {
    children shared(np);  // for its shared memory
    CHECK(hvd::fork_run(
              np,
              [&](hvd::ShmTransport& comm) {
                require(comm.size() == np, "size");
                shared[comm.rank()].progress += 1;
                shared[comm.rank()].culprit = ::getpid();
                std::vector<int> data(10'000, 1);
                hvd::allreduce(comm, data);
                require(data[9999] == np, "sum");
              },
              options_in(d)) == 0);
    for (int r = 0; r != np; ++r) {
      CHECK(shared[r].progress == 1);
      CHECK(shared[r].culprit != ::getpid());
      for (int q = 0; q != r; ++q) CHECK(shared[r].culprit != shared[q].culprit);
    }
  }
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("fork_run returns what the first rank that failed returned") {
  const private_directory d;
  const auto opts = options_in(d);
  CHECK(hvd::fork_run(
            3, [](hvd::ShmTransport& comm) { return comm.rank() == 1 ? 7 : 0; }, opts) == 7);
  CHECK(hvd::fork_run(
            3, [](hvd::ShmTransport& comm) { return comm.rank() == 0 ? 0 : 4 + comm.rank(); }, opts) == 5);
  CHECK(hvd::fork_run(
            2, [](hvd::ShmTransport&) { return 255; }, opts) == 255);
  // An exit status has 8 bits, and no failure may look like success.
  for (const int code : {256, 512, -256}) {
    CAPTURE(code);
    CHECK(hvd::fork_run(
              2, [code](hvd::ShmTransport&) { return code; }, opts) != 0);
  }
}

TEST_CASE("fork_run: an exception is printed with its rank and is code 1; a killed rank is 128 and the signal") {
  const private_directory d;
  const auto opts = options_in(d);
  int code = 0;
  std::string said = errors_of([&] {
    code = hvd::fork_run(
        3,
        [](hvd::ShmTransport& comm) {
          hvd::barrier(comm);
          if (comm.rank() == 2) throw std::runtime_error("out of luck");
        },
        opts);
  });
  CHECK(code == 1);
  CHECK(said == "rank 2 of 3: out of luck\n");
  said = errors_of([&] {
    code = hvd::fork_run(
        2, [](hvd::ShmTransport& comm) { comm.rank() == 0 ? throw 5 : void(); }, opts);
  });
  CHECK(code == 1);
  CHECK(said == "rank 0 of 2: unknown exception\n");
  const auto lost = [&](auto&& how) {
    return errors_of([&] {
      code = hvd::fork_run(
          3,
          [&](hvd::ShmTransport& comm) {
            hvd::barrier(comm);
            if (comm.rank() == 1) how();
            while (true) hvd::barrier(comm);
          },
          opts);
    });
  };
  const double since = now();
  said = lost([] { ::raise(SIGKILL); });
  CHECK(code == 128 + SIGKILL);
  CHECK(said.find("rank 1 has exited or was killed") != std::string::npos);
  CHECK(said.find("rank 1 of 3: killed by signal 9 (Killed)\n") != std::string::npos);
  said = lost([] {
    std::signal(SIGABRT, SIG_DFL);
    std::abort();
  });
  CHECK(code == 128 + SIGABRT);
  CHECK(said.find("rank 1 of 3: killed by signal 6 (Aborted)\n") != std::string::npos);
  said = lost([] { ::_exit(9); });
  CHECK(code == 1);  // of rank 0, which lost rank 1
  CHECK(said.find("killed by signal") == std::string::npos);
  lost([] { std::exit(0); });
  CHECK(code == 1);
  CHECK(now() - since < 10.0);
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("fork_run prints what was buffered once, and what ranks buffer") {
  const private_directory d;
  const std::string path = d.path() + "/out";
  children one(1);
  one.start(0, [&](report&) {
    std::FILE* const out = std::freopen(path.c_str(), "w", stdout);
    require(out != nullptr, "freopen");
    std::setvbuf(stdout, nullptr, _IOFBF, 1 << 16);
    std::printf("before\n");
    hvd::fork_run(
        2, [](hvd::ShmTransport& comm) { std::printf("rank %d\n", comm.rank()); }, options_in(d));
    std::fflush(stdout);
  });
  REQUIRE(one.wait(30.0));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  CHECK((text.str() == "before\nrank 0\nrank 1\n" || text.str() == "before\nrank 1\nrank 0\n"));
}

TEST_CASE("fork_run refuses numbers of ranks that cannot be") {
  const auto run = [](int np) { hvd::fork_run(np, [](hvd::ShmTransport&) {}); };
  const auto threads = [](int np) { hvd::thread_run(np, [](hvd::ThreadTransport&) {}); };
  for (const int np : {0, -1, 4097, 1 << 30}) {
    CHECK(kind_of([&] { run(np); }) == error_kind::invalid_argument);
    CHECK(kind_of([&] { threads(np); }) == error_kind::invalid_argument);
  }
  CHECK_THROWS_WITH(run(0), "hvd: fork_run: np, the number of ranks, is 0; allowed: 1 to 4096");
  CHECK_THROWS_WITH(threads(-3), "hvd: thread_run: np, the number of ranks, is -3; allowed: 1 to 4096");
}

TEST_CASE("fork_run leaves the caller's other children to the caller") {
  const private_directory d;
  children one(1);
  one.start(0, [&](report&) {
    const pid_t quick = ::fork();
    if (quick == 0) ::_exit(42);
    const pid_t slow = ::fork();
    if (slow == 0) {
      pause_for(0.05);
      ::_exit(43);
    }
    pause_for(0.01);
    require(hvd::fork_run(
                2, [](hvd::ShmTransport&) { pause_for(0.1); }, options_in(d)) == 0,
            "code");
    int status = 0;
    require(::waitpid(quick, &status, 0) == quick && WEXITSTATUS(status) == 42, "the quick one is gone");
    require(::waitpid(slow, &status, 0) == slow && WEXITSTATUS(status) == 43, "the slow one is gone");
    require(::waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD, "a rank is left");
  });
  REQUIRE(one.wait(30.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
}

// A process that runs ranks which would take long; `pids` are theirs.
void start_long_run(children& parent, children& ranks, const private_directory& d) {
  parent.start(0, [&](report& mine) {
    mine.progress = 1;
    const std::string said = errors_of([&] {
      mine.culprit = hvd::fork_run(
          ranks.size(),
          [&](hvd::ShmTransport& comm) {
            ranks[comm.rank()].culprit = ::getpid();
            ranks[comm.rank()].progress = 1;
            if (comm.rank() == 0) pause_for(25.0);
            hvd::barrier(comm);
          },
          options_in(d));
    });
    require(said.find("killed by signal") == std::string::npos, said);  // the user's wish, and no news
    int status = 0;
    require(::waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD, "a rank is left");
  });
}

TEST_CASE("a signal to the caller of fork_run ends all ranks; the result says which") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    const private_directory d;
    children parent(1), ranks(3);
    start_long_run(parent, ranks, d);
    REQUIRE(parent.wait_while(20.0, [&] { return ranks[0].progress + ranks[1].progress + ranks[2].progress < 3; }));
    const double since = now();
    parent.kill(0, signal);
    REQUIRE(parent.wait(20.0));
    CHECK(now() - since < 5.0);
    CAPTURE(parent[0].text());
    CHECK(parent.status(0) == 0);
    CHECK(parent[0].culprit == 128 + signal);
    for (int r = 0; r != 3; ++r) CHECK(::kill(ranks[r].culprit, 0) != 0);
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("a signal while fork_run is still starting ranks is not lost on any of them") {
  for (int round = 0; round != 60; ++round) {
    const private_directory d;
    children parent(1), ranks(3);
    start_long_run(parent, ranks, d);
    REQUIRE(parent.wait_while(20.0, [&] { return parent[0].progress == 0; }));
    pause_for(0.00004 * round);
    const double since = now();
    parent.kill(0, SIGINT);
    REQUIRE(parent.wait(40.0));
    CHECK(now() - since < 5.0);
    CAPTURE(round);
    CAPTURE(parent[0].text());
    // Before fork_run has begun the signal is the caller's own.
    const bool early = WIFSIGNALED(parent.status(0)) && WTERMSIG(parent.status(0)) == SIGINT;
    if (!early) {
      CHECK(parent.status(0) == 0);
      CHECK(parent[0].culprit == 128 + SIGINT);
    }
  }
}

TEST_CASE("fork_run gives signals back to who handled them before") {
  const private_directory d;
  children one(1);
  one.start(0, [&](report&) {
    static volatile std::sig_atomic_t seen = 0;
    std::signal(SIGINT, [](int) { seen = seen + 1; });
    require(hvd::fork_run(
                2,
                [](hvd::ShmTransport&) {
                  ::raise(SIGINT);  // a rank has the caller's handler
                  return static_cast<int>(seen) - 1;
                },
                options_in(d)) == 0,
            "not the caller's handler");
    ::raise(SIGINT);
    require(seen == 1, "not the caller's handler afterwards");
  });
  REQUIRE(one.wait(30.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
}

TEST_CASE("ranks end with the process that called fork_run, and so do their files") {
  const private_directory d;
  children parent(1), ranks(3);
  start_long_run(parent, ranks, d);
  REQUIRE(parent.wait_while(20.0, [&] { return ranks[0].progress + ranks[1].progress + ranks[2].progress < 3; }));
  parent.kill(0);
  REQUIRE(parent.wait(20.0));
  const auto left = [&] {
    for (int r = 0; r != 3; ++r) {
      // Orphans may stay as zombies where nobody collects them.
      std::ifstream stat("/proc/" + std::to_string(ranks[r].culprit) + "/stat");
      std::string pid, name, state;
      if (stat >> pid >> name >> state && state != "Z" && state != "X") return true;
    }
    return false;
  };
  CHECK(parent.wait_while(10.0, left));
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("fork_run knows how ranks end where the caller ignores SIGCHLD, and leaves it ignored") {
  struct sigaction ignore {
  }, before{}, after{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGCHLD, &ignore, &before);
  CHECK(hvd::fork_run(2, [](hvd::ShmTransport&) {}) == 0);
  CHECK(hvd::fork_run(2, [](hvd::ShmTransport& comm) { return comm.rank() * 7; }) == 7);
  ::sigaction(SIGCHLD, &before, &after);
  CHECK((after.sa_handler == SIG_IGN));
}

TEST_CASE("a signal that the caller ignores, as under nohup, does not become the result") {
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGHUP, &ignore, &before);
  const pid_t self = ::getpid();
  CHECK(hvd::fork_run(2, [&](hvd::ShmTransport& comm) {
          if (comm.rank() == 0) ::kill(self, SIGHUP);
          comm.barrier();
        }) == 0);
  ::sigaction(SIGHUP, &before, nullptr);
}

TEST_CASE("fork_run that cannot start all ranks ends those that it has started") {
  if (::geteuid() != 0) return hvd::test::skip("needs a user without processes");
  const private_directory d;
  ::chmod(d.path().c_str(), 0777);
  children one(1);
  one.start(0, [&](report&) {
    require(::setgid(64321) == 0 && ::setuid(64321) == 0, "cannot become another user");
    const rlimit limit{3, 3};
    require(::setrlimit(RLIMIT_NPROC, &limit) == 0, "setrlimit");
    try {
      hvd::fork_run(
          6, [](hvd::ShmTransport& comm) { hvd::barrier(comm); }, options_in(d));
      throw std::logic_error("all started");
    } catch (const hvd::error& e) {
      const std::string text = e.what();
      require(e.kind() == hvd::error::system && text.find("cannot start rank 2") != std::string::npos, text);
    }
    require(::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD, "a rank is left");
  });
  REQUIRE(one.wait(30.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
  CHECK(d.files() == std::vector<std::string>{});
}

// ---- thread_run -----------------------------------------------------------------------------------------------------

TEST_CASE("thread_run throws on what the first rank that failed threw, and the others do not hang") {
  const double since = now();
  for (int victim = 0; victim != 3; ++victim) {
    CHECK_THROWS_WITH_AS(hvd::thread_run(3,
                                         [&](hvd::ThreadTransport& comm) {
                                           std::vector<float> data(10'000);
                                           for (int i = 0; i != 5; ++i) hvd::allreduce(comm, data);
                                           if (comm.rank() == victim) throw std::range_error("first");
                                           hvd::allreduce(comm, data);
                                         }),
                         "first", std::range_error);
  }
  CHECK_THROWS_AS(hvd::thread_run(2, [](hvd::ThreadTransport& comm) { comm.rank() == 1 ? throw 5 : void(); }), int);
  CHECK(now() - since < 10.0);
}

TEST_CASE("thread_run that cannot start all threads ends those that it has started") {
  if (hvd::test::sanitized) return hvd::test::skip("sanitizers reserve more address space than any limit allows");
  children one(1);
  one.start(0, [&](report&) {
    const rlimit limit{std::size_t{512} << 20, std::size_t{512} << 20};  // stacks of 8 MiB
    hvd::sharing_options opts;
    opts.memory.staging_bytes = 256 << 10;
    opts.failure.timeout = std::chrono::seconds(20);
    require(::setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    const double since = now();
    try {
      hvd::thread_run(
          100, [](hvd::ThreadTransport& comm) { hvd::barrier(comm); }, opts);
      throw std::logic_error("all started");
    } catch (const hvd::error& e) {
      require(e.kind() == hvd::error::system, e.what());
      require(std::string(e.what()).find("thread_run: cannot start rank") != std::string::npos, e.what());
    }
    require(now() - since < 10.0, "the others waited");
  });
  REQUIRE(one.wait(60.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
}

TEST_CASE("thread_run without memory for any of what it allocates: bad_alloc after all threads have ended") {
  children one(1);
  one.start(0, [&](report&) {
    (void)hvd::host();  // allocates once in a process
    bool enough = false;
    for (int granted = 0; !enough; ++granted) {
      require(granted < 100, "something allocates without end");
      hvd::sharing_options opts;
      opts.memory.staging_bytes = 64 << 10;
      opts.failure.timeout = std::chrono::seconds(20);
      const double since = now();
      try {
        hvd::test::allocations_left = granted;
        hvd::thread_run(
            3, [](hvd::ThreadTransport& comm) { hvd::barrier(comm); }, opts);
        enough = hvd::test::allocations_left >= 0;  // else somebody could do without
      } catch (const std::bad_alloc&) {
      }
      hvd::test::allocations_left = -1;
      require(now() - since < 10.0, "the others waited");
    }
  });
  REQUIRE(one.wait(60.0));
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
}

}  // namespace
