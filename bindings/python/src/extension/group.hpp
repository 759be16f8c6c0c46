// group.hpp: collectives and messages of a group of ranks, in the order in which the program calls them.
#pragma once

#include "connection.hpp"
#include "helper_thread.hpp"

#include <hvd/error.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace hvd_python {

using seconds = std::chrono::duration<double>;

/// An operation in flight, or done.
struct pending {
  collective what;  // of a collective
  std::shared_ptr<hvd::detail::tagged_message> message;
  seconds timeout{0};
  std::shared_ptr<void> keep;  ///< what has to stay alive until it is done
  std::shared_ptr<void> then;  ///< a function of Python for `callbacks`
  std::chrono::steady_clock::time_point submitted{};
  std::shared_ptr<std::byte> shared;  ///< collective::file, mapped
  bool done = false;                  ///< guarded by the group's mutex, as `then` is
  std::optional<hvd::error> problem;

  void throw_problem() const {
    if (problem) throw hvd::error(*problem);
  }
};

/// All ranks call the same collectives in the same order; nothing is negotiated. A blocking collective runs in the
/// thread of its caller if none is in flight. Others wait in a queue, for the group's thread or for a thread that waits
/// for them, whichever comes first. Messages have a transport and a thread of their own: no collective waits for them.
///
/// Any thread may call any function. `interrupted`, of each call that waits, is asked about every millisecond on the
/// waiting thread; where it returns true a collective that runs there ends, and the group with it.
class group {
 public:
  using interrupted = bool (*)();

  explicit group(std::unique_ptr<connection> c);
  group(const group&) = delete;
  group& operator=(const group&) = delete;
  ~group() { close(); }

  [[nodiscard]] int rank() const { return connection_->rank(); }
  [[nodiscard]] int size() const { return connection_->size(); }
  [[nodiscard]] std::vector<int> hosts() const { return connection_->hosts(); }

  /// Returns when the collective is done. Errors: what it ended with.
  void run(pending& p, interrupted by_signal);
  std::shared_ptr<pending> submit(std::shared_ptr<pending> p);
  /// Sends or receives. `at_once`: the caller waits next, and does the work itself.
  std::shared_ptr<pending> post(std::shared_ptr<pending> p, bool at_once);

  /// Waits. False where it is not done after `limit`. Errors: what it ended with; aborted if interrupted.
  bool wait(pending& p, std::optional<seconds> limit, interrupted by_signal);
  [[nodiscard]] bool poll(const pending& p);
  /// `function` goes to `callbacks` when the operation ends, at once if it has ended.
  void when_done(pending& p, std::shared_ptr<void> function);

  /// Memory that the ranks of a host share. Collective.
  std::shared_ptr<std::byte> alloc_shared(std::size_t bytes, interrupted by_signal);
  std::shared_ptr<std::byte> map_shared(int fd, std::size_t bytes, interrupted by_signal);

  /// Collective: from now on the process's timeline is written to this file.
  void start_timeline(const std::string& path, interrupted by_signal);

  /// The timeline shows the group as the process set of this number, with these ranks of the job. Before it is used.
  void describe(int set, const std::vector<int>& ranks);

  /// Ends what is in flight, here and on all other ranks of the group.
  void abort() noexcept;
  /// Leaves the group, after what is in flight has ended; what has not within `limit` is aborted.
  void close(seconds limit = seconds(5)) noexcept;

 private:
  using lock = std::unique_lock<std::mutex>;

  /// Runs `f(connection)` in this thread, alone, after all collectives that were called before.
  template <class F>
  auto exclusively(interrupted by_signal, const F& f);
  void perform(pending& p);
  void run_next(lock& held);
  void finish(pending& p, const std::optional<hvd::error>& problem);
  void drive();

  void move_messages(lock& held, bool waits);
  void carry(lock& held, const pending* until);
  void drive_messages();

  static bool wants_out(void* self);

  const std::unique_ptr<connection> connection_;
  std::atomic<bool> aborting_{false};
  std::atomic<int> set_{0};

  std::mutex mutex_;
  std::condition_variable ended_;  // an operation has, for threads that wait
  bool closing_ = false;

  std::deque<std::shared_ptr<pending>> queue_;  // of collectives
  bool running_ = false;                        // one runs, in some thread
  helper_thread driver_;

  std::deque<std::shared_ptr<pending>> posted_, in_flight_;  // messages: not yet, and already, given to the connection
  std::atomic<bool> woken_{false};                           // there are posted ones
  bool carrying_ = false;                                    // some thread moves messages
  std::optional<hvd::error> broken_;                         // what has ended all messages
  helper_thread carrier_;
};

}  // namespace hvd_python
