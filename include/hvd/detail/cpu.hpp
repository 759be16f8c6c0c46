// hvd/detail/cpu.hpp: what this CPU can do: vector width, pause.
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

}  // namespace hvd::inline HVD_ABI::detail
