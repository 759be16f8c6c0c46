// hvd/launch.hpp: run a function on several ranks: as processes of this host, or as threads.
#pragma once

#include <hvd/transport/shm.hpp>
#include <hvd/transport/thread.hpp>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI {

namespace detail {

/// Forwards SIGINT, SIGTERM and SIGHUP to the ranks while it exists, and remembers which came.
class signal_relay {
 public:
  explicit signal_relay(const std::vector<pid_t>& ranks) {
    shared().ranks = &ranks;
    shared().received = 0;
    struct sigaction forward {};
    forward.sa_handler = [](int signal) {
      const int saved = errno;
      shared().received = signal;
      if (const auto* all = shared().ranks) {
        for (const pid_t pid : *all) {
          if (pid > 0) ::kill(pid, signal);
        }
      }
      errno = saved;
    };
    ::sigemptyset(&forward.sa_mask);
    for (std::size_t i = 0; i != std::size(signals); ++i) ::sigaction(signals[i], &forward, &before_[i]);
  }
  signal_relay(const signal_relay&) = delete;
  signal_relay& operator=(const signal_relay&) = delete;
  ~signal_relay() { restore(); }

  void restore() noexcept {
    for (std::size_t i = 0; i != std::size(signals) && !restored_; ++i) ::sigaction(signals[i], &before_[i], nullptr);
    restored_ = true;
  }
  [[nodiscard]] static int received() noexcept { return shared().received; }

 private:
  static constexpr int signals[] = {SIGINT, SIGTERM, SIGHUP};
  struct state {
    const std::vector<pid_t>* ranks = nullptr;
    volatile std::sig_atomic_t received = 0;
  };
  static state& shared() noexcept {
    static state s;
    return s;
  }
  struct sigaction before_[std::size(signals)] {};
  bool restored_ = false;
};

/// Runs one rank; returns its exit code.
template <class F>
int run_rank(int rank, int np, const std::string& job, const sharing_options& opts, F& f) {
  try {
    ShmTransport comm(job, rank, np, opts);
    if constexpr (std::is_void_v<std::invoke_result_t<F&, ShmTransport&>>) {
      f(comm);
      return 0;
    } else {
      return static_cast<int>(f(comm));
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d of %d: %s\n", rank, np, e.what());
  } catch (...) {
    std::fprintf(stderr, "rank %d of %d: unknown exception\n", rank, np);
  }
  return 1;
}

}  // namespace detail

/// Runs f(ShmTransport&) in `np` child processes, each a rank of one group, and waits for them. f returns nothing, or
/// an exit code. Returns 0 if all ranks did, else the first failure's code: that of the lowest rank that was killed
/// (128 + signal), else of the lowest that failed. An exception that leaves f is printed to stderr with its rank and
/// counts as code 1. SIGINT, SIGTERM and SIGHUP are passed on to the ranks; the result is then 128 + signal. A rank
/// that dies before it has joined is lost to the others at once, not after a time limit. If this process dies, its
/// ranks are killed.
///
/// Call it before this process starts threads: children are forked and run on. Standard output is flushed before the
/// fork and at a rank's end; destructors of static objects do not run in the ranks. Errors: invalid_argument for np
/// out of 1 to 4096, no_memory, system.
template <class F>
int fork_run(int np, F&& f, const sharing_options& opts = {}) {
  const std::string job = "fork-" + detail::hex(detail::random_word());
  auto memory = detail::create_group(job, np, opts, 0);
  if (!memory) throw error(error_kind::system, "fork_run: job name " + job + " is taken");
  struct unlinker {
    detail::segment& s;
    ~unlinker() { s.unlink(); }
  } const at_end{*memory};

  std::fflush(nullptr);
  std::vector<pid_t> ranks(static_cast<std::size_t>(np), 0);
  std::vector<int> codes(static_cast<std::size_t>(np), 0);
  detail::signal_relay relay(ranks);
  const pid_t parent = ::getpid();
  for (int r = 0; r != np; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      relay.restore();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      const int code = detail::run_rank(r, np, job, opts, f);
      std::fflush(nullptr);
      ::_exit(code);
    }
    if (pid < 0) {
      const std::string why = std::strerror(errno);
      for (const pid_t started : ranks) {
        if (started > 0) ::kill(started, SIGKILL);
      }
      for (const pid_t started : ranks) {
        if (started > 0) ::waitpid(started, nullptr, 0);
      }
      throw error(error_kind::system, "fork_run: cannot start rank " + std::to_string(r) + ": " + why);
    }
    ranks[static_cast<std::size_t>(r)] = pid;
    if (detail::signal_relay::received() != 0) ::kill(pid, detail::signal_relay::received());
  }

  auto& header = *reinterpret_cast<detail::group_header*>(memory->data());
  for (int left = np; left != 0; --left) {
    int status = 0;
    pid_t pid = 0;
    // Only our own children: the caller may have others.
    std::size_t r = 0;
    siginfo_t info{};
    while (true) {
      info.si_pid = 0;
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) != 0) {
        if (errno == EINTR) continue;
        break;
      }
      for (r = 0; r != ranks.size() && ranks[r] != info.si_pid; ++r) {
      }
      if (r != ranks.size()) break;
      // Somebody else's child has ended and stays for them to collect: look at ours one by one.
      for (r = 0; r != ranks.size(); ++r) {
        siginfo_t one{};
        if (ranks[r] > 0 && ::waitid(P_PID, static_cast<id_t>(ranks[r]), &one, WEXITED | WNOWAIT | WNOHANG) == 0 &&
            one.si_pid != 0) {
          break;
        }
      }
      if (r != ranks.size()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (r == ranks.size()) break;
    pid = ranks[r];
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    ranks[r] = 0;
    codes[r] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // A rank that ended before it joined holds no lock that would tell the others.
    const detail::geometry& g = header.windows;
    const auto& c = *reinterpret_cast<const detail::control*>(memory->data() + sizeof(detail::group_header) +
                                                              r * g.window_bytes);
    if (codes[r] != 0 && c.self.state.load(std::memory_order_acquire) == detail::presence::absent) {
      std::uint64_t none = 0;
      header.abort.value.compare_exchange_strong(none, detail::abort_reason(error_kind::peer_lost, static_cast<int>(r),
                                                                            static_cast<int>(r)));
    }
  }
  if (const int signal = detail::signal_relay::received(); signal != 0) return 128 + signal;
  for (const int code : codes) {
    if (code > 128) return code;
  }
  for (const int code : codes) {
    if (code != 0) return code;
  }
  return 0;
}

/// Runs f(ThreadTransport&) in `np` threads of this process, each a rank of one group, and waits for them. If any
/// throws, the exception of the rank that failed first is thrown again here (the others, which then lose a peer, end
/// with it). Errors: invalid_argument for np out of 1 to 4096, no_memory.
template <class F>
void thread_run(int np, F&& f, const sharing_options& opts = {}) {
  const auto group = std::make_shared<ThreadTransport::group>(np, opts);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(np));
  for (int r = 0; r != np; ++r) {
    threads.emplace_back([&, r] {
      try {
        ThreadTransport comm(group, r);
        try {
          f(comm);
        } catch (...) {
          // Kept before the transport ends and the others notice.
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace hvd::inline HVD_ABI
