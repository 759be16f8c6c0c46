// hvd/transport/nccl.hpp: ranks connected by NCCL, whose buffers lie on GPUs.
#pragma once

#include <hvd/call.hpp>
#include <hvd/cuda/copy.hpp>
#include <hvd/cuda/device.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/nccl/collectives.hpp>
#include <hvd/transport/nccl/communicator.hpp>
#include <hvd/transport/nccl/group.hpp>
#include <hvd/transport/nccl/meet.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The ranks of a group, each with a GPU, connected by NCCL. Buffers of its collectives are memory of that GPU. hvd
/// looks for NCCL and the CUDA driver when the first transport is made (libnccl.so.2, libcuda.so.1; HVD_NCCL_LIBRARY
/// and HVD_CUDA_LIBRARY name other files): a program compiles and starts without them. NCCL 2.18.6 or newer;
/// docs/gpu.md says what each version can do. Move-only; groups made by `split` may outlive it.
///
/// Its end waits for queued work, at most `timeout`; after an error, or while an exception is on its way, not as long.
///
/// `hvd::allreduce(gpu, buffer)` waits until the result is there. With `hvd::on_stream{s}` as the last argument it is
/// queued on the stream `s` and returns; later work on that stream sees the result. All ranks call the same collectives
/// in the same order.
///
/// Every wait has a deadline (nccl_options::timeout), after which the communicator is aborted. NCCL does not report
/// which rank is lost, and inside a host it does not notice a lost rank. hvd::Engine does both, through its transport
/// on the host.
///
/// Types: all, except that 16-bit integers and user types move but cannot be reduced; bool is reduced by min and max,
/// complex numbers by sum and average. Operations: sum, average, min, max, product, and these scaled; not Adasum. NCCL
/// decides the minimum and maximum of a NaN and a number, and the order in which it adds. Results have the same bits on
/// all ranks, and in every run with the same NCCL, GPUs and connections.
class NcclTransport {
 public:
  using options = nccl_options;
  static constexpr memory_kind memory = memory_kind::device;  ///< see memory_of
  static constexpr std::string_view timeline_name = "NCCL";   ///< see timeline_name_of

  /// A group of the ranks of `control`, a transport on the host, with the same numbers; collective. `control` is used
  /// during the call only.
  ///
  /// Errors, on all ranks: unsupported (no driver, no GPU, no NCCL, NCCL too old), invalid_argument (a device that does
  /// not exist, several ranks on one GPU), mismatch (different versions of hvd or NCCL), timeout (ranks that do not
  /// connect), system (an error of NCCL). Cost: some 100 ms.
  template <Bootstrap Control>
  explicit NcclTransport(Control& control, const options& opts = options::from_environment())
      : group_(detail::nccl_group::connect(control, opts)) {}

  NcclTransport(NcclTransport&&) noexcept = default;
  NcclTransport& operator=(NcclTransport&&) noexcept = default;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;
  ~NcclTransport() = default;

  [[nodiscard]] int rank() const noexcept { return group_->rank(); }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  /// The GPU of this rank: its ordinal among those that the process sees.
  [[nodiscard]] int device() const noexcept { return group_->device()->ordinal(); }
  /// The GPU's unique id: "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6".
  [[nodiscard]] std::string device_uuid() const { return group_->device()->uuid(); }
  /// The version of NCCL: "2.28.9". Works without a transport. Errors: unsupported if NCCL is not found.
  [[nodiscard]] static std::string library() {
    detail::get_nccl();
    return detail::nccl_version_text(detail::nccl_search::result().version);
  }

  /// No rank leaves before all have entered. Errors: timeout, and those of NCCL.
  void barrier() { group_->barrier(); }

  /// Runs NCCL's collective for the call, and waits for it. Errors: invalid_argument (memory of the host, or of another
  /// device), unsupported (see above), timeout, peer_lost, system, no_memory. Never false.
  template <class Call>
    requires requires(detail::nccl_group& group, const Call& c) { group.run(c); }
  bool native(const Call& c) {
    group_->run(c);
    return true;
  }
  /// Queues it on a stream (a cudaStream_t or CUstream of this device). See on_stream.
  template <class Call>
    requires requires(detail::nccl_group& group, const Call& c) { group.queue(c, nullptr); }
  void queue(const Call& c, void* stream) {
    group_->queue(c, stream);
  }

  /// A message between two ranks, in device memory; waits until it is sent or received. See hvd::send.
  void send(const std::byte* data, std::size_t bytes, int peer) { group_->send(data, bytes, peer); }
  void recv(std::byte* data, std::size_t bytes, int peer) { group_->recv(data, bytes, peer); }

  /// Ranks with the same color form a group, ordered by key and then by rank here; collective. It has a separate
  /// communicator, which may be used at the same time as this one.
  [[nodiscard]] NcclTransport split(int color, int key) { return NcclTransport(group_->split(color, key)); }

  /// A group of the remaining ranks after others were lost, in the same order. Collective over the remaining ranks,
  /// which all pass the same lost ranks. Calls under way on this transport end with unspecified outputs, and it can no
  /// longer be used. Errors: invalid_argument, timeout; peer_lost if NCCL's network has noticed the loss; unsupported
  /// before NCCL 2.27, and before 2.28.7 after an error of this transport. If it fails, make a new NcclTransport over a
  /// transport of the remaining ranks; before 2.28.7 in new processes.
  [[nodiscard]] NcclTransport without(std::vector<int> lost) { return NcclTransport(group_->without(std::move(lost))); }

  /// n elements of device memory of this rank, zero at first, from NCCL and registered with it if possible; collective,
  /// with the same n on all ranks. Collectives on it skip NCCL's copies if the connection allows that. If one rank
  /// passes such memory to a collective, all ranks pass memory of the same call: NCCL chooses how to run a collective
  /// by each rank's own memory, and hangs if ranks differ. (An engine compares, and copies.) The host must not touch
  /// the elements. Errors: no_memory.
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    std::shared_ptr<std::byte> owner = group_->allocate(n, sizeof(T), detail::nccl_window_default);
    T* const data = reinterpret_cast<T*>(owner.get());
    return {data, n, std::move(owner)};
  }

  /// Copies elements between the host and this rank's GPU; waits. For programs that do not use CUDA themselves; others
  /// copy on their own streams. Errors: invalid_argument for memory of another device; system.
  template <Element T>
  void copy_to_device(std::span<const T> host, T* device) {
    group_->upload(reinterpret_cast<std::byte*>(device), std::as_bytes(host));
  }
  template <Element T>
  void copy_to_host(const T* device, std::span<T> host) {
    group_->download(std::as_writable_bytes(host), reinterpret_cast<const std::byte*>(device));
  }

  /// For internal use: the communicator with its device and streams.
  [[nodiscard]] const std::shared_ptr<detail::nccl_group>& group() const noexcept { return group_; }

 private:
  explicit NcclTransport(std::shared_ptr<detail::nccl_group> group) : group_(std::move(group)) {}

  std::shared_ptr<detail::nccl_group> group_;
};

/// The last argument of a collective on an NcclTransport: queues it on a stream and returns. Input and output belong to
/// the collective until the stream has passed it. Errors of the call are thrown here, those of other ranks by a later
/// call. Cost: about that of NCCL's call.
struct on_stream {
  /// A cudaStream_t or CUstream of the transport's device, but not cudaStreamPerThread; null: the default stream.
  void* stream = nullptr;

  static constexpr bool rank_ordered = true;
  friend constexpr bool operator==(const on_stream&, const on_stream&) = default;

  template <class Call>
    requires requires(NcclTransport& t, const Call& c) { t.queue(c, nullptr); }
  void operator()(NcclTransport& t, const Call& call) const {
    t.queue(call, stream);
  }
};
inline std::string name(const on_stream&) { return "on_stream"; }

static_assert(Transport<NcclTransport> && !PointToPoint<NcclTransport> && !PeerMemory<NcclTransport>);
static_assert(memory_of<NcclTransport> == memory_kind::device);
static_assert(Native<NcclTransport, allreduce_call> && Native<NcclTransport, reduce_call> &&
              Native<NcclTransport, reduce_scatter_call> && Native<NcclTransport, allgather_call> &&
              Native<NcclTransport, broadcast_call> && Native<NcclTransport, alltoall_call> &&
              Native<NcclTransport, gather_call> && Native<NcclTransport, scatter_call>);

}  // namespace hvd::inline HVD_ABI
