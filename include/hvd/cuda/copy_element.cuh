// hvd/cuda/copy_element.cuh: scaling and conversion of an element on a GPU, and of as many elements as one access
// moves.
//
// For hvd/cuda/copy.cuh, which removes the macros.
#pragma once

#include <hvd/dtype.hpp>

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__CUDACC__)
#define HVD_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HVD_HOST_DEVICE inline
#endif
// For the device alone: the host's compiler warns of pragmas that it does not know.
#if defined(__CUDA_ARCH__)
#define HVD_UNROLLED _Pragma("unroll")
#define HVD_ROLLED _Pragma("unroll 1")
#else
#define HVD_UNROLLED
#define HVD_ROLLED
#endif

namespace hvd::inline HVD_ABI::detail {

/// The data that one access moves, in words of 32 bits.
template <unsigned Bytes>
struct alignas(Bytes) copied_words {
  std::uint32_t at[Bytes / 4];
};
template <>
struct copied_words<2> {
  std::uint16_t at[1];
};
template <>
struct copied_words<1> {
  std::uint8_t at[1];
};

template <class Words>
HVD_HOST_DEVICE Words copy_load(const std::byte* from) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const Words*>(from);
#else
  assert(reinterpret_cast<std::uintptr_t>(from) % alignof(Words) == 0 && "a GPU would stop here");
  Words words;
  std::memcpy(&words, from, sizeof words);
  return words;
#endif
}
template <class Words>
HVD_HOST_DEVICE void copy_store(std::byte* to, const Words& words) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<Words*>(to) = words;
#else
  assert(reinterpret_cast<std::uintptr_t>(to) % alignof(Words) == 0 && "a GPU would stop here");
  std::memcpy(to, &words, sizeof words);
#endif
}

// ---- arithmetic -------------------------------------------------------------------------------------------

// Instructions by name on the device: no option of nvcc (-use_fast_math, -ftz) changes what they round to.
#if defined(__CUDA_ARCH__)
#define HVD_INSTRUCTION(type, result, text, host, ...)                                                                 \
  type value;                                                                                                          \
  asm(text : result(value) : __VA_ARGS__);                                                                             \
  return value;
#else
#define HVD_INSTRUCTION(type, result, text, host, ...) return host;
#endif

HVD_HOST_DEVICE float copy_product(float a, float b){
    HVD_INSTRUCTION(float, "=f", "mul.rn.f32 %0, %1, %2;", a* b, "f"(a), "f"(b))} HVD_HOST_DEVICE
    double copy_product(double a, double b){
        HVD_INSTRUCTION(double, "=d", "mul.rn.f64 %0, %1, %2;", a* b, "d"(a), "d"(b))} HVD_HOST_DEVICE
    float copy_quotient(float a, float b){
        HVD_INSTRUCTION(float, "=f", "div.rn.f32 %0, %1, %2;", a / b, "f"(a), "f"(b))} HVD_HOST_DEVICE
    double copy_quotient(double a, double b){HVD_INSTRUCTION(double, "=d", "div.rn.f64 %0, %1, %2;", a / b, "d"(a),
                                                             "d"(b))} HVD_HOST_DEVICE float copy_narrowed(double a){
        HVD_INSTRUCTION(float, "=f", "cvt.rn.f32.f64 %0, %1;", static_cast<float>(a), "d"(a))} HVD_HOST_DEVICE
    double copy_widened(float a){HVD_INSTRUCTION(double, "=d", "cvt.f64.f32 %0, %1;", static_cast<double>(a),
                                                 "f"(a))} HVD_HOST_DEVICE float copy_half_value(std::uint16_t a){
        HVD_INSTRUCTION(float, "=f", "cvt.f32.f16 %0, %1;", half_value(a), "h"(a))} HVD_HOST_DEVICE std::uint16_t
    copy_half_bits(float a){HVD_INSTRUCTION(std::uint16_t, "=h", "cvt.rn.f16.f32 %0, %1;", half_bits(a),
                                            "f"(a))} HVD_HOST_DEVICE std::uint16_t copy_bfloat16_bits(float a) {
  HVD_INSTRUCTION(std::uint16_t, "=h", "cvt.rn.bf16.f32 %0, %1;", bfloat16_bits(a), "f"(a))
}

template <class To, class From>
HVD_HOST_DEVICE To copy_bits_as(From bits) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &bits, sizeof to);
  return to;
}

template <class T>
inline constexpr int copied_mantissa = 0;  ///< bits; none for integers
template <>
inline constexpr int copied_mantissa<half> = 10;
template <>
inline constexpr int copied_mantissa<bfloat16> = 7;
template <>
inline constexpr int copied_mantissa<float> = 23;
template <>
inline constexpr int copied_mantissa<double> = 52;

/// An unsigned integer as wide as T.
template <class T>
using copied_bits = std::conditional_t<
    sizeof(T) == 8, std::uint64_t,
    std::conditional_t<sizeof(T) == 4, std::uint32_t, std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
/// The type in which values are scaled: the wider type, at least float; double for integers.
template <class From, class To>
using copied_in = std::conditional_t<copied_mantissa<From> == 0 || sizeof(From) == 8 || sizeof(To) == 8, double, float>;

template <class A>
struct copy_scale {
  A factor, divisor;
  std::uint32_t whole_divisor, poison;
  bool multiplies, divides;

  HVD_HOST_DEVICE copy_scale(double by, std::uint32_t over, std::uint32_t set)
      : factor(), divisor(static_cast<A>(over)), whole_divisor(over), poison(set), multiplies(by != 1.0),
        divides(over != 1) {
    if constexpr (sizeof(A) == 8) {
      factor = by;
    } else {
      factor = copy_narrowed(by);
    }
  }
};

/// A floating-point element as a number.
template <class From, class A>
HVD_HOST_DEVICE A copied_value(copied_bits<From> bits) {
  if constexpr (std::is_same_v<From, half>) {
    return copy_half_value(bits);
  } else if constexpr (std::is_same_v<From, bfloat16>) {
    return copy_bits_as<float>(static_cast<std::uint32_t>(bits) << 16);
  } else if constexpr (std::is_same_v<From, A>) {
    return copy_bits_as<A>(bits);
  } else {
    return copy_widened(copy_bits_as<float>(bits));
  }
}
/// A number that is no NaN, rounded to nearest (ties to even).
template <class To, class A>
HVD_HOST_DEVICE copied_bits<To> copied_rounded(A value) {
  if constexpr (std::is_same_v<To, half>) {
    return copy_half_bits(value);
  } else if constexpr (std::is_same_v<To, bfloat16>) {
    return copy_bfloat16_bits(value);
  } else if constexpr (std::is_same_v<To, A>) {
    return copy_bits_as<copied_bits<To>>(value);
  } else {
    return copy_bits_as<std::uint32_t>(copy_narrowed(value));
  }
}
template <class From>
HVD_HOST_DEVICE bool copied_nan(copied_bits<From> bits) {
  constexpr int sign = 8 * sizeof(From) - 1;
  constexpr std::uint64_t magnitude = (std::uint64_t{1} << sign) - 1;
  constexpr std::uint64_t infinity = magnitude >> copied_mantissa<From> << copied_mantissa<From>;
  return static_cast<copied_bits<From>>(bits & magnitude) > infinity;
}
/// A NaN as one of another type: it keeps its sign and the upper bits of its payload and becomes quiet, like on CPUs,
/// unlike on GPUs. It stays unchanged if it is only moved.
template <class From, class To>
HVD_HOST_DEVICE copied_bits<To> copied_nan_as(copied_bits<From> bits, bool scales) {
  constexpr int from = copied_mantissa<From>, to = copied_mantissa<To>, sign = 8 * sizeof(To) - 1;
  constexpr bool same = std::is_same_v<From, To> || (std::is_same_v<From, bfloat16> && std::is_same_v<To, float>);
  constexpr std::uint64_t infinity = (std::uint64_t{1} << sign) - (std::uint64_t{1} << to);
  const std::uint64_t payload = bits & ((std::uint64_t{1} << from) - 1);
  const std::uint64_t minus = static_cast<std::uint64_t>(bits) >> (8 * sizeof(From) - 1);
  const std::uint64_t quiet = static_cast<std::uint64_t>(!same || scales) << (to - 1);
  const std::uint64_t moved =
      from > to ? payload >> (from > to ? from - to : 0) : payload << (to > from ? to - from : 0);
  return static_cast<copied_bits<To>>(minus << sign | infinity | moved | quiet);
}

/// An integer, divided exactly if that is all; else in double, truncated toward zero and clamped.
template <class T>
HVD_HOST_DEVICE T copied_integer(T value, const copy_scale<double>& s) {
  if (!s.multiplies) {
    using unsigned_word = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    const auto wide = static_cast<unsigned_word>(value);
    bool negative = false;
    if constexpr (std::is_signed_v<T>) negative = value < 0;
    const unsigned_word quotient = (negative ? 0 - wide : wide) / s.whole_divisor;
    return static_cast<T>(negative ? 0 - quotient : quotient);
  }
  constexpr bool is_signed = std::is_signed_v<T>;
  constexpr int digits = 8 * sizeof(T) - (is_signed ? 1 : 0);
  constexpr T largest = static_cast<T>(~std::uint64_t{0} >> (64 - digits));
  constexpr double above = 2.0 * static_cast<double>(std::uint64_t{1} << (digits - 1));
  double exact = copy_product(static_cast<double>(value), s.factor);
  if (s.divides) exact = copy_quotient(exact, s.divisor);
  if (exact >= above) return largest;
  if (!(exact >= (is_signed ? -above : 0.0))) return static_cast<T>(is_signed ? ~largest : 0);  // NaN, too
  return static_cast<T>(exact);
}

// ---- vectors of elements ----------------------------------------------------------------------------------

template <class U, unsigned Bytes>
HVD_HOST_DEVICE U copied_element(const copied_words<Bytes>& words, unsigned i) {
  if constexpr (sizeof(U) == 8) {
    return words.at[2 * i] | static_cast<std::uint64_t>(words.at[2 * i + 1]) << 32;
  } else if constexpr (Bytes <= 4 && sizeof(U) == Bytes) {
    return words.at[0];
  } else {
    constexpr unsigned each = sizeof(words.at[0]) / sizeof(U);
    return static_cast<U>(words.at[i / each] >> (i % each * 8 * sizeof(U)));
  }
}
template <class U, unsigned Bytes>
HVD_HOST_DEVICE void set_copied_element(copied_words<Bytes>& words, unsigned i, U value) {
  if constexpr (sizeof(U) == 8) {
    words.at[2 * i] = static_cast<std::uint32_t>(value);
    words.at[2 * i + 1] = static_cast<std::uint32_t>(value >> 32);
  } else {
    using chunk = std::remove_reference_t<decltype(words.at[0])>;
    constexpr unsigned each = sizeof(chunk) / sizeof(U);
    const auto placed = static_cast<chunk>(static_cast<chunk>(value) << (i % each * 8 * sizeof(U)));
    words.at[i / each] = static_cast<chunk>(i % each == 0 ? placed : words.at[i / each] | placed);
  }
}

template <unsigned Bytes>
HVD_HOST_DEVICE copied_words<Bytes> poisoned(copied_words<Bytes> words, std::uint32_t poison) {
  using chunk = std::remove_reference_t<decltype(words.at[0])>;
  HVD_UNROLLED
  for (unsigned k = 0; k != sizeof(words) / sizeof(chunk); ++k) {
    words.at[k] = static_cast<chunk>(words.at[k] | static_cast<chunk>(poison));
  }
  return words;
}

/// N elements.
template <class From, class To, unsigned N, class A>
HVD_HOST_DEVICE copied_words<N * sizeof(To)> copied(const copied_words<N * sizeof(From)>& read,
                                                    const copy_scale<A>& s) {
  const copied_words<N * sizeof(From)> from = poisoned(read, s.poison);
  if constexpr (copied_mantissa<From> == 0) {
    // In place, in a loop that stays one: the lowest element goes out, its result comes in at the top.
    copied_words<N * sizeof(To)> words = from;
    HVD_ROLLED
    for (unsigned i = 0; i != N; ++i) {
      const auto value = static_cast<From>(copied_element<copied_bits<From>>(words, 0));
      const auto result = static_cast<copied_bits<From>>(copied_integer<From>(value, s));
      using chunk = std::remove_reference_t<decltype(words.at[0])>;
      constexpr unsigned count = sizeof(words) / sizeof(chunk), step = sizeof(From) / sizeof(chunk);
      HVD_UNROLLED
      for (unsigned k = 0; k != count; ++k) {
        if constexpr (step != 0) {
          if (k + step < count) words.at[k] = words.at[k + step];
        } else {
          constexpr unsigned bits = 8 * sizeof(From), rest = 8 * sizeof(chunk) - bits;
          const chunk next = k + 1 < count ? words.at[k + 1 < count ? k + 1 : k] : static_cast<chunk>(result);
          words.at[k] = static_cast<chunk>(words.at[k] >> bits | next << rest);
        }
      }
      if constexpr (step != 0) set_copied_element(words, N - 1, result);
    }
    return words;
  } else {
    A value[N];
    HVD_UNROLLED
    for (unsigned i = 0; i != N; ++i) {
      value[i] = copy_product(copied_value<From, A>(copied_element<copied_bits<From>>(from, i)), s.factor);
    }
    if (s.divides) {
      HVD_UNROLLED
      for (unsigned i = 0; i != N; ++i) value[i] = copy_quotient(value[i], s.divisor);
    }
    copied_words<N * sizeof(To)> words{};
    HVD_UNROLLED
    for (unsigned i = 0; i != N; ++i) {
      const auto bits = copied_element<copied_bits<From>>(from, i);
      const auto result = copied_rounded<To>(value[i]);
      const auto nan = copied_nan_as<From, To>(bits, s.multiplies || s.divides);
      set_copied_element(words, i, copied_nan<From>(bits) ? nan : result);
    }
    return words;
  }
}

struct copy_unchanged {
  std::uint32_t poison;
  HVD_HOST_DEVICE copy_unchanged(double, std::uint32_t, std::uint32_t set) : poison(set) {}
};
template <class From, class To, unsigned N>
HVD_HOST_DEVICE copied_words<N> copied(const copied_words<N>& from, const copy_unchanged& s) {
  return poisoned(from, s.poison);
}
template <class From, class To>
using copy_scale_of =
    std::conditional_t<std::is_same_v<From, std::byte>, copy_unchanged, copy_scale<copied_in<From, To>>>;

}  // namespace hvd::inline HVD_ABI::detail
