// tests/support/processes.hpp: ranks as real processes that a test can kill, and what became of each of them.
#pragma once

#include <hvd/error.hpp>

#include "support/require.hpp"
#include "support/sanitizers.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hvd::test {

/// Seconds on a clock that all processes of the host share.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void pause_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

/// What a child tells its parent, through memory that they share. (In a child doctest's assertions are of no use:
/// `require` throws, and the exception comes here.)
struct report {
  static constexpr int nothing = -1, other = -2;
  std::atomic<int> progress{0};  ///< what the test makes of it
  std::atomic<double> at{0.0};   ///< when it threw, or what the test makes of it
  int kind = nothing;            ///< of the hvd::error that ended it; `other` for another exception
  int culprit = -1;
  char what[1000] = {};

  [[nodiscard]] bool is(error_kind k) const { return kind == static_cast<int>(k); }
  [[nodiscard]] bool says(std::string_view text) const {
    return std::string_view(what).find(text) != std::string_view::npos;
  }
  [[nodiscard]] std::string text() const {
    const std::string k = kind == nothing ? "no error"
                          : kind == other ? "another exception"
                                          : std::string(name(static_cast<error_kind>(kind)));
    return k + ", culprit " + std::to_string(culprit) + ", progress " + std::to_string(progress) + ": " + what;
  }
  void keep(const error& e) { keep(static_cast<int>(e.kind()), e.rank(), e.what()); }
  void keep(int k, int rank, const char* text) {
    at = now();
    kind = k;
    culprit = rank;
    std::snprintf(what, sizeof what, "%s", text);
  }
};

/// Child processes. The destructor kills and collects those that are left.
class children {
 public:
  explicit children(int count)
      : pids_(static_cast<std::size_t>(count), 0), status_(pids_.size(), 0), bytes_(pids_.size() * sizeof(report)) {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for reports");
    reports_ = static_cast<report*>(memory);
    for (int i = 0; i != count; ++i) new (reports_ + i) report;
  }
  children(const children&) = delete;
  children& operator=(const children&) = delete;
  ~children() {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(pid, SIGKILL);
    }
    wait(30.0);
    ::munmap(reports_, bytes_);
  }

  /// Runs f(report&) in child i. It exits with 0, or with 3 if f threw (1 is what sanitizers exit with).
  template <class F>
  void start(int i, F&& f) {
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("cannot fork");
    if (pid == 0) {
      // doctest's own handlers would report a crash here as one of the parent.
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE}) {
        if (!sanitized || signal != SIGSEGV) std::signal(signal, SIG_DFL);
      }
      report& mine = reports_[i];
      try {
        f(mine);
      } catch (const error& e) {
        mine.keep(e);
      } catch (const std::exception& e) {
        mine.keep(report::other, -1, e.what());
      }
      ::_exit(mine.kind == report::nothing ? 0 : 3);
    }
    pids_[static_cast<std::size_t>(i)] = pid;
  }
  template <class F>
  void start_all(F&& f) {
    for (int i = 0; i != size(); ++i) start(i, [&](report& r) { f(i, r); });
  }

  /// Nothing for a child that has been collected: process 0 would mean all of the test's own group.
  void kill(int i, int signal = SIGKILL) const {
    if (running(i)) ::kill(pid(i), signal);
  }
  [[nodiscard]] pid_t pid(int i) const { return pids_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] int size() const { return static_cast<int>(pids_.size()); }
  report& operator[](int i) { return reports_[i]; }
  [[nodiscard]] int status(int i) const { return status_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] bool running(int i) const { return pid(i) > 0; }

  /// Collects children until none is left (true) or the limit has passed.
  bool wait(double seconds) {
    return wait_while(seconds, [&] { return std::any_of(pids_.begin(), pids_.end(), [](pid_t p) { return p > 0; }); });
  }
  /// Collects children while `busy()`; false if it still was at the limit.
  template <class Busy>
  bool wait_while(double seconds, Busy busy) {
    for (const double limit = now() + seconds;;) {
      for (std::size_t i = 0; i != pids_.size(); ++i) {
        if (pids_[i] > 0 && ::waitpid(pids_[i], &status_[i], WNOHANG) == pids_[i]) pids_[i] = 0;
      }
      if (!busy()) return true;
      if (now() > limit) return false;
      pause_for(0.0005);
    }
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<int> status_;
  std::size_t bytes_;
  report* reports_ = nullptr;
};

/// A directory of its own in memory, so that a test sees only its own files there.
class private_directory {
 public:
  private_directory() {
    char name[] = "/dev/shm/hvd-test-XXXXXX";
    if (::mkdtemp(name) == nullptr) throw std::runtime_error("cannot make a directory in /dev/shm");
    path_ = name;
  }
  private_directory(const private_directory&) = delete;
  private_directory& operator=(const private_directory&) = delete;
  ~private_directory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) names.push_back(entry.path().filename());
    return names;
  }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

}  // namespace hvd::test
