// row_table.hpp: a file's rows by "pid" and "tid".
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_timeline {

/// A hash table with open addressing, because each event is looked up in it.
class row_table {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;

  [[nodiscard]] std::uint32_t find(std::uint32_t process, std::uint32_t rank) const noexcept {
    const std::uint64_t key = key_of(process, rank);
    for (std::size_t i = slot_of(key);; i = (i + 1) & mask_) {
      if (slots_[i].row == none) return none;
      if (slots_[i].key == key) return slots_[i].row;
    }
  }

  /// The pair must be new.
  void add(std::uint32_t process, std::uint32_t rank, std::uint32_t row) {
    if (2 * ++used_ > slots_.size()) {
      std::vector<slot> old(2 * slots_.size());
      old.swap(slots_);
      mask_ = slots_.size() - 1;
      for (const slot& s : old) {
        if (s.row != none) put(s);
      }
    }
    put({key_of(process, rank), row});
  }

 private:
  struct slot {
    std::uint64_t key = 0;
    std::uint32_t row = none;
  };
  static std::uint64_t key_of(std::uint32_t process, std::uint32_t rank) noexcept {
    return std::uint64_t{process} << 32 | rank;
  }
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept {
    return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> 32) & mask_;
  }
  void put(const slot& s) noexcept {
    std::size_t i = slot_of(s.key);
    while (slots_[i].row != none) i = (i + 1) & mask_;
    slots_[i] = s;
  }

  std::vector<slot> slots_ = std::vector<slot>(64);
  std::size_t mask_ = 63, used_ = 0;
};

}  // namespace hvd_timeline
