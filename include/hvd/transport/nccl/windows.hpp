// hvd/transport/nccl/windows.hpp: which memory of this rank NCCL has registered on all ranks.
#pragma once

#include <hvd/version.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

namespace hvd::inline HVD_ABI::detail {

/// The registered memory of one communicator. NCCL looks at this rank's buffers alone to choose how to run a
/// collective. So if some ranks pass registered memory and others do not, or at other offsets, it hangs or writes wrong
/// data. Any thread.
class nccl_windows {
 public:
  /// A byte in registered memory. Registering is collective, so equal numbers on two ranks mean the same registration.
  struct place {
    std::uint64_t window = 0, offset = 0;
  };

  void add(const std::byte* begin, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    by_end_[begin + bytes] = {begin, ++last_};
  }
  void remove(const std::byte* begin, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    by_end_.erase(begin + bytes);
  }
  [[nodiscard]] std::optional<place> find(const std::byte* address) const {
    const std::lock_guard lock(mutex_);
    const auto found = by_end_.upper_bound(address);
    if (found == by_end_.end() || address < found->second.begin) return std::nullopt;
    return place{found->second.number, static_cast<std::uint64_t>(address - found->second.begin)};
  }

 private:
  struct window {
    const std::byte* begin = nullptr;
    std::uint64_t number = 0;
  };
  mutable std::mutex mutex_;
  std::map<const std::byte*, window> by_end_;  // the address behind the last byte
  std::uint64_t last_ = 0;
};

}  // namespace hvd::inline HVD_ABI::detail
