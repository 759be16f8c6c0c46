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

/// The data that one access moves.
template <unsigned Bytes, class Word = std::uint32_t>
struct alignas(Bytes) copied_words {
  Word at[Bytes / sizeof(Word)];
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

// Instructions by name on the device: no option of nvcc (-use_fast_math, -ftz) changes what they round to. They leave
// the result in `value`, which has to be there.
#if defined(__CUDA_ARCH__)
#define HVD_INSTRUCTION(text, result, host, ...) asm(text : result(value) : __VA_ARGS__)
#else
#define HVD_INSTRUCTION(text, result, host, ...) value = host
#endif

HVD_HOST_DEVICE float copy_product(float a, float b) {
  float value;
  HVD_INSTRUCTION("mul.rn.f32 %0, %1, %2;", "=f", a * b, "f"(a), "f"(b));
  return value;
}
HVD_HOST_DEVICE double copy_product(double a, double b) {
  double value;
  HVD_INSTRUCTION("mul.rn.f64 %0, %1, %2;", "=d", a * b, "d"(a), "d"(b));
  return value;
}
HVD_HOST_DEVICE float copy_quotient(float a, float b) {
  float value;
  HVD_INSTRUCTION("div.rn.f32 %0, %1, %2;", "=f", a / b, "f"(a), "f"(b));
  return value;
}
HVD_HOST_DEVICE double copy_quotient(double a, double b) {
  double value;
  HVD_INSTRUCTION("div.rn.f64 %0, %1, %2;", "=d", a / b, "d"(a), "d"(b));
  return value;
}
HVD_HOST_DEVICE float copy_narrowed(double a) {
  float value;
  HVD_INSTRUCTION("cvt.rn.f32.f64 %0, %1;", "=f", static_cast<float>(a), "d"(a));
  return value;
}
HVD_HOST_DEVICE double copy_widened(float a) {
  double value;
  HVD_INSTRUCTION("cvt.f64.f32 %0, %1;", "=d", static_cast<double>(a), "f"(a));
  return value;
}
HVD_HOST_DEVICE float copy_half_value(std::uint16_t a) {
  float value;
  HVD_INSTRUCTION("cvt.f32.f16 %0, %1;", "=f", half_value(a), "h"(a));
  return value;
}
HVD_HOST_DEVICE std::uint16_t copy_half_bits(float a) {
  std::uint16_t value;
  HVD_INSTRUCTION("cvt.rn.f16.f32 %0, %1;", "=h", half_bits(a), "f"(a));
  return value;
}
HVD_HOST_DEVICE std::uint16_t copy_bfloat16_bits(float a) {
  std::uint16_t value;
  HVD_INSTRUCTION("cvt.rn.bf16.f32 %0, %1;", "=h", bfloat16_bits(a), "f"(a));
  return value;
}
/// Two at once, the first in the lower half.
template <class To>
HVD_HOST_DEVICE std::uint32_t copy_two_bits(float a, float b) {
  std::uint32_t value;
  if constexpr (std::is_same_v<To, half>) {
    HVD_INSTRUCTION("cvt.rn.f16x2.f32 %0, %2, %1;", "=r", half_bits(a) | std::uint32_t{half_bits(b)} << 16, "f"(a),
                    "f"(b));
  } else {
    HVD_INSTRUCTION("cvt.rn.bf16x2.f32 %0, %2, %1;", "=r", bfloat16_bits(a) | std::uint32_t{bfloat16_bits(b)} << 16,
                    "f"(a), "f"(b));
  }
  return value;
}

template <class To, class From>
HVD_HOST_DEVICE To copy_bits_as(From bits) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &bits, sizeof to);
  return to;
}

/// The same, but the compiler does not know that: it keeps this number rather than compute it in several places, and
/// keeps nothing that it computed from the original.
template <class T>
HVD_HOST_DEVICE T copy_anew(T number) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_enum_v<T>) {
    number = static_cast<T>(copy_anew(static_cast<std::underlying_type_t<T>>(number)));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(number));
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("" : "+r"(number));
  } else {
    asm volatile("" : "+h"(number));
  }
#endif
  return number;
}

// ---- elements ---------------------------------------------------------------------------------------------

/// How a kernel reads the bits of an element.
enum class copy_format : std::uint16_t { plain, signed_integer, float16, bfloat16, float32, float64 };
/// Plain are bytes and integers without a sign.
template <class T>
inline constexpr copy_format copy_format_of = std::is_same_v<T, half>       ? copy_format::float16
                                              : std::is_same_v<T, bfloat16> ? copy_format::bfloat16
                                              : std::is_same_v<T, float>    ? copy_format::float32
                                              : std::is_same_v<T, double>   ? copy_format::float64
                                              : std::is_signed_v<T>         ? copy_format::signed_integer
                                                                            : copy_format::plain;

/// The type of elements.
struct copy_type {
  copy_format format;
  std::uint16_t shift;  ///< the binary logarithm of their bytes

  template <class T>
  HVD_HOST_DEVICE static constexpr copy_type of() {
    return {copy_format_of<T>, sizeof(T) == 8 ? 3 : sizeof(T) == 4 ? 2 : sizeof(T) == 2 ? 1 : 0};
  }
};

/// An element of 1, 2, 4 or 8 bytes, in the low bits.
HVD_HOST_DEVICE std::uint64_t copy_load_element(const std::byte* from, copy_type type) {
  if (type.shift == 3) return copy_load<std::uint64_t>(from);
  if (type.shift == 2) return copy_load<std::uint32_t>(from);
  if (type.shift == 1) return copy_load<std::uint16_t>(from);
  return copy_load<std::uint8_t>(from);
}
HVD_HOST_DEVICE void copy_store_element(std::byte* to, copy_type type, std::uint64_t bits) {
  if (type.shift == 3) {
    copy_store(to, bits);
  } else if (type.shift == 2) {
    copy_store(to, static_cast<std::uint32_t>(bits));
  } else if (type.shift == 1) {
    copy_store(to, static_cast<std::uint16_t>(bits));
  } else {
    copy_store(to, static_cast<std::uint8_t>(bits));
  }
}

/// An integer of so many bits, extended to 64, divided exactly if that is all; else in double, truncated toward zero
/// and clamped.
HVD_HOST_DEVICE std::uint64_t copied_integer(std::uint64_t value, unsigned bits, bool is_signed, double factor,
                                             std::uint32_t divisor) {
  if (factor == 1.0) {
    const bool negative = is_signed && static_cast<std::int64_t>(value) < 0;
    const std::uint64_t quotient = (negative ? 0 - value : value) / divisor;
    return negative ? 0 - quotient : quotient;
  }
  const unsigned digits = bits - (is_signed ? 1 : 0);
  const std::uint64_t largest = ~std::uint64_t{0} >> (64 - digits);
  const double above = 2.0 * static_cast<double>(std::uint64_t{1} << (digits - 1));
  double exact = is_signed ? static_cast<double>(static_cast<std::int64_t>(value)) : static_cast<double>(value);
  exact = copy_product(exact, factor);
  if (divisor != 1) exact = copy_quotient(exact, static_cast<double>(divisor));
  if (exact >= above) return largest;
  if (!(exact >= (is_signed ? -above : 0.0))) return is_signed ? ~largest : 0;  // NaN, too
  return is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(exact)) : static_cast<std::uint64_t>(exact);
}

/// A floating-point element of any type. A NaN keeps its sign and the upper bits of its payload and becomes quiet, like
/// on CPUs, unlike on GPUs; it stays unchanged if it is only moved.
HVD_HOST_DEVICE std::uint64_t copied_float(std::uint64_t bits, copy_format from, copy_format to, double factor,
                                           std::uint32_t divisor) {
  constexpr std::uint64_t one = 1;
  const auto mantissa_of = [](copy_format f) {
    return f == copy_format::float64 ? 52 : f == copy_format::float32 ? 23 : f == copy_format::bfloat16 ? 7 : 10;
  };
  const auto sign_of = [](copy_format f) {
    return f == copy_format::float64 ? 63 : f == copy_format::float32 ? 31 : 15;
  };
  const int mantissa = mantissa_of(from), sign = sign_of(from);
  const std::uint64_t magnitude = bits & ((one << sign) - 1);
  if (magnitude > (one << sign) - (one << mantissa)) {
    const int to_mantissa = mantissa_of(to), to_sign = sign_of(to);
    const bool same = from == to || (from == copy_format::bfloat16 && to == copy_format::float32);
    const bool quiet = !same || factor != 1.0 || divisor != 1;
    // With the payload at the top, from where the new one is taken.
    const std::uint64_t payload = magnitude << (63 - mantissa) << 1 >> (63 - to_mantissa) >> 1;
    const std::uint64_t infinity = (one << to_sign) - (one << to_mantissa);
    return bits >> sign << to_sign | infinity | (quiet ? one << (to_mantissa - 1) : 0) | payload;
  }
  float value = 0;
  if (from == copy_format::float16) {
    value = copy_half_value(static_cast<std::uint16_t>(bits));
  } else {
    value = copy_bits_as<float>(static_cast<std::uint32_t>(bits) << (from == copy_format::bfloat16 ? 16 : 0));
  }
  if (from == copy_format::float64 || to == copy_format::float64) {
    double wide = from == copy_format::float64 ? copy_bits_as<double>(bits) : copy_widened(value);
    wide = copy_product(wide, factor);
    if (divisor != 1) wide = copy_quotient(wide, static_cast<double>(divisor));
    if (to == copy_format::float64) return copy_bits_as<std::uint64_t>(wide);
    return copy_bits_as<std::uint32_t>(copy_narrowed(wide));
  }
  value = copy_product(value, copy_narrowed(factor));
  if (divisor != 1) value = copy_quotient(value, static_cast<float>(divisor));
  if (to == copy_format::float16) return copy_half_bits(value);
  if (to == copy_format::bfloat16) return copy_bfloat16_bits(value);
  return copy_bits_as<std::uint32_t>(value);
}

// ---- vectors of floating-point elements -------------------------------------------------------------------

/// N elements in whole words: two to each, if they are of 16 bits.
template <class T, unsigned N>
using copied_vector = copied_words<N * sizeof(T), std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>>;
/// The type in which elements are scaled: the wider one, at least float.
template <class From, class To>
using copied_in = std::conditional_t<sizeof(From) == 8 || sizeof(To) == 8, double, float>;

/// The factor and the divisor of elements that are scaled.
template <class Number>
struct copy_scale {
  Number factor;
  std::uint32_t divisor;

  HVD_HOST_DEVICE copy_scale(double by, std::uint32_t over) : factor(), divisor(over) {
    if constexpr (sizeof(Number) == 8) {
      factor = by;
    } else {
      factor = copy_narrowed(by);
    }
  }
};

/// Whether neither is a NaN.
template <class A>
HVD_HOST_DEVICE bool copy_are_numbers(A a, A b) {
#if defined(__CUDA_ARCH__)
  return a == a && b == b;
#else  // an option of the host's compiler (-ffast-math) may say that there are none
  using pattern = std::conditional_t<sizeof(A) == 8, std::uint64_t, std::uint32_t>;
  constexpr auto infinity = static_cast<pattern>(sizeof(A) == 8 ? 0xffe0'0000'0000'0000U : 0xff00'0000U);  // doubled
  return copy_bits_as<pattern>(a) * 2 <= infinity && copy_bits_as<pattern>(b) * 2 <= infinity;
#endif
}

/// Two elements of a word.
template <class From>
HVD_HOST_DEVICE void copy_two_values(std::uint32_t both, float& low, float& high) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<From, half>) {
    std::uint16_t a, b;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(a), "=h"(b) : "r"(both));
    low = copy_half_value(a);
    high = copy_half_value(b);
  } else {
    asm("shl.b32 %0, %1, 16;" : "=f"(low) : "r"(both));
    asm("and.b32 %0, %1, 0xffff0000;" : "=f"(high) : "r"(both));
  }
#else
  if constexpr (std::is_same_v<From, half>) {
    low = half_value(static_cast<std::uint16_t>(both));
    high = half_value(static_cast<std::uint16_t>(both >> 16));
  } else {
    low = copy_bits_as<float>(both << 16);
    high = copy_bits_as<float>(both & 0xffff'0000U);
  }
#endif
}

/// N elements, scaled and converted. If there are NaNs among the results, it returns false, and they are wrong.
template <class From, class To, unsigned N>
HVD_HOST_DEVICE bool copied(const copied_vector<From, N>& from, const copy_scale<copied_in<From, To>>& scale,
                            copied_vector<To, N>& to) {
  using number = copied_in<From, To>;
  number value[N];
  HVD_UNROLLED
  for (unsigned i = 0; i != N; ++i) {
    if constexpr (sizeof(From) == sizeof(number)) {
      value[i] = copy_bits_as<number>(from.at[i]);
    } else if constexpr (sizeof(From) == 4) {
      value[i] = copy_widened(copy_bits_as<float>(from.at[i]));
    } else if (i % 2 == 0) {
      copy_two_values<From>(from.at[i / 2], value[i], value[i + 1]);
    }
  }
  HVD_UNROLLED
  for (unsigned i = 0; i != N; ++i) value[i] = copy_product(value[i], scale.factor);
  if (scale.divisor != 1) {
    // A double is made again in each vector: there are not enough registers to keep it.
    const auto divisor = static_cast<number>(sizeof(number) == 8 ? copy_anew(scale.divisor) : scale.divisor);
    HVD_UNROLLED
    for (unsigned i = 0; i != N; ++i) value[i] = copy_quotient(value[i], divisor);
  }
  bool proper = true;
  HVD_UNROLLED
  for (unsigned i = 0; i != N; i += 2) proper &= copy_are_numbers(value[i], value[i + 1]);
  HVD_UNROLLED
  for (unsigned i = 0; i != N; ++i) {
    if constexpr (sizeof(To) == sizeof(number)) {
      to.at[i] = copy_bits_as<std::remove_reference_t<decltype(to.at[i])>>(value[i]);
    } else if constexpr (sizeof(To) == 4) {
      to.at[i] = copy_bits_as<std::uint32_t>(copy_narrowed(value[i]));
    } else if (i % 2 == 0) {
      to.at[i / 2] = copy_two_bits<To>(value[i], value[i + 1]);
    }
  }
  return proper;
}

}  // namespace hvd::inline HVD_ABI::detail
