// Real processes are killed at random points: every survivor must learn within a second who is gone, and nothing may
// be left behind.
#include <hvd/hvd.hpp>

#include "support/any_operation.hpp"
#include "support/processes.hpp"
#include "support/require.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>

namespace {

using hvd::error_kind;
using hvd::test::children;
using hvd::test::now;
using hvd::test::pause_for;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;

// The requirement; from the moment of the kill to the exception in every survivor.
constexpr double second = 1.0;

constexpr int kills_at_work = 160, kills_while_joining = 60, kills_under_fork_run = 60;
static_assert(kills_at_work + kills_while_joining + kills_under_fork_run >= 200);

hvd::sharing_options job_options(const private_directory& d, double timeout = 60.0, double start_timeout = 60.0) {
  hvd::sharing_options o;
  o.memory.directory = d.path();
  o.failure.timeout = std::chrono::duration<double>(timeout);
  o.failure.start_timeout = std::chrono::duration<double>(start_timeout);
  o.failure.check = false;
  return o;
}

std::string new_job() {
  static int number = 0;
  return "faults-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

// Random operations until somebody is lost. Progress: 1 in the constructor, 2 joined.
void work(const std::string& job, int rank, int size, const hvd::sharing_options& opts, unsigned seed, report& mine,
          const std::function<bool(int)>& goes_on = {}) {
  mine.progress = 1;
  hvd::ShmTransport comm(job, rank, size, opts);
  mine.progress = 2;
  std::mt19937 dice(seed);
  for (int i = 0; !goes_on || goes_on(i); ++i) hvd::test::any_operation(comm, dice);
}

// Every rank but the victim has thrown peer_lost with the victim's number within a second of `since`.
void check_survivors(children& ranks, int victim, const std::atomic<double>& killed_at) {
  REQUIRE_MESSAGE(ranks.wait(20.0), "a survivor hangs");
  const double since = killed_at;
  for (int r = 0; r != ranks.size(); ++r) {
    if (r == victim) continue;
    CAPTURE(r);
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].is(error_kind::peer_lost));
    CHECK(ranks[r].culprit == victim);
    CHECK(ranks[r].at - since < second);
  }
}

TEST_CASE("a rank killed in the middle of anything: peer_lost with its number within a second") {
  std::mt19937 dice(20240611);
  for (int round = 0; round != kills_at_work; ++round) {
    const private_directory d;
    const int size = 2 + static_cast<int>(dice() % 3);
    const int victim = static_cast<int>(dice() % static_cast<unsigned>(size));
    const auto seed = static_cast<unsigned>(dice());
    const double delay = static_cast<double>(dice() % 20'000) * 1e-6;
    CAPTURE(round);
    CAPTURE(size);
    CAPTURE(victim);
    const std::string job = new_job();
    const auto opts = job_options(d);
    children ranks(size);
    ranks.start_all([&](int r, report& mine) { work(job, r, size, opts, seed, mine); });
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks[victim].progress < 2; }));
    pause_for(delay);
    const double since = now();
    ranks.kill(victim);
    check_survivors(ranks, victim, since);
    CHECK(WIFSIGNALED(ranks.status(victim)));
    CHECK(d.files() == std::vector<std::string>{});
  }
}

// A rank that is killed before it has asked for its place is one that never came.
TEST_CASE("a rank killed while it joins: peer_lost within a second, or a timeout that names it") {
  std::mt19937 dice(31415);
  for (int round = 0; round != kills_while_joining; ++round) {
    const private_directory d;
    const int size = 2 + static_cast<int>(dice() % 3);
    const int victim = static_cast<int>(dice() % static_cast<unsigned>(size));
    const auto seed = static_cast<unsigned>(dice());
    const double delay = static_cast<double>(dice() % 2'500) * 1e-6;
    CAPTURE(round);
    CAPTURE(size);
    CAPTURE(victim);
    const std::string job = new_job();
    const auto opts = job_options(d, 60.0, 0.4);
    children ranks(size);
    const bool first = dice() % 2 == 0;  // the victim comes first, or last
    if (first) ranks.start(victim, [&](report& mine) { work(job, victim, size, opts, seed, mine); });
    for (int r = 0; r != size; ++r) {
      if (r != victim) ranks.start(r, [&](report& mine) { work(job, r, size, opts, seed, mine); });
    }
    if (!first) ranks.start(victim, [&](report& mine) { work(job, victim, size, opts, seed, mine); });
    pause_for(delay);
    const double since = now();
    ranks.kill(victim);
    REQUIRE(ranks.wait(20.0));
    const bool joined = ranks[victim].progress == 2;
    for (int r = 0; r != size; ++r) {
      if (r == victim) continue;
      CAPTURE(r);
      CAPTURE(ranks[r].text());
      // (Who was still on the way when the others gave up has seen nobody, not even rank 0.)
      const bool late = !joined && ranks[r].is(error_kind::timeout);
      CHECK((late || ranks[r].is(error_kind::peer_lost)));
      CHECK((ranks[r].culprit == victim || (late && ranks[r].culprit == 0)));
      CHECK(ranks[r].at - since < second + (joined ? 0.0 : 0.4));
    }
    // Where everybody was killed or nobody else had come, there was nobody to clean up but the next of that name.
    if (joined || victim != 0) CHECK(d.empty());
  }
}

// ---- ranks that fork_run started: their parent sees them end even before they have asked for their place ----------

int forks_to_victim = -1;
double victim_delay = 0.0;

void arm_victim() {
  if (forks_to_victim-- != 0) return;
  if (victim_delay == 0.0) ::raise(SIGKILL);
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  itimerspec when{};
  when.it_value.tv_nsec = static_cast<long>(victim_delay * 1e9);
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &when, nullptr) != 0) {
    ::raise(SIGKILL);
  }
}
void count_fork() { --forks_to_victim; }

// Standard error, to be read afterwards.
class captured_errors {
 public:
  captured_errors() : file_(std::tmpfile()), before_(::dup(2)) { ::dup2(::fileno(file_), 2); }
  captured_errors(const captured_errors&) = delete;
  captured_errors& operator=(const captured_errors&) = delete;
  ~captured_errors() {
    restore();
    std::fclose(file_);
  }
  std::string restore() {
    if (before_ >= 0) {
      std::fflush(stderr);
      ::dup2(before_, 2);
      ::close(std::exchange(before_, -1));
    }
    std::string text;
    std::rewind(file_);
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) text += static_cast<char>(c);
    return text;
  }

 private:
  std::FILE* file_;
  int before_;
};

TEST_CASE("fork_run: a rank killed at any moment from its first on is lost to the others at once") {
  static const int registered = ::pthread_atfork(nullptr, count_fork, arm_victim);
  REQUIRE(registered == 0);
  std::mt19937 dice(2718);
  const private_directory d;
  for (int round = 0; round != kills_under_fork_run; ++round) {
    const int size = 2 + static_cast<int>(dice() % 3);
    const int victim = static_cast<int>(dice() % static_cast<unsigned>(size));
    const auto seed = static_cast<unsigned>(dice());
    victim_delay = round % 6 == 0 ? 0.0 : static_cast<double>(1 + dice() % (round % 2 == 0 ? 1'500 : 10'000)) * 1e-6;
    CAPTURE(round);
    CAPTURE(size);
    CAPTURE(victim);
    CAPTURE(victim_delay);
    captured_errors errors;
    const double since = now();
    forks_to_victim = victim;
    const int code = hvd::fork_run(
        size,
        [&](hvd::ShmTransport& comm) {
          std::mt19937 same(seed);
          while (true) hvd::test::any_operation(comm, same);
        },
        job_options(d));
    forks_to_victim = -1;
    const double took = now() - since;
    const std::string said = errors.restore();
    CAPTURE(said);
    CHECK(code == 128 + SIGKILL);
    CHECK(took < second + victim_delay + 0.5);  // the rest is for starting and collecting processes
    for (int r = 0; r != size; ++r) {
      if (r == victim) continue;
      const std::size_t at = said.find("rank " + std::to_string(r) + " of " + std::to_string(size) + ": hvd: ");
      REQUIRE(at != std::string::npos);
      const std::string line = said.substr(at, said.find('\n', at) - at);
      CHECK(line.find("rank " + std::to_string(victim) + " has exited or was killed") != std::string::npos);
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

// ---- other ways to go ---------------------------------------------------------------------------------------------

TEST_CASE("a rank that exits early, by return, _exit, exit or exception, is peer_lost to the others") {
  std::mt19937 dice(161803);
  for (int round = 0; round != 24; ++round) {
    const private_directory d;
    const int size = 2 + round % 3;
    const int victim = static_cast<int>(dice() % static_cast<unsigned>(size));
    const auto seed = static_cast<unsigned>(dice());
    const int how = round / 3 % 4;
    const int last = static_cast<int>(dice() % 6);
    CAPTURE(size);
    CAPTURE(victim);
    CAPTURE(how);
    const std::string job = new_job();
    const auto opts = job_options(d);
    children ranks(size);
    ranks.start_all([&](int r, report& mine) {
      work(job, r, size, opts, seed, mine, [&](int i) {
        if (r != victim || i != last) return true;
        mine.at = now();
        if (how == 0) ::_exit(0);
        if (how == 1) std::exit(0);
        if (how == 2) throw std::runtime_error("enough");
        return false;
      });
    });
    check_survivors(ranks, victim, ranks[victim].at);
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("a rank that leaves after its last call does not spoil what the others still do without it") {
  const private_directory d;
  for (int round = 0; round != 20; ++round) {
    const auto opts = job_options(d);
    const std::string job = new_job();
    children ranks(3);
    ranks.start_all([&](int r, report& mine) {
      hvd::ShmTransport comm(job, r, 3, opts);
      std::vector<float> data(50'000, 1.0F);
      hvd::allreduce(comm, data);
      if (r != 0) pause_for(0.005);
      require(data[0] == 3.0F && data[49'999] == 3.0F, "wrong sum");
      mine.progress = 1;
    });
    REQUIRE(ranks.wait(20.0));
    for (int r = 0; r != 3; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks.status(r) == 0);
    }
  }
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("ranks that come and go at once, without a single call, lose nobody") {
  const private_directory d;
  for (int round = 0; round != 60; ++round) {
    const auto opts = job_options(d);
    const std::string job = new_job();
    children ranks(4);
    ranks.start_all([&](int r, report&) { const hvd::ShmTransport comm(job, r, 4, opts); });
    REQUIRE(ranks.wait(20.0));
    for (int r = 0; r != 4; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks.status(r) == 0);
    }
  }
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("a killed rank's own child, which outlives it, does not hide its death") {
  for (const bool shared : {false, true}) {
    const private_directory d;
    const auto opts = job_options(d);
    const std::string job = new_job();
    children ranks(3);
    std::array<int, 2> alive{};
    REQUIRE(::pipe(alive.data()) == 0);
    ranks.start_all([&](int r, report& mine) {
      hvd::ShmTransport comm(job, r, 3, opts);
      hvd::shared_array<float> data;
      if (shared) data = comm.alloc_shared<float>(1000);
      if (r == 1) {
        const pid_t orphan = ::fork();
        if (orphan == 0) {
          ::close(alive[0]);
          pause_for(30.0);
          ::_exit(0);
        }
        mine.culprit = static_cast<int>(orphan);
      }
      hvd::barrier(comm);
      mine.progress = 2;
      while (true) hvd::barrier(comm);
    });
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks[1].progress < 2; }));
    const pid_t orphan = ranks[1].culprit;
    const double since = now();
    ranks.kill(1);
    check_survivors(ranks, 1, since);
    CHECK(::kill(orphan, 0) == 0);  // it was alive all the time
    ::kill(orphan, SIGKILL);
    ::close(alive[0]);
    ::close(alive[1]);
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("survivors that wait for somebody else than the victim learn of it too") {
  for (int round = 0; round != 10; ++round) {
    const private_directory d;
    const auto opts = job_options(d);
    const std::string job = new_job();
    children ranks(4);
    ranks.start_all([&](int r, report& mine) {
      hvd::ShmTransport comm(job, r, 4, opts);
      hvd::barrier(comm);
      mine.progress = 2;
      // Each waits for the next one, only rank 2 for the victim.
      std::array<float, 4> data{};
      if (r == 3) {
        pause_for(30.0);
      } else {
        hvd::recv(comm, data, r + 1);
        hvd::send(comm, data, r - 1);
      }
    });
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks[3].progress < 2; }));
    pause_for(0.002 * round);
    const double since = now();
    ranks.kill(3);
    check_survivors(ranks, 3, since);
  }
}

TEST_CASE("survivors that wait for nobody but ask now and then learn of it") {
  for (int round = 0; round != 5; ++round) {
    const private_directory d;
    const auto opts = job_options(d);
    const std::string job = new_job();
    children ranks(4);
    ranks.start_all([&](int r, report& mine) {
      hvd::ShmTransport comm(job, r, 4, opts);
      hvd::barrier(comm);
      mine.progress = 2;
      for (const double until = now() + 20.0; r == 2 || now() < until;) {
        if (r != 2) comm.check();
        pause_for(0.002);
      }
    });
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks[0].progress + ranks[1].progress + ranks[3].progress < 6; }));
    pause_for(0.002 * round);
    const double since = now();
    ranks.kill(2);
    check_survivors(ranks, 2, since);
    CAPTURE(ranks[0].text());
    CHECK(ranks[0].text().find("hvd: check on rank 0 of 4 (job " + job + "): rank 2 has exited or was killed") !=
          std::string::npos);
  }
}

TEST_CASE("a rank killed while others make a group of their own is lost to them at once") {
  for (int round = 0; round != 10; ++round) {
    const private_directory d;
    const auto opts = job_options(d);
    const std::string job = new_job();
    const int victim = round % 3;
    children ranks(3);
    ranks.start_all([&](int r, report& mine) {
      hvd::ShmTransport comm(job, r, 3, opts);
      hvd::barrier(comm);
      if (r == victim) {
        // Agrees to the split and dies before it joins: the plan is the first half of split.
        hvd::detail::plan_split(comm.peers(), 0, 2 - r, 4711);
        mine.at = now();
        ::raise(SIGKILL);
      }
      auto part = comm.split(0, 2 - r);
    });
    REQUIRE(ranks.wait(20.0));
    check_survivors(ranks, victim, ranks[victim].at);
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("who leaves because a part of the group has failed is not blamed for it in the whole group") {
  for (int round = 0; round != 10; ++round) {
    const private_directory d;
    const auto opts = job_options(d);
    const std::string job = new_job();
    children ranks(4);
    ranks.start_all([&](int r, report& mine) {
      hvd::ShmTransport comm(job, r, 4, opts);
      auto part = comm.split(r % 2, r);
      hvd::barrier(comm);
      mine.progress = 2;
      if (r == 2) pause_for(30.0);
      if (r == 0) {
        try {
          hvd::barrier(part);  // with rank 2
        } catch (const hvd::error& e) {
          mine.keep(e);
          mine.culprit = e.rank() == 1 ? 2 : -2;
          mine.at = now();
          return;
        }
      }
      std::array<float, 1> data{};
      hvd::recv(comm, data, 0);
    });
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks[2].progress < 2; }));
    pause_for(0.005);
    const double since = now();
    ranks.kill(2);
    check_survivors(ranks, 2, since);
  }
}

// A program of its own, which this one executes: nothing is inherited.
TEST_CASE("a rank in a program of its own") {
  const char* const until = std::getenv("HVD_TEST_UNTIL");
  if (until == nullptr) return;
  int code = 3;
  try {
    auto comm = hvd::ShmTransport::from_environment();
    hvd::barrier(comm);
    std::ofstream(std::string(until) + "." + std::to_string(comm.rank())) << "joined\n";
    while (true) hvd::barrier(comm);
  } catch (const hvd::error& e) {
    code = e.kind() == hvd::error::peer_lost ? 10 + e.rank() : 2;
  }
  ::_exit(code);
}

TEST_CASE("ranks started as programs, described by the environment, lose a killed one") {
  for (int round = 0; round != 6; ++round) {
    const private_directory d, marks;
    const std::string job = new_job();
    const int size = 2 + round % 3, victim = round % size;
    children ranks(size);
    ranks.start_all([&](int r, report&) {
      const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
      set("HVD_TEST_UNTIL", marks.path() + "/rank");
      set("HVD_JOB", job);
      set("HVD_SHM_DIR", d.path());
      set("HOROVOD_RANK", std::to_string(r));
      set("HOROVOD_SIZE", std::to_string(size));
      set("HOROVOD_LOCAL_RANK", std::to_string(r));
      set("HOROVOD_LOCAL_SIZE", std::to_string(size));
      const int nowhere = ::open("/dev/null", O_WRONLY);
      ::dup2(nowhere, 1);
      ::execl("/proc/self/exe", "faults", "--test-case=a rank in a program of its own", nullptr);
      throw std::runtime_error("cannot execute this program again");
    });
    REQUIRE(ranks.wait_while(60.0, [&] { return marks.files().size() < static_cast<std::size_t>(size); }));
    const double since = now();
    ranks.kill(victim);
    REQUIRE(ranks.wait(20.0));
    CHECK(now() - since < second + 0.5);  // seen from here, ends of processes included
    for (int r = 0; r != size; ++r) {
      if (r != victim) CHECK(WEXITSTATUS(ranks.status(r)) == 10 + victim);
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

// ---- deadlines ----------------------------------------------------------------------------------------------------

TEST_CASE("ranks that never join: a timeout on all others that names exactly them") {
  struct missing_ranks {
    int size;
    std::vector<int> missing;
    std::string text;
  };
  const missing_ranks cases[] = {{2, {1}, "rank(s) 1 did not join"},
                                 {4, {1, 3}, "rank(s) 1, 3 did not join"},
                                 {4, {3}, "rank(s) 3 did not join"},
                                 {3, {0}, "rank 0 did not create"},
                                 {4, {0, 2}, "rank 0 did not create"}};
  for (const auto& c : cases) {
    const private_directory d;
    const auto opts = job_options(d, 60.0, 0.3);
    const std::string job = new_job();
    children ranks(c.size);
    const auto absent = [&](int r) { return std::find(c.missing.begin(), c.missing.end(), r) != c.missing.end(); };
    for (int r = 0; r != c.size; ++r) {
      if (!absent(r)) ranks.start(r, [&](report&) { hvd::ShmTransport(job, r, c.size, opts); });
    }
    REQUIRE(ranks.wait(20.0));
    for (int r = 0; r != c.size; ++r) {
      if (absent(r)) continue;
      CAPTURE(r);
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].is(error_kind::timeout));
      CHECK(ranks[r].culprit == c.missing.front());
      CHECK(ranks[r].says(c.text));
      CHECK(ranks[r].says("join on rank " + std::to_string(r) + " of " + std::to_string(c.size)));
      CHECK(ranks[r].says(" within 0.3 s (HOROVOD_START_TIMEOUT)"));
      CHECK(ranks[r].says("with the same HVD_JOB, HOROVOD_SIZE and HVD_SHM_DIR?"));
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("a rank that comes when the others have given up does not wait for them") {
  const private_directory d;
  const auto opts = job_options(d, 60.0, 0.2);
  const std::string job = new_job();
  children ranks(3);
  // Two give up while the third has the group's memory open already but is stopped: it is the one that is missing.
  ranks.start(0, [&](report&) { hvd::ShmTransport(job, 0, 3, opts); });
  ranks.start(1, [&](report&) { hvd::ShmTransport(job, 1, 3, opts); });
  REQUIRE(ranks.wait(20.0));
  const double since = now();
  ranks.start(2, [&](report&) { hvd::ShmTransport(job, 2, 3, opts); });
  REQUIRE(ranks.wait(20.0));
  CHECK(ranks[2].is(error_kind::timeout));
  CHECK(now() - since < 5.0);
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("a rank that lives but never comes: a timeout that names operation, rank, peer and phase, and then stays") {
  const private_directory d;
  const auto opts = job_options(d, 0.3);
  const std::string job = new_job();
  children ranks(3);
  ranks.start_all([&](int r, report& mine) {
    hvd::ShmTransport comm(job, r, 3, opts);
    if (r == 2) {
      while (ranks[0].progress + ranks[1].progress != 2) pause_for(0.001);
      return;
    }
    std::vector<float> data(100'000);
    const double since = now();
    try {
      hvd::allreduce(comm, data);
    } catch (const hvd::error& e) {
      mine.keep(e);
    }
    mine.progress = 1;
    require(now() - since < 10.0, "gave up much too late");
    try {
      hvd::barrier(comm);
      throw std::logic_error("the transport still works");
    } catch (const hvd::error& e) {
      const std::string text = e.what();
      require(e.kind() == hvd::error::timeout && e.rank() == 2, "another cause: " + text);
      require(text.find("failed before") != std::string::npos, "no word of the earlier cause: " + text);
      require(text.find("barrier") != std::string::npos && text.find("allreduce") != std::string::npos, text);
    }
  });
  REQUIRE(ranks.wait(20.0));
  for (int r = 0; r != 2; ++r) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].is(error_kind::timeout));
    CHECK(ranks[r].culprit == 2);
    CHECK(ranks[r].says("allreduce on rank " + std::to_string(r) + " of 3"));
    CHECK(ranks[r].says(job));
    CHECK(ranks[r].says("rank 2 did not answer within 0.3 s ("));
    CHECK(ranks[r].says("was waiting for rank "));
    CHECK(ranks[r].says("to enter the same call"));
  }
}

TEST_CASE("a stopped rank is a timeout, not a lost one, and can go on with an error") {
  const private_directory d;
  const auto opts = job_options(d, 0.5);
  const std::string job = new_job();
  children ranks(3);
  ranks.start_all([&](int r, report& mine) {
    hvd::ShmTransport comm(job, r, 3, opts);
    mine.progress = 2;
    while (true) hvd::barrier(comm);  // where nobody can wait for anybody else than the stopped one
  });
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks[1].progress < 2; }));
  ranks.kill(1, SIGSTOP);
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks.running(0) || ranks.running(2); }));
  ranks.kill(1, SIGCONT);
  REQUIRE(ranks.wait(20.0));
  for (int r = 0; r != 3; ++r) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].is(error_kind::timeout));
    CHECK(ranks[r].culprit == 1);
  }
}

TEST_CASE("more ranks than CPUs work, and who waits long uses little CPU") {
  const private_directory d;
  const auto opts = job_options(d);
  const std::string job = new_job();
  children ranks(8);
  ranks.start_all([&](int r, report& mine) {
    hvd::ShmTransport comm(job, r, 8, opts);
    std::vector<float> data(20'000, 1.0F);
    for (int i = 0; i != 20; ++i) {
      hvd::allreduce(comm, data, hvd::max);
      hvd::barrier(comm);
    }
    const auto used = [] {
      rusage u{};
      ::getrusage(RUSAGE_SELF, &u);
      const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
      };
      return seconds(u.ru_utime) + seconds(u.ru_stime);
    };
    const double before = used(), since = now();
    if (r == 3) pause_for(1.0);
    hvd::allreduce(comm, data, hvd::max);
    const double wall = now() - since;
    mine.at = (used() - before) / wall;
    require(data[0] == 1.0F && data[19'999] == 1.0F, "wrong maximum");
  });
  REQUIRE(ranks.wait(60.0));
  for (int r = 0; r != 8; ++r) {
    CAPTURE(r);
    CAPTURE(ranks[r].text());
    CHECK(ranks.status(r) == 0);
    CHECK(ranks[r].at < 0.2);
  }
}

}  // namespace
