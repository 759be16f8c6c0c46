// bench/coordinator/library.cpp: starts ranks, watches them, ends them.
#include <bench/coordinator/library.hpp>

#include <bench/coordinator/launched.hpp>
#include <bench/coordinator/signals.hpp>

#include <hvd/launch.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

using clock = std::chrono::steady_clock;
constexpr int most_failures = 3;

std::chrono::duration<double> since(clock::time_point start) { return clock::now() - start; }

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "was killed by " + signal_name(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

std::string seconds_text(double s) {
  std::string text = std::to_string(s);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

Library::Library(launch how, library_settings settings, hvd_settings hvd)
    : how_(std::move(how)), settings_(std::move(settings)), hvd_(std::move(hvd)), missing_(how_.missing) {}

Library::~Library() { stop(); }

bool Library::start() {
  if (!how_.missing.empty() || failures_ >= most_failures) return false;
  missing_.clear();
  try {
    stage_ =
        std::make_unique<Stage>(Stage::make(settings_.ranks, settings_.capacity, settings_.ranks > settings_.cpus));
    spawn();
    const auto all = [&] {
      for (int r = 0; r != settings_.ranks; ++r) {
        if (stage_->slot(r).attached.load(std::memory_order_acquire) == 0) return false;
      }
      return true;
    };
    const StageNotice posted(key_, stage_->path());
    const std::string why = wait(all, settings_.start_seconds, "start");
    if (!why.empty()) throw std::runtime_error(why);
  } catch (const interrupted&) {
    throw;
  } catch (const std::exception& e) {
    kill_all();
    ++failures_;
    missing_ = "could not be started: " + std::string(e.what());
    return false;
  }
  description_ = stage_->header().description.get();
  ranks_.clear();
  for (int r = 0; r != settings_.ranks; ++r) {
    const rank_slot& s = stage_->slot(r);
    ranks_.push_back({s.pid.load(), s.cpu.load(), s.device.get(), s.ordinal.load()});
  }
  return true;
}

void Library::spawn() {
  children_.clear();
  if (how_.how == launch::kind::command) {
    janitor_ = std::make_unique<Janitor>();
    output_ = ::memfd_create("hvd-bench-output", MFD_CLOEXEC);
  }
  const bool once = (how_.how == launch::kind::command && !how_.each_rank) ||
                    (how_.how == launch::kind::hvd && (in_one_process(hvd_.transport) || !key_.empty()));
  hvd_.job = key_.empty() ? "bench@" + hvd::detail::hex(hvd::detail::random_word()) : key_;
  stage_path_ = stage_->path();
  hvd::detail::flush_output();
  for (int r = 0; r != (once ? 1 : settings_.ranks); ++r) {
    const bool launcher = how_.how == launch::kind::command && !how_.each_rank;
    children_.push_back({spawn_one(r), launcher ? -1 : r, std::nullopt});
    if (r == 0 && janitor_) janitor_->watch(children_.front().pid);
  }
}

pid_t Library::spawn_one(int rank) {
  const pid_t parent = ::getpid();
  // Held back until the child has its own handlers.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const int s : ending_signals) ::signal(s, SIG_DFL);
    ::setpgid(0, children_.empty() ? 0 : children_.front().pid);
    if (!janitor_) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (::getppid() != parent) ::_exit(1);
    ::setenv(cpus_variable, settings_.cpu_list.c_str(), 1);
    if (how_.how == launch::kind::command)
      become(how_, rank, settings_.ranks, stage_path_, janitor_->folder(), output_);
    const int code = how_.how == launch::kind::limit  ? limit_process(*stage_, hvd_, rank)
                     : how_.how == launch::kind::nccl ? nccl_process(*stage_, hvd_, rank)
                                                      : hvd_process(*stage_, hvd_, rank);
    hvd::detail::flush_output();
    ::_exit(code);
  }
  const int why = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) throw std::runtime_error(std::string("cannot start a process: ") + std::strerror(why));
  ::setpgid(pid, children_.empty() ? pid : children_.front().pid);
  return pid;
}

void Library::collect() {
  for (child& c : children_) {
    int status = 0;
    if (!c.status && ::waitpid(c.pid, &status, WNOHANG) == c.pid) c.status = status;
  }
}

/// The present error; empty if there is none.
std::string Library::trouble() {
  collect();
  const auto ended = [](const child& c) {
    return (c.rank < 0 ? "its launcher " : "rank " + std::to_string(c.rank) + " ") + how_it_ended(*c.status);
  };
  for (const child& c : children_) {
    if (c.status && WIFSIGNALED(*c.status)) return ended(c);
  }
  const rank_slot* first = nullptr;
  for (int r = 0; r != settings_.ranks; ++r) {
    const rank_slot& s = stage_->slot(r);
    if (s.result == outcome::failed && (first == nullptr || s.order < first->order)) first = &s;
  }
  if (first != nullptr) return "rank " + std::to_string(first - &stage_->slot(0)) + ": " + first->problem.get();
  for (const child& c : children_) {
    if (c.status) return ended(c);
  }
  for (int r = 0; r != settings_.ranks; ++r) {
    if (stage_->slot(r).attached.load(std::memory_order_acquire) != 0 && !stage_->alive(r)) {
      return "rank " + std::to_string(r) + " (process " + std::to_string(stage_->slot(r).pid.load()) + ") is gone";
    }
  }
  return {};
}

template <class Done>
std::string Library::wait(Done done, double seconds, const std::string& what) {
  const auto start = clock::now();
  for (;;) {
    const std::uint32_t seen = stage_->header().finished.load(std::memory_order_acquire);
    if (done()) return {};
    if (const int signal = received_signal(); signal != 0) throw interrupted(signal);
    if (std::string why = trouble(); !why.empty()) {
      // The first error is often an effect; the cause is the rank that was killed.
      const auto noticed = clock::now();
      while (since(noticed).count() < 0.3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        why = trouble();
      }
      const std::string words = last_words();
      return why + (words.empty() ? "" : "; it printed: " + words);
    }
    if (since(start).count() > seconds) {
      std::string late;
      const std::uint32_t command = stage_->header().command.load();
      for (int r = 0; r != settings_.ranks; ++r) {
        const rank_slot& s = stage_->slot(r);
        if (s.attached.load() == 0 || s.done.load() != command) late += (late.empty() ? "" : ", ") + std::to_string(r);
      }
      const std::string words = last_words();
      return "rank(s) " + late + " did not " + what + " within " + seconds_text(seconds) +
             " and the library was ended (-T sets this limit)" + (words.empty() ? "" : "; it printed: " + words);
    }
    stage_->wait(seen, std::chrono::milliseconds(20));
  }
}

job_result Library::run(const job& j) {
  job_result result;
  if (stage_ == nullptr && !start()) {
    result.state = outcome::failed;
    result.problem = missing_;
    return result;
  }
  const std::uint32_t number = stage_->send(j);
  const auto all = [&] {
    for (int r = 0; r != settings_.ranks; ++r) {
      if (stage_->slot(r).done.load(std::memory_order_acquire) != number) return false;
      if (stage_->slot(r).result == outcome::failed) return false;
    }
    return true;
  };
  const std::string why = wait(all, settings_.limit_seconds, "finish");
  if (!why.empty()) {
    kill_all();
    ++failures_;
    missing_ = why;
    result.state = outcome::failed;
    result.problem = why;
    return result;
  }
  result.state = outcome::done;
  for (int r = 0; r != settings_.ranks; ++r) {
    const rank_slot& s = stage_->slot(r);
    if (s.result == outcome::unsupported) {
      result.state = outcome::unsupported;
      result.problem = s.problem.get();
      return result;
    }
    result.wrong += s.wrong;
    result.seconds = std::max(result.seconds, static_cast<double>(s.elapsed) * 1e-9);
  }
  if (j.check) return result;
  for (std::uint32_t i = 0; i != j.iterations; ++i) {
    double best = 0, sum = 0;
    for (int r = 0; r != settings_.ranks; ++r) {
      const double us = static_cast<double>(stage_->samples(r)[i]) * 1e-3;
      const bool take = r == 0 || (settings_.over_ranks == averaging::min && us < best) ||
                        (settings_.over_ranks == averaging::max && us > best);
      if (take) best = us;
      sum += us;
    }
    result.samples.push_back(settings_.over_ranks == averaging::mean ? sum / settings_.ranks : best);
  }
  return result;
}

std::string Library::last_words() const {
  if (output_ < 0) return {};
  char text[1024];
  const off_t end = ::lseek(output_, 0, SEEK_END);
  const off_t start = std::max<off_t>(0, end - static_cast<off_t>(sizeof text));
  const ssize_t n = ::pread(output_, text, sizeof text, start);
  std::string words(text, n > 0 ? static_cast<std::size_t>(n) : 0);
  while (!words.empty() && (words.back() == '\n' || words.back() == ' ')) words.pop_back();
  constexpr std::size_t enough = 400;
  if (words.size() > enough) words.erase(0, words.find('\n', words.size() - enough) + 1);  // whole lines, if there are
  return replace_all(replace_all(words, "\r", ""), "\n", " | ");
}

void Library::stop() noexcept {
  if (stage_ == nullptr) return;
  if (received_signal() == 0 && missing_.empty()) {
    stage_->quit();
    for (const auto start = clock::now(); since(start).count() < 5;) {
      collect();
      if (std::all_of(children_.begin(), children_.end(), [](const child& c) { return c.status.has_value(); })) break;
      if (received_signal() != 0) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  kill_all();
}

void Library::kill_all() noexcept {
  if (stage_ == nullptr) return;
  stage_->header().abort.store(1, std::memory_order_release);
  stage_->quit();
  const auto running = [&] {
    collect();
    return std::any_of(children_.begin(), children_.end(), [](const child& c) { return !c.status; });
  };
  // A launcher that is asked to end removes its files; one that is killed leaves them.
  if (how_.how == launch::kind::command && running()) {
    for (const child& c : children_) {
      if (!c.status) ::kill(c.pid, SIGTERM);
    }
    for (const auto start = clock::now(); running() && since(start).count() < 2;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  // The ranks of a launcher are not children of this process. A rank that holds its lock is the process that it names.
  for (int r = 0; r != settings_.ranks; ++r) {
    const int pid = stage_->slot(r).pid.load();
    if (pid > 1 && stage_->alive(r) && (key_.empty() || r == 0)) ::kill(pid, SIGKILL);
  }
  if (!children_.empty()) ::kill(-children_.front().pid, SIGKILL);
  for (child& c : children_) {
    if (c.status) continue;
    ::kill(c.pid, SIGKILL);
    int status = 0;
    while (::waitpid(c.pid, &status, 0) < 0 && errno == EINTR) {
    }
    c.status = status;
  }
  children_.clear();
  stage_.reset();
  if (output_ >= 0) ::close(output_);
  output_ = -1;
  janitor_.reset();
}

}  // namespace hvd::bench
