// hvd/transport/nccl/memory.hpp: memory of a GPU: checks of buffers, temporary memory, and memory that NCCL has
// registered on all ranks.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/detail/keep_for_ever.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/nccl/communicator.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Throws invalid_argument for memory of the host or of another device.
inline void check_device_memory(const cuda_device& device, std::string_view operation_name, const std::string& who,
                                const char* what, const void* address, std::size_t bytes) {
  if (bytes == 0) return;
  const int owner = device.owner_of(address);
  if (owner == device.ordinal()) [[likely]]
    return;
  std::array<char, 24> text{};
  static_cast<void>(std::snprintf(text.data(), text.size(), "%p", address));
  if (owner < 0) {
    fail(error_kind::invalid_argument, {operation_name, " on ", who, ": the ", what, " at ", text.data(),
                                        " is memory of the host, but memory of GPU ", device.ordinal(),
                                        " is needed: copy it there, or use a transport on the host"});
  }
  fail(error_kind::invalid_argument, {operation_name, " on ", who, ": the ", what, " at ", text.data(),
                                      " is memory of GPU ", owner, "; this rank's is GPU ", device.ordinal()});
}

/// Throws invalid_argument for a stream on which NCCL cannot queue a collective. `what()` begins the sentence.
template <class What>
void check_stream(const cuda_driver& driver, cu_stream stream, const What& what) {
  if (reinterpret_cast<std::uintptr_t>(stream) == cu_stream_per_thread) {  // NCCL queues in threads of its own
    fail(error_kind::invalid_argument,
         {what(),
          ": the stream is cudaStreamPerThread, which differs in each thread; create a stream, or use the default "
          "one"});
  }
  refuse_capture(driver, stream, what);
}

/// Temporary memory of calls, which is reused. It is not freed before the communicator has ended: freeing waits for all
/// work of the device, which may wait for other ranks. Within a scope of the device.
class nccl_scratch {
 public:
  nccl_scratch(std::shared_ptr<cuda_device> device, std::shared_ptr<cuda_events> events)
      : device_(std::move(device)), events_(std::move(events)) {}

  [[nodiscard]] std::shared_ptr<std::byte> take(std::size_t bytes) {
    for (entry& e : all_) {
      if (e.bytes < bytes || e.free == nullptr) continue;
      if (device_->driver().event_query(e.free.get()) != cu_success) continue;
      e.free = nullptr;
      return e.memory;
    }
    return all_.emplace_back(entry{cuda_memory(device_, bytes), bytes}).memory;
  }
  /// Returns memory, which may be reused after the current work on the stream.
  void give_back(const std::shared_ptr<std::byte>& memory, cu_stream stream) {
    for (entry& e : all_) {
      if (e.memory == memory) e.free = events_->record(stream);
    }
  }

 private:
  struct entry {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes;
    std::shared_ptr<void> free{};  ///< the event behind which it may be written; null while a call uses it
  };
  std::shared_ptr<cuda_device> device_;
  std::shared_ptr<cuda_events> events_;
  std::vector<entry> all_;
};

/// One byte of each rank, on the device and on the host: allocated in advance, because it is needed when there is no
/// memory.
class nccl_votes {
 public:
  nccl_votes(const std::shared_ptr<cuda_device>& device, int size)
      : there_(cuda_memory(device, static_cast<std::size_t>(size))),
        here_(cuda_host_memory(device, static_cast<std::size_t>(size))) {}
  [[nodiscard]] std::byte* there() const noexcept { return there_.get(); }
  [[nodiscard]] std::byte* here() const noexcept { return here_.get(); }

 private:
  std::shared_ptr<std::byte> there_, here_;
};

/// Memory of NCCL if `of_nccl`, with a window if it is registered; else plain memory of the device.
struct nccl_memory {
  std::shared_ptr<nccl_communicator> comm{};
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  nccl_window window = nullptr;  ///< written by a thread of NCCL's
  std::shared_ptr<std::byte> plain{};

  nccl_memory() = default;
  nccl_memory(const nccl_memory&) = delete;
  nccl_memory& operator=(const nccl_memory&) = delete;
  ~nccl_memory() {
    if (plain && comm->stuck()) keep_for_ever(std::move(plain));
    if (address == nullptr || plain) return;
    try {
      const cuda_device::scope current(*comm->device());
      if (window != nullptr) comm->windows().remove(address, bytes);
      comm->free(address, window);
    } catch (const error&) {  // the driver has shut down
    }
  }
};

/// Allocates the same number of bytes on all ranks, zeroed, and registers them with NCCL if all ranks can; collective.
/// It proceeds in steps, none of which waits for another rank: a rank without memory must not leave the others in NCCL.
class nccl_growth {
 public:
  /// `flags`: of the registration; nccl_window_symmetric only if all ranks use the memory at the same offsets.
  nccl_growth(std::shared_ptr<nccl_communicator> comm, std::shared_ptr<cuda_events> events, const nccl_votes& votes,
              cu_stream stream, std::size_t bytes, int flags)
      : comm_(std::move(comm)), events_(std::move(events)), votes_(votes), stream_(stream), bytes_(bytes),
        flags_(flags), memory_(std::make_shared<nccl_memory>()) {
    memory_->comm = comm_;
    memory_->bytes = bytes;
  }

  /// Takes all possible steps, within a scope of the device; true once the memory is ready. Errors: no_memory, the same
  /// on all ranks, with the first rank that has none.
  [[nodiscard]] bool advance() {
    if (step_ == step::voting) vote();
    if (step_ == step::calling) {
      if (!comm_->ready(what)) return false;
      driver().check(driver().copy_to_host(votes_.here(), to_device(votes_.there()), ranks(), stream_),
                     "cuMemcpyDtoHAsync");
      counted_ = events_->record(stream_);
      step_ = step::counting;
    }
    if (step_ == step::counting) {
      const cu_result code = driver().event_query(counted_.get());
      if (code == cu_not_ready) return false;
      driver().check(code, what);
      count();
    }
    if (step_ == step::registering) {
      if (!comm_->ready(what)) return false;
      if (memory_->window != nullptr) comm_->windows().add(memory_->address, bytes_);
      step_ = step::done;
    }
    return true;
  }
  [[nodiscard]] std::shared_ptr<std::byte> memory() const { return {memory_, memory_->address}; }
  /// True if all ranks had the error.
  [[nodiscard]] bool refused() const noexcept { return refused_; }

 private:
  enum class step { voting, calling, counting, registering, done };
  enum : unsigned char { none, plain, of_nccl };
  static constexpr const char* what = "memory for all ranks";

  [[nodiscard]] const cuda_driver& driver() const noexcept { return comm_->device()->driver(); }
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(comm_->size()); }

  unsigned char allocate() {
    const nccl_library& nccl = comm_->library();
    void* address = nullptr;
    // NCCL's memory is only for registration: NCCL 2.19 to 2.25 round up to hundreds of MiB with NVLink switches.
    if (nccl.window_register != nullptr && nccl.alloc != nullptr && nccl.free != nullptr &&
        nccl.alloc(&address, bytes_) == nccl_success) {
      memory_->address = static_cast<std::byte*>(address);
      return of_nccl;
    }
    try {
      memory_->plain = cuda_memory(comm_->device(), bytes_);
      memory_->address = memory_->plain.get();
      return plain;
    } catch (const error& e) {
      problem_.emplace(e);
      return none;
    }
  }
  void vote() {
    const unsigned char mine = allocate();
    std::byte* const own = votes_.there() + comm_->rank();
    driver().check(driver().fill_bytes(to_device(own), mine, 1, stream_), "cuMemsetD8Async");
    if (mine != none) {
      driver().check(driver().fill_bytes(to_device(memory_->address), 0, bytes_, stream_), "cuMemsetD8Async");
    }
    step_ = step::calling;
    const call_watch::scope watched(comm_->watch());
    static_cast<void>(
        comm_->queued(what, comm_->library().allgather(own, votes_.there(), 1, nccl_uint8, comm_->get(), stream_)));
  }
  void count() {
    unsigned char least = of_nccl;
    for (int r = 0; r != comm_->size(); ++r) {
      const auto theirs = std::to_integer<unsigned char>(votes_.here()[r]);
      refused_ = theirs == none;
      if (theirs == none && r == comm_->rank()) throw again(*problem_, r);
      if (theirs == none) {
        fail(error_kind::no_memory, {"the GPU of rank ", r, " of ", comm_->size(), " has no ", bytes_, " bytes left"},
             r);
      }
      least = std::min(least, theirs);
    }
    step_ = step::done;
    const nccl_library& nccl = comm_->library();
    if (least != of_nccl || nccl.window_register == nullptr) return;
    // Some versions leave the window unchanged if they cannot register, and some return success before they have
    // registered.
    const call_watch::scope watched(comm_->watch());
    const nccl_result code = nccl.window_register(comm_->get(), memory_->address, bytes_, &memory_->window, flags_);
    comm_->begun("registering memory", code);
    step_ = step::registering;
  }

  std::shared_ptr<nccl_communicator> comm_;
  std::shared_ptr<cuda_events> events_;
  const nccl_votes& votes_;
  cu_stream stream_;
  std::size_t bytes_;
  int flags_;
  std::shared_ptr<nccl_memory> memory_;
  std::shared_ptr<void> counted_;
  std::optional<error> problem_;
  step step_ = step::voting;
  bool refused_ = false;
};

}  // namespace hvd::inline HVD_ABI::detail
