// hvd/launch.hpp: run a function on several ranks: as processes of this host, or as threads.
#pragma once

#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/shared_memory/segment.hpp>
#include <hvd/transport/shm.hpp>
#include <hvd/transport/thread.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI {

namespace detail {

/// Forwards SIGINT, SIGTERM and SIGHUP to the ranks while it exists, and remembers the last one. They are blocked until
/// `open`, so that no signal is lost between a fork and the moment when the child has its own handlers, and no signal
/// ends this process between making a segment and removing it.
class signal_relay {
 public:
  explicit signal_relay(const std::vector<pid_t>& ranks) {
    sigset_t held;
    ::sigemptyset(&held);
    for (const int signal : forwarded) ::sigaddset(&held, signal);
    ::pthread_sigmask(SIG_BLOCK, &held, &mask_);
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
    for (std::size_t i = 0; i != std::size(forwarded); ++i) {
      ::sigaction(forwarded[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN) ::sigaction(forwarded[i], &forward, nullptr);  // unless ignored (nohup)
    }
    // If a program ignores SIGCHLD, the kernel discards the exit status of its children. (The program's own handler
    // stays: it may have other children.)
    ::sigaction(SIGCHLD, nullptr, &child_before_);
    if (child_before_.sa_handler == SIG_IGN || (child_before_.sa_flags & SA_NOCLDWAIT) != 0) {
      struct sigaction keep {};
      keep.sa_handler = SIG_DFL;
      ::sigaction(SIGCHLD, &keep, nullptr);
    }
  }
  signal_relay(const signal_relay&) = delete;
  signal_relay& operator=(const signal_relay&) = delete;
  ~signal_relay() { restore(); }

  /// Called when all ranks have been started. Forwards pending signals and later ones.
  void open() noexcept { ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr); }
  /// Restores handlers and mask.
  void restore() noexcept {
    if (restored_) return;
    for (std::size_t i = 0; i != std::size(forwarded); ++i) ::sigaction(forwarded[i], &before_[i], nullptr);
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    open();
    restored_ = true;
  }
  [[nodiscard]] static int received() noexcept { return shared().received; }

 private:
  static constexpr int forwarded[] = {SIGINT, SIGTERM, SIGHUP};
  struct state {
    const std::vector<pid_t>* ranks = nullptr;
    volatile std::sig_atomic_t received = 0;
  };
  static state& shared() noexcept {
    static state s;
    return s;
  }
  struct sigaction before_[std::size(forwarded)]{};
  struct sigaction child_before_ {};
  sigset_t mask_{};
  bool restored_ = false;
};

/// Flushes stdio, and the C++ streams in case they are not synchronised with it.
inline void flush_output() {
  std::cout.flush();
  std::clog.flush();
  std::fflush(nullptr);
}

/// Called before anything is started. The group would also reject the number, but without the name of the function.
inline void check_ranks(const char* function, int np) {
  if (np >= 1 && np <= max_ranks) return;
  fail(error_kind::invalid_argument, {function, ": np, the number of ranks, is ", np, "; allowed: 1 to ", max_ranks});
}

/// The number of threads of this process; 1 if the system does not report it.
inline int count_threads() {
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(::opendir("/proc/self/task"), &::closedir);
  int found = 0;
  while (const dirent* const entry = tasks ? ::readdir(tasks.get()) : nullptr) found += entry->d_name[0] != '.';
  return std::max(found, 1);
}

/// Refuses to fork a process with several threads. A fork copies only the calling thread, but the locks of all threads.
/// In the child, a thread pool (OpenMP's, a BLAS's, libtorch's) would wait for threads that do not exist.
inline void refuse_threads() {
  int threads = count_threads();
  // A joined thread stays in the list for a moment.
  backoff rest(paces::other_process);
  for (int i = 0; threads > 1 && i != 100; ++i) {
    rest.step();
    threads = count_threads();
  }
  if (threads == 1) return;
  fail(error_kind::unsupported,
       {"fork_run: this process has ", threads,
        " threads, but a forked rank has only one, and locks of the others would stay locked; call fork_run before "
        "anything starts threads (OpenMP, a BLAS, libtorch, hvd::Engine), or start the ranks with hvdrun"});
}

/// Reports a killed rank, which cannot report it itself; not for a signal that this process forwarded to it.
inline void report_killed(int rank, int np, int signal) {
  if (signal == signal_relay::received()) return;
  std::fprintf(stderr, "rank %d of %d: killed by signal %d (%s)\n", rank, np, signal, ::strsignal(signal));
}

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
/// an exit code. Returns 0 if all ranks returned nothing or 0. Otherwise returns 128 + signal for the lowest rank that
/// was killed, or, if none was killed, the code of the lowest rank that failed. An exception that leaves f is printed
/// to stderr with its rank and counts as code 1. A signal that killed a rank is printed with the rank, too. SIGINT,
/// SIGTERM and SIGHUP are passed on to the ranks; the result is then 128 + signal. If a rank dies before it has joined,
/// the others get peer_lost at once, not after a time limit. If this process dies, its ranks are killed.
///
/// Call it before this process starts threads (OpenMP, a BLAS and libtorch keep threads): children are forked and do
/// not exec. Standard output is flushed before the fork and at a rank's end; destructors of static objects do not run
/// in the ranks. Errors, before anything is started: invalid_argument for np outside 1 to 4096; unsupported in a
/// process with more than one thread; no_memory, system.
template <class F>
int fork_run(int np, F&& f, const sharing_options& opts = sharing_options::from_environment()) {
  detail::check_ranks("fork_run", np);
  detail::refuse_threads();
  std::vector<pid_t> ranks(static_cast<std::size_t>(np), 0);
  std::vector<int> codes(ranks.size(), 0);
  detail::signal_relay relay(ranks);
  const std::string job = "fork@" + detail::hex(detail::random_word());
  auto memory = detail::create_group(job, np, opts, 0, true);
  if (!memory) detail::fail(error_kind::system, {"fork_run: job name ", job, " is taken"});
  struct unlinker {
    detail::segment& s;
    ~unlinker() { s.unlink(); }
  } const at_end{*memory};

  detail::flush_output();
  const pid_t parent = ::getpid();
  for (int r = 0; r != np; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      relay.restore();
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      const int code = detail::run_rank(r, np, job, opts, f);
      detail::flush_output();
      ::_exit(code != 0 && code % 256 == 0 ? 1 : code);  // an exit code has 8 bits
    }
    if (pid < 0) {
      const int why = errno;
      for (const pid_t started : ranks) {
        if (started > 0) ::kill(started, SIGKILL);
      }
      for (const pid_t started : ranks) {
        if (started > 0) ::waitpid(started, nullptr, 0);
      }
      detail::fail(error_kind::system, {"fork_run: cannot start rank ", r, ": ", std::strerror(why)});
    }
    ranks[static_cast<std::size_t>(r)] = pid;
  }
  relay.open();

  auto& header = *reinterpret_cast<detail::group_header*>(memory->data());
  detail::backoff rest(detail::paces::whole_job);
  for (int left = np; left != 0;) {
    bool any = false;
    // Waits for each rank and not for "any child": the caller may have other children, whose status it collects itself.
    for (std::size_t r = 0; r != ranks.size(); ++r) {
      int status = 0;
      const pid_t ended = ranks[r] > 0 ? ::waitpid(ranks[r], &status, WNOHANG) : 0;
      if (ended == 0 || (ended < 0 && errno == EINTR)) continue;
      // Without a status (other code has collected it) it is unknown how the rank ended.
      codes[r] = ended < 0 ? 1 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (ended > 0 && WIFSIGNALED(status)) detail::report_killed(static_cast<int>(r), np, WTERMSIG(status));
      ranks[r] = 0;
      any = true;
      --left;
      // A rank that ended before it joined held no lock, so the others would not notice its end.
      if (const int rank = static_cast<int>(r); !header.ready.has(rank)) {
        std::uint64_t none = 0;
        header.abort.value.compare_exchange_strong(none, detail::abort_reason(error_kind::peer_lost, rank, -1));
      }
    }
    if (!any) rest.step();
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

/// Runs f(ThreadTransport&) in `np` threads of this process, each a rank of one group, and waits for them. If a rank
/// throws, the others lose a peer and end as well, and the exception of the rank that failed first is rethrown here.
/// Errors: invalid_argument for np outside 1 to 4096, no_memory, system if a thread cannot be started (and
/// std::bad_alloc if there is no memory to report that).
template <class F>
void thread_run(int np, F&& f, const sharing_options& opts = sharing_options::from_environment()) {
  detail::check_ranks("thread_run", np);
  const auto group = std::make_shared<ThreadTransport::group>(np, opts);
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep = [&](std::exception_ptr e) {
    const std::lock_guard lock(mutex);
    if (!first) first = std::move(e);
  };
  const auto run = [&](int r) {
    try {
      ThreadTransport comm(group, r);
      try {
        f(comm);
      } catch (...) {
        keep(std::current_exception());  // before the transport ends and the others notice
      }
    } catch (...) {
      keep(std::current_exception());
      group->lose(r);
    }
  };
  {
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(np));
    struct joiner {
      std::vector<std::thread>& all;
      ~joiner() {
        for (std::thread& t : all) t.join();
      }
    } const at_end{threads};
    for (int r = 0; r != np; ++r) {
      try {
        threads.emplace_back(run, r);
      } catch (const std::system_error& e) {
        for (int q = r; q != np; ++q) group->lose(q);
        detail::fail(error_kind::system, {"thread_run: cannot start rank ", r, ": ", e.what()});
      } catch (...) {  // no memory
        for (int q = r; q != np; ++q) group->lose(q);
        throw;
      }
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace hvd::inline HVD_ABI
