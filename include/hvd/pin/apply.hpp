// hvd/pin/apply.hpp: binds the calling thread to CPUs, makes a GPU current, and undoes both.
#pragma once

#include <hvd/cuda/driver.hpp>
#include <hvd/error.hpp>
#include <hvd/pin/placement.hpp>
#include <hvd/topology.hpp>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI {

namespace detail {

inline pid_t thread_number() noexcept { return static_cast<pid_t>(::syscall(SYS_gettid)); }

/// sched_setaffinity, for CPUs of any number; 0 or errno.
inline int set_affinity(pid_t thread, const std::vector<int>& cpus) {
  constexpr std::size_t bits = sizeof(unsigned long) * CHAR_BIT;
  std::vector<unsigned long> mask(1);
  for (const int cpu : cpus) {
    const auto n = static_cast<std::size_t>(cpu);
    if (mask.size() <= n / bits) mask.resize(n / bits + 1);
    mask[n / bits] |= 1ul << n % bits;
  }
  const std::size_t bytes = mask.size() * sizeof(unsigned long);
  return ::sched_setaffinity(thread, bytes, reinterpret_cast<const cpu_set_t*>(mask.data())) == 0 ? 0 : errno;
}

inline std::vector<int> thread_affinity() {
  return read_affinity(0, [](int thread, std::size_t bytes, unsigned long* words) {
    return ::sched_getaffinity(thread, bytes, reinterpret_cast<cpu_set_t*>(words));
  });
}

/// The placement to which the calling thread is pinned; nothing while it is not pinned.
inline std::optional<placement>& pinned() noexcept {
  thread_local std::optional<placement> here;
  return here;
}

}  // namespace detail

/// Keeps a thread pinned, and restores the thread's CPUs and its current CUDA context when it is destroyed. It can be
/// moved, but not assigned. If it is destroyed on another thread, it restores only the CPUs.
class PinGuard {
 public:
  /// Pins the calling thread; threads that it starts later inherit the CPUs. The device's primary context becomes
  /// current, like with cudaSetDevice. Errors: system if the kernel or the driver refuses; those of get_cuda.
  explicit PinGuard(placement to) : where_(std::move(to)), thread_(detail::thread_number()) {
    bind();
    try {
      use_device();
    } catch (...) {
      restore();
      throw;
    }
    before_ = std::exchange(detail::pinned(), where_);
  }
  PinGuard(PinGuard&& other) noexcept
      : where_(std::move(other.where_)), thread_(std::exchange(other.thread_, 0)), cpus_(std::move(other.cpus_)),
        cuda_(std::exchange(other.cuda_, nullptr)), device_(other.device_), context_(other.context_),
        before_(std::move(other.before_)) {}
  PinGuard(const PinGuard&) = delete;
  PinGuard& operator=(const PinGuard&) = delete;
  ~PinGuard() {
    if (thread_ == 0) return;
    if (thread_ == detail::thread_number()) detail::pinned() = std::move(before_);
    restore();
  }

  /// The placement to which the thread is pinned, with its reasons.
  [[nodiscard]] const placement& where() const noexcept { return where_; }

  /// Leaves the thread pinned: nothing is restored.
  void keep() noexcept {
    thread_ = 0;
    cuda_ = nullptr;
  }

 private:
  void bind() {
    if (where_.cpus.empty()) return;
    cpus_ = detail::thread_affinity();
    const int code = detail::set_affinity(0, where_.cpus);
    if (code == 0) return;
    detail::fail(error_kind::system, {"pin: the CPUs ", cpu_list_text(where_.cpus),
                                      " were refused: ", std::strerror(code), "; usable now: ", cpu_list_text(cpus_)});
  }
  void use_device() {
    if (where_.ordinal < 0 || where_.keep_current) return;
    const detail::cuda_driver& cuda = detail::get_cuda();
    detail::cu_context own = nullptr;
    cuda.check(cuda.context_current(&context_), "cuCtxGetCurrent");
    cuda.check(cuda.device_get(&device_, where_.ordinal), "cuDeviceGet");
    cuda.check(cuda.primary_retain(&own, device_), "cuDevicePrimaryCtxRetain");
    cuda_ = &cuda;
    cuda.check(cuda.context_set(own), "cuCtxSetCurrent");
  }
  void restore() noexcept {
    if (cuda_ != nullptr) {
      if (thread_ == detail::thread_number()) cuda_->context_set(context_);
      cuda_->primary_release(device_);
    }
    // A thread that has ended, or CPUs that have gone, leave nothing to restore.
    if (!cpus_.empty()) detail::set_affinity(thread_, cpus_);
  }

  placement where_;
  pid_t thread_;           ///< 0: nothing to put back
  std::vector<int> cpus_;  ///< before; empty: unchanged
  const detail::cuda_driver* cuda_ = nullptr;
  detail::cu_device device_ = 0;
  detail::cu_context context_ = nullptr;  ///< before
  std::optional<placement> before_;
};

}  // namespace hvd::inline HVD_ABI
