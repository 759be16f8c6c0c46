// hvd/engine/device_guard.hpp: notices a lost rank while the thread that drives is stuck in a call of its device.
#pragma once

#include <hvd/engine/erased_device.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/shared_memory/call_watch.hpp>

#include <chrono>
#include <exception>
#include <mutex>

namespace hvd::inline HVD_ABI::detail {

/// A call of a GPU's driver waits while another thread holds the context, for example in cudaFree. If that thread waits
/// for a collective whose peer is lost, all threads that use the GPU wait for ever, and none of them can end the
/// collective. The watching thread calls no driver; a device that cannot be interrupted has none.
class device_guard {
 public:
  /// The time in one call after which the ranks are checked: longer than the calls of a healthy GPU take, because a
  /// rank that has ended properly counts as lost.
  static constexpr std::chrono::seconds check_after{1};

  /// Without a device (null) nothing is watched.
  device_guard(erased_transport& control, erased_device* device)
      : control_(control), device_(device), watch_([this](call_watch::duration lasting) {
          if (lasting >= check_after) look();
        }) {}

  /// The driving thread is in calls of the device, and uses the transport only through `check`.
  struct scope : call_watch::scope {
    explicit scope(device_guard& guard) : call_watch::scope(guard.device_->can.interrupts ? &guard.watch_ : nullptr) {}
  };

  /// Throws if a rank is lost.
  void check() {
    const std::lock_guard lock(watch_.mutex());
    control_.check();
  }
  /// Ends the device's work if the driving thread is in a call of the device. Any thread.
  void interrupt() noexcept {
    const std::lock_guard lock(watch_.mutex());
    if (watch_.inside()) device_->interrupt();
  }

 private:
  void look() noexcept {
    try {
      control_.check();
    } catch (const std::exception&) {
      device_->interrupt();
    }
  }

  erased_transport& control_;
  erased_device* const device_;
  call_watch watch_;
};

}  // namespace hvd::inline HVD_ABI::detail
