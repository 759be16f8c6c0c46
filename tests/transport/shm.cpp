#include <hvd/launch.hpp>
#include <hvd/transport/shm.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/barrier.hpp>
#include <hvd/send_recv.hpp>

#include "support/processes.hpp"
#include "support/refusals.hpp"
#include "support/require.hpp"
#include "support/skip.hpp"

#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

namespace {

namespace fs = std::filesystem;
using hvd::error_kind;
using hvd::ShmTransport;
using hvd::detail::segment;
using hvd::test::children;
using hvd::test::now;
using hvd::test::pause_for;
using hvd::test::private_directory;
using hvd::test::report;
using hvd::test::require;

hvd::sharing_options options_in(const private_directory& d, double start_timeout = 20.0) {
  hvd::sharing_options o;
  o.memory.directory = d.path();
  o.failure.timeout = std::chrono::seconds(20);
  o.failure.start_timeout = std::chrono::duration<double>(start_timeout);
  o.failure.check = false;
  return o;
}

template <class T>
void check_sum(T& comm, std::size_t n = 10'000) {
  std::vector<int> data(n, comm.rank() + 1);
  hvd::allreduce(comm, data);
  const int sum = comm.size() * (comm.size() + 1) / 2;
  require(data.front() == sum && data.back() == sum, "wrong sum");
}

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

void check_well(children& ranks) {
  REQUIRE(ranks.wait(60.0));
  for (int r = 0; r != ranks.size(); ++r) {
    CAPTURE(r);
    CAPTURE(ranks[r].text());
    CHECK(ranks.status(r) == 0);
  }
}

// ---- arguments ----------------------------------------------------------------------------------------------------

TEST_CASE("ranks, sizes and names that cannot be are refused at once, with what is allowed") {
  const auto text = [](std::string_view job, int rank, int size) {
    return refused(error_kind::invalid_argument, [&] { ShmTransport(job, rank, size); });
  };
  CHECK(text("j", 2, 2) == "hvd: join on rank 2 of 2 (job j): rank 2 is out of range; allowed: 0 to 1");
  CHECK(text("j", -1, 2) == "hvd: join on rank -1 of 2 (job j): rank -1 is out of range; allowed: 0 to 1");
  CHECK(text("j", 0, 0) == "hvd: join on rank 0 of 0 (job j): size 0 is out of range; allowed: 1 to 4096");
  CHECK(text("j", 0, -5).find("size -5 is out of range") != std::string::npos);
  CHECK(text("j", 0, 4097).find("size 4097 is out of range; allowed: 1 to 4096") != std::string::npos);
  CHECK(text("", 0, 1).find("the job has no name") != std::string::npos);
  hvd::sharing_options few;
  few.memory.staging_bytes = 1000;
  CHECK(refused(error_kind::invalid_argument, [&] { ShmTransport("j", 0, 64, few); }).find("staging_bytes") !=
        std::string::npos);
}

TEST_CASE("an environment with garbage in it: invalid_argument that names variable, value and what is allowed") {
  struct given {
    std::map<std::string, std::string> environment;
    std::vector<std::string> texts;
  };
  const std::map<std::string, std::string> good = {{"HVD_JOB", "env"}, {"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "2"}};
  const auto with = [&](const std::string& name, const std::string& value) {
    auto e = good;
    e[name] = value;
    return e;
  };
  const given cases[] = {
      {with("HOROVOD_RANK", "x"), {"HOROVOD_RANK=\"x\"", "0 to "}},
      {with("HOROVOD_RANK", "-1"), {"HOROVOD_RANK=\"-1\"", "0 to "}},
      {with("HOROVOD_RANK", "2"), {"HOROVOD_RANK=\"2\"", "0 to "}},
      {with("HOROVOD_RANK", "0x1"), {"HOROVOD_RANK=\"0x1\""}},
      {with("HOROVOD_RANK", ""), {"HOROVOD_RANK=\"\"", "empty"}},
      {with("HOROVOD_SIZE", "two"), {"HOROVOD_SIZE=\"two\""}},
      {with("HOROVOD_SIZE", "0"), {"HOROVOD_SIZE=\"0\"", "1 to "}},
      {with("HOROVOD_SIZE", "99999999999999999999"), {"HOROVOD_SIZE=\"99999999999999999999\""}},
      {with("HVD_JOB", "a job/with spaces"), {"HVD_JOB=\"a job/with spaces\"", "allowed"}},
      {with("HVD_TIMEOUT", "soon"), {"HVD_TIMEOUT=\"soon\"", "seconds"}},
      {with("HVD_TIMEOUT", "-3"), {"HVD_TIMEOUT=\"-3\"", "seconds"}},
      {with("HOROVOD_START_TIMEOUT", "0"), {"HOROVOD_START_TIMEOUT=\"0\""}},
      {with("HVD_CHECK", "maybe"), {"HVD_CHECK=\"maybe\"", "true"}},
      {with("HVD_SHM_DIR", "shm"), {"HVD_SHM_DIR=\"shm\"", "absolute"}},
      {{{"HOROVOD_RANK", "0"}}, {"HOROVOD_RANK", "HOROVOD_SIZE"}},
      {{{"HOROVOD_RANK", "0"}, {"HOROVOD_SIZE", "2"}}, {"HVD_JOB", "HOROVOD_SIZE"}},
      {{{"HVD_JOB", "env"}}, {"HVD_JOB=\"env\" is set but HOROVOD_RANK and HOROVOD_SIZE are not", "unset HVD_JOB"}},
  };
  const auto in_environment = [](const std::map<std::string, std::string>& environment, auto&& f) {
    children one(1);
    one.start(0, [&](report&) {
      for (const char* name : {"HVD_JOB", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
                               "HVD_TIMEOUT", "HOROVOD_START_TIMEOUT", "HVD_CHECK", "HVD_SHM_DIR"}) {
        ::unsetenv(name);
      }
      for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
      f();
    });
    REQUIRE(one.wait(60.0));
    return one[0].text();
  };
  for (const given& g : cases) {
    const std::string said = in_environment(g.environment, [] { auto comm = ShmTransport::from_environment(); });
    CAPTURE(said);
    CHECK(said.starts_with("invalid_argument"));
    for (const std::string& t : g.texts) CHECK(said.find(t) != std::string::npos);
  }
  // The policies' own defaults say the same, also where the rank is given in the program.
  const std::string said = in_environment({{"HVD_TIMEOUT", "x"}}, [] { ShmTransport("j", 0, 1); });
  CHECK(said.starts_with("invalid_argument"));
  CHECK(said.find("HVD_TIMEOUT=\"x\"") != std::string::npos);
  // A job on several hosts cannot share memory.
  auto hosts = good;
  hosts["HOROVOD_LOCAL_RANK"] = "0";
  hosts["HOROVOD_LOCAL_SIZE"] = "1";
  CHECK(in_environment(hosts, [] { auto comm = ShmTransport::from_environment(); }).starts_with("unsupported"));
  CHECK(in_environment({}, [] {
          auto comm = ShmTransport::from_environment();
          require(comm.size() == 1 && comm.rank() == 0, "not alone");
          check_sum(comm);
        }).starts_with("no error"));
}

TEST_CASE("any text is a job's name, and names that differ are different jobs") {
  const private_directory d;
  const auto opts = options_in(d);
  const std::string base(200, 'n');
  const std::array<std::string, 6> jobs = {"a/../../b", "a b\nc", base + "1", base + "2", "...", "\xc3\xa4\xff"};
  children ranks(2 * static_cast<int>(jobs.size()));
  ranks.start_all([&](int i, report&) {
    const int job = i / 2;
    ShmTransport comm(jobs[static_cast<std::size_t>(job)], i % 2, 2, opts);
    std::vector<int> data(1, job);
    hvd::allreduce(comm, data);
    require(data[0] == 2 * job, "another job's rank");
  });
  check_well(ranks);
  CHECK(d.files() == std::vector<std::string>{});
}

// ---- what may lie under the job's name ----------------------------------------------------------------------------

// Two ranks join though something lies there, whoever comes first; `refuses`: what both say instead.
void join_over(const std::string& name, const std::function<void(const std::string& path)>& leave_behind,
               const std::optional<error_kind>& refuses = {}, const std::string& text = {}) {
  for (const int first : {0, 1}) {
    CAPTURE(name);
    CAPTURE(first);
    const private_directory d;
    const auto opts = options_in(d);
    const std::string path = d.path() + "/" + hvd::detail::segment_name("stale");
    leave_behind(path);
    children ranks(2);
    const auto join = [&](int r) {
      ranks.start(r, [&](report&) {
        ShmTransport comm("stale", r, 2, opts);
        check_sum(comm);
      });
    };
    join(first);
    pause_for(0.005);
    join(1 - first);
    if (!refuses) {
      check_well(ranks);
      CHECK(!fs::exists(path));
      continue;
    }
    REQUIRE(ranks.wait(60.0));
    for (int r = 0; r != 2; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].is(*refuses));
      CHECK(ranks[r].says(text));
      CHECK(ranks[r].says("join on rank " + std::to_string(r) + " of 2 (job stale)"));
    }
    CHECK(fs::exists(fs::symlink_status(path)));  // it is not hvd's to remove
  }
}

void write_file(const std::string& path, const std::string& bytes, mode_t mode = 0600) {
  std::ofstream(path) << bytes;
  ::chmod(path.c_str(), mode);
}

// The bytes of a group that is just coming together.
std::string bytes_of_a_segment(int size = 2) {
  const private_directory d;
  auto s = hvd::detail::create_group("stale", size, options_in(d), 0);
  return {reinterpret_cast<const char*>(s->data()), s->bytes()};
}

TEST_CASE("a segment left by a killed job is replaced") {
  join_over("killed", [](const std::string& path) {
    children creator(1);
    creator.start(0, [&](report&) {
      hvd::sharing_options opts;
      opts.memory.directory = fs::path(path).parent_path();
      ShmTransport("stale", 0, 2, opts);
    });
    REQUIRE(creator.wait_while(20.0, [&] { return !fs::exists(path); }));
    creator.kill(0);
    REQUIRE(creator.wait(20.0));
    REQUIRE(fs::exists(path));
  });
}

TEST_CASE("a copy of a segment, a truncated, an empty and a garbage one are replaced, never attached") {
  const std::string whole = bytes_of_a_segment();
  join_over("copy", [&](const std::string& path) { write_file(path, whole); });
  join_over("copy of another size", [&](const std::string& path) { write_file(path, bytes_of_a_segment(3)); });
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{4095}, std::size_t{4096}, whole.size() - 1}) {
    CAPTURE(n);
    join_over("truncated", [&](const std::string& path) { write_file(path, whole.substr(0, n)); });
  }
  join_over("longer", [&](const std::string& path) { write_file(path, whole + "more"); });
  join_over("zeros", [&](const std::string& path) { write_file(path, std::string(10'000, '\0')); });
  join_over("garbage", [&](const std::string& path) { write_file(path, std::string(10'000, '\xee')); });
}

TEST_CASE("what cannot be a segment of this user is refused by all ranks and left where it is") {
  const std::string whole = bytes_of_a_segment();
  join_over(
      "mode", [&](const std::string& path) { write_file(path, whole, 0666); }, error_kind::system, "mode 666");
  join_over(
      "group", [&](const std::string& path) { write_file(path, whole, 0640); }, error_kind::system, "mode 640");
  join_over(
      "directory", [](const std::string& path) { fs::create_directory(path); }, error_kind::system, "directory");
  join_over(
      "pipe", [](const std::string& path) { REQUIRE(::mkfifo(path.c_str(), 0600) == 0); }, error_kind::system,
      "was not made by hvd");
  const private_directory elsewhere;
  const std::string victim = elsewhere.path() + "/victim";
  write_file(victim, "precious");
  join_over(
      "link", [&](const std::string& path) { fs::create_symlink(victim, path); }, error_kind::system,
      "remove it or use another job name");
  join_over(
      "dangling link", [&](const std::string& path) { fs::create_symlink(elsewhere.path() + "/none", path); },
      error_kind::system, "remove it or use another job name");
  CHECK(fs::file_size(victim) == 8);
  CHECK(!fs::exists(elsewhere.path() + "/none"));
  if (::geteuid() != 0) return hvd::test::skip("only root can give a file away");
  join_over(
      "owner",
      [&](const std::string& path) {
        write_file(path, whole);
        REQUIRE(::chown(path.c_str(), 12345, static_cast<gid_t>(-1)) == 0);
      },
      error_kind::system, "owner 12345");
}

// A segment that another process holds while f runs, with something changed in its header.
template <class F>
void with_living_segment(const private_directory& d, const std::function<void(hvd::detail::group_header&)>& change,
                         F&& f, int size = 2) {
  children holder(1);
  holder.start(0, [&](report& mine) {
    auto s = hvd::detail::create_group("living", size, options_in(d), 0);
    change(*reinterpret_cast<hvd::detail::group_header*>(s->data()));
    mine.progress = 1;
    pause_for(60.0);
  });
  REQUIRE(holder.wait_while(20.0, [&] { return holder[0].progress < 1; }));
  f();
  holder.kill(0);
}

TEST_CASE("a living job of another version or size is a mismatch that names both") {
  const private_directory d;
  const auto both = [&](const std::string& text) {
    return [&, text] {
      children ranks(2);
      ranks.start_all([&](int r, report&) { ShmTransport("living", r, 2, options_in(d)); });
      REQUIRE(ranks.wait(60.0));
      for (int r = 0; r != 2; ++r) {
        CAPTURE(ranks[r].text());
        CHECK(ranks[r].is(error_kind::mismatch));
        CHECK(ranks[r].says(text));
      }
    };
  };
  with_living_segment(
      d, [](auto& header) { std::snprintf(header.version.data(), header.version.size(), "9.9.9"); },
      both("hvd 9.9.9, this rank hvd " + std::string(hvd::version)));
  fs::remove(d.path() + "/" + hvd::detail::segment_name("living"));
  with_living_segment(
      d, [](auto&) {}, both("started with size 3, this rank with size 2"), 3);
}

TEST_CASE("a living segment that is not one of this job is never attached: rank 0 makes its own") {
  const std::function<void(hvd::detail::group_header&)> changes[] = {
      [](auto& header) { header.magic ^= 1; },
      [](auto& header) { header.job_hash ^= 1; },
      [](auto& header) { header.total_bytes += 4096; },
      [](auto& header) { header.windows.ring_at += 64; },
      [](auto& header) { header.windows.window_bytes *= 1000; },
  };
  for (const auto& change : changes) {
    const private_directory d;
    with_living_segment(d, change, [&] {
      children ranks(2);
      ranks.start_all([&](int r, report&) {
        ShmTransport comm("living", r, 2, options_in(d));
        check_sum(comm);
      });
      check_well(ranks);
      CHECK(d.files() == std::vector<std::string>{});
    });
  }
}

TEST_CASE("a stale segment and no rank 0: a timeout that says what was refused, and nothing is left") {
  const private_directory d;
  const auto opts = options_in(d, 0.2);
  write_file(d.path() + "/" + hvd::detail::segment_name("stale"), bytes_of_a_segment());
  const std::string said = refused(error_kind::timeout, [&] { ShmTransport("stale", 1, 2, opts); });
  CHECK(said.find("rank 0 did not create the group's memory") != std::string::npos);
  CHECK(said.find("was left by a job that has ended") != std::string::npos);
  CHECK(d.files() == std::vector<std::string>{});
}

// ---- one name, several groups ---------------------------------------------------------------------------------------

// Whether a rank of a group that is still coming together has come.
bool has_entered(const private_directory& d, const std::string& job, int rank) {
  std::string why;
  const auto s = segment::open(d.path(), hvd::detail::segment_name(job), sizeof(hvd::detail::group_header), why);
  return s && reinterpret_cast<const hvd::detail::group_header*>(s->data())->entered.has(rank);
}

TEST_CASE("a second process that claims a rank ends the group that is coming together, on all ranks") {
  for (const int twice : {0, 1}) {
    const private_directory d;
    const auto opts = options_in(d);
    children ranks(3);
    const auto join = [&](int i, int r) {
      ranks.start(i, [&, r](report&) { ShmTransport comm("twice", r, 3, opts); });
    };
    join(0, 0), join(1, 1);
    REQUIRE(ranks.wait_while(20.0, [&] { return !has_entered(d, "twice", 0) || !has_entered(d, "twice", 1); }));
    join(2, twice);
    REQUIRE(ranks.wait(20.0));
    for (int i = 0; i != 3; ++i) {
      CAPTURE(ranks[i].text());
      CHECK(ranks[i].is(i == 2 ? error_kind::invalid_argument : error_kind::mismatch));
      CHECK(ranks[i].culprit == twice);
      CHECK(ranks[i].says("two processes claim rank " + std::to_string(twice)));
      CHECK(ranks[i].says("Each job needs its own HVD_JOB, each rank its own HOROVOD_RANK"));
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("a second launch of a name ends the group that has it, on all ranks, however late it comes") {
  const private_directory d;
  const auto opts = options_in(d);
  for (const int late : {0, 1}) {
    children ranks(3);
    for (const int r : {0, 1}) {
      ranks.start(r, [&, r](report& mine) {
        ShmTransport comm("again", r, 2, opts);
        for (;;) {
          check_sum(comm, 10);
          mine.progress = 1;
        }
      });
    }
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks[0].progress + ranks[1].progress < 2; }));
    CHECK(d.files().size() == 1);
    ranks.start(2, [&, late](report&) { ShmTransport comm("again", late, 2, opts); });
    REQUIRE(ranks.wait(20.0));
    for (int i = 0; i != 3; ++i) {
      CAPTURE(ranks[i].text());
      CHECK(ranks[i].is(i == 2 ? error_kind::invalid_argument : error_kind::mismatch));
      CHECK(ranks[i].says("two processes claim rank " + std::to_string(late)));
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("a second launch of a name ends the groups that are split off the one that has it, also one that waits") {
  const private_directory d;
  const auto opts = options_in(d);
  const auto work = [](ShmTransport& comm, report& mine) {
    for (mine.progress = 1;;) check_sum(comm, 10);
  };
  const std::map<std::string, std::function<void(ShmTransport&, report&)>> ways = {
      {"a split",
       [&](ShmTransport& comm, report& mine) {
         ShmTransport part = comm.split(0, comm.rank());
         work(part, mine);
       }},
      {"a split of a split",
       [&](ShmTransport& comm, report& mine) {
         ShmTransport inner = comm.split(0, comm.rank()).split(0, -comm.rank());
         work(inner, mine);
       }},
      {"a group over a group",
       [&](ShmTransport& comm, report& mine) {
         ShmTransport other(comm, opts);
         work(other, mine);
       }},
      {"one that waits",
       [&](ShmTransport& comm, report& mine) {
         ShmTransport part = comm.split(0, comm.rank());
         mine.progress = 1;
         if (comm.rank() == 0) part.barrier();
         for (;;) {  // it does nothing in the group
           comm.check();
           pause_for(0.001);
         }
       }},
  };
  for (const auto& [way, run] : ways) {
    CAPTURE(way);
    children ranks(3);
    for (const int r : {0, 1}) {
      ranks.start(r, [&, r, &run = run](report& mine) {
        ShmTransport comm("again", r, 2, opts);
        run(comm, mine);
      });
    }
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks[0].progress + ranks[1].progress < 2; }));
    ranks.start(2, [&](report&) { ShmTransport comm("again", 1, 2, opts); });
    REQUIRE(ranks.wait(20.0));
    for (int i = 0; i != 3; ++i) {
      CAPTURE(ranks[i].text());
      CHECK(ranks[i].is(i == 2 ? error_kind::invalid_argument : error_kind::mismatch));
      CHECK(ranks[i].says("two processes claim rank 1"));
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("a split group lives on without the group that it comes from, of which nothing stays, nor its name") {
  const private_directory d;
  const auto opts = options_in(d);
  // Memory of a file is freed when nobody maps it any more.
  const auto mappings = [](const std::string& name) {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string text; std::getline(maps, text);) n += text.find(name) != text.npos ? 1 : 0;
    return n;
  };
  children ranks(4);
  const auto join = [&](int i) {
    ranks.start(i, [&, i](report& mine) {
      std::optional<ShmTransport> comm(std::in_place, "outlived", i % 2, 2, opts);
      ShmTransport part = comm->split(0, i % 2);
      const std::string name = hvd::detail::segment_name("outlived") + " (deleted)";
      comm->barrier();
      comm.reset();
      require(mappings(name) == 0, "the group's memory stays");
      int go_on = 1;
      for (mine.progress = 1; go_on != 0;) {
        go_on = mine.progress == 1 ? 1 : 0;
        hvd::allreduce(part, std::span(&go_on, 1));
      }
    });
  };
  join(0), join(1);
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks[0].progress + ranks[1].progress < 2; }));
  CHECK(d.files() == std::vector<std::string>{});
  join(2), join(3);  // another launch, later
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks[2].progress + ranks[3].progress < 2; }));
  for (int i = 0; i != 4; ++i) ranks[i].progress = 2;
  REQUIRE(ranks.wait(20.0));
  for (int i = 0; i != 4; ++i) {
    CAPTURE(ranks[i].text());
    CHECK(ranks[i].kind == report::nothing);
  }
}

TEST_CASE("a rank that comes late to a group that has failed learns why, under a bare name too") {
  bool learned = false;
  // Who fails waits 200 ms for those on their way: on a busy machine one may come later than that.
  for (int round = 0; round != 10 && !learned; ++round) {
    const private_directory d;
    const auto opts = options_in(d, 20.0), short_opts = options_in(d, 0.5);
    children ranks(3);
    const auto join = [&](int r) {
      ranks.start(r, [&, r](report&) { ShmTransport comm("late", r, 3, r == 2 ? short_opts : opts); });
    };
    join(0), join(1);
    REQUIRE(ranks.wait_while(20.0, [&] { return !has_entered(d, "late", 0) || !has_entered(d, "late", 1); }));
    std::string why;
    const auto memory = segment::open(d.path(), hvd::detail::segment_name("late"), 1, why);
    REQUIRE(memory);
    const auto& first = *reinterpret_cast<const hvd::detail::control*>(
        memory->data() + sizeof(hvd::detail::group_header));  // the window of rank 0
    ranks.kill(1);
    REQUIRE(ranks.wait_while(20.0, [&] { return first.self.state != hvd::detail::presence::left; }));
    pause_for(0.02);
    join(2);
    REQUIRE(ranks.wait(20.0));
    CAPTURE(ranks[0].text());
    CHECK(ranks[0].is(error_kind::peer_lost));
    CHECK(ranks[0].culprit == 1);
    learned = ranks[2].is(error_kind::peer_lost) && ranks[2].culprit == 1;
    CHECK(d.files() == std::vector<std::string>{});
  }
  CHECK(learned);
}

TEST_CASE("a group of an earlier launch that dies while the next one comes is not the next one's loss") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(4);
  const auto join = [&](int i) {
    ranks.start(i, [&, i](report& mine) {
      ShmTransport comm("restart", i % 2, 2, opts);
      check_sum(comm);
      mine.progress = 1;
      if (i < 2) pause_for(60.0);
    });
  };
  join(0), join(1);
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks[0].progress + ranks[1].progress < 2; }));
  ranks.kill(1);
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks.running(1); }));
  join(3);
  pause_for(0.1);  // it looks at what is there
  ranks.kill(0);
  REQUIRE(ranks.wait_while(20.0, [&] { return !d.empty() || ranks.running(0); }));
  join(2);
  REQUIRE(ranks.wait(20.0));
  for (const int i : {2, 3}) {
    CAPTURE(ranks[i].text());
    CHECK(ranks.status(i) == 0);
  }
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("launches that say which one they are do not meet, and their names are gone once all have joined") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(4);
  ranks.start_all([&](int i, report& mine) {
    ShmTransport comm("launched@" + std::to_string(i / 2), i % 2, 2, opts);
    check_sum(comm);
    mine.progress = 1;
    for (int q = 0; q != 4; ++q) {
      while (ranks[q].progress == 0) pause_for(0.001);
    }
    require(d.empty(), "a name that is still there");
    std::vector<int> data(1, i / 2);
    hvd::allreduce(comm, data);
    require(data[0] == 2 * (i / 2), "a rank of the other group");
  });
  check_well(ranks);
}

TEST_CASE("a process may join twice by one name, and again when it has left") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(2);
  ranks.start_all([&](int r, report&) {
    for (int round = 0; round != 3; ++round) {
      ShmTransport first("twice", r, 2, opts), second("twice", r, 2, opts);
      check_sum(first), check_sum(second), check_sum(first);
    }
  });
  check_well(ranks);
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("two launches of one name at the same moment: an error, or each on its own, but no lasting mixture") {
  for (int round = 0; round != 12; ++round) {
    const private_directory d;
    const auto opts = options_in(d, 0.3);
    children ranks(4);
    ranks.start_all([&](int i, report& mine) {
      std::optional<ShmTransport> comm;
      try {
        comm.emplace("same", i % 2, 2, opts);
      } catch (...) {
        mine.progress = 1;
        throw;
      }
      mine.progress = 1;
      for (int q = 0; q != 4; ++q) {
        while (ranks[q].progress == 0) pause_for(0.001);
      }
      std::vector<int> data(1, i / 2);
      hvd::allreduce(*comm, data);
      require(data[0] == 2 * (i / 2), "a rank of the other launch");
    });
    REQUIRE(ranks.wait(20.0));
    for (int i = 0; i != 4; ++i) {
      CAPTURE(ranks[i].text());
      const bool refused = ranks[i].is(error_kind::invalid_argument) || ranks[i].is(error_kind::timeout) ||
                           ranks[i].is(error_kind::mismatch) || ranks[i].is(error_kind::peer_lost);
      CHECK((ranks.status(i) == 0 || refused));
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

// ---- what is left behind
// ----------------------------------------------------------------------------------------------

// A segment under a name, as its maker leaves it that is killed there.
void leave_segment(const private_directory& d, const hvd::detail::group_name& name) {
  children maker(1);
  maker.start(0, [&](report& mine) {
    const auto s = hvd::detail::create_group(name, 2, options_in(d), 0);
    mine.progress = s ? 1 : 2;
    pause_for(60.0);
  });
  REQUIRE(maker.wait_while(20.0, [&] { return maker[0].progress == 0; }));
  maker.kill(0);
  REQUIRE(maker.wait(20.0));
}

TEST_CASE("whatever belongs to a job has a name that begins with the job's") {
  const std::string job = hvd::detail::segment_name("train@1");
  CHECK(hvd::detail::part_name(job, "split", 255) == job + ".split-00000000000000ff");
  CHECK(hvd::detail::part_name(job + ".split-00000000000000ff", "block", 1) == job + ".block-0000000000000001");
}

TEST_CASE("what killed jobs have left goes with the next job of the user, what living ones have stays") {
  const private_directory d;
  const std::string job = hvd::detail::segment_name("killed");
  leave_segment(d, "killed");
  leave_segment(d, {"split-1", hvd::detail::part_name(job, "split", 1), true});
  leave_segment(d, {"over-1", hvd::detail::part_name(job, "over", 1), true});
  CHECK(d.files().size() == 3);
  write_file(d.path() + "/another-program", "precious");
  write_file(d.path() + "/hvd-notes", "precious");
  children ranks(4);
  ranks.start_all([&](int i, report& mine) {
    ShmTransport comm(i < 2 ? "living" : "next", i % 2, 2, options_in(d));
    auto part = comm.split(0, 0);
    auto memory = comm.alloc_shared<int>(10);
    check_sum(part);
    mine.progress = 1;
    for (int q = 0; q != 4; ++q) {
      while (ranks[q].progress == 0) pause_for(0.001);
    }
    check_sum(comm);
  });
  check_well(ranks);
  CHECK(d.files().size() == 2);
}

TEST_CASE("a rank that waits longer in a split than others names the one that all of them waited for") {
  const private_directory d;
  children ranks(3);
  ranks.start_all([&](int r, report& mine) {
    auto opts = options_in(d);
    opts.failure.timeout = std::chrono::milliseconds(r == 0 ? 300 : 20000);
    ShmTransport comm("longer", r, 3, opts);
    if (r == 1) {  // would make the new group's memory
      (void)hvd::detail::plan_split(comm.peers(), 0, -1, hvd::detail::random_word());
      while (mine.progress == 0) pause_for(0.001);
      return;
    }
    try {
      (void)comm.split(0, r);
    } catch (const hvd::error&) {
      if (r == 2) ranks[1].progress = 1;
      throw;
    }
  });
  REQUIRE(ranks.wait(30.0));
  for (const int r : {0, 2}) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].is(error_kind::timeout));
    CHECK(ranks[r].culprit == 1);
  }
}

TEST_CASE("a rank that goes on removes what others left that were killed in a new group without it") {
  const private_directory d;
  children ranks(2);
  ranks.start_all([&](int r, report&) {
    ShmTransport comm("victims", r, 2, options_in(d));
    if (r == 1) {
      leave_segment(d, {"split-1", hvd::detail::part_name(hvd::detail::segment_name("victims"), "split", 1), true});
      ::raise(SIGKILL);
    }
    comm.barrier();
  });
  REQUIRE(ranks.wait(20.0));
  CHECK(ranks[0].is(error_kind::peer_lost));
  CHECK(d.files().empty());
}

TEST_CASE("one rank that waits alone among many living ones notices the one that died") {
  constexpr int size = 300, victim = 150;
  const private_directory d;
  auto opts = options_in(d, 60.0);
  opts.memory.staging_bytes = std::size_t{1} << 20;
  children ranks(2);
  const auto join = [&](int i, int r) { ranks.start(i, [&, r](report&) { ShmTransport("alone", r, size, opts); }); };
  join(0, 0);
  REQUIRE(ranks.wait_while(20.0, [&] { return !has_entered(d, "alone", 0); }));
  std::string why;
  const auto memory = segment::open(d.path(), hvd::detail::segment_name("alone"), 1, why);
  REQUIRE(memory);
  for (int r = 1; r != size; ++r) {  // they have come and live, and check nobody
    if (r == victim) continue;
    REQUIRE(memory->lock(r));
    reinterpret_cast<hvd::detail::group_header*>(memory->data())->entered.add(r);
  }
  join(1, victim);
  REQUIRE(ranks.wait_while(20.0, [&] { return !has_entered(d, "alone", victim); }));
  ranks.kill(1);
  REQUIRE(ranks.wait(20.0));
  CAPTURE(ranks[0].text());
  CHECK(ranks[0].is(error_kind::peer_lost));
  CHECK(ranks[0].culprit == victim);
}

TEST_CASE("who takes the place of a rank that died while the group came together ends the group") {
  const private_directory d;
  const auto opts = options_in(d, 60.0);
  children ranks(3);
  const auto join = [&](int i, int r) { ranks.start(i, [&, r](report&) { ShmTransport("place", r, 3, opts); }); };
  // The creator is stopped, so that it does not notice at once that rank 1 died.
  join(0, 0);
  REQUIRE(ranks.wait_while(20.0, [&] { return !has_entered(d, "place", 0); }));
  ranks.kill(0, SIGSTOP);
  join(1, 1);
  REQUIRE(ranks.wait_while(20.0, [&] { return !has_entered(d, "place", 1); }));
  ranks.kill(1);
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks.running(1); }));
  join(2, 1);
  REQUIRE(ranks.wait_while(20.0, [&] { return ranks.running(2); }));
  ranks.kill(0, SIGCONT);
  REQUIRE(ranks.wait(20.0));
  CAPTURE(ranks[2].text());
  CAPTURE(ranks[0].text());
  CHECK(ranks[2].is(error_kind::peer_lost));
  CHECK(ranks[2].says("start all ranks again"));
  CHECK(ranks[0].is(error_kind::peer_lost));
  CHECK(ranks[0].culprit == 1);
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("rank 0's options hold for all: memory and checks") {
  const private_directory d;
  children ranks(3);
  ranks.start_all([&](int r, report&) {
    auto opts = options_in(d);
    opts.failure.check = r == 0;
    opts.memory.staging_bytes = r == 0 ? 256 << 10 : 1 << 20;
    ShmTransport comm("options", r, 3, opts);
    require(comm.peers().checks(), "no checks");
    require(comm.peers().shape().window_bytes == (256 << 10) - 4096, "another size of window");
    check_sum(comm, 200'000);
  });
  check_well(ranks);
}

// ---- life and death of objects --------------------------------------------------------------------------------------

std::size_t open_files() {
  std::size_t n = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++n;
  return n;
}

std::size_t mappings(const std::string& of = "") {
  std::size_t n = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) n += line.find(of) != std::string::npos;
  return n;
}

TEST_CASE("five hundred groups, with parts and shared arrays, leave no descriptor, no mapping, no file") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(2);
  ranks.start_all([&](int r, report& mine) {
    std::size_t files = 0;
    for (int round = 0; round != 500; ++round) {
      {
        ShmTransport comm("cycle-" + std::to_string(round), r, 2, opts);
        auto a = comm.alloc_shared<float>(1000);
        auto b = comm.alloc_shared<double>(3);
        if (round % 10 == 0) {
          auto part = comm.split(0, -r);
          auto alone = comm.split(r, 0);
          check_sum(part, 10);
        }
        hvd::allreduce(comm, a);
      }
      if (round == 0) files = open_files();
    }
    require(open_files() == files, "descriptors: " + std::to_string(files) + ", then " + std::to_string(open_files()));
    require(mappings(d.path()) + mappings("/dev/shm") == 0, "mappings are left");
    mine.progress = static_cast<int>(mappings());
  });
  check_well(ranks);
  CHECK(ranks[0].progress < 500);
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("shared arrays outlive their transport and are freed in any order") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(3);
  ranks.start_all([&](int r, report&) {
    std::optional<hvd::shared_array<int>> late;
    {
      ShmTransport comm("arrays", r, 3, opts);
      std::vector<hvd::shared_array<int>> arrays;
      for (int i = 0; i != 4; ++i) arrays.push_back(comm.alloc_shared<int>(20'000 + static_cast<std::size_t>(i)));
      for (int i = 0; i != 3; ++i) {
        auto& a = arrays[static_cast<std::size_t>((r + i) % static_cast<int>(arrays.size()))];
        std::fill(a.begin(), a.end(), 0);
        a = {};  // another one on every rank, and two or three are still used below on all
      }
      arrays.erase(std::remove_if(arrays.begin(), arrays.end(), [](const auto& a) { return a.empty(); }), arrays.end());
      // What only some ranks have left is private to the others: they pass memory of their own.
      auto fresh = comm.alloc_shared<int>(30'000);
      std::fill(fresh.begin(), fresh.end(), r);
      hvd::allreduce(comm, fresh);
      require(fresh[29'999] == 3, "wrong sum");
      late.emplace(std::move(fresh));
    }
    require((*late)[0] == 3 && (*late)[29'999] == 3, "gone with the transport");
    (*late)[0] = 7;
    late.reset();
    require(mappings(d.path()) == 0, "still mapped");
  });
  check_well(ranks);
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("other threads see for whom a rank waits") {
  const private_directory d;
  hvd::sharing_options opts;
  opts.memory.directory = d.path();
  std::array<std::optional<hvd::ShmTransport>, 2> ranks;
  std::thread second([&] { ranks[1].emplace("stuck", 1, 2, opts); });
  ranks[0].emplace("stuck", 0, 2, opts);
  second.join();
  CHECK(ranks[0]->waiting_for() == -1);
  std::byte in{}, out{};
  std::thread stuck([&] { ranks[0]->recv(&in, 1, 1); });
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (ranks[0]->waiting_for() != 1 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  CHECK(ranks[0]->waiting_for() == 1);
  CHECK(ranks[1]->waiting_for() == -1);
  ranks[1]->send(&out, 1, 0);
  stuck.join();
  CHECK(ranks[0]->waiting_for() == -1);
}

TEST_CASE("a transport moves, and who moves onto it ends the old group") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(2);
  ranks.start_all([&](int r, report&) {
    ShmTransport a("move-a", r, 2, opts);
    auto shared = a.alloc_shared<int>(5000);
    ShmTransport b(std::move(a));
    std::fill(shared.begin(), shared.end(), 1);
    hvd::allreduce(b, shared);
    require(shared[4999] == 2, "wrong sum");
    hvd::barrier(b);
    ShmTransport c("move-c", r, 2, opts);
    if (r == 0) {
      b = std::move(c);
      check_sum(b);
    } else {
      const std::string text = refused(error_kind::peer_lost, [&] { hvd::barrier(b); });
      require(text.find("rank 0 has exited") != std::string::npos, text);
      check_sum(c);
    }
  });
  check_well(ranks);
}

// ---- fork -----------------------------------------------------------------------------------------------------------

// Whether this process has a descriptor or a mapping of a file in `directory`. For a child of a process with threads:
// nothing here allocates or locks.
bool holds_something_in(const char* directory) {
  static char text[1 << 16];
  const std::size_t length = std::strlen(directory);
  for (int fd = 3; fd != 100; ++fd) {
    char name[64];
    std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    const ssize_t n = ::readlink(name, text, sizeof text);
    if (n >= static_cast<ssize_t>(length) && std::memcmp(text, directory, length) == 0) return true;
  }
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::size_t kept = 0;  // of the piece before, for what lies across the border
  bool found = false;
  for (ssize_t n = 0; (n = ::read(maps, text + kept, sizeof text - kept)) > 0;) {
    const std::size_t all = kept + static_cast<std::size_t>(n);
    found = found || ::memmem(text, all, directory, length) != nullptr;
    kept = std::min(all, length);
    std::memmove(text, text + all - kept, kept);
  }
  ::close(maps);
  return found;
}

TEST_CASE("a forked child holds nothing of its parent's groups, even if other threads make some at that moment") {
  const private_directory d;
  const auto opts = options_in(d);
  children one(1);
  one.start(0, [&](report&) {
    std::atomic<bool> stop{false};
    std::atomic<int> made{0};
    std::thread maker([&] {
      while (!stop) {
        ShmTransport comm("maker", 0, 1, opts);
        auto shared = comm.alloc_shared<float>(100);
        ++made;
      }
    });
    int bad = 0;
    const auto forks_until = now() + 3.0;
    int forks = 0;
    for (; forks != 400 && now() < forks_until; ++forks) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(holds_something_in(d.path().c_str()) ? 1 : 0);
      int status = 0;
      ::waitpid(child, &status, 0);
      bad += status != 0;
    }
    stop = true;
    maker.join();
    require(made > 10 && forks > 10, "too slow to mean anything");
    require(bad == 0, std::to_string(bad) + " of " + std::to_string(forks) + " children held something");
  });
  REQUIRE_MESSAGE(one.wait(60.0), "a deadlock");
  CAPTURE(one[0].text());
  CHECK(one.status(0) == 0);
}

TEST_CASE("a forked child may join groups of its own") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(2);
  ranks.start_all([&](int r, report&) {
    ShmTransport comm("parents", r, 2, opts);
    check_sum(comm);
    const pid_t child = ::fork();
    if (child == 0) {
      int code = 1;
      try {
        ShmTransport own("children", r, 2, opts);
        check_sum(own);
        code = 0;
      } catch (const std::exception&) {
      }
      ::_exit(code);
    }
    check_sum(comm);
    int status = 0;
    ::waitpid(child, &status, 0);
    require(status == 0, "the child's group failed");
    check_sum(comm);
  });
  check_well(ranks);
}

// ---- agreed over another transport
// ------------------------------------------------------------------------------------

TEST_CASE("a group agreed over threads, and one over another group") {
  const private_directory d;
  const auto opts = options_in(d);
  children ranks(1);
  ranks.start(0, [&](report&) {
    hvd::thread_run(3, [&](hvd::ThreadTransport& threads) {
      ShmTransport comm(threads, opts);
      require(comm.rank() == threads.rank() && comm.size() == 3, "another rank");
      check_sum(comm);
      ShmTransport again(comm, opts);
      check_sum(again);
      auto part = again.split(again.rank() == 1 ? 1 : 0, -again.rank());
      check_sum(part);
    });
  });
  check_well(ranks);
  CHECK(d.files() == std::vector<std::string>{});
  children processes(3);
  processes.start_all([&](int r, report&) {
    ShmTransport first("first", r, 3, opts);
    ShmTransport second(first, opts);
    check_sum(second);
    check_sum(first);
  });
  check_well(processes);
  CHECK(d.files() == std::vector<std::string>{});
}

TEST_CASE("a deadline names the rank that holds up the others, not one that waits for it") {
  const private_directory d;
  children ranks(3);
  ranks.start_all([&](int r, report& mine) {
    auto opts = options_in(d);
    opts.failure.timeout = std::chrono::duration<double>(r == 0 ? 0.3 : 60.0);
    ShmTransport comm("chain@1", r, 3, opts);
    hvd::barrier(comm);
    std::array<int, 1> data{};
    mine.progress = 1;
    if (r == 2) {
      while (ranks[1].progress != 2) pause_for(0.001);
      return;
    }
    try {
      if (r == 0) pause_for(0.1);  // rank 1 waits by then; if not, it is the one to be named
      hvd::recv(comm, data, r + 1);
    } catch (const hvd::error&) {
      mine.progress = 2;
      throw;
    }
  });
  REQUIRE(ranks.wait(20.0));
  CHECK(ranks.status(2) == 0);
  for (int r = 0; r != 2; ++r) {
    CAPTURE(ranks[r].text());
    CHECK(ranks[r].is(error_kind::timeout));
    CHECK(ranks[r].culprit == 2);
  }
  CHECK(ranks[0].says("was waiting for rank 1"));
}

TEST_CASE("a split does not wait longer than an operation, nor when its group has ended") {
  const private_directory d;
  for (const bool ended : {false, true}) {
    children ranks(3);
    ranks.start_all([&](int r, report& mine) {
      auto opts = options_in(d, 60.0);
      opts.failure.timeout = std::chrono::duration<double>(ended ? 60.0 : 0.3);
      ShmTransport comm("split@1", r, 3, opts);
      hvd::barrier(comm);
      if (r != 2) {
        const auto part = comm.split(0, 0);
        return;
      }
      hvd::detail::plan_split(comm.peers(), 0, 0, 7);  // and does not come
      if (ended) comm.peers().set_abort(error_kind::timeout, 1);
      mine.progress = 1;
      while (ranks.running(0) || ranks[0].kind == report::nothing) pause_for(0.001);
    });
    REQUIRE(ranks.wait_while(20.0, [&] { return ranks.running(0) || ranks.running(1); }));
    ranks.kill(2);
    REQUIRE(ranks.wait(20.0));
    for (int r = 0; r != 2; ++r) {
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].is(error_kind::timeout));
      CHECK(ranks[r].culprit == (ended ? 1 : 2));
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("a rank lost while a group is agreed over another one is lost at once") {
  const private_directory d;
  const auto opts = options_in(d, 60.0);
  for (const int victim : {0, 1, 2}) {
    children ranks(3);
    ranks.start_all([&](int r, report& mine) {
      ShmTransport first("first", r, 3, opts);
      hvd::barrier(first);
      if (r == victim) {
        // Takes part in the agreement, as the constructor does, and is gone before it joins.
        std::array<char, 256> meeting{1};  // two numbers, and the name of a file
        std::strcpy(meeting.data() + 16, "somewhere");
        if (r == 0) {
          for (const int q : {1, 2}) hvd::send(first, meeting, q);
        } else {
          hvd::recv(first, meeting, 0);
        }
        mine.at = now();
        ::raise(SIGKILL);
      }
      ShmTransport second(first, opts);
    });
    REQUIRE(ranks.wait(20.0));
    for (int r = 0; r != 3; ++r) {
      if (r == victim) continue;
      CAPTURE(ranks[r].text());
      CHECK(ranks[r].is(error_kind::peer_lost));
      CHECK(ranks[r].culprit == victim);
      CHECK(ranks[r].at - ranks[victim].at < 1.0);
    }
    CHECK(d.files() == std::vector<std::string>{});
  }
}

TEST_CASE("where the system refuses locks a rank cannot join, and leaves nothing; nobody claims its place") {
  const private_directory d;
  for (int granted = 0; granted != 4; ++granted) {
    CAPTURE(granted);
    std::string what = "no error";
    hvd::test::locks_left = granted;
    try {
      const ShmTransport comm("locked@1", 0, 2, options_in(d, 0.2));
    } catch (const hvd::error& e) {
      what = e.what();
    }
    hvd::test::locks_left = -1;
    CHECK(what.starts_with("hvd: join on rank 0 of 2 (job locked@1): "));
    // Of the creator two, of its rank, and all.
    const bool joined = granted >= 3;
    CHECK((what.find("cannot lock " + d.path()) != what.npos) == !joined);
    CHECK((what.find("rank(s) 1 did not join") != what.npos) == joined);
    CHECK(d.empty());
  }
}

TEST_CASE("an abort word that comes and goes while a rank joins: an error, whatever it says at the moment") {
  const private_directory d;
  for (int i = 0; i != 200; ++i) {
    const std::string job = "flickers-" + std::to_string(i) + "@1";
    children one(1);
    one.start(0, [&](report&) { const ShmTransport comm(job, 0, 2, options_in(d)); });
    std::optional<segment> s;
    REQUIRE(one.wait_while(20.0, [&] {
      std::string why;
      auto opened = segment::open(d.path(), hvd::detail::segment_name(job), sizeof(hvd::detail::group_header), why);
      if (opened) s.emplace(std::move(*opened));
      return !s;
    }));
    auto& header = *reinterpret_cast<hvd::detail::group_header*>(s->data());
    header.entered.add(1);  // and has no lock: rank 0 gives up
    CHECK(one.wait_while(20.0, [&] {
      for (int k = 0; k != 20'000; ++k) {
        header.abort.value = hvd::detail::abort_reason(error_kind::aborted, 1, 1);
        header.abort.value = 0;
      }
      return one.running(0);
    }));
    CAPTURE(one[0].text());
    CHECK((one[0].is(error_kind::aborted) || one[0].is(error_kind::peer_lost)));
  }
}

}  // namespace
