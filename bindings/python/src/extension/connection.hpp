// connection.hpp: a group of ranks with the type of its transport hidden, for torch.distributed.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/tagged_message.hpp>
#include <hvd/dtype.hpp>
#include <hvd/engine/clock.hpp>
#include <hvd/policy.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_python {

/// The reductions of torch.distributed, in its order.
enum class torch_op : unsigned char { sum, average, product, min, max, bit_and, bit_or, bit_xor };

/// One collective. Counts are in elements of `type`.
struct collective {
  hvd::operation kind = hvd::operation::barrier;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;  ///< in the whole vector, or in one of several equal blocks
  hvd::dtype type = hvd::dtype::uint8;
  torch_op op = torch_op::sum;
  double factor = 1.0;  ///< of each input
  int root = 0;
  bool may_share = false;               ///< for an allreduce in place, the same on all ranks: ranks exchange `file`
  int file = -1;                        ///< descriptor of the buffer's shared memory, which other ranks may map
  std::vector<std::size_t> send, recv;  ///< elements of each block if blocks differ; `recv` also for an allgather

  /// Bytes of this rank's input in a group of `ranks` ranks.
  [[nodiscard]] std::uint64_t input_bytes(int ranks) const noexcept {
    std::size_t elements = count;
    if (!send.empty()) {
      elements = std::accumulate(send.begin(), send.end(), std::size_t{0});
    } else if (kind == hvd::operation::reduce_scatter || kind == hvd::operation::alltoall) {
      elements *= static_cast<std::size_t>(ranks);
    }
    return elements * hvd::size_of(type);
  }
};

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
