// tests/dtype.cpp: element types, and the 16-bit floats against exact arithmetic in double.
#include <hvd/dtype.hpp>
#include <hvd/op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using hvd::dtype;
using hvd::dtype_of;

enum class colour : int { red };
struct pair {
  float value;
  int index;
};
struct my_float16 {
  std::uint16_t bits;
};
struct owner {
  std::string text;
};

// What a 16-bit format means, by definition: precision bits and the exponent of its smallest normal number.
struct format {
  int precision;
  int min_exponent;
  int max_exponent;
};
constexpr format binary16{11, -14, 15};
constexpr format brain16{8, -126, 127};

double decode(format f, std::uint16_t bits) {
  const int fraction_bits = f.precision - 1;
  const int exponent = (bits & 0x7fff) >> fraction_bits;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1.0 : 1.0;
  if (exponent == 0x7fff >> fraction_bits)
    return sign * (fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity());
  if (exponent == 0) return sign * std::ldexp(fraction, f.min_exponent - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - 1 + f.min_exponent - fraction_bits);
}

// The nearest number of the format; doubles hold every step of the computation exactly.
double nearest(format f, double value) {
  if (value == 0.0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), f.min_exponent);
  const int unit = exponent - (f.precision - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  return std::abs(rounded) >= std::ldexp(1.0, f.max_exponent + 1)
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : rounded;
}

// doctest's assertions are too slow for millions: count, and report the first.
template <class T>
struct checker {
  format f;
  std::uint64_t checked = 0, wrong = 0;
  std::uint32_t first = 0;

  void operator()(std::uint32_t pattern) {
    const float value = std::bit_cast<float>(pattern);
    const std::uint16_t got = T(value).bits;
    bool right;
    if (std::isnan(value)) {
      // Sign and upper payload stay, and the NaN is quiet.
      const auto payload = static_cast<std::uint16_t>((pattern & 0x7f'ffffu) >> (24 - f.precision));
      const int infinity = 0x8000 - (1 << (f.precision - 1));
      const int quiet = 1 << (f.precision - 2);
      right = got == (((pattern >> 16) & 0x8000u) | static_cast<unsigned>(infinity | quiet | payload));
    } else {
      const double want = nearest(f, static_cast<double>(value));
      const double have = decode(f, got);
      right = have == want && std::signbit(have) == std::signbit(want);
    }
    ++checked;
    if (!right && wrong++ == 0) first = pattern;
  }

  void around(std::uint32_t pattern) {
    for (std::uint32_t step = 0; step < 7; ++step) (*this)(pattern + step - 3u);
  }
};

template <class T>
void check_all_patterns(format f, bool quiets) {
  const auto infinity = static_cast<std::uint16_t>(0x8000 - (1 << (f.precision - 1)));
  const auto quiet = static_cast<std::uint16_t>(1 << (f.precision - 2));
  int wrong_value = 0, wrong_round_trip = 0;
  for (unsigned pattern = 0; pattern < 0x10000u; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const bool nan = (bits & 0x7fff) > infinity;
    const T number = T::from_bits(bits);
    const float value = static_cast<float>(number);
    const double want = decode(f, bits);
    const bool signals = (std::bit_cast<std::uint32_t>(value) & 0x40'0000u) == 0;
    if (nan)
      wrong_value += !std::isnan(value) || (quiets && signals);
    else
      wrong_value += static_cast<double>(value) != want || std::signbit(value) != std::signbit(want);
    // Bit for bit, but for signalling NaNs, which become quiet.
    wrong_round_trip += T(value).bits != (nan ? bits | quiet : bits);
    wrong_round_trip += (number == number) == nan;
  }
  CHECK(wrong_value == 0);
  CHECK(wrong_round_trip == 0);
}

template <class T>
void check_rounding(format f) {
  checker<T> check{f};
  // Around every number of the format and every tie between two of them, infinity's border included.
  for (unsigned pattern = 0; pattern < 0x10000u; ++pattern) {
    const double low = decode(f, static_cast<std::uint16_t>(pattern));
    if (std::isnan(low)) continue;
    check.around(std::bit_cast<std::uint32_t>(static_cast<float>(low)));
    const auto next = static_cast<std::uint16_t>(pattern + 1);
    const double limit = std::copysign(std::ldexp(1.0, f.max_exponent + 1), low);
    const double high = std::isfinite(decode(f, next)) ? decode(f, next) : limit;
    if (std::isfinite(low)) check.around(std::bit_cast<std::uint32_t>(static_cast<float>(low / 2 + high / 2)));
  }
  // And through all floats in a stride without pattern, NaNs and subnormals included.
  for (std::uint64_t pattern = 0; pattern < 0x1'0000'0000u; pattern += 4093) check(static_cast<std::uint32_t>(pattern));
  CAPTURE(check.first);
  CHECK(check.checked > 1'000'000);
  CHECK(check.wrong == 0);
}

template <class T>
void check_limits(format f) {
  using limits = std::numeric_limits<T>;
  const auto value = [](T x) { return static_cast<double>(static_cast<float>(x)); };
  CHECK(limits::is_specialized);
  CHECK(limits::digits == f.precision);
  CHECK(value(limits::min()) == std::ldexp(1.0, f.min_exponent));
  CHECK(value(limits::max()) == std::ldexp(2.0 - std::ldexp(1.0, 1 - f.precision), f.max_exponent));
  CHECK(value(limits::lowest()) == -value(limits::max()));
  CHECK(value(limits::denorm_min()) == std::ldexp(1.0, f.min_exponent - f.precision + 1));
  CHECK(value(limits::epsilon()) == std::ldexp(1.0, 1 - f.precision));
  CHECK(value(limits::round_error()) == 0.5);
  CHECK(std::isinf(value(limits::infinity())));
  CHECK(std::isnan(value(limits::quiet_NaN())));
  CHECK(std::isnan(value(limits::signaling_NaN())));
  CHECK(limits::min_exponent == f.min_exponent + 1);
  CHECK(limits::max_exponent == f.max_exponent + 1);
  CHECK(limits::min_exponent10 == static_cast<int>(std::ceil(f.min_exponent * std::log10(2.0))));
  CHECK(limits::max_exponent10 == static_cast<int>(std::floor((f.max_exponent + 1) * std::log10(2.0))));
  CHECK(limits::digits10 == static_cast<int>(std::floor((f.precision - 1) * std::log10(2.0))));
  CHECK(limits::max_digits10 == static_cast<int>(std::ceil(1 + f.precision * std::log10(2.0))));
}

}  // namespace

template <>
inline constexpr hvd::dtype hvd::dtype_of<my_float16> = hvd::dtype::float16;

TEST_CASE("dtype: every C++ arithmetic type maps by what it is") {
  CHECK(dtype_of<signed char> == dtype::int8);
  CHECK(dtype_of<unsigned char> == dtype::uint8);
  CHECK(dtype_of<char> == (std::is_signed_v<char> ? dtype::int8 : dtype::uint8));
  CHECK(dtype_of<char8_t> == dtype::uint8);
  CHECK(dtype_of<std::byte> == dtype::uint8);
  CHECK(dtype_of<short> == dtype::int16);
  CHECK(dtype_of<char16_t> == dtype::uint16);
  CHECK(dtype_of<int> == dtype::int32);
  CHECK(dtype_of<char32_t> == dtype::uint32);
  CHECK(dtype_of<long> == (sizeof(long) == 8 ? dtype::int64 : dtype::int32));
  CHECK(dtype_of<unsigned long> == (sizeof(long) == 8 ? dtype::uint64 : dtype::uint32));
  CHECK(dtype_of<long long> == dtype::int64);
  CHECK(dtype_of<unsigned long long> == dtype::uint64);
  CHECK(dtype_of<std::size_t> == (sizeof(std::size_t) == 8 ? dtype::uint64 : dtype::uint32));
  CHECK(hvd::size_of(dtype_of<wchar_t>) == sizeof(wchar_t));
  CHECK(dtype_of<bool> == dtype::boolean);
  CHECK(dtype_of<float> == dtype::float32);
  CHECK(dtype_of<double> == dtype::float64);
  CHECK(dtype_of<std::complex<float>> == dtype::complex64);
  CHECK(dtype_of<std::complex<double>> == dtype::complex128);
  CHECK(dtype_of<hvd::half> == dtype::float16);
  CHECK(dtype_of<hvd::bfloat16> == dtype::bfloat16);
}

TEST_CASE("dtype: anything else is user, unless its owner says more") {
  CHECK(dtype_of<pair> == dtype::user);
  CHECK(dtype_of<colour> == dtype::user);
  CHECK(dtype_of<long double> == dtype::user);
  CHECK(dtype_of<std::complex<long double>> == dtype::user);
  CHECK(dtype_of<std::array<float, 4>> == dtype::user);
  CHECK(dtype_of<my_float16> == dtype::float16);
#if defined(__x86_64__) && defined(__FLT16_MANT_DIG__)
  CHECK(dtype_of<_Float16> == dtype::float16);
  static_assert(std::is_same_v<hvd::detail::builtin_of<_Float16>, hvd::half>);
#endif
}

TEST_CASE("dtype: const and volatile do not matter") {
  CHECK(dtype_of<const float> == dtype::float32);
  CHECK(dtype_of<volatile long long> == dtype::int64);
  CHECK(dtype_of<const volatile bool> == dtype::boolean);
  CHECK(dtype_of<const my_float16> == dtype::float16);
}

TEST_CASE("dtype: sizes agree with the C++ types, names are NumPy's") {
  const auto agree = []<class... T>(std::type_identity<T>...) {
    return ((hvd::size_of(dtype_of<T>) == sizeof(T)) && ...);
  };
  using std::type_identity;
  CHECK(agree(type_identity<bool>{}, type_identity<char>{}, type_identity<short>{}, type_identity<int>{},
              type_identity<long>{}, type_identity<unsigned char>{}, type_identity<unsigned short>{},
              type_identity<unsigned>{}, type_identity<unsigned long>{}, type_identity<hvd::half>{},
              type_identity<hvd::bfloat16>{}, type_identity<float>{}, type_identity<double>{},
              type_identity<std::complex<float>>{}, type_identity<std::complex<double>>{}));
  CHECK(hvd::size_of(dtype::user) == 0);
  std::string names;
  for (int number = 0; number <= static_cast<int>(dtype::user); ++number)
    names += std::string(hvd::name(static_cast<dtype>(number))) + " ";
  CHECK(names == "int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 bfloat16 float32 float64 bool "
                 "complex64 complex128 user ");
}

TEST_CASE("dtype: a value that is no dtype has no size and no name") {
  CHECK(hvd::size_of(static_cast<dtype>(200)) == 0);
  CHECK(hvd::name(static_cast<dtype>(200)) == "unknown");
}

TEST_CASE("dtype: numbers that travel between ranks stay what they are") {
  CHECK(static_cast<int>(dtype::int8) == 0);
  CHECK(static_cast<int>(dtype::float16) == 8);
  CHECK(static_cast<int>(dtype::boolean) == 12);
  CHECK(static_cast<int>(dtype::user) == 15);
}

TEST_CASE("dtype: elements are values that mean the same in every process") {
  CHECK(hvd::Element<float>);
  CHECK(hvd::Element<const float>);
  CHECK(hvd::Element<hvd::half>);
  CHECK(hvd::Element<pair>);
  CHECK(hvd::Element<colour>);
  CHECK(hvd::Element<std::complex<double>>);
  CHECK(hvd::Element<std::array<int, 3>>);
  CHECK_FALSE(hvd::Element<int*>);
  CHECK_FALSE(hvd::Element<int pair::*>);
  CHECK_FALSE(hvd::Element<std::nullptr_t>);
  CHECK_FALSE(hvd::Element<int[3]>);
  CHECK_FALSE(hvd::Element<int&>);
  CHECK_FALSE(hvd::Element<void>);
  CHECK_FALSE(hvd::Element<volatile int>);
  CHECK_FALSE(hvd::Element<owner>);
  CHECK_FALSE(hvd::Element<std::vector<int>>);
}

TEST_CASE("half: storage is two trivial bytes, conversions run at compile time") {
  static_assert(sizeof(hvd::half) == 2 && std::is_trivial_v<hvd::half>);
  static_assert(sizeof(hvd::bfloat16) == 2 && std::is_trivial_v<hvd::bfloat16>);
  static_assert(!std::is_convertible_v<float, hvd::half> && !std::is_convertible_v<hvd::half, float>);
  static_assert(!std::is_convertible_v<float, hvd::bfloat16> && !std::is_convertible_v<hvd::bfloat16, float>);
  static_assert(hvd::half(1.5f).bits == 0x3e00 && static_cast<float>(hvd::half(-0.25f)) == -0.25f);
  static_assert(hvd::bfloat16(1.5f).bits == 0x3fc0 && static_cast<float>(hvd::bfloat16(-0.25f)) == -0.25f);
  CHECK(hvd::half{}.bits == 0);
}

TEST_CASE("half: known values") {
  CHECK(hvd::half(65504.0f).bits == 0x7bff);
  CHECK(hvd::half(65519.996f).bits == 0x7bff);
  CHECK(hvd::half(65520.0f).bits == 0x7c00);
  CHECK(hvd::half(-1e30f).bits == 0xfc00);
  CHECK(hvd::half(0x1p-24f).bits == 0x0001);
  CHECK(hvd::half(0x1p-25f).bits == 0x0000);  // a tie, to even
  CHECK(hvd::half(0x1.000002p-25f).bits == 0x0001);
  CHECK(hvd::half(0x1.8p-24f).bits == 0x0002);    // a tie, to even
  CHECK(hvd::half(0x1.ff8p-15f).bits == 0x03ff);  // the largest subnormal
  CHECK(hvd::half(0x1.ffcp-15f).bits == 0x0400);  // a tie, to the smallest normal
  CHECK(hvd::half(-0.0f).bits == 0x8000);
  CHECK(hvd::half(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(hvd::bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(hvd::bfloat16(0x1.fefp127f).bits == 0x7f7f);
  CHECK(hvd::bfloat16(-0.0f).bits == 0x8000);
  CHECK(hvd::bfloat16(0x1.01p0f).bits == 0x3f80);  // a tie, to even
  CHECK(hvd::bfloat16(0x1.03p0f).bits == 0x3f82);  // a tie, to even
}

TEST_CASE("half: equality is that of the values") {
  CHECK(hvd::half(0.0f) == hvd::half(-0.0f));
  CHECK(hvd::half(1.0f) != hvd::half(2.0f));
  CHECK(hvd::half(std::nanf("")) != hvd::half(std::nanf("")));
  CHECK(hvd::bfloat16(0.0f) == hvd::bfloat16(-0.0f));
  CHECK(hvd::bfloat16(1.0f) != hvd::bfloat16(-1.0f));
  CHECK(hvd::bfloat16(std::nanf("")) != hvd::bfloat16(std::nanf("")));
}

TEST_CASE("half: all 65536 patterns convert exactly and return") {
  check_all_patterns<hvd::half>(binary16, true);
  check_all_patterns<hvd::bfloat16>(brain16, false);
}

TEST_CASE("half: rounds to nearest even everywhere") {
  check_rounding<hvd::half>(binary16);
  check_rounding<hvd::bfloat16>(brain16);
}

TEST_CASE("half: numeric_limits are those of the format") {
  check_limits<hvd::half>(binary16);
  check_limits<hvd::bfloat16>(brain16);
}
