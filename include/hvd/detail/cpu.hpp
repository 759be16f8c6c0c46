// hvd/detail/cpu.hpp: code that depends on the CPU: vector width, pause, copies, ownership of lines.
#pragma once

#include <hvd/version.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

namespace hvd::inline HVD_ABI::detail {

inline constexpr std::size_t cache_line = 64;

enum class isa : unsigned char { baseline, avx2, avx512 };

/// The widest vectors of the CPU on which this process runs, independent of the program's compiler options.
inline isa cpu_isa() noexcept {
#if defined(__x86_64__)
  static const isa widest = [] {
    __builtin_cpu_init();
    unsigned a = 0, b = 0, c = 0, d = 0;  // every CPU with AVX2 has F16C, but a virtual machine may hide it
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_F16C) == 0) return isa::baseline;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return isa::avx512;
    }
    return __builtin_cpu_supports("avx2") ? isa::avx2 : isa::baseline;
  }();
  return widest;
#else
  return isa::baseline;
#endif
}

/// Marks a spin loop for the core: saves power, frees the sibling thread, and avoids the machine clear of a speculated
/// load when the awaited store arrives.
inline void cpu_pause() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

/// For a target whose offset within its page is 1 to 31 bytes above that of the source: an EPYC (Zen 4) mistakes the
/// loads that follow a store for loads of what was stored, and copies 2 to 27 times as slowly. Backwards no load
/// follows such a store. (Large memory from malloc begins 16 bytes behind the start of a page.)
inline void copy_backwards(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  for (; bytes >= cache_line; bytes -= cache_line) {
    std::memcpy(to + bytes - cache_line, from + bytes - cache_line, cache_line);
  }
  std::memcpy(to, from, bytes);
}

/// A copy that also takes zero lengths with null pointers, unlike memcpy.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  const std::size_t behind = (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % 4096;
  if (bytes >= 2048 && behind - 1 < 31) [[unlikely]]
    return copy_backwards(to, from, bytes);
  if (bytes != 0) std::memcpy(to, from, bytes);
}

/// Stores their own contents into the lines of a copy's source, so that this core owns them, modified: cheaper for the
/// rank that writes them next. See line_costs::touched.
inline void touch_lines(const std::byte* lines, std::size_t bytes) noexcept {
  for (std::size_t at = 0; at < bytes; at += cache_line) {
    const std::atomic_ref first(const_cast<std::byte&>(lines[at]));
    first.store(first.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
}

}  // namespace hvd::inline HVD_ABI::detail
