// hvd/detail/kernel.hpp: n-ary reduction kernels on vectors of any width, chosen once for the running CPU.
//
// One kernel reads all inputs of an element, combines them in rank order in registers and stores the result
// to all outputs: every byte is loaded and stored once (movement-avoiding without a dependency chain over
// memory). 16-bit floats are accumulated in 32 bits and rounded once.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/detail/format.hpp>
#include <hvd/detail/precise.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

HVD_PRECISE_BEGIN

namespace hvd::inline HVD_ABI::detail {

/// The scaling of inputs and results: every input is multiplied by `pre`, and the result is multiplied by `post` and
/// divided by `divisor`.
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

// ---- combining two accumulators -----------------------------------------------------------------------------

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
/// The smallest or the largest; a NaN in any input makes the result NaN, from whichever rank it came, and -0 is less
/// than +0. Floats are compared as integers in the same order: one comparison, and selection by a mask, because GCC 12
/// makes scalars of more than that where vectors are wider than those of the CPU that a program is compiled for.
template <bool Largest>
struct extreme {
  template <class V>
  [[gnu::always_inline]] static void apply(V& a, const V& b) noexcept {
    if constexpr (requires { a[0]; }) {
      using integer = decltype(b < a);
      integer x = reinterpret_cast<integer>(a), y = reinterpret_cast<integer>(b), taken;
      if constexpr (std::is_floating_point_v<std::remove_cvref_t<decltype(a[0])>>) {
        integer p, q;
        order(x, p);
        order(y, q);
        taken = Largest ? q > p : q < p;
      } else {
        taken = Largest ? b > a : b < a;
      }
      x ^= (x ^ y) & taken;
      a = reinterpret_cast<V>(x);
    } else {
      a = ((Largest ? b > a : b < a) || b != b) ? b : a;
    }
  }

 private:
  /// From the bits of floats: integers in their order, and every NaN beyond them on the side that is sought.
  template <class V>
  [[gnu::always_inline]] static void order(const V& bits, V& result) noexcept {
    using integer = std::remove_cvref_t<decltype(bits[0])>;
    using unsigned_integer = std::make_unsigned_t<integer>;
    constexpr int digits = std::numeric_limits<integer>::digits, mantissa = digits == 31 ? 23 : 52;
    constexpr integer magnitude = std::numeric_limits<integer>::max(), infinity = magnitude >> mantissa << mantissa;
    // Of negative numbers that of the larger magnitude is the smaller. So infinities become `infinity` and ~infinity,
    // and the sum, which wraps, turns all integers until the NaNs of both signs are at one end.
    constexpr auto end = static_cast<unsigned_integer>(Largest ? ~infinity : infinity + 1);
    const auto ordered = reinterpret_cast<vec_t<unsigned_integer, sizeof(V)>>(bits ^ ((bits >> digits) & magnitude));
    result = reinterpret_cast<V>(ordered - (end + (unsigned_integer{1} << digits)));
  }
};
using minimum = extreme<false>;
using maximum = extreme<true>;

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

#if defined(__x86_64__)
inline constexpr bool wider_vectors = true;  ///< than 16 bytes, on CPUs of some ten years
#else
inline constexpr bool wider_vectors = false;
#endif

template <class Format, class Combine>
kernel vectorised(isa level = cpu_isa()) noexcept;

/// A unit is `Bytes` bytes of memory, in as many vectors as their accumulators take.
template <class Format, class Combine, std::size_t Bytes>
struct vector_kernel {
  using acc = typename Format::accumulated;
  using V = vec_t<acc, Bytes>;
  static constexpr std::size_t parts = sizeof(acc) / sizeof(typename Format::stored);
  /// Hides the latency of loads that miss the first-level cache. Products, and kernels for CPUs without AVX2, are
  /// rarely run, and are not unrolled to save compile time.
  static constexpr std::size_t unroll =
      std::is_same_v<Combine, multiply> || (Bytes == 16 && wider_vectors) ? 1 : 4 / parts;
  /// Results are sums or products of elements, of which bfloat16 knows all NaNs.
  static constexpr bool computes =
      std::is_same_v<Format, bfloat16_format> && (std::is_same_v<Combine, add> || std::is_same_v<Combine, multiply>);
  struct unit {
    V part[parts];
  };

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

  /// The results of N units from byte `at` on.
  template <std::size_t N>
  [[gnu::always_inline]] static void fold(unit (&a)[N], const std::byte* const* ins, int nins, std::size_t at,
                                          const factors<acc>& f) noexcept {
#pragma GCC unroll 4
    for (std::size_t u = 0; u != N; ++u) load(ins[0] + at + u * Bytes, a[u], f);
    for (int k = 1; k < nins; ++k) {
      const std::byte* const in = ins[k] + at;
#pragma GCC unroll 4
      for (std::size_t u = 0; u != N; ++u) {
        unit b;
        load(in + u * Bytes, b, f);
        combine(a[u], b);
      }
    }
#pragma GCC unroll 4
    for (std::size_t u = 0; u != N; ++u) finish(a[u], f);
  }
  template <std::size_t N>
  [[gnu::always_inline]] static void put(const unit (&a)[N], std::byte* const* outs, int nouts,
                                         std::size_t at) noexcept {
    for (int j = 0; j != nouts; ++j) {
#pragma GCC unroll 4
      for (std::size_t u = 0; u != N; ++u) {
        Format::template store_unit<Bytes, computes>(outs[j] + at + u * Bytes, a[u].part);
      }
    }
  }

  /// Reduces N units at a time from byte `at` on, and returns where the rest begins.
  template <std::size_t N>
  [[gnu::always_inline]] static std::size_t reduce(std::byte* const* outs, int nouts, const std::byte* const* ins,
                                                   int nins, std::size_t bytes, std::size_t at,
                                                   const factors<acc>& f) noexcept {
    for (; at + N * Bytes <= bytes; at += N * Bytes) {
      unit a[N];
      fold(a, ins, nins, at, f);
      put(a, outs, nouts, at);
    }
    return at;
  }

  /// If the elements do not fill the last unit, it overlaps the unit before it. It is read before anything is written,
  /// because an output may be an input.
  [[gnu::always_inline]] static void run(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins,
                                         std::size_t count, const scaling* scale) noexcept {
    if constexpr (computes) {
      // The kernel of the minimum expects any NaN: one input is only converted, and if a factor is NaN, so are all
      // results.
      if (nins == 1 || (scale != nullptr && __builtin_isunordered(scale->pre, scale->post))) {
        return vectorised<Format, minimum>(Bytes == 16 ? isa::baseline : isa::avx2)(outs, nouts, ins, nins, count,
                                                                                    scale);
      }
    }
    const factors<acc> f(scale);
    const std::size_t bytes = count * sizeof(typename Format::stored);
    if (bytes < Bytes) return run_short(outs, nouts, ins, nins, bytes, f);
    const bool overlaps = bytes % Bytes != 0;
    unit last[1] = {};
    if (overlaps) fold(last, ins, nins, bytes - Bytes, f);
    std::size_t i = 0;
    if constexpr (std::is_floating_point_v<acc> && std::is_same_v<Combine, add>) {
      // Sums without factors have their own loop, without conditions.
      i = scale == nullptr ? reduce<unroll>(outs, nouts, ins, nins, bytes, i, factors<acc>(nullptr))
                           : reduce<unroll>(outs, nouts, ins, nins, bytes, i, f);
    } else if constexpr (unroll > 1) {
      i = reduce<unroll>(outs, nouts, ins, nins, bytes, i, f);
    }
    reduce<1>(outs, nouts, ins, nins, bytes, i, f);
    if (overlaps) put(last, outs, nouts, bytes - Bytes);
  }

 private:
  [[gnu::always_inline]] static void load(const std::byte* from, unit& a, const factors<acc>& f) noexcept {
    Format::template load_unit<Bytes>(from, a.part);
#pragma GCC unroll 2
    for (std::size_t p = 0; p != parts; ++p) prepare(a.part[p], f);
  }
  [[gnu::always_inline]] static void combine(unit& a, const unit& b) noexcept {
#pragma GCC unroll 2
    for (std::size_t p = 0; p != parts; ++p) Combine::apply(a.part[p], b.part[p]);
  }
  [[gnu::always_inline]] static void finish(unit& a, const factors<acc>& f) noexcept {
#pragma GCC unroll 2
    for (std::size_t p = 0; p != parts; ++p) finish(a.part[p], f);
  }

  template <class, class, std::size_t>
  friend struct vector_kernel;

  /// The same for less than two units; for less than one by narrower ones, of which the last is padded with zeros.
  [[gnu::always_inline]] static void run_short(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins,
                                               std::size_t bytes, const factors<acc>& f) noexcept {
    if (bytes >= Bytes) {
      unit first[1], last[1];
      fold(first, ins, nins, 0, f);
      fold(last, ins, nins, bytes - Bytes, f);
      put(first, outs, nouts, 0);
      put(last, outs, nouts, bytes - Bytes);
    } else if constexpr (Bytes > 16) {
      vector_kernel<Format, Combine, Bytes / 2>::run_short(outs, nouts, ins, nins, bytes, f);
    } else {
      alignas(Bytes) std::byte padded[Bytes] = {};
      unit a[1], b;
      copy_part(padded, ins[0], bytes);
      load(padded, a[0], f);
      for (int k = 1; k < nins; ++k) {
        copy_part(padded, ins[k], bytes);
        load(padded, b, f);
        combine(a[0], b);
      }
      finish(a[0], f);
      Format::template store_unit<Bytes, computes>(padded, a[0].part);
      for (int j = 0; j != nouts; ++j) copy_part(outs[j], padded, bytes);
    }
  }
  /// Copies less than 16 bytes, in parts whose sizes the compiler knows: a call would take longer than all the rest.
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
[[gnu::target("avx2,f16c")]] void reduce_avx2(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins,
                                              std::size_t count, const scaling* s) {
  vector_kernel<Format, Combine, 32>::run(outs, nouts, ins, nins, count, s);
}

template <class Format, class Combine>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]] void reduce_avx512(std::byte* const* outs, int nouts,
                                                                              const std::byte* const* ins, int nins,
                                                                              std::size_t count, const scaling* s) {
  vector_kernel<Format, Combine, 64>::run(outs, nouts, ins, nins, count, s);
}
#endif

/// The vector kernel for this CPU. Vectors of 64 bytes are for sums of floating-point numbers alone: behind the
/// first-level cache all operations are as fast with half of that, and each kernel takes time to compile.
template <class Format, class Combine>
kernel vectorised(isa level) noexcept {
#if defined(__x86_64__)
  if constexpr (std::is_floating_point_v<typename Format::accumulated> && std::is_same_v<Combine, add>) {
    if (level == isa::avx512) return &reduce_avx512<Format, Combine>;
  }
  if (level != isa::baseline) return &reduce_avx2<Format, Combine>;
#endif
  static_cast<void>(level);
  return &reduce_baseline<Format, Combine>;
}

}  // namespace hvd::inline HVD_ABI::detail

HVD_PRECISE_END
