// bench/cases/fused.hpp: gradients of real models: packed into a fusion buffer, reduced, unpacked.
#pragma once

#include <bench/backend.hpp>
#include <bench/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

namespace hvd::bench {

/// The gradients of one rank, each in its own allocation as in frameworks, in the order of gradients_in().
class GradientBuffers {
 public:
  GradientBuffers(const job& work, int rank, int size);
  [[nodiscard]] const std::vector<std::span<std::byte>>& parts() const { return parts_; }

  /// Writes them as a backward pass does, with values of no meaning.
  void rewrite(std::uint64_t round) const;
  /// Writes values whose reduction is known.
  void fill() const;
  /// How many elements are not that reduction.
  [[nodiscard]] std::uint64_t wrong() const;

 private:
  dtype type_;
  redop op_;
  int rank_, size_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::span<std::byte>> parts_;
};

/// A fusion buffer in memory of the library.
class PackBuffer {
 public:
  PackBuffer(erased_backend& backend, const job& work);
  PackBuffer(const PackBuffer&) = delete;
  PackBuffer& operator=(const PackBuffer&) = delete;
  ~PackBuffer() { backend_.release(data_); }

  /// Packs as much as fits, calls reduce(data, bytes), unpacks, and goes on until all is done. A gradient may lie
  /// across the end of the buffer. Without a buffer, of 0 bytes, each gradient is reduced where it lies.
  template <class Reduce>
  void reduce_all(const std::vector<std::span<std::byte>>& parts, Reduce reduce) {
    if (capacity_ == 0) {
      for (const std::span<std::byte> p : parts) reduce(p.data(), p.size());
      return;
    }
    for (cursor at; at.part != parts.size();) {
      cursor back = at;
      const std::size_t bytes = walk(parts, at, capacity_, [&](std::byte* gradient, std::size_t place, std::size_t n) {
        std::memcpy(data_ + place, gradient, n);
      });
      reduce(data_, bytes);
      walk(parts, back, bytes,
           [&](std::byte* gradient, std::size_t place, std::size_t n) { std::memcpy(gradient, data_ + place, n); });
    }
  }

 private:
  /// A place in the sequence of all gradients.
  struct cursor {
    std::size_t part = 0;
    std::size_t offset = 0;
  };
  /// Calls move(gradient's bytes, place in the buffer, length) until the buffer is full or all gradients are done.
  template <class Move>
  static std::size_t walk(const std::vector<std::span<std::byte>>& parts, cursor& at, std::size_t capacity, Move move) {
    std::size_t filled = 0;
    while (filled != capacity && at.part != parts.size()) {
      const std::span<std::byte> p = parts[at.part];
      const std::size_t n = std::min(p.size() - at.offset, capacity - filled);
      move(p.data() + at.offset, filled, n);
      filled += n;
      at.offset += n;
      if (at.offset == p.size()) at = {at.part + 1, 0};
    }
    return filled;
  }

  erased_backend& backend_;
  std::size_t capacity_;
  std::byte* data_;
};

/// Measures or checks one job of kind fused, as serve() does for the others.
void run_fused(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch);

}  // namespace hvd::bench
