// tests/detail/fast_math.cpp: what the kernels compute where a program is compiled with -Ofast. Results are compared by
// their bits: here a compiler takes v != v for false.
#include <hvd/detail/kernel.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/fusion/pack.hpp>
#include <hvd/op.hpp>

#include <bit>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace {

using hvd::detail::isa;

int failures = 0;

void expect(bool right, const std::string& what) {
  if (right) return;
  std::printf("wrong: %s\n", what.c_str());
  ++failures;
}

constexpr std::size_t lengths[] = {1, 3, 16, 70, 301};

/// Patterns of one type: a NaN of each sign, infinities, and two numbers.
template <class Bits>
struct patterns {
  Bits nan, negative_nan, infinity, one, minus_one;
};

template <class Format, class Bits>
void check_extremes(isa level, const char* type, const patterns<Bits>& p) {
  const hvd::detail::kernel low = hvd::detail::vectorised<Format, hvd::detail::minimum>(level);
  const hvd::detail::kernel high = hvd::detail::vectorised<Format, hvd::detail::maximum>(level);
  const Bits sign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto is_nan = [&](Bits b) { return static_cast<Bits>(b & static_cast<Bits>(~sign)) > p.infinity; };
  for (const std::size_t n : lengths) {
    for (const Bits nan : {p.nan, p.negative_nan}) {
      for (int from = 0; from != 3; ++from) {
        std::vector<std::vector<Bits>> ins{std::vector<Bits>(n, p.one), std::vector<Bits>(n, p.minus_one),
                                           std::vector<Bits>(n, p.infinity)};
        for (std::size_t i = 0; i < n; i += 2) ins[static_cast<std::size_t>(from)][i] = nan;
        const std::byte* in[3];
        for (std::size_t k = 0; k != 3; ++k) in[k] = reinterpret_cast<const std::byte*>(ins[k].data());
        std::vector<Bits> lowest(n), highest(n);
        std::byte *a = reinterpret_cast<std::byte*>(lowest.data()), *b = reinterpret_cast<std::byte*>(highest.data());
        low(&a, 1, in, 3, n, nullptr);
        high(&b, 1, in, 3, n, nullptr);
        bool right = true;
        for (std::size_t i = 0; i != n; ++i) {
          right = right && (i % 2 == 0 ? is_nan(lowest[i]) && is_nan(highest[i])
                                       : lowest[i] == p.minus_one && highest[i] == p.infinity);
        }
        expect(right, std::string("min or max of ") + type + ", " + std::to_string(n) + " elements, NaN on rank " +
                          std::to_string(from));
      }
    }
  }
}

/// Sums of whole numbers, divided by 3 or scaled: exact, if nothing is multiplied by a reciprocal.
template <class T>
void check_quotients(const char* type) {
  for (const std::size_t n : lengths) {
    std::vector<std::vector<T>> ins(3, std::vector<T>(n));
    for (std::size_t k = 0; k != 3; ++k) {
      for (std::size_t i = 0; i != n; ++i) ins[k][i] = static_cast<T>(static_cast<int>((i * 7 + 1) * (k + 1)));
    }
    const std::byte* in[3];
    for (std::size_t k = 0; k != 3; ++k) in[k] = reinterpret_cast<const std::byte*>(ins[k].data());
    std::vector<T> out(n);
    std::byte* to = reinterpret_cast<std::byte*>(out.data());
    const hvd::reduction average = hvd::make_reduction<T>(hvd::average, 3);
    average.complete(&to, 1, in, 3, n);
    bool right = true;
    for (std::size_t i = 0; i != n; ++i) right = right && out[i] == static_cast<T>(static_cast<int>((i * 7 + 1) * 2));
    expect(right, std::string("average of ") + type + ", " + std::to_string(n) + " elements");
    const hvd::reduction scaled = hvd::make_reduction<T>(hvd::scaled(hvd::average, 2.0, 0.5), 3);
    scaled.complete(&to, 1, in, 3, n);
    for (std::size_t i = 0; i != n; ++i) right = right && out[i] == static_cast<T>(static_cast<int>((i * 7 + 1) * 2));
    expect(right, std::string("scaled average of ") + type + ", " + std::to_string(n) + " elements");
  }
}

/// One division for each element, rounded once: the bits of the plain quotient.
void check_rounding() {
  std::vector<float> in(4096), out(4096);
  std::uint32_t state = 1;
  for (float& v : in) {
    state = state * 1664525U + 1013904223U;
    v = std::bit_cast<float>((state & 0x007f'ffffU) | 0x4000'0000U);
  }
  const std::byte* from = reinterpret_cast<const std::byte*>(in.data());
  std::byte* to = reinterpret_cast<std::byte*>(out.data());
  hvd::make_reduction<float>(hvd::average, 7).complete(&to, 1, &from, 1, in.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i != in.size(); ++i) {
    // Through double, in whose quotient a float's rounding shows.
    const volatile double quotient = static_cast<double>(in[i]) / 7.0;
    wrong += std::bit_cast<std::uint32_t>(static_cast<float>(quotient)) != std::bit_cast<std::uint32_t>(out[i]);
  }
  expect(wrong == 0, "rounding of " + std::to_string(wrong) + " of 4096 quotients");
}

/// Infinite, where a product of parts alone is not a number; and exact otherwise.
template <class Bits>
void check_complex() {
  using real = std::conditional_t<sizeof(Bits) == 4, float, double>;
  using number = std::complex<real>;
  constexpr Bits infinity =
      sizeof(Bits) == 4 ? static_cast<Bits>(0x7f80'0000) : static_cast<Bits>(0x7ff0'0000'0000'0000);
  const number a[] = {{std::bit_cast<real>(infinity), std::bit_cast<real>(infinity)}, {3, 4}}, b[] = {{1, 2}, {5, -6}};
  const std::byte* const in[] = {reinterpret_cast<const std::byte*>(a), reinterpret_cast<const std::byte*>(b)};
  number out[2];
  std::byte* to = reinterpret_cast<std::byte*>(out);
  hvd::make_reduction<number>(hvd::product, 2).complete(&to, 1, in, 2, 2);
  const auto magnitude = [](real part) { return static_cast<Bits>(std::bit_cast<Bits>(part) << 1 >> 1); };
  expect(magnitude(out[0].real()) == infinity || magnitude(out[0].imag()) == infinity, "product of an infinity");
  expect(out[1] == number(39, 2), "product of complex numbers");
}

/// A NaN and an infinity stay what they are on their way through a narrower type.
void check_conversions() {
  const std::uint32_t bits[] = {0x7fc0'0000, 0xff80'0000, 0x3f80'0000, 0x7f80'0000};
  float in[4], out[4];
  std::uint16_t narrow[4];
  std::memcpy(in, bits, sizeof in);
  const auto both = [&](hvd::dtype wire, std::uint16_t infinity) {
    const hvd::detail::conversions c = hvd::detail::find_conversions(hvd::dtype::float32, wire);
    c.narrow(reinterpret_cast<std::byte*>(narrow), reinterpret_cast<const std::byte*>(in), 4, nullptr);
    c.widen(reinterpret_cast<std::byte*>(out), reinterpret_cast<const std::byte*>(narrow), 4, nullptr);
    expect((narrow[0] & 0x7fffu) > infinity && narrow[1] == (infinity | 0x8000u) && narrow[3] == infinity &&
               std::memcmp(in + 1, out + 1, 3 * sizeof(float)) == 0,
           "conversion to " + std::string(hvd::name(wire)));
  };
  both(hvd::dtype::float16, 0x7c00);
  both(hvd::dtype::bfloat16, 0x7f80);
}

void check_long_double() {
  const long double nan = std::bit_cast<double>(std::uint64_t{0x7ff8'0000'0000'0000});
  for (int from = 0; from != 2; ++from) {
    const volatile long double values[] = {from == 0 ? nan : 1.0L, from == 1 ? nan : 1.0L};
    const long double a = values[0], b = values[1];
    const std::byte* const in[] = {reinterpret_cast<const std::byte*>(&a), reinterpret_cast<const std::byte*>(&b)};
    long double out = 0;
    std::byte* to = reinterpret_cast<std::byte*>(&out);
    for (const auto& op :
         {hvd::make_reduction<long double>(hvd::min, 2), hvd::make_reduction<long double>(hvd::max, 2)}) {
      op.complete(&to, 1, in, 2, 1);
      expect(std::bit_cast<std::uint64_t>(static_cast<double>(out)) << 1 > std::uint64_t{0x7ff} << 53,
             "min or max of long double, NaN on rank " + std::to_string(from));
    }
  }
}

}  // namespace

int main() {
  for (const isa level : {isa::baseline, isa::avx2, isa::avx512}) {
    if (level > hvd::detail::cpu_isa()) {
      std::printf("SKIP: this CPU has no vectors of level %d\n", static_cast<int>(level));
      continue;
    }
    check_extremes<hvd::detail::plain<float>, std::uint32_t>(
        level, "float32", {0x7fc0'0000, 0xffc0'0000, 0x7f80'0000, 0x3f80'0000, 0xbf80'0000});
    check_extremes<hvd::detail::plain<double>, std::uint64_t>(level, "float64",
                                                              {0x7ff8'0000'0000'0000, 0xfff8'0000'0000'0000,
                                                               0x7ff0'0000'0000'0000, 0x3ff0'0000'0000'0000,
                                                               0xbff0'0000'0000'0000});
    check_extremes<hvd::detail::half_format, std::uint16_t>(level, "float16", {0x7e00, 0xfe00, 0x7c00, 0x3c00, 0xbc00});
    check_extremes<hvd::detail::bfloat16_format, std::uint16_t>(level, "bfloat16",
                                                                {0x7fc0, 0xffc0, 0x7f80, 0x3f80, 0xbf80});
  }
  check_quotients<float>("float32");
  check_quotients<double>("float64");
  check_quotients<std::int32_t>("int32");
  check_quotients<std::int64_t>("int64");
  check_rounding();
  check_complex<std::uint32_t>();
  check_complex<std::uint64_t>();
  check_conversions();
  check_long_double();
  return failures == 0 ? 0 : 1;
}
