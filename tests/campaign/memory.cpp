// Small programs to which the system refuses something: tests/campaign/memory.py starts them and judges.
//
//   campaign_memory PROGRAM RANKS FOLDER [LIMIT=VALUE]
//   PROGRAM  launched (fork_run), threads (thread_run), named (processes that find each other by a name), over (a group
//            over a group), engine (with a timeline, process sets and join), engine_threads
//   LIMIT    pages (of a file system that is mounted at FOLDER), space (KiB of address space more than now), files
//            (descriptors more than now), tasks (threads and processes of a user of its own)
//
// Each rank writes one line: "rank R done", or "rank R KIND SENTENCE" with the kind of an hvd::error, bad_alloc,
// system_error or other. "launcher KIND SENTENCE" is what else has failed, "rank R signal S" what killed a rank, and
// "skip WHY" says that the limit cannot be set here.
#include <hvd/hvd.hpp>

#include <support/processes.hpp>
#include <support/tiny_directory.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <execinfo.h>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
[[gnu::weak]] void refuse_from_here();
[[gnu::weak]] void refuse_report();
}

namespace {

std::string folder;
int ranks = 2;

/// Allocates nothing.
void say(const char* who, int rank, std::string_view what, std::string_view text = {}) {
  char line[1500];
  int n =
      rank < 0 ? std::snprintf(line, sizeof line, "%s ", who) : std::snprintf(line, sizeof line, "%s %d ", who, rank);
  n +=
      std::snprintf(line + n, sizeof line - static_cast<std::size_t>(n) - 2, "%.*s %.*s", static_cast<int>(what.size()),
                    what.data(), static_cast<int>(std::min<std::size_t>(text.size(), 1200)), text.data());
  std::replace(line, line + n, '\n', ' ');
  line[n++] = '\n';
  if (::write(1, line, static_cast<std::size_t>(n)) != n) ::_exit(9);
}

/// Of a crash, the addresses from which it came (addr2line names their lines).
void say_where(int signal) {
  void* frames[40];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, 40), 2);
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// Calls f, and says what becomes of it.
template <class F>
bool told(const char* who, int rank, F&& f) {
  try {
    f();
    if (rank >= 0) say(who, rank, "done");
    return true;
  } catch (const hvd::error& e) {
    say(who, rank, name(e.kind()), e.what());
  } catch (const std::bad_alloc& e) {
    say(who, rank, "bad_alloc", e.what());
  } catch (const std::system_error& e) {
    say(who, rank, "system_error", e.what());
  } catch (const std::exception& e) {
    say(who, rank, "other", e.what());
  } catch (...) {
    say(who, rank, "other", "an exception of another kind");
  }
  return false;
}

hvd::sharing_options options() {
  hvd::sharing_options o;
  o.memory.directory = folder;
  o.memory.staging_bytes = 1 << 16;
  o.failure.timeout = hvd::failure_policy::seconds(4);
  o.failure.start_timeout = hvd::failure_policy::seconds(4);
  o.failure.check = false;
  return o;
}

void check(bool right) {
  if (!right) throw std::logic_error("a wrong result");
}

template <class T>
void sum(T& comm, std::size_t n) {
  std::vector<float> data(n, 1.0F);
  hvd::allreduce(comm, data);
  check(data.front() == static_cast<float>(comm.size()) && data.back() == data.front());
}

/// A bit of everything that allocates, each thing once. What is refused in a call that leaves the group usable ends the
/// rank all the same.
template <class T>
void collectives(T& comm) {
  const std::size_t p = static_cast<std::size_t>(comm.size());
  sum(comm, 3);
  sum(comm, 30'000);
  {
    auto shared = comm.template alloc_shared<float>(3000);
    std::fill(shared.begin(), shared.end(), 1.0F);
    hvd::allreduce(comm, shared);
    check(shared[0] == static_cast<float>(p) && shared[2999] == shared[0]);
  }
  {
    auto part = comm.split(comm.rank() % 2, comm.rank());
    sum(part, 500);
  }
  std::vector<float> one(100, 1.0F), all(100 * p, 1.0F), other(100 * p);
  hvd::allgather(comm, one, all);
  hvd::alltoall(comm, all, other);
  comm.exchange(reinterpret_cast<const std::byte*>(all.data()), 400, (comm.rank() + 1) % comm.size(),
                reinterpret_cast<std::byte*>(other.data()), 400, (comm.rank() + comm.size() - 1) % comm.size());
  hvd::FusionBuffer<T> buffer(comm, 1 << 12);
  std::vector<hvd::fused> batch;
  for (auto* v : {&one, &all}) {
    auto* const bytes = reinterpret_cast<std::byte*>(v->data());
    batch.push_back({bytes, bytes, v->size(), hvd::dtype::float32, hvd::dtype::float32});
  }
  buffer.allreduce(batch);
  check(one[0] == static_cast<float>(p));
  comm.barrier();
}

template <class T>
void with_engine(T& comm) {
  hvd::engine_options o;
  o.report = [](const std::string&) {};
  o.stall_warning = o.stall_shutdown = hvd::engine_options::seconds(4);
  o.timeline = folder + "/timeline.json";
  const std::size_t p = static_cast<std::size_t>(comm.size());
  std::vector<float> a(1000, 1.0F), b(20, 1.0F), c(20 * p, 1.0F);  // outlive the engine
  hvd::Engine<T> engine(comm, o);
  {
    const auto ha = engine.allreduce("a", a), hb = engine.allgather("b", b), hc = engine.alltoall("c", c);
    ha.wait();
    hb.wait();
    hc.wait();
    check(a.front() == static_cast<float>(p) && a.back() == a.front());
  }
  const int set = comm.size() == 1 ? engine.add_process_set({0}) : engine.add_process_set({0, comm.size() - 1});
  if (comm.rank() == 0 || comm.rank() == comm.size() - 1) {
    engine.allreduce("in a set", a, hvd::max, {.process_set = set}).wait();
  }
  engine.remove_process_set(set);
  const auto bucket = engine.alloc_bucket(400);
  engine.allreduce("bucket", std::span(reinterpret_cast<float*>(bucket.get()), 100)).wait();
  engine.stop_timeline();
  engine.broadcast("a", a, 0).wait();
  engine.join().wait();
}

/// Runs f(rank) in processes of this one's.
template <class F>
void in_processes(F&& f) {
  std::vector<pid_t> started(static_cast<std::size_t>(ranks), 0);
  const pid_t parent = ::getpid();
  for (int r = 0; r != ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      told("rank", r, [&] { f(r); });
      ::_exit(0);
    }
    if (pid < 0) {
      say("rank", r, "system", "fork was refused");
    }
    started[static_cast<std::size_t>(r)] = pid;
  }
  for (int r = 0; r != ranks; ++r) {
    int status = 0;
    const pid_t pid = started[static_cast<std::size_t>(r)];
    while (pid > 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (pid <= 0 || status == 0) continue;
    say("rank", r, "signal", std::to_string(WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status)));
  }
}

void run(std::string_view program, const std::string& job) {
  const auto rank_of = [](auto& comm, auto&& f) { told("rank", comm.rank(), [&] { f(comm); }); };
  if (program == "launched") {
    const int code = hvd::fork_run(
        ranks, [](hvd::ShmTransport& comm) { return told("rank", comm.rank(), [&] { collectives(comm); }) ? 0 : 7; },
        options());
    if (code > 128) say("rank", 0, "signal", std::to_string(code - 128));
  } else if (program == "threads") {
    hvd::thread_run(
        ranks, [&](hvd::ThreadTransport& comm) { rank_of(comm, [](auto& c) { collectives(c); }); }, options());
  } else if (program == "named") {
    in_processes([&](int r) {
      hvd::ShmTransport comm(job, r, ranks, options());
      collectives(comm);
    });
  } else if (program == "over") {
    in_processes([&](int r) {
      hvd::ShmTransport first(job + "@1", r, ranks, options());
      hvd::ShmTransport comm(first, options());
      sum(comm, 300);
    });
  } else if (program == "engine") {
    in_processes([&](int r) {
      hvd::ShmTransport comm(job + "@1", r, ranks, options());
      with_engine(comm);
    });
  } else if (program == "engine_threads") {
    hvd::thread_run(
        ranks, [&](hvd::ThreadTransport& comm) { rank_of(comm, [](auto& c) { with_engine(c); }); }, options());
  } else {
    throw std::invalid_argument("there is no such program");
  }
}

void lower(__rlimit_resource which, rlim_t value) {
  const struct rlimit limit {
    value, value
  };
  if (::setrlimit(which, &limit) != 0) std::abort();
}

/// Sets the limit NAME=VALUE. Empty, or why it cannot be set.
std::string limit(std::string_view text, std::optional<hvd::test::tiny_directory>& tiny) {
  const std::string_view name = text.substr(0, text.find('='));
  const auto value = static_cast<rlim_t>(std::atoll(text.substr(name.size() + 1).data()));
  if (name == "pages") {
    tiny.emplace(value * 4096);
    folder = tiny->path();
    return tiny->problem();
  }
  if (name == "space") {
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    lower(RLIMIT_AS, pages * 4096 + value * 1024);
  } else if (name == "files") {
    const auto open = std::filesystem::directory_iterator("/proc/self/fd");
    lower(RLIMIT_NOFILE, static_cast<rlim_t>(std::distance(begin(open), end(open))) - 1 + value);
  } else if (name == "tasks") {
    if (::geteuid() != 0) return "only root can become a user of its own, and its tasks have no limit";
    const auto user = static_cast<uid_t>(60'000 + ::getpid() % 5000);
    if (::chown(folder.c_str(), user, user) != 0) return "chown";
    lower(RLIMIT_NPROC, value);
    if (::setgroups(0, nullptr) != 0 || ::setresgid(user, user, user) != 0 || ::setresuid(user, user, user) != 0) {
      return "cannot become another user";
    }
  } else {
    throw std::invalid_argument("there is no such limit");
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* one = nullptr;
  ::backtrace(&one, 1);  // loads what it needs
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS}) std::signal(signal, say_where);
  const std::string_view program = argv[1];
  ranks = std::atoi(argv[2]);
  folder = argv[3];
  const std::string job = "refused-" + std::to_string(::getpid());
  std::optional<hvd::test::tiny_directory> tiny;
  if (argc > 4) {
    if (const std::string why = limit(argv[4], tiny); !why.empty()) {
      say("skip", -1, why);
      return 0;
    }
  }
  if (refuse_from_here) refuse_from_here();
  told("launcher", -1, [&] { run(program, job); });
  if (refuse_report) refuse_report();
  std::error_code ignored;
  std::filesystem::remove(folder + "/timeline.json", ignored);
  if (tiny) {
    for (const auto& left : std::filesystem::directory_iterator(tiny->path()))
      say("left", -1, left.path().filename().string());
  }
}
