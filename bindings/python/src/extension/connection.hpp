// connection.hpp: a group of ranks with the type of its transport hidden, for torch.distributed.
#pragma once

#include "collective.hpp"

#include <hvd/detail/tagged_message.hpp>
#include <hvd/engine/clock.hpp>
#include <hvd/policy.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_python {

/// The connection between ranks: one transport for collectives and another for messages. Only one thread at a time
/// calls the functions of each part. Throws the transports' errors.
class connection {
 public:
  connection() = default;
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  virtual ~connection() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// A number for each rank's host; ranks with common memory have the same one.
  [[nodiscard]] virtual std::vector<int> hosts() const = 0;
  /// The name of its collectives in a timeline, such as "SHM".
  [[nodiscard]] virtual std::string_view timeline_name() const = 0;
  /// Ends waits of both parts, current and future. Any thread may call it.
  virtual void abort() noexcept = 0;
  virtual void set_interruption(const hvd::interruption& by) = 0;

  // ---- collectives ----
  virtual hvd::detail::job_clock agree_on_clock() = 0;
  virtual void run(const collective& c, hvd::failure_policy::seconds timeout) = 0;
  virtual std::shared_ptr<std::byte> alloc_shared(std::size_t bytes) = 0;
  /// See hvd::ShmTransport::map_shared. Null if not possible.
  virtual std::shared_ptr<std::byte> map_shared(int fd, std::size_t bytes) = 0;

  // ---- messages: see hvd::detail::tagged_messages ----
  virtual void post(std::shared_ptr<hvd::detail::tagged_message> message) = 0;
  [[nodiscard]] virtual bool idle() const = 0;
  virtual bool progress() = 0;
  virtual void wait(const std::atomic<bool>& woken) = 0;
  virtual void wake() noexcept = 0;
  virtual void fail_all(const hvd::error& why) = 0;
};

/// A group of one rank.
std::unique_ptr<connection> group_alone();
/// A group of ranks of this host that pass the same name. `check`: see hvd::failure_policy. Throws hvd::ShmTransport's
/// errors.
std::unique_ptr<connection> group_shm(const std::string& name, int rank, int size, double timeout, bool check);

}  // namespace hvd_python
