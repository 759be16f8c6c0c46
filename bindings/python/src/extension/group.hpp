// group.hpp: collectives and messages of a group of ranks, in the order in which the program calls them.
#pragma once

#include "collective.hpp"

#include <hvd/queue.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_python {

using seconds = std::chrono::duration<double>;

/// A collective or a message in flight, or done.
struct pending {
  collective what{};                    ///< of a message only the kind
  seconds timeout{0};                   ///< for each wait of a collective
  std::shared_ptr<std::byte> shared{};  ///< collective::file, mapped
  hvd::handle end{};
};

/// A queue of torch.distributed, whose calls are recorded and counted. Any thread may call any function.
class group {
 public:
  /// Collective. `by_signal`: see hvd::queue_options.
  group(hvd::any_transport ranks, const hvd::interruption& by_signal)
      : hosts_(ranks.host_of()), transport_(ranks.held_name()), calls_(std::move(ranks), {true, by_signal}) {}

  [[nodiscard]] int rank() const { return calls_.rank(); }
  [[nodiscard]] int size() const { return calls_.size(); }
  [[nodiscard]] const std::vector<int>& hosts() const { return hosts_; }

  /// Returns when the collective is done. Throws its error.
  void run(pending& p);
  void submit(const std::shared_ptr<pending>& p, std::shared_ptr<void> keep);
  /// Sends or receives. `waits`: the caller waits next, and does the work on its own thread.
  void post(pending& p, hvd::detail::tagged_message message, bool waits, std::shared_ptr<void> keep);
  /// Returns false if it is not done after `limit`. Throws its error, or `aborted` if interrupted.
  bool wait(const pending& p, std::optional<seconds> limit);

  /// Memory shared by the ranks of a host; collective. Null if not possible.
  std::shared_ptr<std::byte> alloc_shared(std::size_t bytes);
  std::shared_ptr<std::byte> map_shared(int fd, std::size_t bytes);

  /// A transport of the same ranks, for another part of the program. Collective.
  hvd::any_transport split();

  /// Writes the process's timeline to this file from now on. Collective.
  void start_timeline(const std::string& path);
  /// Sets the process set and the ranks of the job under which the timeline shows the group. Call it before the first
  /// use.
  void describe(int set, const std::vector<int>& ranks);
  [[nodiscard]] int process_set() const { return set_.load(); }

  void abort() noexcept { calls_.abort(); }
  /// Leaves the group when all operations in flight have ended. Aborts those that have not ended within `limit`.
  void close(seconds limit) noexcept { calls_.close(limit); }

 private:
  void perform(hvd::any_transport& comm, pending& p);

  const std::vector<int> hosts_;
  const std::string_view transport_;  // its name in a timeline
  std::atomic<int> set_{0};
  hvd::queue calls_;
};

/// A group of one rank; and of ranks of this host that pass the same name. `check`: see hvd::failure_policy. Throws
/// hvd::ShmTransport's errors.
hvd::any_transport alone();
hvd::any_transport over_shared_memory(const std::string& name, int rank, int size, double timeout, bool check);

}  // namespace hvd_python
