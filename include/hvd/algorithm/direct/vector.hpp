// hvd/algorithm/direct/vector.hpp: the data of a collective on one rank, in one piece or in many.
//
// The staged protocols see a rank's data as a vector of elements that lies in pieces. A plain call has one piece; a
// batch of tensors has one for each tensor (fusion/pack.hpp). Such a vector has
//   length, unit    elements, and bytes of an element where it travels;
//   converts()      whether it travels as another type than it has in memory;
//   each(first, last, f)
//                   calls f(piece, first element within it, index in the vector, elements) for all pieces of
//                   [first, last); a piece has `in` and `out`;
//   stage(to, piece, first, n, outer)
//                   copies elements to the staging ring, converted and scaled by `outer` if they are;
//   unpack(piece, first, n, from)
//                   copies them back, if they are converted.
#pragma once

#include <hvd/op.hpp>
#include <hvd/shared_memory/staging.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hvd::inline HVD_ABI::detail {

/// Copies into the staging ring.
inline void stage_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if defined(__SANITIZE_THREAD__)
  // Two ranks in different calls may write the same bytes at once: see staged.hpp.
  for (std::size_t i = 0; i != bytes; ++i) std::atomic_ref(to[i]).store(from[i], std::memory_order_relaxed);
#else
  // C libraries copy a page at once by the CPU's string instructions. On an EPYC (Zen 4) that takes 0.1 us longer if
  // another core has the lines.
  for (constexpr std::size_t piece = 1024; bytes <= 2 * staging_page && bytes > piece; bytes -= piece) {
    copy_bytes(to, from, piece);
    to += piece;
    from += piece;
  }
  copy_bytes(to, from, bytes);
#endif
}

/// A vector in one piece, which is the vector itself.
struct contiguous {
  const std::byte* in;
  std::byte* out;
  std::size_t length;
  std::size_t unit;

  static constexpr bool converts() noexcept { return false; }
  template <class F>
  void each(std::size_t first, std::size_t last, const F& f) const {
    const std::size_t begin = std::min(first, length), end = std::min(last, length);
    if (begin != end) f(*this, begin, begin, end - begin);
  }
  void stage(std::byte* to, const contiguous&, std::size_t first, std::size_t n, const reduction*) const noexcept {
    stage_bytes(to, in + first * unit, n * unit);
  }
  void unpack(const contiguous&, std::size_t, std::size_t, const std::byte*) const noexcept {}
};

/// Calls f(piece, first element within it, byte within the chunk, elements) for each piece in chunk k of `count`
/// elements.
template <class V, class F>
void each_in_chunk(const V& v, std::uint64_t k, std::size_t count, const F& f) {
  v.each(k * count, (k + 1) * count, [&](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
    f(p, first, (at - k * count) * v.unit, n);
  });
}

}  // namespace hvd::inline HVD_ABI::detail
