// hvd/shared_memory/shared_block.hpp: memory from alloc_shared, and the blocks that a group has.
#pragma once

#include <hvd/version.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Memory from alloc_shared: each rank's part has the same size, and all parts are mapped at equal distances.
struct shared_block {
  std::uint32_t id = 0;       ///< the same on all ranks; 0 means none
  std::byte* base = nullptr;  ///< part of rank 0
  std::size_t stride = 0;
  std::size_t bytes = 0;

  [[nodiscard]] std::byte* part(int rank) const noexcept { return base + static_cast<std::size_t>(rank) * stride; }
};

/// The blocks of a group, on one rank.
class shared_blocks {
 public:
  void add(const shared_block& b) { all_.push_back(b); }
  void remove(std::uint32_t id) noexcept {
    std::erase_if(all_, [id](const shared_block& b) { return b.id == id; });
  }
  /// The block whose part of `rank` contains [p, p + bytes), or null.
  [[nodiscard]] const shared_block* find(const std::byte* p, std::size_t bytes, int rank) const noexcept {
    return first([&](const shared_block& b) {
      const std::byte* const part = b.part(rank);
      return p >= part && p < part + b.bytes && bytes <= b.bytes - static_cast<std::size_t>(p - part);
    });
  }
  [[nodiscard]] const shared_block* find(std::uint32_t id) const noexcept {
    return first([id](const shared_block& b) { return b.id == id; });
  }

 private:
  template <class Is>
  [[nodiscard]] const shared_block* first(const Is& is) const noexcept {
    const auto found = std::find_if(all_.begin(), all_.end(), is);
    return found == all_.end() ? nullptr : &*found;
  }
  std::vector<shared_block> all_;
};

}  // namespace hvd::inline HVD_ABI::detail
