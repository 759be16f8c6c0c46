// hvd/transport/nccl/ending.hpp: calls of NCCL that may never return, and memory that is freed later.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/nccl/library.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The result of `call`, a function of NCCL that makes, ends or frees a communicator. It waits for other ranks or for
/// work of the GPU, in some versions also for kernels of other communicators, which may never end. So another thread
/// calls it, within a scope of the device if that is not null; it is left behind after `limit` (0: never), and then
/// there is no result. `look()` is called meanwhile; if it throws, that thread is left behind as well.
template <class Call, class Look>
std::optional<nccl_result> bounded(const std::shared_ptr<cuda_device>& device, std::chrono::duration<double> limit,
                                   Call call, const Look& look) noexcept(noexcept(look())) {
  constexpr nccl_result under_way = -1;
  std::shared_ptr<std::atomic<nccl_result>> result;
  try {
    result = std::make_shared<std::atomic<nccl_result>>(under_way);
    std::thread([device, call, result]() mutable {
      nccl_result code = nccl_unhandled_cuda_error;
      try {
        std::optional<cuda_device::scope> current;
        if (device) current.emplace(*device);
        code = call();
      } catch (const error&) {  // the driver has shut down
      }
      result->store(code, std::memory_order_release);
    }).detach();
  } catch (const std::exception&) {  // no memory, or no more threads
    return call();
  }
  const auto start = std::chrono::steady_clock::now();
  for (backoff rest(paces::nccl_call);; rest.step()) {
    const nccl_result code = result->load(std::memory_order_acquire);
    if (code != under_way) return code;
    if (limit.count() > 0 && std::chrono::steady_clock::now() - start >= limit) return std::nullopt;
    look();
  }
}

/// Memory of NCCL's that the program drops while an engine's thread may be using the communicator: another thread must
/// not call NCCL then, so it is freed when the communicator ends.
class nccl_dropped {
 public:
  struct memory {
    std::byte* address;
    nccl_window window;  ///< or null
  };

  /// Called before another thread uses the communicator than the one that drops memory.
  void share() noexcept {
    const std::lock_guard lock(mutex_);
    shared_ = true;
  }
  /// False if the calling thread has to free it.
  [[nodiscard]] bool take(const memory& m) noexcept {
    const std::lock_guard lock(mutex_);
    if (!shared_) return false;
    try {
      all_.push_back(m);
    } catch (const std::exception&) {  // no memory to remember it: it is never freed
    }
    return true;
  }
  /// All of it. If `last`, threads free memory themselves from now on.
  [[nodiscard]] std::vector<memory> all(bool last) noexcept {
    const std::lock_guard lock(mutex_);
    if (last) shared_ = false;
    return std::exchange(all_, {});
  }

 private:
  std::mutex mutex_;
  bool shared_ = false;
  std::vector<memory> all_;
};

}  // namespace hvd::inline HVD_ABI::detail
