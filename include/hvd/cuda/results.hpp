// hvd/cuda/results.hpp: memory of a GPU for results whose size is known only when all ranks have called.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// Memory for results, which is used again: allocating takes long, and cuMemFree waits for all work of the device. Used
/// and kept memory together never exceed the most ever used at once. Any thread.
class cuda_results : public std::enable_shared_from_this<cuda_results> {
 public:
  explicit cuda_results(std::shared_ptr<cuda_device> device) : device_(std::move(device)) {}

  /// Memory, and an event after which it may be written (null: at once), which the caller keeps until the event has
  /// passed. Memory is freed with its last reference, unless `reuse_after` was called: the program may read it on any
  /// stream. Errors: those of cuda_memory.
  std::shared_ptr<std::byte> take(std::size_t bytes, std::shared_ptr<void>& after) {
    block b = find(bytes);
    after = b.after;
    std::byte* const address = b.memory.get();
    return {address, returning{shared_from_this(), {std::move(b.memory), b.bytes, nullptr}}};
  }
  /// Nobody uses this result after this event, so that its memory may be written again.
  static void reuse_after(const std::shared_ptr<std::byte>& result, std::shared_ptr<void> event) {
    if (auto* const end = std::get_deleter<returning>(result)) end->what.after = std::move(event);
  }

 private:
  struct block {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes;
    std::shared_ptr<void> after;
  };
  struct returning {
    std::shared_ptr<cuda_results> pool;
    block what;
    void operator()(std::byte* /*address*/) noexcept { pool->give_back(std::move(what)); }
  };

  block find(std::size_t bytes) {
    std::unique_lock lock(mutex_);
    auto found = kept_.lower_bound(bytes);
    if (found == kept_.end() || found->first > 2 * bytes) {
      lock.unlock();
      block made{allocate(bytes), bytes, nullptr};
      lock.lock();
      count_used(bytes);
      return made;
    }
    block b = std::move(found->second);
    kept_bytes_ -= b.bytes;
    kept_.erase(found);
    count_used(b.bytes);
    return b;
  }
  void count_used(std::size_t bytes) {
    used_bytes_ += bytes;
    most_used_ = std::max(most_used_, used_bytes_);
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    try {
      return cuda_memory(device_, bytes);
    } catch (const error& e) {
      if (e.kind() != error_kind::no_memory) throw;
    }
    std::multimap<std::size_t, block> freed;
    {
      const std::lock_guard lock(mutex_);
      freed.swap(kept_);
      kept_bytes_ = 0;
    }
    freed.clear();
    return cuda_memory(device_, bytes);
  }
  void give_back(block b) noexcept {
    std::multimap<std::size_t, block> freed;  // after the lock, because that waits for the device
    const std::lock_guard lock(mutex_);
    used_bytes_ -= b.bytes;
    if (b.after == nullptr) return;
    const std::size_t size = b.bytes;
    try {
      kept_.emplace(size, std::move(b));
    } catch (const std::bad_alloc&) {  // it is not kept
      return;
    }
    kept_bytes_ += size;
    while (used_bytes_ + kept_bytes_ > most_used_) {  // of sizes that are no longer needed
      const auto other = kept_.begin()->first == size ? std::prev(kept_.end()) : kept_.begin();
      kept_bytes_ -= other->first;
      freed.insert(kept_.extract(other));
    }
  }

  std::shared_ptr<cuda_device> device_;
  std::mutex mutex_;
  std::multimap<std::size_t, block> kept_;  // by size
  std::size_t kept_bytes_ = 0, used_bytes_ = 0, most_used_ = 0;
};

}  // namespace hvd::inline HVD_ABI::detail
