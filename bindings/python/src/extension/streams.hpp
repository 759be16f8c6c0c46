// streams.hpp: frameworks' streams, and the events that order their work with hvd's.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace hvd_python {

/// A framework's stream: its device and its CUstream (cudaStream_t), null for the default stream.
struct framework_stream {
  int device;
  hvd::detail::cu_stream handle;
  friend bool operator==(const framework_stream&, const framework_stream&) = default;
};

inline framework_stream stream_at(int device, std::uintptr_t handle) {
  return {device, reinterpret_cast<hvd::detail::cu_stream>(handle)};
}

/// The devices whose tensors were submitted, each with a pool of events. Nothing here waits for a device.
class framework_devices {
 public:
  /// Never destroyed: events may be released while the process ends.
  static framework_devices& instance() { return *current(); }
  /// For a forked child: CUDA does not work there, and a thread missing in the child may hold the lock.
  static void forget() { current() = new framework_devices; }

  /// Records an event after all work queued on the stream now. Throws hvd::detail::cuda_device's errors.
  std::shared_ptr<void> record(const framework_stream& stream) {
    const std::shared_ptr<pool> of = find(stream.device);
    const hvd::detail::cuda_device::scope current(*of->device);
    hvd::detail::refuse_capture(of->device->driver(), stream.handle, [] { return "a tensor of a collective"; });
    return of->events->record(stream.handle);
  }

  /// Work queued on the stream from now on begins after the event, if there is one.
  void make_wait(const framework_stream& stream, void* event) {
    if (event == nullptr) return;
    const std::shared_ptr<pool> of = find(stream.device);
    const hvd::detail::cuda_device::scope current(*of->device);
    const hvd::detail::cuda_driver& driver = of->device->driver();
    hvd::detail::refuse_capture(driver, stream.handle, [] { return "waiting for a collective"; });
    driver.check(driver.stream_wait(stream.handle, event, 0), "cuStreamWaitEvent");
  }

 private:
  struct pool {
    explicit pool(int ordinal)
        : device(std::make_shared<hvd::detail::cuda_device>(ordinal)),
          events(std::make_shared<hvd::detail::cuda_events>(device)) {}
    std::shared_ptr<hvd::detail::cuda_device> device;
    std::shared_ptr<hvd::detail::cuda_events> events;
  };

  static framework_devices*& current() {
    static framework_devices* all = new framework_devices;
    return all;
  }

  std::shared_ptr<pool> find(int ordinal) {
    const std::lock_guard lock(mutex_);
    if (const auto found = pools_.find(ordinal); found != pools_.end()) return found->second;
    try {
      return pools_[ordinal] = std::make_shared<pool>(ordinal);
    } catch (const hvd::error& e) {
      pools_.erase(ordinal);
      if (e.kind() != hvd::error::unsupported) throw;
      // Restarting the job does not bring back a driver, so this is not an error after which programs try again.
      hvd::detail::fail(hvd::error_kind::invalid_argument,
                        {"a tensor is on GPU ", ordinal, ", but ", hvd::detail::sentence(e)});
    }
  }

  std::mutex mutex_;
  std::map<int, std::shared_ptr<pool>> pools_;
};

/// Kept alive by a submission of device tensors: an event for each stream that produces them.
class ready_events {
 public:
  void add(hvd::tensor& t, const framework_stream& stream) {
    const auto found = std::find_if(events_.begin(), events_.end(), [&](const one& e) { return e.stream == stream; });
    const std::size_t i = static_cast<std::size_t>(found - events_.begin());
    if (found == events_.end()) events_.push_back({stream, framework_devices::instance().record(stream)});
    t.memory = {hvd::memory_kind::device, stream.device, events_[i].event.get()};
  }
  [[nodiscard]] bool empty() const noexcept { return events_.empty(); }

 private:
  struct one {
    framework_stream stream;
    std::shared_ptr<void> event;
  };
  std::vector<one> events_;
};

}  // namespace hvd_python
