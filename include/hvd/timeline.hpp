// hvd/timeline.hpp: a record of this rank's work on each tensor, in a file that browsers show.
//
// Open the file in chrome://tracing or ui.perfetto.dev, while the program runs or later. Each tensor is a "process",
// with one row for each rank, named "rank 0", "rank 1" and so on. All ranks of a host, and those of other hosts that
// share the directory, write one file; other hosts write one of the same name each (NFS: see hvd/timeline/file.hpp).
//
// | event | phase | from |
// |---|---|---|
// | `NEGOTIATE_ALLREDUCE`, `ALLREDUCE`, `QUEUE`, `SHM_ALLREDUCE`, ... | `B`, `E` | `begin`, `end` |
// | dtype and shape | `args` of `E` | `end` of the outermost activity |
// | `1`: rank 1 is ready | `X` of duration 0 | `tick` |
// | `CYCLE_START` | `i`, on process 0 | `cycle` |
// | `STEP`, with the number of its samples | `i`, on process 0 | `step` |
// | `WAIT`, with the tensor: the program waits for an operation | `X`, on process 0 | `waited` |
// | `STALL`, with what the watch says | `i`, on process 0 | `stall` |
// | `ROUND`: the ranks of the job change | `i`, on process 0 | `ranks_changed` |
// | `DROPPED`: how many events were not recorded | `i`, on process 0 | a full ring |
// | the start of the job, in microseconds since 1970 | `args.start_time_since_epoch_in_micros` of process 0 | rank 0 |
// | `hvd_rank`: rank, size, host and the number of the process | `M`, on process 0 | each start |
// | `hvd_process_set`: its number and the ranks in it | `M`, on process 0 | `members` |
//
// Names and layout are Horovod's (docs/timeline.rst there), so that scripts for Horovod's timelines read these. The
// events on process 0, except `CYCLE_START`, are hvd's. Times are microseconds since the job's first start, on the
// clock of rank 0.
#pragma once

#include <hvd/dtype.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/timeline/file.hpp>
#include <hvd/timeline/text.hpp>
#include <hvd/timeline/trace_ring.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI {

/// The timeline of one rank. Any thread may call any function at any time.
///
/// Recording (`begin`, `end`, `tick`, `cycle`) never waits, locks or allocates: an event costs a reading of the clock
/// and 64 bytes in a ring of 16,384 events. A thread of this class turns events into text and appends it to the file
/// about ten times a second. While there are no events, and without a file, that thread does not run. If the ring is
/// full, events are dropped and counted.
///
/// If the file can no longer be written (a full disk), a line on standard error reports it, all further events are
/// dropped, and the job goes on. A forked child records nothing.
class Timeline {
 public:
  struct options {
    int rank = 0;
    int size = 1;
    bool mark_cycles = false;  ///< whether `cycle` records anything
    std::string host{};        ///< where this rank runs; empty: the name that the system gives
    std::string job{};         ///< the same on all ranks, unlike that of any other run, whose file is emptied
    std::chrono::nanoseconds clock_offset{0};  ///< this host's steady clock plus this is that of rank 0's host
    std::int64_t start_steady_ns = 0;          ///< rank 0's steady clock at the start of the job
    std::int64_t start_epoch_us = 0;           ///< and its system clock then, in microseconds since 1970
  };

  /// Records nothing until start().
  Timeline() = default;

  /// As start().
  Timeline(const std::string& path, const options& o) { start(path, o); }

  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// As stop().
  ~Timeline() { stop(); }

  /// Opens the file, writes its header unless another rank of the job has, and records from now on. A file that the
  /// same job has written before, on any rank, is continued. An empty file, or a timeline of another job of hvd, is
  /// replaced. A file with any other content is refused and stays as it is. If this timeline already writes to `path`,
  /// nothing happens; if it writes to another file, that file is closed as by stop(). Errors that change nothing:
  /// invalid_argument if the path cannot be written or has other content, and timeout if the file's lock is held for 5
  /// s. After system the file may be empty and this timeline stopped.
  void start(const std::string& path, const options& o) {
    const std::string who = detail::joined({"rank ", o.rank, " of ", o.size});
    if (forked()) {
      detail::fail(error_kind::invalid_argument,
                   {"timeline on ", who, ": this process was forked from the one that made it; make another here"});
    }
    process_ = ::getpid();
    const std::lock_guard hold(control_);
    if (file_ != nullptr && file_->path() == path) return;
    auto file = std::make_unique<detail::timeline_file>(path, who, o.job, o.start_epoch_us, &forget, this);
    halt();
    if (ring_ == nullptr) ring_ = std::make_unique<detail::trace_ring>(16'384);
    ring_->clear();  // events of a thread that still recorded when the last timeline stopped
    const std::int64_t later = (o.start_epoch_us - file->start_epoch_us()) * 1000;  // than the job's first start
    text_.emplace(names_, o.rank, o.size, o.host.empty() ? detail::host_name() : o.host, process_.load(),
                  o.start_steady_ns - o.clock_offset.count() - later);
    who_ = who;
    dropped_ = noted_ = unwritten_ = 0;
    failed_ = false;
    word_ = running;
    file_ = std::move(file);
    if (const int why = start_writer(); why != 0) {
      file_.reset();
      detail::fail(error_kind::system, {"timeline on ", who, ": cannot start its thread: ", std::strerror(why)});
    }
    on_.store(o.mark_cycles ? with_cycles : without_cycles, std::memory_order_release);
  }

  /// Writes all recorded events, ends open activities (marked `unfinished`) and closes the file, which then is strict
  /// JSON. Does nothing if no timeline runs. Takes a few milliseconds; at most some seconds if another process has the
  /// lock and does not run.
  void stop() noexcept {
    if (forked()) return;
    const std::lock_guard hold(control_);
    halt();
  }

  [[nodiscard]] bool active() const noexcept { return on_.load(std::memory_order_relaxed) != off; }

  /// The number of events since the start that are not in the file, because the ring was full or the file could not be
  /// written.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  /// The number of a tensor, for the calls below. Valid for the life of this object, across stop and start. Locks, and
  /// allocates for a new name, so ask once. There is room for 65,536 names; events of all others are dropped. Tensors
  /// of different process sets are different tensors; "set 2: " is shown before the name of a tensor of set 2.
  std::uint32_t tensor(std::string_view name, int process_set = 0) {
    return forked() ? detail::timeline_names::unknown : names_.add(name, process_set);
  }

  /// An activity begins, within the tensor's most recently begun activity: now, or at a time since the event before.
  /// The text must live for ever, like a literal.
  void begin(std::uint32_t tensor, const char* activity, std::chrono::steady_clock::time_point at = {}) noexcept {
    if (!active()) return;
    detail::trace_event e = event(detail::trace_kind::begin, tensor, at);
    e.activity = activity;
    record(e);
  }

  /// The tensor's most recently begun activity ends.
  void end(std::uint32_t tensor, std::chrono::steady_clock::time_point at = {}) noexcept {
    if (!active()) return;
    record(event(detail::trace_kind::end, tensor, at));
  }

  /// The outermost activity of the tensor ends, and with it all that lie in it. The first 5 dimensions of the shape are
  /// shown.
  void end(std::uint32_t tensor, dtype type, std::span<const std::size_t> shape) noexcept {
    if (!active()) return;
    detail::trace_event e = event(detail::trace_kind::result, tensor);
    e.type = static_cast<std::uint8_t>(type);
    e.dims = static_cast<std::uint8_t>(std::min<std::size_t>(shape.size(), UINT8_MAX));
    for (std::size_t i = 0; i != std::min(shape.size(), e.most_dims); ++i) e.shape[i] = shape[i];
    record(e);
  }

  /// This rank has learned that `rank` has the tensor ready.
  void tick(std::uint32_t tensor, int rank) noexcept {
    if (!active()) return;
    detail::trace_event e = event(detail::trace_kind::tick, tensor);
    e.rank = rank;
    record(e);
  }

  /// A step of the program ends, in which this rank has processed `samples` samples (0: unknown).
  void step(std::uint64_t samples = 0) noexcept {
    if (!active()) return;
    detail::trace_event e = event(detail::trace_kind::step, 0);
    e.amount = samples;
    record(e);
  }

  /// The program has waited for an operation on this tensor, from `since` until now: exposed communication.
  void waited(std::uint32_t tensor, std::chrono::steady_clock::time_point since) noexcept {
    if (!active()) return;
    detail::trace_event e = event(detail::trace_kind::wait, tensor);
    const auto begin = std::chrono::duration_cast<std::chrono::nanoseconds>(since.time_since_epoch()).count();
    e.amount = static_cast<std::uint64_t>(std::max<std::int64_t>(e.time - begin, 0));
    e.time = begin;
    record(e);
  }

  /// Operations do not end; the text names them and the ranks that cause it. Allocates: for rare events.
  void stall(std::string text) { record(detail::trace_kind::stall, std::move(text)); }
  /// The ranks of the job change; the text describes the new ones. Allocates.
  void ranks_changed(std::string text) { record(detail::trace_kind::round, std::move(text)); }

  /// The ranks of a process set, which is not the one of all ranks. Allocates.
  void members(int process_set, std::span<const int> ranks) {
    std::string text = detail::joined({"\"set\":", process_set, ",\"ranks\":["});
    for (std::size_t i = 0; i != ranks.size(); ++i) text += detail::joined({i == 0 ? "" : ",", ranks[i]});
    record(detail::trace_kind::members, text + "]");
  }

  /// A round of negotiation begins. Recorded only with `options::mark_cycles`.
  void cycle() noexcept {
    if (on_.load(std::memory_order_relaxed) == with_cycles) record(event(detail::trace_kind::cycle, 0));
  }

 private:
  enum : int { off, without_cycles, with_cycles };                              // on_
  enum : std::uint32_t { running, idle, stopping };                             // word_
  static constexpr std::chrono::milliseconds period{100};                       // between appends
  static constexpr std::chrono::seconds lock_timeout{1}, last_lock_timeout{5};  // for the file's lock
  static constexpr std::size_t most_text = std::size_t{1} << 18;                // for one append

  static std::int64_t now() noexcept {
    timespec t;
    ::clock_gettime(CLOCK_MONOTONIC, &t);
    return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  }

  static detail::trace_event event(detail::trace_kind kind, std::uint32_t tensor,
                                   std::chrono::steady_clock::time_point at = {}) noexcept {
    detail::trace_event e;
    e.kind = kind;
    e.tensor = tensor;
    e.time = at == decltype(at){} ? now() : at.time_since_epoch() / std::chrono::nanoseconds(1);
    return e;
  }

  void record(detail::trace_kind kind, std::string text) {
    if (!active() || forked()) return;
    auto owned = std::make_unique<std::string>(std::move(text));
    detail::trace_event e = event(kind, 0);
    e.text = owned.get();
    if (record(e)) (void)owned.release();
  }
  // True if the event is in the ring.
  bool record(const detail::trace_event& e) noexcept {
    // Acquire, because the ring is made before on_ is set.
    if (on_.load(std::memory_order_acquire) == off) return false;
    const auto before = e.tensor != detail::timeline_names::unknown ? ring_->push(e) : std::nullopt;
    if (!before) {
      dropped_.fetch_add(1, std::memory_order_relaxed);
      return false;
    }
    // The writer stores `idle` before it looks into the ring for the last time; here the event is added before the word
    // is read. So the writer sees the event, or this thread sees `idle`.
    if (word_.load(std::memory_order_seq_cst) == idle) {
      std::uint32_t was = idle;
      if (word_.compare_exchange_strong(was, running)) detail::futex_wake_all(word_);
    } else if (*before % (ring_->capacity() / 2) == 0) {
      detail::futex_wake_all(word_);  // before its period is over, so that the ring does not fill up
    }
    return true;
  }

  static void forget(void* self) noexcept { static_cast<Timeline*>(self)->on_ = off; }

  // A forked child has no writer, and threads that it does not have may hold locks.
  [[nodiscard]] bool forked() const noexcept { return process_ != 0 && process_ != ::getpid(); }

  int start_writer() noexcept {
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the writer handles no signals
    const int why = ::pthread_create(
        &writer_, nullptr,
        [](void* self) -> void* {
          static_cast<Timeline*>(self)->write();
          return nullptr;
        },
        this);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return why;
  }

  void halt() noexcept {
    if (file_ == nullptr) return;
    on_ = off;
    word_ = stopping;
    detail::futex_wake_all(word_);
    ::pthread_join(writer_, nullptr);
    file_.reset();
    text_.reset();
  }

  // The writer's functions.

  void write() noexcept {
    for (;;) {
      const bool last = word_ == stopping;
      bool found = false;
      try {
        found = drain(last);
      } catch (const std::exception& e) {
        give_up(e.what());
      }
      if (last) return;
      if (!found) {
        std::uint32_t was = running;
        if (word_.compare_exchange_strong(was, idle) && ring_->empty()) {
          detail::futex_wait(word_, idle, std::chrono::hours(1));
        }
        was = idle;
        word_.compare_exchange_strong(was, running);
      }
      detail::futex_wait(word_, running, period);
    }
  }

  // Moves the events in the ring into the file. False if there was nothing to do.
  bool drain(bool last) {
    bool found = false;
    for (int naps = 0;;) {
      std::string& lines = text_->lines();
      while (lines.size() < most_text) {
        const auto e = ring_->pop();
        if (!e) break;
        found = true;
        ++unwritten_;
        if (!add(*e)) lose(1);
      }
      const bool more = lines.size() >= most_text;
      if (last && !more) {
        if (!ring_->empty() && ++naps != 100) {  // a thread is about to complete its event
          detail::nap(detail::paces::other_process.sleep);
          continue;
        }
        if (!failed_) text_->end_all(now());
      }
      if (const std::uint64_t total = dropped(); !failed_ && total != noted_) {
        text_->add_dropped(total - noted_, total, now());
        noted_ = total;
      }
      if (lines.empty()) return found;
      switch (file_->append(lines, last ? last_lock_timeout : lock_timeout)) {
        case detail::timeline_file::outcome::busy:
          if (!last) return true;  // the ring holds what comes until then
          give_up("another process holds its lock");
          break;
        case detail::timeline_file::outcome::failed: give_up(file_->problem()); break;
        case detail::timeline_file::outcome::written: break;
      }
      lines.clear();
      unwritten_ = 0;
      if (!more) return true;
    }
  }

  bool add(const detail::trace_event& e) {
    const std::unique_ptr<std::string> text = e.take_text();
    if (failed_) return false;
    if (text == nullptr) return text_->add(e);
    text_->add(e, *text);
    return true;
  }

  void lose(std::uint64_t events) noexcept {
    dropped_.fetch_add(events, std::memory_order_relaxed);
    unwritten_ -= events;
  }

  void give_up(std::string_view why) noexcept {
    if (!failed_) {
      std::fprintf(stderr, "hvd: timeline on %s: '%s' cannot be written: %.*s; no more events are recorded\n",
                   who_.c_str(), file_->path().c_str(), static_cast<int>(why.size()), why.data());
    }
    failed_ = true;
    lose(unwritten_);
    text_->lines().clear();
  }

  std::atomic<int> on_{off};
  std::atomic<pid_t> process_{0};             // the one that called start
  std::atomic<std::uint32_t> word_{running};  // what the writer sleeps on
  std::atomic<std::uint64_t> dropped_{0};
  std::unique_ptr<detail::trace_ring> ring_;  // made by the first start
  detail::timeline_names names_;

  std::mutex control_;  // held by start and stop
  std::unique_ptr<detail::timeline_file> file_;
  std::optional<detail::timeline_text> text_;
  std::string who_;
  pthread_t writer_{};
  std::uint64_t noted_ = 0;      // dropped events that the file already reports
  std::uint64_t unwritten_ = 0;  // events in the text, not yet in the file
  bool failed_ = false;
};

}  // namespace hvd::inline HVD_ABI
