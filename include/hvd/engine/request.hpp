// hvd/engine/request.hpp: a request to the engine, and the handle to wait for its end.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/deadline.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/tensors.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI {

/// The location of a tensor: on the host, or on a device of this rank.
struct tensor_memory {
  memory_kind kind = memory_kind::host;
  int device = 0;  ///< its index on this rank; ranks need not have the same
  /// An event of the device: the input is read and the output written only after it; null: at once. The type of the
  /// event depends on the device. It must live until the operation is done.
  void* ready = nullptr;
};

/// One tensor of a submission, on this rank: contiguous memory in row-major order.
struct tensor {
  const std::byte* in = nullptr;  ///< null only without elements
  /// Memory for the result, or null: then the engine allocates it, and `handle::output` returns it. As long as `in` for
  /// allreduce and broadcast, and possibly the same memory; this rank's rows for reduce_scatter. For allgather all
  /// ranks pass memory, for all tensors, or none does; with memory all have equally many rows, and `in` may be this
  /// rank's part of it. For alltoall see `out_rows`.
  std::byte* out = nullptr;
  /// alltoall: the rows for which `out` has room. If other ranks send another number in all, the engine allocates the
  /// result as if `out` were null.
  std::size_t out_rows = 0;
  dtype type = dtype::float32;
  std::vector<std::size_t> shape{};   ///< of the input; empty: a scalar
  std::vector<std::size_t> splits{};  ///< alltoall: rows (of dimension 0) for each rank; empty: equal parts
  tensor_memory memory{};             ///< of `in` and `out`; of one kind for all tensors of an operation, on all ranks
};

namespace detail {

/// Converts a tensor of a list to a tensor of a request.
inline tensor tensor_of(const fused& f) {
  tensor t;
  t.in = f.in;
  t.out = f.out;
  t.type = f.type;
  t.shape = {f.count};
  return t;
}

}  // namespace detail

class handle;

/// One named operation, on one tensor or on a group of them. Ranks may submit in any order; an operation runs when all
/// ranks of the process set have submitted its name.
struct request {
  operation kind = operation::allreduce;  ///< allreduce, allgather, broadcast, reduce_scatter, alltoall or barrier
  std::string name{};                     ///< not one that a handle of the process set holds: see `handle`
  std::vector<tensor> tensors{};          ///< the tensors of a group become ready, and run, together
  reduce_op op = reduce_op::sum;          ///< for allreduce and reduce_scatter
  double prescale = 1.0;                  ///< factor of every input
  double postscale = 1.0;                 ///< factor of the result
  /// For allreduce and reduce_scatter: the type in which wider floating-point tensors travel and are reduced, float16
  /// or bfloat16 for float32, float32 for float64; other tensors travel as they are. They are converted while they are
  /// packed, and each result is rounded to this type. `user`: no conversion.
  dtype wire = dtype::user;
  int root = 0;  ///< of a broadcast: a rank of the process set
  /// Of operations that are ready at the same time, those with higher values run first. For a new name the value of the
  /// lowest rank counts.
  int priority = 0;
  std::shared_ptr<void> keep{};  ///< kept alive until the operation is done
  /// Called once, by the thread that ended the operation; must neither wait nor throw. Its handle does not hold the
  /// name. Calling `poll` on it releases the name, so that the callback can submit the name again.
  std::function<void(const handle&)> done{};
};

/// The optional arguments of a call by name and buffer.
struct submit_options {
  int process_set = 0;
  int priority = 0;              ///< as in request
  dtype wire = dtype::user;      ///< as in request
  std::shared_ptr<void> keep{};  ///< owner of the buffer's memory: kept alive until the operation is done
};

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

  [[nodiscard]] bool finished() const noexcept { return state_.load(std::memory_order_acquire) == 1; }
  /// True if it has finished, or if all of its work is queued on a device before `event`.
  [[nodiscard]] bool queued() const noexcept { return state_.load(std::memory_order_acquire) != 0; }
  /// The device's event after which the outputs are written; null for an operation on the host, and until `queued`.
  [[nodiscard]] const std::shared_ptr<void>& event() const noexcept { return event_; }
  /// The operation's error, if it has one; once finished.
  [[nodiscard]] const std::optional<error>& problem() const noexcept { return problem_; }

  /// True if a waiting thread may go on: at the end, or with `only_queued` when all work is queued on a device.
  [[nodiscard]] bool reached(bool only_queued) const noexcept { return only_queued ? queued() : finished(); }
  /// Sleeps until it is reached, or until `until`; true if it is reached.
  bool sleep_until(std::chrono::steady_clock::time_point until, bool only_queued = false) const noexcept {
    for (auto seen = state_.load(std::memory_order_acquire); !reached(only_queued);
         seen = state_.load(std::memory_order_acquire)) {
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= left.zero()) return false;
      if (seen != 1) futex_wait(state_, seen, std::min<std::chrono::nanoseconds>(left, std::chrono::seconds(1)));
    }
    return true;
  }

  /// Called by a device, once at most, before `finish`.
  void queue(std::shared_ptr<void> event) {
    event_ = std::move(event);
    state_.store(2, std::memory_order_release);
    futex_wake_all(state_);
  }

  /// Called by the engine, once.
  void finish(std::optional<error> problem) {
    problem_ = std::move(problem);
    state_.store(1, std::memory_order_release);
    futex_wake_all(state_);
  }

  std::vector<result> results{};        ///< one for each tensor; written before the end
  int answer = -1;                      ///< of a join: the rank that came last; of a new process set: its number
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
  std::atomic<std::uint32_t> state_{0};    // 2: queued on a device; 1: finished
  std::atomic<std::uint32_t> handles_{1};  // that the program has
  std::atomic<bool> let_go_{false};
  std::shared_ptr<void> event_;
  std::optional<error> problem_;
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
  completion& operator*() const noexcept { return *end_; }

 private:
  std::shared_ptr<completion> end_;
  bool holds_ = false;
};

}  // namespace detail

/// A submission in flight or done. Copies of a handle refer to the same submission; any thread may use them. They may
/// outlive the engine, which ends the submission when it ends.
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
  /// Releases the name, as if all copies were gone.
  void let_go() const noexcept { end_.let_go(); }

  /// Blocks until the operation is done. The waiting thread drives the engine if no other thread does; otherwise it
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
  /// For a join that is done: the rank that joined last; otherwise -1.
  [[nodiscard]] int last_joined() const noexcept { return end_ && end_->finished() ? end_->answer : -1; }

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
