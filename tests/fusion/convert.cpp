// tests/fusion/convert.cpp: conversions in vectors of each width give the bits of the scalar ones.
#include <hvd/fusion/convert.hpp>

#include <hvd/dtype.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using hvd::bfloat16;
using hvd::half;
using namespace hvd::detail;

std::vector<isa> levels() {
  std::vector<isa> all{isa::baseline};
  if (cpu_isa() >= isa::avx2) all.push_back(isa::avx2);
  if (cpu_isa() >= isa::avx512) all.push_back(isa::avx512);
  return all;
}

// Every exponent and sign, with mantissas at and beside what rounds to even; infinities and NaNs among them.
std::vector<float> floats() {
  std::vector<float> all;
  for (std::uint32_t top = 0; top != 512; ++top) {
    for (const std::uint32_t mantissa :
         {0u, 1u, 0xfffu, 0x1000u, 0x1001u, 0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0x18000u, 0x7f'f000u, 0x7f'ffffu}) {
      all.push_back(std::bit_cast<float>(top << 23 | mantissa));
    }
  }
  return all;
}

template <class To, class From, class Format_from, class Format_to, class Scalar>
void check(const std::vector<From>& in, const scaling* scale, const Scalar& scalar) {
  for (const isa level : levels()) {
    CAPTURE(static_cast<int>(level));
    const converter convert = conversion<Format_from, Format_to>(level);
    for (std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{33}, in.size()}) {
      if (n > in.size()) continue;
      std::vector<To> out(n + 1);
      std::memset(static_cast<void*>(out.data()), 0x5a, out.size() * sizeof(To));
      const To guard = out[n];
      convert(reinterpret_cast<std::byte*>(out.data()), reinterpret_cast<const std::byte*>(in.data()), n, scale);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i != n; ++i) {
        const To expected = scalar(in[i]);
        wrong += std::memcmp(&out[i], &expected, sizeof(To)) != 0 ? 1 : 0;
      }
      CHECK(wrong == 0);
      CHECK(std::memcmp(&out[n], &guard, sizeof(To)) == 0);
    }
  }
}

}  // namespace

TEST_CASE("float to 16 bits") {
  check<half, float, plain<float>, half_format>(floats(), nullptr, [](float x) { return half(x); });
  check<bfloat16, float, plain<float>, bfloat16_format>(floats(), nullptr, [](float x) { return bfloat16(x); });
}

TEST_CASE("16 bits to float, all of them") {
  std::vector<half> halves;
  std::vector<bfloat16> brains;
  for (std::uint32_t bits = 0; bits != 0x10000; ++bits) {
    if ((bits & 0x7c00) != 0x7c00 || (bits & 0x3ff) == 0 || (bits & 0x200) != 0) {  // a signalling NaN may stay one
      halves.push_back(half::from_bits(static_cast<std::uint16_t>(bits)));
    }
    brains.push_back(bfloat16::from_bits(static_cast<std::uint16_t>(bits)));
  }
  check<float, half, half_format, plain<float>>(halves, nullptr, [](half x) { return static_cast<float>(x); });
  check<float, bfloat16, bfloat16_format, plain<float>>(brains, nullptr,
                                                        [](bfloat16 x) { return static_cast<float>(x); });
}

TEST_CASE("double to float and back") {
  const double largest = std::numeric_limits<float>::max();
  const std::vector<double> in{0.0,   -0.0,      1.0 / 3.0,     -1e-40, 1e-60, largest, 2 * largest, 1.0 + 0x1p-24,
                               1.5e9, -0x1p-149, 1.0 + 0x3p-24, 7.0,    -7.0,  100.25,  1e300,       -1e300};
  check<float, double, plain<double>, widened_float>(in, nullptr, [](double x) { return static_cast<float>(x); });
  std::vector<float> back{0.0f,   -0.0f, 1.0f / 3.0f, -1e-40f, 7.5f, std::numeric_limits<float>::max(),
                          3e-45f, 2.0f,  1.0f};
  check<double, float, widened_float, plain<double>>(back, nullptr, [](float x) { return static_cast<double>(x); });
}

TEST_CASE("scaled in the wider type, before rounding and after") {
  const scaling before{1.0 / 3.0, 1.0, 1}, after{1.0, 2.5, 3};
  std::vector<float> in;
  for (int i = -40; i != 40; ++i) in.push_back(1.37f * static_cast<float>(i));
  const auto third = static_cast<float>(1.0 / 3.0);
  check<half, float, plain<float>, half_format>(in, &before, [&](float x) { return half(x * third); });
  check<half, float, plain<float>, half_format>(in, &after, [](float x) { return half(x * 2.5f / 3.0f); });
  std::vector<double> wide(in.begin(), in.end());
  check<float, double, plain<double>, widened_float>(wide, &before,
                                                     [](double x) { return static_cast<float>(x * (1.0 / 3.0)); });
}
