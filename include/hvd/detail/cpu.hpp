// hvd/detail/cpu.hpp: what this CPU can do: vector width, pause, copies that bypass the caches.
#pragma once

#include <hvd/version.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace hvd::inline HVD_ABI::detail {

inline constexpr std::size_t cache_line = 64;

enum class isa : unsigned char { baseline, avx2, avx512 };

/// The widest vectors of the CPU this process runs on, whatever the program was compiled for.
inline isa cpu_isa() noexcept {
#if defined(__x86_64__)
  static const isa widest = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return isa::avx512;
    }
    return __builtin_cpu_supports("avx2") ? isa::avx2 : isa::baseline;
  }();
  return widest;
#else
  return isa::baseline;
#endif
}

/// Tells the core that this is a spin loop: saves power, frees the sibling thread, and avoids the machine
/// clear that a speculated load costs when the awaited store arrives.
inline void cpu_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// A copy for zero lengths too: memcpy's pointers may not be null even then.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

/// Copies past the caches: for output that is larger than they are and that nobody reads soon. Saves the read for
/// ownership of every line. A `streaming_fence` must come before what is published afterwards.
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

/// How output is written: by copy_bytes, or past the caches by copy_streaming.
using copier = void (*)(std::byte* to, const std::byte* from, std::size_t bytes) noexcept;

/// Orders all that was copied past the caches before later stores. (A fence for each piece would wait for memory.)
inline void streaming_fence() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace hvd::inline HVD_ABI::detail
