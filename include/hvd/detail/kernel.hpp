// hvd/detail/kernel.hpp: n-ary reduction kernels on vectors of any width, chosen once for the running CPU.
//
// One kernel reads all inputs of an element, combines them in rank order in registers and stores the result
// to all outputs: every byte is loaded and stored once (movement-avoiding without a dependency chain over
// memory). 16-bit floats are accumulated in 32 bits and rounded once.
#pragma once

#include <hvd/detail/cpu.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace hvd::inline HVD_ABI::detail {

/// What happens to values on their way in and out: every input is multiplied by `pre`, the result by `post`
/// and divided by `divisor`.
struct scaling {
  double pre = 1.0;
  double post = 1.0;
  std::uint32_t divisor = 1;

  [[nodiscard]] constexpr bool prescales() const noexcept { return pre != 1.0; }
  [[nodiscard]] constexpr bool postscales() const noexcept { return post != 1.0 || divisor != 1; }
  friend constexpr bool operator==(const scaling&, const scaling&) = default;
};

/// outs[j][i] = finish(fold over k in order of prepare(ins[k][i])) for i < count and every j.
/// An output may be the same memory as an input, but may not overlap one in part. `scale` may be null.
using kernel = void (*)(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                        const scaling* scale);

// GCC and Clang vectors of `Bytes` bytes. They are passed by reference only: by value they would make an ABI
// that depends on compiler flags.
template <class T, int Bytes>
struct vec {
  typedef T type __attribute__((vector_size(Bytes)));
};
template <class T, int Bytes>
using vec_t = typename vec<T, Bytes>::type;

// ---- how elements are stored, and in which type they are accumulated --------------------------------------

template <class T>
struct plain {
  using stored = T;
  using accumulated = T;

  template <int Bytes>
  [[gnu::always_inline]] static void load(const std::byte* from, vec_t<T, Bytes>& v) noexcept {
    __builtin_memcpy(&v, from, Bytes);
  }
  template <int Bytes>
  [[gnu::always_inline]] static void store(std::byte* to, const vec_t<T, Bytes>& v) noexcept {
    __builtin_memcpy(to, &v, Bytes);
  }
};

struct bfloat16_format {
  using stored = std::uint16_t;
  using accumulated = float;

  template <int Bytes>
  [[gnu::always_inline]] static void load(const std::byte* from, vec_t<float, Bytes>& v) noexcept {
    vec_t<std::uint16_t, Bytes / 2> narrow;
    __builtin_memcpy(&narrow, from, Bytes / 2);
    const auto bits = __builtin_convertvector(narrow, vec_t<std::uint32_t, Bytes>) << 16;
    __builtin_memcpy(&v, &bits, Bytes);
  }
  template <int Bytes>
  [[gnu::always_inline]] static void store(std::byte* to, const vec_t<float, Bytes>& v) noexcept {
    using words = vec_t<std::uint32_t, Bytes>;
    words bits;
    __builtin_memcpy(&bits, &v, Bytes);
    const words rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;  // to nearest, ties to even
    const words quiet_nan = (bits >> 16) | 0x40U;
    const words result = (bits & 0x7fffffffU) > 0x7f800000U ? quiet_nan : rounded;
    const auto narrow = __builtin_convertvector(result, vec_t<std::uint16_t, Bytes / 2>);
    __builtin_memcpy(to, &narrow, Bytes / 2);
  }
};

// IEEE half by integer arithmetic, after F. Giesen, "Float to half done quick" (2012): vectorises on every
// CPU, and is right for subnormals even when the caller's thread flushes subnormal floats to zero.
struct half_format {
  using stored = std::uint16_t;
  using accumulated = float;

  template <int Bytes>
  [[gnu::always_inline]] static void load(const std::byte* from, vec_t<float, Bytes>& v) noexcept {
    using words = vec_t<std::uint32_t, Bytes>;
    vec_t<std::uint16_t, Bytes / 2> narrow;
    __builtin_memcpy(&narrow, from, Bytes / 2);
    const words h = __builtin_convertvector(narrow, words);
    const words magnitude = (h & 0x7fffU) << 13;
    const words normal = magnitude + (112U << 23);
    const words infinite_or_nan = magnitude + (224U << 23);
    // A subnormal is mantissa x 2^-24: build 2^-14 + mantissa x 2^-24 and subtract 2^-14 exactly.
    const words biased = magnitude + (113U << 23);
    const words base = words{} + (113U << 23);
    vec_t<float, Bytes> with_base, only_base;
    __builtin_memcpy(&with_base, &biased, Bytes);
    __builtin_memcpy(&only_base, &base, Bytes);
    with_base -= only_base;
    words subnormal;
    __builtin_memcpy(&subnormal, &with_base, Bytes);
    words bits = magnitude >= (0x7c00U << 13) ? infinite_or_nan : normal;
    bits = magnitude < (0x0400U << 13) ? subnormal : bits;
    bits |= (h & 0x8000U) << 16;
    __builtin_memcpy(&v, &bits, Bytes);
  }
  template <int Bytes>
  [[gnu::always_inline]] static void store(std::byte* to, const vec_t<float, Bytes>& v) noexcept {
    using words = vec_t<std::uint32_t, Bytes>;
    words bits;
    __builtin_memcpy(&bits, &v, Bytes);
    const words sign = (bits >> 16) & 0x8000U;
    const words f = bits & 0x7fffffffU;
    const words normal = (f - (112U << 23) + 0xfffU + ((f >> 13) & 1U)) >> 13;
    // Adding 0.5 lines the mantissa of a subnormal result up with the float's last bits and rounds it.
    const words half_bits = words{} + (126U << 23);
    vec_t<float, Bytes> shifted, half;
    __builtin_memcpy(&shifted, &f, Bytes);
    __builtin_memcpy(&half, &half_bits, Bytes);
    shifted += half;
    words subnormal;
    __builtin_memcpy(&subnormal, &shifted, Bytes);
    subnormal -= half_bits;
    words result = f < (113U << 23) ? subnormal : normal;
    result = f >= (143U << 23) ? words{} + 0x7c00U : result;
    result = f > 0x7f800000U ? 0x7e00U | ((f >> 13) & 0x3ffU) : result;
    result |= sign;
    const auto narrow = __builtin_convertvector(result, vec_t<std::uint16_t, Bytes / 2>);
    __builtin_memcpy(to, &narrow, Bytes / 2);
  }
};

// ---- how two accumulators are combined --------------------------------------------------------------------

struct add {
  template <class V>
  [[gnu::always_inline]] static void apply(V& a, const V& b) noexcept {
    a += b;
  }
};
struct multiply {
  template <class V>
  [[gnu::always_inline]] static void apply(V& a, const V& b) noexcept {
    a *= b;
  }
};
// A NaN in any input makes the result NaN, whatever the rank it came from.
struct minimum {
  template <class V>
  [[gnu::always_inline]] static void apply(V& a, const V& b) noexcept {
    a = ((b < a) | (b != b)) ? b : a;
  }
};
struct maximum {
  template <class V>
  [[gnu::always_inline]] static void apply(V& a, const V& b) noexcept {
    a = ((b > a) | (b != b)) ? b : a;
  }
};

// ---- the kernel -------------------------------------------------------------------------------------------

/// `scaling` in the type of the accumulators; the conversions are done once, not for every vector.
template <class T>
struct factors {
  bool prescales = false, postscales = false, divides = false;
  T pre{}, post{}, divisor{};

  [[gnu::always_inline]] explicit factors(const scaling* s) noexcept {
    if constexpr (std::is_floating_point_v<T>) {
      if (s == nullptr) return;
      prescales = s->prescales();
      postscales = s->post != 1.0;
      divides = s->divisor != 1;
      pre = static_cast<T>(s->pre);
      post = static_cast<T>(s->post);
      divisor = static_cast<T>(s->divisor);
    }
  }
};

template <class Format, class Combine, int Bytes>
struct vector_kernel {
  using acc = typename Format::accumulated;
  using V = vec_t<acc, Bytes>;
  using narrower = vector_kernel<Format, Combine, Bytes / 2>;
  static constexpr std::size_t width = Bytes / sizeof(acc);
  static constexpr std::size_t stored_bytes = width * sizeof(typename Format::stored);
  static constexpr int unroll = 4;  // hides the latency of loads that miss the first-level cache

  [[gnu::always_inline]] static void prepare(V& v, const factors<acc>& f) noexcept {
    if constexpr (std::is_floating_point_v<acc>) {
      if (!f.prescales) return;
      v *= f.pre;
      keep_product(v);
    }
  }
  [[gnu::always_inline]] static void finish(V& v, const factors<acc>& f) noexcept {
    if constexpr (std::is_floating_point_v<acc>) {
      if (f.postscales) v *= f.post;
      if (f.divides) v /= f.divisor;
    }
  }
  /// Keeps GCC from fusing a product with the sum that follows: CPUs with and without fused multiply-add would round
  /// differently. (Clang fuses only within one expression.)
  [[gnu::always_inline]] static void keep_product([[maybe_unused]] V& v) noexcept {
#if defined(__clang__)
#elif defined(__x86_64__)
    asm("" : "+x"(v));
#else
    asm("" : "+m"(v));
#endif
  }

  /// The results of N vectors from byte `at` on.
  template <int N>
  [[gnu::always_inline]] static void fold(V (&a)[N], const std::byte* const* ins, int nins, std::size_t at,
                                          const factors<acc>& f) noexcept {
#pragma GCC unroll 4
    for (int u = 0; u != N; ++u) {
      Format::template load<Bytes>(ins[0] + at + static_cast<std::size_t>(u) * stored_bytes, a[u]);
      prepare(a[u], f);
    }
    for (int k = 1; k < nins; ++k) {
      const std::byte* const in = ins[k] + at;
#pragma GCC unroll 4
      for (int u = 0; u != N; ++u) {
        V b;
        Format::template load<Bytes>(in + static_cast<std::size_t>(u) * stored_bytes, b);
        prepare(b, f);
        Combine::apply(a[u], b);
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u != N; ++u) finish(a[u], f);
  }
  template <int N>
  [[gnu::always_inline]] static void put(const V (&a)[N], std::byte* const* outs, int nouts, std::size_t at) noexcept {
    for (int j = 0; j != nouts; ++j) {
#pragma GCC unroll 4
      for (int u = 0; u != N; ++u) {
        Format::template store<Bytes>(outs[j] + at + static_cast<std::size_t>(u) * stored_bytes, a[u]);
      }
    }
  }

  /// What does not fill its last vector has one that overlaps the vector before it. It is read before anything is
  /// written, as an output may be an input.
  [[gnu::always_inline]] static void run(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins,
                                         std::size_t count, const scaling* scale) noexcept {
    const factors<acc> f(scale);
    const std::size_t bytes = count * sizeof(typename Format::stored);
    if (bytes < stored_bytes) return run_short(outs, nouts, ins, nins, bytes, f);
    const bool overlaps = bytes % stored_bytes != 0;
    V last[1] = {};
    if (overlaps) fold(last, ins, nins, bytes - stored_bytes, f);
    std::size_t i = 0;
    for (; i + unroll * stored_bytes <= bytes; i += unroll * stored_bytes) {
      V a[unroll];
      fold(a, ins, nins, i, f);
      put(a, outs, nouts, i);
    }
    for (; i + stored_bytes <= bytes; i += stored_bytes) {
      V a[1];
      fold(a, ins, nins, i, f);
      put(a, outs, nouts, i);
    }
    if (overlaps) put(last, outs, nouts, bytes - stored_bytes);
  }
  /// The same for less than two vectors; for less than one by narrower ones, of which the last is padded with zeros.
  [[gnu::always_inline]] static void run_short(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins,
                                               std::size_t bytes, const factors<acc>& f) noexcept {
    if (bytes >= stored_bytes) {
      V first[1], last[1];
      fold(first, ins, nins, 0, f);
      fold(last, ins, nins, bytes - stored_bytes, f);
      put(first, outs, nouts, 0);
      put(last, outs, nouts, bytes - stored_bytes);
    } else if constexpr (Bytes > 16) {
      narrower::run_short(outs, nouts, ins, nins, bytes, f);
    } else {
      alignas(Bytes) std::byte padded[stored_bytes] = {};
      V a, b;
      copy_part(padded, ins[0], bytes);
      Format::template load<Bytes>(padded, a);
      prepare(a, f);
      for (int k = 1; k < nins; ++k) {
        copy_part(padded, ins[k], bytes);
        Format::template load<Bytes>(padded, b);
        prepare(b, f);
        Combine::apply(a, b);
      }
      finish(a, f);
      Format::template store<Bytes>(padded, a);
      for (int j = 0; j != nouts; ++j) copy_part(outs[j], padded, bytes);
    }
  }
  /// Less than 16 bytes, in pieces whose sizes the compiler knows: a call would take longer than all the rest.
  [[gnu::always_inline]] static void copy_part(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    std::size_t at = 0;
    copy_piece<8>(to, from, bytes, at);
    copy_piece<4>(to, from, bytes, at);
    copy_piece<2>(to, from, bytes, at);
    copy_piece<1>(to, from, bytes, at);
  }
  template <std::size_t Piece>
  [[gnu::always_inline]] static void copy_piece(std::byte* to, const std::byte* from, std::size_t bytes,
                                                std::size_t& at) noexcept {
    if ((bytes & Piece) == 0) return;
    __builtin_memcpy(to + at, from + at, Piece);
    at += Piece;
  }
};

template <class Format, class Combine>
void reduce_baseline(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                     const scaling* s) {
  vector_kernel<Format, Combine, 16>::run(outs, nouts, ins, nins, count, s);
}

#if defined(__x86_64__)
template <class Format, class Combine>
[[gnu::target("avx2")]] void reduce_avx2(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins,
                                         std::size_t count, const scaling* s) {
  vector_kernel<Format, Combine, 32>::run(outs, nouts, ins, nins, count, s);
}

template <class Format, class Combine>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void reduce_avx512(std::byte* const* outs, int nouts,
                                                                         const std::byte* const* ins, int nins,
                                                                         std::size_t count, const scaling* s) {
  vector_kernel<Format, Combine, 64>::run(outs, nouts, ins, nins, count, s);
}
#endif

/// The vector kernel for this CPU.
template <class Format, class Combine>
kernel vectorised(isa level = cpu_isa()) noexcept {
#if defined(__x86_64__)
  if (level == isa::avx512) return &reduce_avx512<Format, Combine>;
  if (level == isa::avx2) return &reduce_avx2<Format, Combine>;
#endif
  static_cast<void>(level);
  return &reduce_baseline<Format, Combine>;
}

}  // namespace hvd::inline HVD_ABI::detail
