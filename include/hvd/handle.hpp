// hvd/handle.hpp: operations of an engine or a queue, in flight or done.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/deadline.hpp>
#include <hvd/dtype.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/futex.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI {

/// The result for one tensor.
struct result {
  std::shared_ptr<std::byte> data{};  ///< in the kind of memory of the input; null if the caller passed memory
  std::vector<std::size_t> shape{};   ///< of the output
  dtype type = dtype::float32;
  std::vector<std::size_t> received_splits{};  ///< alltoall: rows from each rank
};

namespace detail {

/// The end of one submission, shared between its handles and the engine.
class completion {
 public:
  /// True while its name is taken: the program has a handle and has not seen the end through it. This depends only on
  /// the order of the program's calls, so it is the same on all ranks; the time of the operation's end is not.
  [[nodiscard]] bool held() const noexcept { return !let_go_.load(std::memory_order_relaxed); }
  void let_go() noexcept { let_go_.store(true, std::memory_order_relaxed); }
  /// Counts another handle; the first one, which the engine returns, is already counted.
  void hold() noexcept { handles_.fetch_add(1, std::memory_order_relaxed); }
  void drop() noexcept {
    if (handles_.fetch_sub(1, std::memory_order_relaxed) == 1) let_go();
  }

  [[nodiscard]] bool finished() const noexcept { return reached(false); }
  /// True if it has finished, or if all of its work is queued on a device before `event`.
  [[nodiscard]] bool queued() const noexcept { return reached(true); }
  /// The device's event after which the outputs are written; null for an operation on the host, and until `queued`.
  [[nodiscard]] const std::shared_ptr<void>& event() const noexcept { return event_; }
  /// The operation's error, if it has one; once finished.
  [[nodiscard]] const std::optional<error>& problem() const noexcept { return problem_; }

  /// True if a waiting thread may go on: at the end, or with `only_queued` when all work is queued on a device.
  [[nodiscard]] bool reached(bool only_queued) const noexcept {
    return has(state_.load(std::memory_order_acquire), only_queued);
  }
  /// Sleeps until it is reached, or until `until`; true if it is reached.
  bool sleep_until(std::chrono::steady_clock::time_point until, bool only_queued = false) const noexcept {
    while (!reached(only_queued)) {
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= left.zero()) return false;
      const std::uint32_t seen = state_.fetch_or(slept_for, std::memory_order_acq_rel);
      if (has(seen, only_queued)) break;
      futex_wait(state_, seen | slept_for, std::min<std::chrono::nanoseconds>(left, std::chrono::seconds(1)));
    }
    return true;
  }

  /// Called by a device, once at most, before `finish`.
  void queue(std::shared_ptr<void> event) {
    event_ = std::move(event);
    if (change(on_device)) futex_wake_all(state_);
  }

  /// Called by the engine, once.
  void finish(std::optional<error> problem) {
    problem_ = std::move(problem);
    std::vector<std::function<void()>> after;
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      wake = change(done);
      after.swap(after_);
    }
    if (wake) futex_wake_all(state_);
    for (const auto& f : after) f();
  }
  /// Calls `f` at the end: on the thread that ends it, or here if it has ended.
  void then(std::function<void()> f) {
    {
      const std::lock_guard lock(mutex_);
      if (!finished()) {
        after_.push_back(std::move(f));
        return;
      }
    }
    f();
  }

  std::vector<result> results{};  ///< one for each tensor; written before the end
  int answer = -1;  ///< of a join: the rank that came last; of a new process set: its number; of a recv: the sender
  operation kind = operation::barrier;  ///< the kind under which it is counted
  std::string_view what{};              ///< this and the following members are for messages, which are made when needed
  std::string name{};
  int rank = 0, size = 1;
  /// Whether a device shall measure the time of its work, and this time; written by the driving thread.
  bool timed = false;
  std::chrono::nanoseconds device_time{0};

  void describe(operation counted, std::string_view called, std::string named, int of, int ranks) {
    kind = counted;
    what = called;
    name = std::move(named);
    rank = of;
    size = ranks;
  }
  [[nodiscard]] std::string label() const {
    const std::string quoted = name.empty() ? std::string() : joined({" \"", name, "\""});
    return joined({what, quoted, " on rank ", rank, " of ", size});
  }

 private:
  // A wake-up is a system call and takes longer than a short operation, so a thread that sleeps sets a bit in the word.
  static constexpr std::uint32_t done = 1, on_device = 2, slept_for = 4;
  static bool has(std::uint32_t state, bool only_queued) noexcept {
    return (state & (only_queued ? done | on_device : done)) != 0;
  }
  /// True if a thread may sleep for the change.
  bool change(std::uint32_t to) noexcept { return (state_.exchange(to, std::memory_order_acq_rel) & slept_for) != 0; }

  mutable std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> handles_{1};  // that the program has
  std::atomic<bool> let_go_{false};
  std::shared_ptr<void> event_;
  std::optional<error> problem_;
  std::mutex mutex_;
  std::vector<std::function<void()>> after_;
};

/// A forked child has neither the threads nor the common memory of an engine, and a thread that exists only in the
/// parent may hold any of its locks. So this is called before a lock is taken.
inline void refuse_fork(pid_t owner, int rank, int size) {
  if (::getpid() == owner) return;
  fail(error_kind::invalid_argument, {"the engine of rank ", rank, " of ", size,
                                      ": this process was forked from the one that made it; only that one may use it"});
}

/// The part of a driver that a handle uses: a wait that makes progress.
class waiting_room {
 public:
  virtual ~waiting_room() = default;
  /// Returns when `end` has finished, or with `only_queued` when it is queued on a device, or at `until`.
  virtual void await(const completion& end, std::chrono::steady_clock::time_point until, bool only_queued) = 0;
};

/// A handle's share of a completion.
class completion_share {
 public:
  completion_share() = default;
  /// `holds` is true if it holds the name. The share of a callback does not, because the callback's time of return
  /// differs between ranks.
  completion_share(std::shared_ptr<completion> end, bool holds) noexcept : end_(std::move(end)), holds_(holds) {}
  completion_share(const completion_share& other) noexcept : end_(other.end_), holds_(other.holds_) {
    if (holds_ && end_) end_->hold();
  }
  completion_share(completion_share&&) noexcept = default;
  completion_share& operator=(completion_share other) noexcept {
    std::swap(end_, other.end_);
    std::swap(holds_, other.holds_);
    return *this;
  }
  ~completion_share() {
    if (holds_ && end_) end_->drop();
  }

  void let_go() const noexcept {
    if (end_) end_->let_go();
  }
  [[nodiscard]] explicit operator bool() const noexcept { return end_ != nullptr; }
  completion* operator->() const noexcept { return end_.get(); }
  [[nodiscard]] const std::shared_ptr<completion>& get() const noexcept { return end_; }
  completion& operator*() const noexcept { return *end_; }

 private:
  std::shared_ptr<completion> end_;
  bool holds_ = false;
};

}  // namespace detail

/// A submission in flight or done. Copies of a handle refer to the same submission; any thread may use them. They may
/// outlive the engine or queue, which ends the submission when it ends.
///
/// A handle holds the name of its submission until a wait has returned or thrown the operation's error, until `poll`
/// has returned true, or until the last copy is gone. Until then the name cannot be submitted again, even if the
/// operation has ended meanwhile. So if ranks make the same calls, either all are refused or none. After that the name
/// can be submitted again, even while the operation is in flight: an operation begins when the previous one of its name
/// has ended.
class handle {
 public:
  handle() = default;
  handle(std::shared_ptr<detail::completion> end, std::weak_ptr<detail::waiting_room> where)
      : end_(std::move(end), true), where_(std::move(where)) {}
  /// For a callback: does not hold the name, but can release it.
  explicit handle(std::shared_ptr<detail::completion> end) : end_(std::move(end), false) {}

  /// True if the operation is done, with or without an error. Cost: one load.
  [[nodiscard]] bool poll() const noexcept {
    if (!end_) return true;
    if (!end_->finished()) return false;
    end_.let_go();
    return true;
  }
  /// True if the operation is done, with an error, which `wait` throws.
  [[nodiscard]] bool failed() const noexcept { return end_ && end_->finished() && end_->problem(); }
  /// Releases the name, as if all copies were gone.
  void let_go() const noexcept { end_.let_go(); }

  /// Blocks until the operation is done. The waiting thread does the work if no other thread does; otherwise it
  /// sleeps. Errors: the operation's error (mismatch between ranks, a lost peer, ...); timeout after `limit`, and the
  /// operation then stays in flight. A negative limit ends at once; infinity, or more than a hundred years, means no
  /// limit; NaN is an error (invalid_argument).
  void wait(std::optional<std::chrono::duration<double>> limit = std::nullopt) const { await(limit, false); }
  /// Like `wait`, but for an operation on a device, also returns when all of its work is queued there. Then
  /// `device_event` is the event after which the outputs are written; later failures are not known yet.
  void wait_queued(std::optional<std::chrono::duration<double>> limit = std::nullopt) const { await(limit, true); }
  /// The event for other streams to wait for (a cudaEvent_t or CUevent); it lives as long as a handle. Null for an
  /// operation on the host, and before `wait_queued` has returned.
  [[nodiscard]] void* device_event() const noexcept { return end_ && end_->queued() ? end_->event().get() : nullptr; }

  /// The result of tensor `i`, after `wait`; on a device also after `wait_queued`, and then written only after
  /// `device_event`. Errors: invalid_argument before that, or for a tensor that does not exist.
  [[nodiscard]] const result& output(std::size_t i = 0) const {
    if (!end_ || !end_->queued() || i >= end_->results.size()) {
      detail::fail(error_kind::invalid_argument, {"output ", i, " of a handle that has ",
                                                  end_ && end_->queued() ? end_->results.size() : 0, " outputs yet"});
    }
    return end_->results[i];
  }
  /// Calls `f(handle)` when the operation is done, with or without an error: on the thread that ends it, or here if it
  /// is done. `f` must be quick, must not throw, and must not wait for other operations. The handle that it gets does
  /// not hold the name.
  void then(std::function<void(const handle&)> f) const {
    if (!end_) return f(*this);
    end_->then([f = std::move(f), end = std::weak_ptr(end_.get())] {
      if (auto alive = end.lock()) f(handle(std::move(alive)));
    });
  }
  /// For a join that is done: the rank that joined last; otherwise -1.
  [[nodiscard]] int last_joined() const noexcept { return end_ && end_->finished() ? end_->answer : -1; }
  /// For a message of a queue that was received: its sender; otherwise -1.
  [[nodiscard]] int source() const noexcept { return last_joined(); }

 private:
  void await(std::optional<std::chrono::duration<double>> limit, bool only_queued) const {
    if (!end_) return;
    if (!end_->reached(only_queued)) {
      if (limit && std::isnan(limit->count())) {
        detail::fail(error_kind::invalid_argument,
                     {end_->label(), ": the time limit is not a number; pass seconds, or no limit"});
      }
      const auto until = limit ? detail::deadline_after(*limit) : std::chrono::steady_clock::time_point::max();
      if (const auto room = where_.lock()) room->await(*end_, until, only_queued);
      if (!end_->reached(only_queued)) {
        if (!limit) detail::fail(error_kind::aborted, {end_->label(), " did not end before its queue did"});
        detail::fail(error_kind::timeout,
                     {end_->label(), " is not done after ", limit->count(), " s; it stays in flight"});
      }
    }
    end_.let_go();
    if (end_->finished() && end_->problem()) throw error(*end_->problem());
  }

  detail::completion_share end_;
  std::weak_ptr<detail::waiting_room> where_;
};

}  // namespace hvd::inline HVD_ABI
