// hvd/algorithm/direct/output.hpp: output through the caches, or past them if it would only evict needed data.
#pragma once

#include <hvd/op.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hvd::inline HVD_ABI::detail {

/// The way in which a collective writes its output. `streaming` stores bypass the caches: they save the read for
/// ownership of every line, and need an `output_fence` before the output is published.
enum class output : bool { cached, streaming };

/// Bytes that are read and then written in turn: small enough that reads and writes of memory overlap, and that a tile
/// stays in the first-level cache.
inline constexpr std::size_t output_tile = 1024;

inline void copy_streaming(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  const std::size_t head = (cache_line - reinterpret_cast<std::uintptr_t>(to) % cache_line) % cache_line;
  if (bytes < head + cache_line) return copy_bytes(to, from, bytes);
  copy_bytes(to, from, head);
  const std::size_t body = (bytes - head) / cache_line * cache_line;
  for (std::size_t i = head; i != head + body; i += cache_line) {
    for (std::size_t j = 0; j != cache_line; j += sizeof(__m128i)) {
      const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + j));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + j), v);
    }
  }
  copy_bytes(to + head + body, from + head + body, bytes - head - body);
#else
  copy_bytes(to, from, bytes);
#endif
}

inline void copy_to(output how, std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  how == output::streaming ? copy_streaming(to, from, bytes) : copy_bytes(to, from, bytes);
}

/// The same for lines that ranks write in turn. Between 16 and 64 KiB two pages are read in turn: in a longer run an
/// EPYC (Zen 4) prefetches lines without taking them over, and this rank's next store into each costs 1.5 times as
/// much.
inline void copy_from_peer(output how, std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  constexpr std::size_t page = 4096;
  const bool pays = how == output::cached && bytes >= 4 * page && bytes < 16 * page;
  for (; pays && bytes >= 2 * page; to += 2 * page, from += 2 * page, bytes -= 2 * page) {
    for (std::size_t at = 0; at != page; at += cache_line) {
      std::memcpy(to + at, from + at, cache_line);
      std::memcpy(to + page + at, from + page + at, cache_line);
    }
  }
  copy_to(how, to, from, bytes);
}

/// Like `op.complete`, but the outputs from number `streamed` on bypass the caches. May advance `outs` and `ins`.
inline void complete_streaming(const reduction& op, std::byte** outs, int nouts, int streamed, const std::byte** ins,
                               int nins, std::size_t count) {
  if (op.element_bytes > output_tile) return op.complete(outs, nouts, ins, nins, count);
  alignas(cache_line) std::byte tile[output_tile];
  for (const std::size_t each = output_tile / op.element_bytes; count != 0;) {
    const std::size_t n = std::min(count, each);
    const std::size_t bytes = n * op.element_bytes;
    std::byte* result = streamed == 0 ? tile : outs[0];
    op.complete(streamed == 0 ? &result : outs, std::max(streamed, 1), ins, nins, n);
    for (int j = streamed; j != nouts; ++j) copy_streaming(outs[j], result, bytes);
    for (int j = 0; j != nouts; ++j) outs[j] += bytes;
    for (int k = 0; k != nins; ++k) ins[k] += bytes;
    count -= n;
  }
}

/// Like `op.complete`, but `count` may be 0, and `outs` and `ins` may be advanced.
inline void complete_to(output how, const reduction& op, std::byte** outs, int nouts, const std::byte** ins, int nins,
                        std::size_t count) {
  if (how == output::streaming) return complete_streaming(op, outs, nouts, 0, ins, nins, count);
  if (count != 0) op.complete(outs, nouts, ins, nins, count);
}

/// Orders all streaming stores before later stores. (Once at the end: a fence for each piece would wait for memory.)
inline void output_fence([[maybe_unused]] output how) noexcept {
#if defined(__x86_64__)
  if (how == output::streaming) _mm_sfence();
#endif
}

}  // namespace hvd::inline HVD_ABI::detail
