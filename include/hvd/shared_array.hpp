// hvd/shared_array.hpp: an array in memory that all ranks of a group can reach.
#pragma once

#include <hvd/error.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

namespace hvd::inline HVD_ABI {

/// The result of `comm.alloc_shared<T>(n)`: n elements of this rank, zero at first, aligned to a page. Other ranks of
/// the group read and write them in collectives, which then need no staging. Move-only. Each rank frees its own part by
/// destroying it, in any order, also after the transport. No rank may use an array in a collective after another rank
/// has freed its part. After a failed collective the contents are unspecified, and peers that have not noticed the
/// failure may still write to them for a moment.
template <class T>
class shared_array {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 4096,
                "hvd: shared memory holds trivially copyable values only: other ranks write their bytes");

 public:
  using value_type = T;

  shared_array() = default;
  /// For transports: `owner` keeps the memory alive.
  shared_array(T* data, std::size_t size, std::shared_ptr<void> owner)
      : data_(data), size_(size), owner_(std::move(owner)) {}
  shared_array(shared_array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)),
        owner_(std::move(other.owner_)) {}
  shared_array& operator=(shared_array&& other) noexcept {
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    owner_ = std::move(other.owner_);
    return *this;
  }

  [[nodiscard]] T* data() noexcept { return data_; }
  [[nodiscard]] const T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] T* begin() noexcept { return data_; }
  [[nodiscard]] T* end() noexcept { return data_ + size_; }
  [[nodiscard]] const T* begin() const noexcept { return data_; }
  [[nodiscard]] const T* end() const noexcept { return data_ + size_; }
  T& operator[](std::size_t i) noexcept { return data_[i]; }
  const T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::shared_ptr<void> owner_;
};

namespace detail {

/// The same in private memory, for transports without common memory. `label`: of the group, for the error no_memory.
template <class T>
shared_array<T> private_array(std::size_t n, std::string_view label) {
  if (n == 0) return {};
  constexpr std::align_val_t page{4096};
  const bool addressable = n <= std::size_t{PTRDIFF_MAX} / sizeof(T);
  void* const memory = addressable ? ::operator new(n * sizeof(T), page, std::nothrow) : nullptr;
  if (memory == nullptr) {
    fail(error_kind::no_memory,
         {"alloc_shared on ", label, ": no memory for ", n, " elements of ", sizeof(T), " bytes"});
  }
  std::shared_ptr<void> owner(memory, [](void* p) { ::operator delete(p, page); });
  T* const data = static_cast<T*>(std::memset(owner.get(), 0, n * sizeof(T)));
  return {data, n, std::move(owner)};
}

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
