// tests/gpu/standin/nccl.hpp: the inside of the stand-in for NCCL: communicators, and operations that wait in streams.
#pragma once

#include <hvd/transport/nccl/library.hpp>

#include "gpu/standin.hpp"
#include "gpu/standin/mesh.hpp"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace hvd::standin {

using namespace hvd::detail;
using test::standin_gpu;

/// What is done to elements. The factor of ncclRedOpCreatePreMulSum is copied when the operation is queued, or read on
/// the device when it runs.
struct reduction {
  int op = nccl_sum;  ///< nccl_sum to nccl_average_op; `pre_mul`
  static constexpr int pre_mul = 5;
  int type = nccl_float32;
  std::uint64_t on_device = 0;
  std::array<std::byte, 8> factor{};
};

std::size_t bytes_of(int type);
bool valid_type(int type);
/// out[i] = all of in[rank][i], in the order of the ranks.
void reduce(std::span<const std::vector<std::byte>> in, std::byte* out, int type, const reduction& how);

struct communicator {
  int rank = 0, size = 0, device = 0;
  bool blocking = true;
  std::string name{};
  std::unique_ptr<mesh> all{};
  std::atomic<int> state = nccl_success;    ///< of the calls, for ncclCommGetAsyncError
  std::atomic<int> network = nccl_success;  ///< of the proxies, which no later call makes good
  std::atomic<bool> stop = false;           ///< aborted or revoked: works end at once
  std::atomic<bool> revoked = false;
  std::atomic<bool> connected_once = false;  ///< its start has succeeded
  std::atomic<bool> finalized = false;
  std::atomic<bool> aborted = false;
  std::shared_ptr<communicator> parent{};  ///< while this one is made of it
  unsigned children = 0;
  nccl_config config{};
  std::uint64_t buffers = 0;  ///< memory of the device, whose freeing waits for all work of the device
  bool connected = true;      ///< false: the first operations connect, inside of the call
  std::thread::id starter{};  ///< before 2.26: the thread whose call is not joined

  std::mutex mutex{};
  std::condition_variable changed{};
  std::uint64_t queued = 0, over = 0;  ///< batches; they run one after another, whatever their streams are
  std::map<int, reduction> ops{};
  int last_op = nccl_average_op;
  std::set<void*> registered{};
  /// Those of ncclCommWindowRegister, by the address behind the last byte.
  struct window {
    std::uint64_t begin = 0, number = 0;
    bool symmetric = false;
  };
  std::map<std::uint64_t, window> windows{};
  std::uint64_t last_window = 0;

  /// Until all that was queued is over; false if `stop` came first.
  bool drain();
  /// One message to each rank and one from each, among the hosts. False if `stop` came first.
  bool exchange(const void* mine, std::size_t bytes, std::vector<std::byte>& of_all);
};

/// Where a buffer lies in registered memory. NCCL decides by its own rank's buffers how it runs a collective, and
/// computes the peers' addresses in a symmetric window from its own.
struct in_window {
  bool yes = false;
  std::uint64_t offset = 0;  ///< with the window's number; 0 if it is not symmetric
};

enum class kind { allreduce, reduce, broadcast, reduce_scatter, allgather, alltoall, gather, scatter, send, recv };

struct operation {
  kind what = kind::allreduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  int type = 0;
  reduction how{};
  int peer = 0;  ///< or the root
  in_window in_at{}, out_at{};

  /// Of its two buffers on this rank; 0 where it has none.
  [[nodiscard]] std::size_t bytes_in(const communicator& c) const;
  [[nodiscard]] std::size_t bytes_out(const communicator& c) const;
};

/// What one work of a stream does: a group's operations on one communicator, or one operation.
struct batch {
  std::shared_ptr<communicator> on{};
  void* stream = nullptr;
  std::vector<operation> operations{};
  std::uint64_t ticket = 0;
  std::uint64_t launch = 0;  ///< on its device
  int fails_with = 0;
};
/// Runs it on the stream's thread.
void run(batch& b);

/// The launches of a device, by all communicators. With HVD_STANDIN_NCCL_SERIAL=1 each begins when those before it are
/// over, as on a GPU on which kernels do not fit side by side.
struct launches {
  std::mutex mutex{};
  std::condition_variable changed{};
  std::uint64_t last = 0;
  std::set<std::uint64_t> not_over{};
  static launches& of(int device);
};

/// The stand-in for the driver; null where there is none.
const standin_gpu* find_gpu();
int library_version();
/// Keeps a sentence for ncclGetLastError.
nccl_result failed(nccl_result code, const std::string& sentence);
std::string last_sentence();
/// The error that a test wants of this call, or that there is no stand-in for the driver.
nccl_result injected(const char* symbol);
/// The communicator of a handle, if it was not destroyed.
std::shared_ptr<communicator> find(nccl_comm handle);
/// What ncclCommGetAsyncError says.
nccl_result state_of(const communicator& c);
/// The same, for a call that needs a communicator that has ended its calls, and joins them.
nccl_result ensure_ready(communicator& c);
/// nccl_success if operations may be queued.
nccl_result ready(const std::shared_ptr<communicator>& c);
/// Before NCCL 2.26 the thread of a non-blocking call keeps its state in memory of the thread that made the call: that
/// one has to join it before it makes another call, and no other thread may. Both mistakes are violations.
void begin_job(const std::shared_ptr<communicator>& c);
void join_job(communicator& c);

inline constexpr std::string_view id_prefix = "hvd-standin-nccl-";
/// NCCL takes from the caller's configuration as many bytes as it has, and knows the rest by itself.
nccl_result read_config(const nccl_config* given, nccl_config& to);
/// Waits for the other ranks, and compares what they say of themselves.
nccl_result connect(communicator& c);
/// Runs `work` here, or later where the communicator does not block; its result is the state of all of `whose`.
nccl_result perform(bool blocking, const std::vector<std::shared_ptr<communicator>>& whose,
                    const std::function<nccl_result()>& work);
/// Makes it one that `find` finds, and takes it out again; this frees memory of the device.
nccl_comm keep(const std::shared_ptr<communicator>& c);
void forget(const std::shared_ptr<communicator>& c);
/// Memory of the device that a communicator needs.
nccl_result allocate(communicator& c);
/// What runs ends, and what is queued does nothing.
void end_works(communicator& c);
/// A communicator of some of the ranks of another one; `agree` fills in which. Null where this rank has `none`.
nccl_result derive(const std::shared_ptr<communicator>& from, nccl_comm* made, const nccl_config* config, bool none,
                   std::function<nccl_result(communicator&)> agree);

unsigned long number_of(const char* variable, unsigned long otherwise);

}  // namespace hvd::standin
