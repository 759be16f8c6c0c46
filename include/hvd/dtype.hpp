// hvd/dtype.hpp: element types as values, and the two 16-bit floating-point types.
#pragma once

#include <hvd/version.hpp>

#include <bit>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string_view>
#include <type_traits>

namespace hvd::inline HVD_ABI {

/// The type of a collective's elements, which are moved as bytes. The numbers travel between ranks: append, never
/// reorder.
enum class dtype : std::uint8_t {
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  boolean,
  complex64,   ///< two float32
  complex128,  ///< two float64
  user,        ///< any other trivially copyable type: moved as bytes, reduced only by the user's own function
};

/// Bytes of one element; 0 for `user` (only the program knows) and for an invalid value.
constexpr std::size_t size_of(dtype type) noexcept {
  constexpr unsigned char sizes[] = {1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 8, 16, 0};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(sizes) ? sizes[index] : 0;
}

/// NumPy's name for the type, for messages; "unknown" for an invalid value, which a peer may send.
constexpr std::string_view name(dtype type) noexcept {
  constexpr std::string_view names[] = {"int8",  "uint8",     "int16",      "uint16",   "int32",   "uint32",
                                        "int64", "uint64",    "float16",    "bfloat16", "float32", "float64",
                                        "bool",  "complex64", "complex128", "user"};
  const auto index = static_cast<std::size_t>(type);
  return index < std::size(names) ? names[index] : "unknown";
}

namespace detail {

// The conversions select between results instead of branching, so that loops over them vectorise, and are
// integer arithmetic (or exact), so that neither rounding mode nor flush-to-zero changes a bit.

/// Round to nearest, ties to even. A NaN keeps its sign and the upper bits of its payload and becomes quiet,
/// as the F16C instruction does it: scalar and vector kernels must agree bit for bit.
constexpr std::uint16_t half_bits(float value) noexcept {
  const auto all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = all >> 16 & 0x8000u;
  const std::uint32_t magnitude = all & 0x7fff'ffffu;
  // Normal result: drop 13 bits; a carry out of the mantissa is the right step of the exponent.
  const std::uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
  // Subnormal result, in units of 2^-24. From a shift of 25 on (below 2^-25) the sum is under one unit: zero.
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t distance = 126u - (exponent < 112u ? exponent : 112u);  // at least 14
  const std::uint32_t shift = distance < 25u ? distance : 25u;
  const std::uint32_t significand = (magnitude & 0x7f'ffffu) | 0x80'0000u;
  const std::uint32_t tie = (1u << (shift - 1u)) - 1u + (significand >> shift & 1u);
  const std::uint32_t subnormal = (significand + tie) >> shift;
  const std::uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  std::uint32_t result = magnitude < 0x3880'0000u ? subnormal : normal;  // 2^-14, the smallest normal
  result = magnitude >= 0x477f'f000u ? 0x7c00u : result;                 // 65520, half way to 2^16: infinity
  result = magnitude > 0x7f80'0000u ? nan : result;
  return static_cast<std::uint16_t>(sign | result);
}

/// Exact. A signalling NaN becomes quiet, as in hardware. Masks and no conditions: a compiler would move the
/// product under the condition, and then not vectorise it.
constexpr float half_value(std::uint16_t bits) noexcept {
  const auto mask = [](bool condition) { return 0u - static_cast<std::uint32_t>(condition); };
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t rebias = 112u << 23;  // twice for infinity and NaN: 31 + 2 * 112 = 255
  const std::uint32_t normal = (magnitude << 13) + rebias + (mask(magnitude >= 0x7c00u) & rebias);
  // Through a signed integer: every vector unit converts those. The product is exact and no subnormal.
  const float product = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f;
  const auto subnormal = std::bit_cast<std::uint32_t>(product);
  const std::uint32_t is_subnormal = mask(magnitude < 0x400u);
  const std::uint32_t quiet = mask(magnitude > 0x7c00u) & 0x40'0000u;
  return std::bit_cast<float>(sign | (subnormal & is_subnormal) | (normal & ~is_subnormal) | quiet);
}

/// Round to nearest, ties to even; NaN as in half_bits.
constexpr std::uint16_t bfloat16_bits(float value) noexcept {
  const auto all = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (all + 0x7fffu + (all >> 16 & 1u)) >> 16;
  return static_cast<std::uint16_t>((all & 0x7fff'ffffu) > 0x7f80'0000u ? all >> 16 | 0x40u : rounded);
}

}  // namespace detail

/// IEEE 754 binary16: storage only; compute in float. Conversion from float rounds to nearest (ties to even),
/// overflows to infinity and keeps subnormals; conversion to float is exact. Trivial, like float: `half x;` is
/// uninitialised and `half x{};` is zero.
struct half {
  std::uint16_t bits;  ///< sign, 5 bits of exponent, 10 of mantissa

  half() = default;
  /// Rounds.
  constexpr explicit half(float value) noexcept : bits(detail::half_bits(value)) {}
  /// The number with this pattern.
  static constexpr half from_bits(std::uint16_t bits) noexcept { return std::bit_cast<half>(bits); }
  /// Exact.
  constexpr explicit operator float() const noexcept { return detail::half_value(bits); }
  /// By value: zeros are equal, a NaN equals nothing.
  friend constexpr bool operator==(half a, half b) noexcept { return static_cast<float>(a) == static_cast<float>(b); }
};

/// The upper 16 bits of a float: its range, 8 bits of precision. Conversions and comparison as for half.
struct bfloat16 {
  std::uint16_t bits;  ///< sign, 8 bits of exponent, 7 of mantissa

  bfloat16() = default;
  constexpr explicit bfloat16(float value) noexcept : bits(detail::bfloat16_bits(value)) {}
  static constexpr bfloat16 from_bits(std::uint16_t bits) noexcept { return std::bit_cast<bfloat16>(bits); }
  constexpr explicit operator float() const noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  friend constexpr bool operator==(bfloat16 a, bfloat16 b) noexcept {
    return static_cast<float>(a) == static_cast<float>(b);
  }
};

namespace detail {

// Without a specialisation std::numeric_limits<half>::lowest() would compile, and return zero.
template <class T, int Digits, int MinExponent, int MaxExponent>
struct limits_of_16_bits : std::numeric_limits<float> {
  static constexpr int digits = Digits;
  static constexpr int digits10 = (Digits - 1) * 301 / 1000;  // 0.301 = log10(2)
  static constexpr int max_digits10 = Digits * 301 / 1000 + 2;
  static constexpr int min_exponent = MinExponent;
  static constexpr int min_exponent10 = (MinExponent - 1) * 301 / 1000;
  static constexpr int max_exponent = MaxExponent;
  static constexpr int max_exponent10 = MaxExponent * 301 / 1000;

  static constexpr T min() noexcept { return pattern(step); }
  static constexpr T max() noexcept { return pattern(infinite - 1u); }
  static constexpr T lowest() noexcept { return pattern(0x8000u | (infinite - 1u)); }
  static constexpr T epsilon() noexcept { return T(2.0f / static_cast<float>(1u << Digits)); }
  static constexpr T round_error() noexcept { return T(0.5f); }
  static constexpr T infinity() noexcept { return pattern(infinite); }
  static constexpr T quiet_NaN() noexcept { return pattern(infinite | step / 2u); }
  static constexpr T signaling_NaN() noexcept { return pattern(infinite | step / 4u); }
  static constexpr T denorm_min() noexcept { return pattern(1u); }

 private:
  static constexpr unsigned step = 1u << (Digits - 1);  // the lowest bit of the exponent
  static constexpr unsigned infinite = 0x8000u - step;
  static constexpr T pattern(unsigned bits) noexcept { return T::from_bits(static_cast<std::uint16_t>(bits)); }
};

template <class T>
consteval dtype classify() {
  if constexpr (std::same_as<T, bool>)
    return dtype::boolean;
  else if constexpr (std::same_as<T, std::byte>)
    return dtype::uint8;
  else if constexpr (std::integral<T> && sizeof(T) <= 8) {  // char, long, wchar_t and the like
    constexpr bool is_signed = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1)
      return is_signed ? dtype::int8 : dtype::uint8;
    else if constexpr (sizeof(T) == 2)
      return is_signed ? dtype::int16 : dtype::uint16;
    else if constexpr (sizeof(T) == 4)
      return is_signed ? dtype::int32 : dtype::uint32;
    else
      return is_signed ? dtype::int64 : dtype::uint64;
  } else if constexpr (std::same_as<T, half>)
    return dtype::float16;
  else if constexpr (std::same_as<T, bfloat16>)
    return dtype::bfloat16;
  else if constexpr (std::same_as<T, float>)
    return dtype::float32;
  else if constexpr (std::same_as<T, double>)
    return dtype::float64;
  else if constexpr (std::same_as<T, std::complex<float>>)
    return dtype::complex64;
  else if constexpr (std::same_as<T, std::complex<double>>)
    return dtype::complex128;
  else
    return dtype::user;
}

}  // namespace detail

/// The dtype of a C++ type, without regard to const and volatile. Specialise it for a type that *is* one of
/// these in another spelling, with the same size and bits, and every built-in op works on it:
/// `template <> inline constexpr hvd::dtype hvd::dtype_of<my::float16> = hvd::dtype::float16;`
template <class T>
inline constexpr dtype dtype_of = detail::classify<T>();
template <class T>
inline constexpr dtype dtype_of<const T> = dtype_of<T>;
template <class T>
inline constexpr dtype dtype_of<volatile T> = dtype_of<T>;
template <class T>
inline constexpr dtype dtype_of<const volatile T> = dtype_of<T>;

// g++ before 13 defines the macro for other targets too, where it has the type only in C.
#if defined(__FLT16_MANT_DIG__) && (defined(__clang__) ? __clang_major__ >= 15 : __GNUC__ >= 13 || defined(__x86_64__))
template <>
inline constexpr dtype dtype_of<_Float16> = dtype::float16;
#endif

// C++23's, where the compiler has it; its std::float16_t is _Float16.
#if defined(__STDCPP_BFLOAT16_T__)
template <>
inline constexpr dtype dtype_of<decltype(0.0bf16)> = dtype::bfloat16;
#endif

/// A type of elements that a buffer may hold. It is trivially copyable, because elements travel as bytes through shared
/// memory; not a pointer (nor a pointer to member, nor null), because an address means nothing to another rank; not an
/// array and not a class with a const member, because elements are assigned; not volatile, because elements are copied
/// by memcpy.
template <class T>
concept Element = std::is_object_v<T> && std::is_trivially_copyable_v<T> &&
                  std::is_move_assignable_v<std::remove_const_t<T>> && !std::is_array_v<T> && !std::is_pointer_v<T> &&
                  !std::is_member_pointer_v<T> && !std::is_null_pointer_v<T> && !std::is_volatile_v<T>;

}  // namespace hvd::inline HVD_ABI

template <>
class std::numeric_limits<hvd::half> : public hvd::detail::limits_of_16_bits<hvd::half, 11, -13, 16> {};
template <>
class std::numeric_limits<hvd::bfloat16> : public hvd::detail::limits_of_16_bits<hvd::bfloat16, 8, -125, 128> {};
