// hvd/cuda/device.hpp: a GPU of this process, and its streams, events and memory.
#pragma once

#include <hvd/cuda/driver.hpp>
#include <hvd/cuda/identity.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

inline cu_pointer to_device(const void* address) noexcept { return reinterpret_cast<std::uintptr_t>(address); }

/// A GPU and its primary context, which this object retains: the context that the CUDA runtime and PyTorch use too.
class cuda_device {
 public:
  /// Device `ordinal` of those that the process sees; -1: the one of the calling thread's current context, or else
  /// device 0. Errors: those of get_cuda; invalid_argument for a device that does not exist; no_memory, system.
  explicit cuda_device(int ordinal = -1) : driver_(get_cuda()) {
    int count = 0;
    driver_.check(driver_.device_count(&count), "cuDeviceGetCount");
    if (ordinal < 0) ordinal = std::max(current_ordinal(driver_), 0);
    if (ordinal >= count) {
      fail(error_kind::invalid_argument, {"there is no GPU ", ordinal, "; this process sees ", count,
                                          ", numbered from 0", " (CUDA_VISIBLE_DEVICES limits what it sees)"});
    }
    ordinal_ = ordinal;
    driver_.check(driver_.device_get(&device_, ordinal), "cuDeviceGet");
    cu_uuid uuid{};
    std::array<char, 256> name{};
    driver_.check(driver_.device_uuid(&uuid, device_), "cuDeviceGetUuid");
    driver_.check(driver_.device_name(name.data(), static_cast<int>(name.size()), device_), "cuDeviceGetName");
    uuid_ = device_uuid(uuid, std::string_view(name.data()).find(" MIG ") != std::string_view::npos);
    std::array<char, 64> pci{};
    driver_.check(driver_.device_pci(pci.data(), static_cast<int>(pci.size()), device_), "cuDeviceGetPCIBusId");
    pci_ = pci.data();
    driver_.check(driver_.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  }
  cuda_device(const cuda_device&) = delete;
  cuda_device& operator=(const cuda_device&) = delete;
  ~cuda_device() { driver_.primary_release(device_); }

  [[nodiscard]] const cuda_driver& driver() const noexcept { return driver_; }
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  [[nodiscard]] const std::string& uuid() const noexcept { return uuid_; }
  [[nodiscard]] const std::string& pci() const noexcept { return pci_; }
  /// "GPU-8932f937-... (0000:17:00.0)", for messages.
  [[nodiscard]] std::string label() const { return joined({uuid_, " (", pci_, ")"}); }

  /// Makes the context current for a thread's calls in a block; others may have theirs. The calls disturb no capture of
  /// a CUDA graph: otherwise, those that CUDA calls unsafe would fail and end the captures of all threads.
  class scope {
   public:
    explicit scope(const cuda_device& device) : driver_(device.driver_) {
      const cu_result code = driver_.context_push(device.context_);
      if (code == cu_success) [[likely]] {
        driver_.exchange_capture_mode(&mode_);
        return;
      }
      get_cuda();  // says so if this process was forked
      driver_.check(code, "cuCtxPushCurrent");
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      driver_.exchange_capture_mode(&mode_);
      cu_context before = nullptr;
      driver_.context_pop(&before);
    }

   private:
    const cuda_driver& driver_;
    int mode_ = cu_capture_relaxed;
  };

  /// The GPU to whose memory an address belongs; -1 for memory of the host. Errors: system, for a driver that has
  /// failed.
  [[nodiscard]] int owner_of(const void* address) const {
    const cu_pointer pointer = to_device(address);
    unsigned type = 0;
    int ordinal = -1;
    const cu_result code = driver_.pointer_attribute(&type, cu_pointer_memory_type, pointer);
    if (code == cu_invalid_value) return -1;
    driver_.check(code, "cuPointerGetAttribute");
    if (type != cu_memory_device) return -1;
    driver_.check(driver_.pointer_attribute(&ordinal, cu_pointer_device_ordinal, pointer), "cuPointerGetAttribute");
    return ordinal;
  }

 private:
  const cuda_driver& driver_;
  int ordinal_ = 0;
  cu_device device_ = 0;
  std::string uuid_, pci_;
  cu_context context_ = nullptr;
};

/// Throws invalid_argument for a stream that is captured into a CUDA graph. `what()` begins the sentence. Within a
/// scope of the stream's device.
template <class What>
void refuse_capture(const cuda_driver& driver, cu_stream stream, const What& what) {
  int status = cu_capture_none;
  const cu_result code = driver.stream_capturing(stream, &status);
  if (code == cu_success && status == cu_capture_none) [[likely]]
    return;
  if (code != cu_success && code != cu_capture_implicit) driver.check(code, "cuStreamIsCapturing");
  fail(error_kind::invalid_argument,
       {what(), ": the stream is being captured into a CUDA graph, and collectives in CUDA "
                "graphs are not supported; call it outside of the capture"});
}

/// A stream of its own, which does not wait for the default stream. Made and destroyed within a scope of its device.
class cuda_stream {
 public:
  cuda_stream() = default;
  /// `high_priority`: as urgent as the device allows.
  explicit cuda_stream(const cuda_driver& driver, bool high_priority = true) : driver_(&driver) {
    int least = 0, greatest = 0;
    driver.check(driver.priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
    driver.check(driver.stream_create(&stream_, cu_stream_non_blocking, high_priority ? greatest : least),
                 "cuStreamCreateWithPriority");
  }
  cuda_stream(cuda_stream&& other) noexcept : driver_(other.driver_), stream_(std::exchange(other.stream_, nullptr)) {}
  cuda_stream& operator=(cuda_stream&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~cuda_stream() {
    if (stream_ != nullptr) driver_->stream_destroy(stream_);
  }
  [[nodiscard]] cu_stream get() const noexcept { return stream_; }

 private:
  const cuda_driver* driver_ = nullptr;
  cu_stream stream_ = nullptr;
};

/// Events, by default without timing, which are used again when the last reference to one is gone. Any thread. Its
/// events keep the pool and the device alive.
class cuda_events : public std::enable_shared_from_this<cuda_events> {
 public:
  explicit cuda_events(std::shared_ptr<cuda_device> device, unsigned flags = cu_event_disable_timing)
      : device_(std::move(device)), flags_(flags) {}
  cuda_events(const cuda_events&) = delete;
  cuda_events& operator=(const cuda_events&) = delete;
  ~cuda_events() {
    try {
      const cuda_device::scope current(*device_);
      for (const cu_event e : free_) device_->driver().event_destroy(e);
    } catch (const error&) {  // the driver has shut down, and with it all events
    }
  }

  /// An event that was recorded on a stream. Within a scope of the device.
  [[nodiscard]] std::shared_ptr<void> record(cu_stream stream) {
    const cuda_driver& driver = device_->driver();
    const cu_event event = take();
    std::shared_ptr<void> owner(event, [pool = shared_from_this()](void* e) { pool->give_back(e); });
    driver.check(driver.event_record(event, stream), "cuEventRecord");
    return owner;
  }

 private:
  cu_event take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        const cu_event e = free_.back();
        free_.pop_back();
        return e;
      }
    }
    cu_event e = nullptr;
    const cuda_driver& driver = device_->driver();
    driver.check(driver.event_create(&e, flags_), "cuEventCreate");
    return e;
  }
  void give_back(cu_event e) noexcept {
    const std::lock_guard lock(mutex_);
    free_.push_back(e);
  }

  std::shared_ptr<cuda_device> device_;
  const unsigned flags_;
  std::mutex mutex_;
  std::vector<cu_event> free_;
};

/// Memory of the host that the device reaches by itself; zero at first.
inline std::shared_ptr<std::byte> cuda_host_memory(std::shared_ptr<cuda_device> device, std::size_t bytes) {
  const cuda_device::scope current(*device);
  void* address = nullptr;
  device->driver().check(device->driver().alloc_host(&address, bytes, 0), "cuMemHostAlloc");
  std::memset(address, 0, bytes);
  return {static_cast<std::byte*>(address), [device](std::byte* p) {
            try {
              const cuda_device::scope scope(*device);
              device->driver().free_host(p);
            } catch (const error&) {  // the driver has shut down
            }
          }};
}

/// How far streams have come, in memory of the host: each writes the number of a place behind the work before it. So
/// the host looks without a call of the driver, which could wait for the context behind a kernel that hangs.
class cuda_marks {
 public:
  struct place {
    std::size_t stream = 0;
    std::uint32_t number = 0;
  };

  cuda_marks(std::shared_ptr<cuda_device> device, std::size_t streams)
      : driver_(device->driver()), last_(streams), words_(cuda_host_memory(std::move(device), streams * spacing)) {}

  /// Marks the end of the stream with number `which`. Within a scope of the device.
  [[nodiscard]] place record(std::size_t which, cu_stream stream) {
    driver_.check(driver_.stream_write(stream, to_device(&word_of(which)), ++last_[which], 0), "cuStreamWriteValue32");
    return {which, last_[which]};
  }
  /// Never true if the stream has failed.
  [[nodiscard]] bool reached(const place& p) const noexcept {
    const std::uint32_t now = std::atomic_ref(word_of(p.stream)).load(std::memory_order_acquire);
    return static_cast<std::int32_t>(now - p.number) >= 0;
  }

 private:
  static constexpr std::size_t spacing = 128;
  [[nodiscard]] std::uint32_t& word_of(std::size_t which) const noexcept {
    return *reinterpret_cast<std::uint32_t*>(words_.get() + which * spacing);
  }
  const cuda_driver& driver_;
  std::vector<std::uint32_t> last_;
  std::shared_ptr<std::byte> words_;
};

/// Memory of a device; freed with the last reference. Errors: no_memory, with the amount of free memory.
inline std::shared_ptr<std::byte> cuda_memory(std::shared_ptr<cuda_device> device, std::size_t bytes) {
  const cuda_device::scope current(*device);
  const cuda_driver& driver = device->driver();
  cu_pointer address = 0;
  const cu_result code = driver.alloc(&address, bytes == 0 ? 1 : bytes);
  if (code == cu_out_of_memory) {
    std::size_t free = 0, total = 0;
    driver.memory_info(&free, &total);
    fail(error_kind::no_memory, {"GPU ", device->label(), " has no ", bytes, " bytes left; ", free, " of ", total,
                                 " are free; lower the fusion threshold (HOROVOD_FUSION_THRESHOLD) or the batch size"});
  }
  driver.check(code, "cuMemAlloc");
  return {reinterpret_cast<std::byte*>(address), [device](std::byte* p) {
            try {
              const cuda_device::scope scope(*device);
              device->driver().free(to_device(p));
            } catch (const error&) {  // the driver has shut down
            }
          }};
}

}  // namespace hvd::inline HVD_ABI::detail
