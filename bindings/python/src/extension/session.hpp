// session.hpp: the engine of a job, without its headers.
#pragma once

#include <hvd/engine/metrics.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/timeline.hpp>
#include <hvd/transport/nccl/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {
class any_transport;
}

namespace hvd_python {

/// See hvd::Engine for each function. Any thread may call any of them except the destructor.
class session {
 public:
  session() = default;
  session(const session&) = delete;
  session& operator=(const session&) = delete;
  virtual ~session() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// A number for each rank's host; ranks with common memory have the same one.
  virtual std::vector<int> hosts() const = 0;
  /// Without `wake`, the caller waits next, and does the work itself.
  virtual hvd::handle submit(hvd::request r, int process_set, bool wake) = 0;
  virtual hvd::handle join() = 0;
  virtual void settle() = 0;
  virtual int add_process_set(const std::vector<int>& ranks) = 0;
  virtual void remove_process_set(int id) = 0;
  virtual std::shared_ptr<std::byte> alloc_bucket(std::size_t bytes) = 0;
  virtual std::shared_ptr<std::byte> alloc_device_bucket(std::size_t bytes, int device) = 0;
  virtual void start_timeline(const std::string& path, bool mark_cycles) = 0;
  virtual void stop_timeline() = 0;
  virtual void mark_step(std::uint64_t samples) = 0;
  virtual hvd::engine_metrics metrics() const = 0;
  virtual void shutdown() = 0;
};

struct session_options {
  hvd::nccl_options nccl = hvd::nccl_options::from_environment();
  std::shared_ptr<hvd::Timeline> records_in{};  ///< see hvd::engine_options
};

/// A job of connected ranks. Throws hvd::Engine's errors.
std::shared_ptr<session> connect(hvd::any_transport ranks, const session_options& how);
/// A job of one process. Throws hvd::Engine's errors.
std::shared_ptr<session> connect_alone(const session_options& how);
/// A job of processes of this host. Throws the errors of hvd::ShmTransport and hvd::Engine.
std::shared_ptr<session> connect_shm(const std::string& name, int rank, int size, const session_options& how);

}  // namespace hvd_python
