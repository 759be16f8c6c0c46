// Ranks for the campaign: a process that reads rounds from standard input, forks their ranks, ends some of them at the
// moment that it is told, and says what the others noticed. tests/campaign/kill.py decides what happens and judges.
//
// A round is a line of words NAME=VALUE:
//   mode=shm|engine|threads|engine_threads   dir=FOLDER   size=RANKS   seed=NUMBER
//   when=joining|working|ending              operations=NUMBER (of an ending round; others have no end)
//   how=kill|term|stop|exit|throw|inside     victims=RANK,...   at=SECONDS (after the start, or after all have joined)
//   timeout=SECONDS  start=SECONDS           staging=BYTES      again=0|1  limit=SECONDS
//
// What comes back are lines of fields with tabs between them: RANK WHAT TIME FIELDS..., where WHAT is
//   started PID   joined   gone (a victim ends itself now)   error KIND RANK TEXT   done   rest DESCRIPTORS MAPPINGS
//   again   hit (a victim gets its signal now)   hangs OPERATION   ended STATUS
// and `- over TIME` at the end. A process is waited for only when nobody sends signals any more, so that no other can
// have its number.
#include <hvd/hvd.hpp>

#include <support/any_operation.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

using hvd::test::now;
using hvd::test::pause_for;

constexpr int most_ranks = 256;

/// What ranks tell the process that started them.
struct shared_state {
  std::atomic<int> joined{0};
  struct rank {
    char doing[32] = {};  // for the report of a rank that hangs
  } ranks[most_ranks];
};

shared_state* common = nullptr;

[[gnu::format(printf, 3, 4)]] void tell(int rank, const char* what, const char* format, ...) {
  char line[2000];
  int n = std::snprintf(line, sizeof line, "%d\t%s\t%.6f", rank, what, now());
  std::va_list list;
  va_start(list, format);
  n += std::vsnprintf(line + n, sizeof line - static_cast<std::size_t>(n) - 2, format, list);
  va_end(list);
  n = std::min(n, static_cast<int>(sizeof line) - 2);
  std::replace(line, line + n, '\n', ' ');
  line[n++] = '\n';
  // One call, and shorter than what a pipe takes whole, so lines of ranks do not mix.
  if (::write(1, line, static_cast<std::size_t>(n)) != n) ::_exit(9);
}

void tell_error(int rank, const hvd::error& e) {
  tell(rank, "error", "\t%s\t%d\t%s", std::string(name(e.kind())).c_str(), e.rank(), e.what());
}

struct job_round {
  std::map<std::string, std::string> words;
  explicit job_round(const std::string& line) {
    std::istringstream in(line);
    for (std::string word; in >> word;) words[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    std::istringstream list(text("victims"));
    for (std::string one; std::getline(list, one, ',');) victims.push_back(std::stoi(one));
  }
  [[nodiscard]] const std::string& text(const char* name) const { return words.at(name); }
  [[nodiscard]] double number(const char* name) const { return std::stod(words.at(name)); }
  [[nodiscard]] int size() const { return static_cast<int>(number("size")); }
  [[nodiscard]] bool is(const char* name, const char* value) const { return words.at(name) == value; }
  [[nodiscard]] bool victim(int r) const { return std::find(victims.begin(), victims.end(), r) != victims.end(); }
  [[nodiscard]] bool by_signal() const { return is("how", "kill") || is("how", "term") || is("how", "stop"); }
  [[nodiscard]] hvd::sharing_options options() const {
    hvd::sharing_options o;
    o.memory.directory = text("dir");
    o.memory.staging_bytes = static_cast<std::size_t>(number("staging"));
    o.failure.timeout = hvd::failure_policy::seconds(number("timeout"));
    o.failure.start_timeout = hvd::failure_policy::seconds(number("start"));
    o.failure.check = false;
    return o;
  }
  std::vector<int> victims;
};

int descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

int mappings_of(const std::string& folder) {
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) found += line.find(folder) != std::string::npos ? 1 : 0;
  return found;
}

/// Names the operation of a rank for the report.
void doing(int rank, const std::string& what) {
  auto& text = common->ranks[rank].doing;
  std::snprintf(text, sizeof text, "%s", what.c_str());
}

/// Throws on one rank, in the middle of a reduction.
thread_local bool throws_inside = false;
struct sum_or_throw {
  float operator()(float a, float b) const {
    if (throws_inside) throw std::domain_error("thrown inside a reduction");
    return a + b;
  }
};

/// The victim of a round ends by itself where the round says so. (Signals come from outside.)
void maybe_go(const job_round& job, int rank, bool now_or_never) {
  if (!now_or_never || !job.victim(rank) || job.by_signal() || job.is("how", "inside")) return;
  tell(rank, "gone", "%s", "");
  if (job.is("how", "exit")) ::_exit(3);
  throw std::runtime_error("thrown between operations");
}

/// Until when ranks work, and the operation at which a victim goes by itself.
struct plan {
  explicit plan(const job_round& job) {
    std::mt19937 dice(static_cast<unsigned>(job.number("seed")));
    const int given = static_cast<int>(job.number("operations"));
    last = job.is("when", "ending") ? given : -1;
    going = job.is("when", "joining") ? 0 : static_cast<int>(dice() % static_cast<unsigned>(std::max(given, 1)));
  }
  int last, going;
};

template <class T>
void work(const job_round& job, T& comm) {
  const plan until(job);
  std::mt19937 dice(static_cast<unsigned>(job.number("seed")));
  const int rank = comm.rank();
  for (int i = 0; i != until.last; ++i) {
    maybe_go(job, rank, i == until.going);
    doing(rank, "operation " + std::to_string(i));
    if (job.is("how", "inside") && i == until.going) {
      std::vector<float> large(200'000, 1.0F);
      throws_inside = job.victim(rank);
      if (throws_inside) tell(rank, "gone", "%s", "");
      hvd::allreduce(comm, large, sum_or_throw{});
    }
    hvd::test::any_operation(comm, dice);
  }
}

// ---- the engine ---------------------------------------------------------------------------------------------------

/// Some named operations, submitted in an order of this rank's own. It outlives the engine, which uses its memory.
struct batch {
  struct one {
    unsigned kind, root;
    std::size_t n;
    std::vector<float> data;
  };
  std::vector<int> set{};  // the ranks of a process set; none: all
  std::vector<one> all{};
  std::vector<hvd::handle> handles{};
};

/// Waits for the oldest batches, so that `left` remain. After an error it waits for all the others too, says what else
/// they have to say, and throws the first.
void wait_for(int rank, std::deque<batch>& under_way, std::size_t left) {
  std::unique_ptr<hvd::error> first;
  while (under_way.size() > left || (first && !under_way.empty())) {
    const batch& oldest = under_way.front();
    for (const hvd::handle& h : oldest.handles) {
      try {
        h.wait();
      } catch (const hvd::error& e) {
        if (!first) {
          first = std::make_unique<hvd::error>(e);
        } else if (first->kind() != e.kind() || first->rank() != e.rank()) {
          tell_error(rank, e);
        }
      }
    }
    if (first) under_way.front().handles.clear();
    under_way.pop_front();
  }
  if (first) throw hvd::error(*first);
}

template <class T>
void submit_to(batch& b, hvd::Engine<T>& engine, std::mt19937& dice, std::mt19937& own, int step, int id) {
  const auto size = b.set.empty() ? static_cast<std::size_t>(engine.size()) : b.set.size();
  b.all.resize(1 + dice() % 6);
  const std::size_t sizes[] = {1, 30, 700, 20'000, 150'000};
  for (auto& o : b.all) {
    o.kind = static_cast<unsigned>(dice() % 10);
    o.n = sizes[dice() % std::size(sizes)] / (size > 8 ? 8 : 1) + 1;
    o.root = static_cast<unsigned>(dice() % size);
    o.data.assign(o.kind == 6 || o.kind == 7 ? o.n * size : o.n, 1.0F);
  }
  std::vector<std::size_t> order(b.all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), own);
  const bool fresh = dice() % 3 == 0;  // names that are negotiated, or known
  for (const std::size_t i : order) {
    auto& o = b.all[i];
    const auto number = static_cast<int>(i) + 8 * (fresh ? step : step % 4);
    const std::string name = hvd::detail::joined({o.kind, ".", o.n, ".", number, fresh ? " fresh" : ""});
    switch (o.kind) {
      case 4: b.handles.push_back(engine.broadcast(name, o.data, static_cast<int>(o.root), {.process_set = id})); break;
      case 5: b.handles.push_back(engine.allgather(name, o.data, {.process_set = id})); break;
      case 6: b.handles.push_back(engine.reduce_scatter(name, o.data, hvd::sum, {.process_set = id})); break;
      case 7: b.handles.push_back(engine.alltoall(name, o.data, {}, {.process_set = id})); break;
      case 8: b.handles.push_back(engine.barrier(name, id)); break;
      default: b.handles.push_back(engine.allreduce(name, o.data, hvd::average, {.process_set = id}));
    }
  }
}

/// One step; up to three batches stay under way.
template <class T>
void engine_step(hvd::Engine<T>& engine, std::mt19937& dice, std::mt19937& own, int step,
                 std::deque<batch>& under_way) {
  const int size = engine.size(), rank = engine.rank();
  switch (dice() % 12) {
    case 0: {
      doing(rank, "process set, step " + std::to_string(step));
      std::vector<int> set;
      const auto odd = static_cast<int>(dice() % 2);
      for (int r = 0; r != size; ++r) {
        if (r % 2 == odd || (size < 4 && dice() % 2 == 0)) set.push_back(r);
      }
      const int id = engine.add_process_set(set);
      std::mt19937 same = dice;
      if (std::find(set.begin(), set.end(), rank) != set.end()) {
        for (int i = 0; i != 2; ++i) {
          under_way.push_back({.set = set});
          submit_to(under_way.back(), engine, same, own, 2 * step + i, id);
        }
      }
      wait_for(rank, under_way, 0);
      doing(rank, "remove process set, step " + std::to_string(step));
      engine.remove_process_set(id);
      dice.discard(7);
      return;
    }
    case 1: {
      doing(rank, "bucket, step " + std::to_string(step));
      const auto bucket = engine.alloc_bucket(4096);
      const std::span<float> data(reinterpret_cast<float*>(bucket.get()), 1024);
      under_way.push_back({.handles = {engine.allreduce("bucket", data)}});
      return wait_for(rank, under_way, 0);
    }
    default:
      doing(rank, "tensors, step " + std::to_string(step));
      under_way.emplace_back();
      submit_to(under_way.back(), engine, dice, own, step, 0);
      return wait_for(rank, under_way, 2);
  }
}

template <class T>
void work_with_engine(const job_round& job, T& comm) {
  const plan until(job);
  std::mt19937 dice(static_cast<unsigned>(job.number("seed")));
  std::mt19937 own(static_cast<unsigned>(job.number("seed")) + 1000U * static_cast<unsigned>(comm.rank()));
  hvd::engine_options options;
  options.report = [](const std::string&) {};
  if (job.is("how", "stop")) {  // nobody but the watch looks at the clock while ranks agree
    options.stall_warning = hvd::engine_options::seconds(job.number("timeout") / 2);
    options.stall_shutdown = hvd::engine_options::seconds(job.number("timeout"));
  }
  const int rank = comm.rank();
  doing(rank, "engine");
  std::deque<batch> under_way;
  hvd::Engine<T> engine(comm, options);
  tell(rank, "joined", "%s", "");
  ++common->joined;
  for (int i = 0; i != until.last; ++i) {
    maybe_go(job, rank, i == until.going);
    engine_step(engine, dice, own, i, under_way);
  }
  wait_for(rank, under_way, 0);
  if (until.last % 2 == 1) {
    doing(rank, "join");
    under_way.push_back({.handles = {engine.join()}});
    wait_for(rank, under_way, 0);
  }
  doing(rank, "shutdown");
}

// ---- ranks --------------------------------------------------------------------------------------------------------

/// One rank's life in the group that `make` joins.
template <class Make>
void live(const job_round& job, int rank, const Make& make) {
  try {
    doing(rank, "join the group");
    if (job.is("when", "joining") && job.is("how", "exit")) maybe_go(job, rank, true);
    auto comm = make();
    try {
      if (job.is("mode", "engine") || job.is("mode", "engine_threads")) {
        work_with_engine(job, comm);
      } else {
        tell(rank, "joined", "%s", "");
        ++common->joined;
        work(job, comm);
      }
    } catch (const hvd::error& e) {  // here, before the group is left
      tell_error(rank, e);
      doing(rank, "leave");
      return;
    } catch (const std::exception&) {
      doing(rank, "leave");
      return;  // a victim that has thrown
    }
    doing(rank, "leave at the end");
  } catch (const hvd::error& e) {
    tell_error(rank, e);
    return;
  } catch (const std::exception& e) {
    tell(rank, "error", "\tother\t-1\t%s", e.what());
    return;
  }
  tell(rank, "done", "%s", "");
}

void check_rest(const job_round& job, int rank, int before) {
  tell(rank, "rest", "\t%d\t%d", descriptors() - before, mappings_of(job.text("dir")));
}

/// The survivors as a job of their own.
void go_on(const job_round& job, int rank, const std::string& name) {
  const int before_me = static_cast<int>(
      std::count_if(job.victims.begin(), job.victims.end(), [&](int victim) { return victim < rank; }));
  const int size = job.size() - static_cast<int>(job.victims.size());
  hvd::sharing_options options = job.options();
  options.failure.start_timeout = hvd::failure_policy::seconds(60);
  doing(rank, "go on as a new job");
  hvd::ShmTransport comm(name + "-again", rank - before_me, size, options);
  for (int i = 0; i != 3; ++i) {
    std::vector<float> data(5000, 1.0F);
    hvd::allreduce(comm, data);
    if (data.front() != static_cast<float>(size) || data.back() != static_cast<float>(size)) {
      return tell(rank, "error", "\tother\t-1\ta wrong sum after a new start");
    }
  }
  tell(rank, "again", "%s", "");
}

void rank_of_processes(const job_round& job, int rank, const std::string& name) {
  const int before = descriptors();
  live(job, rank, [&] { return hvd::ShmTransport(name, rank, job.size(), job.options()); });
  check_rest(job, rank, before);
  if (!job.is("again", "1") || job.victim(rank)) return;
  try {
    go_on(job, rank, name);
  } catch (const std::exception& e) {
    tell(rank, "error", "\tother\t-1\tafter a new start: %s", e.what());
  }
}

void ranks_of_threads(const job_round& job) {
  const int before = descriptors();
  {
    const auto group = std::make_shared<hvd::ThreadTransport::group>(job.size(), job.options());
    std::vector<std::thread> threads;
    for (int r = 0; r != job.size(); ++r) {
      threads.emplace_back([&, r] { live(job, r, [&] { return hvd::ThreadTransport(group, r); }); });
    }
    for (std::thread& t : threads) t.join();
  }
  check_rest(job, 0, before);
}

/// Starts f in a process that ends when this one does.
template <class F>
pid_t started(int rank, F&& f) {
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    f();
    ::_exit(0);
  }
  if (pid > 0) tell(rank, "started", "\t%d", pid);
  return pid;
}

void run(const job_round& job) {
  static int number = 0;
  const std::string name = "campaign-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
  common->joined = 0;
  const bool in_threads = job.is("mode", "threads") || job.is("mode", "engine_threads");
  std::vector<pid_t> pids;
  if (in_threads) {
    pids.push_back(started(0, [&] { ranks_of_threads(job); }));
  } else {
    for (int r = 0; r != job.size(); ++r) {
      pids.push_back(started(r, [&] { rank_of_processes(job, r, name); }));
    }
  }
  const double limit = job.number("limit");
  double end = now() + limit;
  std::vector<bool> over(pids.size());
  // Whether all others have ended; none of them is collected, so that their numbers stay theirs.
  const auto ended = [&](bool with_victims) {
    bool all = true;
    for (std::size_t r = 0; r != pids.size(); ++r) {
      siginfo_t info{};
      if (!over[r])
        over[r] =
            ::waitid(P_PID, static_cast<id_t>(pids[r]), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
      all = all && (over[r] || (!with_victims && job.victim(static_cast<int>(r))));
    }
    return all;
  };
  if (job.by_signal() && !in_threads) {
    while (!job.is("when", "joining") && common->joined < job.size() && now() < end && !ended(true)) pause_for(0.0002);
    pause_for(job.number("at"));
    for (const int victim : job.victims) {
      tell(victim, "hit", "%s", "");
      ::kill(pids[static_cast<std::size_t>(victim)], job.is("how", "kill")   ? SIGKILL
                                                     : job.is("how", "term") ? SIGTERM
                                                                             : SIGSTOP);
    }
    end = now() + limit;
    if (job.is("how", "stop")) {
      while (!ended(false) && now() < end) pause_for(0.0005);
      for (const int victim : job.victims) ::kill(pids[static_cast<std::size_t>(victim)], SIGCONT);
    }
  } else if (!in_threads) {  // a victim goes when it has come that far, which takes long on a busy machine
    const auto gone = [&](int victim) { return over[static_cast<std::size_t>(victim)]; };
    end = now() + 2 * limit;
    while (!ended(true) && std::none_of(job.victims.begin(), job.victims.end(), gone) && now() < end) pause_for(0.0005);
    end = now() + limit;
  }
  while (!ended(true) && now() < end) pause_for(0.0005);
  for (std::size_t r = 0; r != pids.size(); ++r) {
    if (over[r]) continue;
    tell(static_cast<int>(r), "hangs", "\t%s", common->ranks[r].doing);
    pause_for(0.5);  // for whoever wants to look
    ::kill(pids[r], SIGKILL);
  }
  for (std::size_t r = 0; r != pids.size(); ++r) {
    int status = 0;
    ::waitpid(pids[r], &status, 0);
    tell(static_cast<int>(r), "ended", "\t%d", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
  std::printf("-\tover\t%.6f\n", now());
  std::fflush(stdout);
}

}  // namespace

int main() {
  void* const memory = ::mmap(nullptr, sizeof(shared_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  common = new (memory) shared_state;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (std::string line; std::getline(std::cin, line);) run(job_round(line));
}
