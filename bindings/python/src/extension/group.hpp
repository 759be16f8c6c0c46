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
  collective what;  // set for a collective
  std::shared_ptr<hvd::detail::tagged_message> message;
  seconds timeout{0};
  std::shared_ptr<void> keep;  ///< kept alive until it is done
  std::shared_ptr<void> then;  ///< a Python function for `callbacks`
  std::chrono::steady_clock::time_point submitted{};
  std::shared_ptr<std::byte> shared;  ///< collective::file, mapped
  bool done = false;                  ///< guarded by the group's mutex, like `then`
  std::optional<hvd::error> problem;

  void throw_problem() const {
    if (problem) throw hvd::error(*problem);
  }
};

/// All ranks call the same collectives in the same order, without negotiation. A blocking collective runs on its
/// caller's thread if no other is in flight. Other collectives wait in a queue, until the group's thread or a waiting
/// thread runs them. Messages have their own transport and thread, so no collective waits for them.
///
/// Any thread may call any function. Calls that wait take `interrupted` and call it about every millisecond on the
/// waiting thread. If it returns true while a collective runs there, that collective ends, and the group with it.
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

  /// Returns when the collective is done. Throws its error.
  void run(pending& p, interrupted by_signal);
  std::shared_ptr<pending> submit(std::shared_ptr<pending> p);
  /// Sends or receives. `at_once`: the caller waits next, and does the work on its own thread.
  std::shared_ptr<pending> post(std::shared_ptr<pending> p, bool at_once);

  /// Waits until it is done; returns false if it is not after `limit`. Throws its error, or `aborted` if interrupted.
  bool wait(pending& p, std::optional<seconds> limit, interrupted by_signal);
  [[nodiscard]] bool poll(const pending& p);
  /// Passes `function` to `callbacks` when the operation ends, or at once if it has ended.
  void when_done(pending& p, std::shared_ptr<void> function);

  /// Allocates memory shared by the ranks of a host. Collective.
  std::shared_ptr<std::byte> alloc_shared(std::size_t bytes, interrupted by_signal);
  std::shared_ptr<std::byte> map_shared(int fd, std::size_t bytes, interrupted by_signal);

  /// Writes the process's timeline to this file from now on. Collective.
  void start_timeline(const std::string& path, interrupted by_signal);

  /// Sets the process set and the ranks of the job under which the timeline shows the group. Call it before the first
  /// use.
  void describe(int set, const std::vector<int>& ranks);

  /// Ends all operations in flight, here and on all other ranks of the group.
  void abort() noexcept;
  /// Leaves the group when all operations in flight have ended. Aborts those that have not ended within `limit`.
  void close(seconds limit = seconds(5)) noexcept;

 private:
  using lock = std::unique_lock<std::mutex>;

  /// Runs `f(connection)` alone on this thread, after all collectives called before.
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
  std::condition_variable ended_;  // notified when an operation ends
  bool closing_ = false;

  std::deque<std::shared_ptr<pending>> queue_;  // collectives
  bool running_ = false;                        // a collective runs, on some thread
  helper_thread driver_;

  std::deque<std::shared_ptr<pending>> posted_, in_flight_;  // messages before and after they reach the connection
  std::atomic<bool> woken_{false};                           // there are posted messages
  bool carrying_ = false;                                    // a thread moves messages
  std::optional<hvd::error> broken_;                         // the error that ended all messages
  helper_thread carrier_;
};

}  // namespace hvd_python
