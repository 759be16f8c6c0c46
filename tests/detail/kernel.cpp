// tests/detail/kernel.cpp: every vector kernel against a scalar loop, at every vector width of this CPU.
#include "support/skip.hpp"

#include <hvd/detail/kernel.hpp>
#include <hvd/dtype.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using hvd::bfloat16;
using hvd::half;
using hvd::detail::add;
using hvd::detail::isa;
using hvd::detail::maximum;
using hvd::detail::minimum;
using hvd::detail::multiply;
using hvd::detail::scaling;

// Runs `body(level)` if this CPU has the level, else says why not.
template <class F>
void at(isa level, F body) {
  constexpr const char* needs[] = {"", "AVX2", "AVX-512 (F, BW, DQ, VL)"};
  if (level > hvd::detail::cpu_isa()) {
    return hvd::test::skip(std::string("this CPU has no ") + needs[static_cast<int>(level)]);
  }
  body(level);
}

// A type of elements as the kernels see it: how it is stored, and the type in which it is accumulated.
template <class T>
struct element {
  using format = hvd::detail::plain<T>;
  using value = T;
  using wide = T;
};
template <>
struct element<half> {
  using format = hvd::detail::half_format;
  using value = half;
  using wide = float;
};
template <>
struct element<bfloat16> {
  using format = hvd::detail::bfloat16_format;
  using value = bfloat16;
  using wide = float;
};

// The same operations once more, in the plainest way.
template <class W>
W combined(add, W a, W b) {
  if constexpr (std::is_integral_v<W>)
    return static_cast<W>(std::uint64_t{a} + std::uint64_t{b});
  else
    return a + b;
}
template <class W>
W combined(multiply, W a, W b) {
  if constexpr (std::is_integral_v<W>)
    return static_cast<W>(std::uint64_t{a} * std::uint64_t{b});
  else
    return a * b;
}
template <class W>
W combined(minimum, W a, W b) {
  return b < a ? b : a;
}
template <class W>
W combined(maximum, W a, W b) {
  return b > a ? b : a;
}

// Values without NaN, infinity or overflow in any operation on nine of them; floats of very different sizes, so that
// the order of a sum shows in its bits.
template <class T>
T draw(std::mt19937& random) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(std::uint64_t{random()} << 32 | random());
  } else {
    const float magnitude =
        std::ldexp(1.0f + static_cast<float>(random() % 1024) / 1024.0f, static_cast<int>(random() % 12) - 11);
    const float value = random() % 2 == 0 ? magnitude : -magnitude;
    return static_cast<T>(value);
  }
}

constexpr int most_inputs = 9;
constexpr int most_outputs = 3;
constexpr std::size_t longest = 4097;
constexpr std::size_t margin = 64;  // elements before and after, which nobody may change

// Inputs that start at an odd multiple of the element size, and outputs with guards around them.
template <class E, class Combine>
struct bench {
  using value = typename E::value;
  using wide = typename E::wide;

  std::array<std::vector<value>, most_inputs> inputs;
  std::array<std::vector<value>, most_outputs> outputs;
  std::array<std::vector<value>, most_inputs + 1> expected;  // [n]: of n inputs

  bench() {
    std::mt19937 random(1);
    for (auto& in : inputs) {
      in.resize(longest + margin);
      for (value& v : in) v = draw<value>(random);
    }
    for (auto& out : outputs) out.resize(longest + 2 * margin);
    // Where input k starts differs between the inputs, but is the same for all counts.
    for (int n = 1; n <= most_inputs; ++n) {
      auto& want = expected[static_cast<std::size_t>(n)];
      want.resize(longest);
      for (std::size_t i = 0; i != longest; ++i) {
        wide a = static_cast<wide>(in(0)[i]);
        for (int k = 1; k < n; ++k) a = combined(Combine{}, a, static_cast<wide>(in(k)[i]));
        want[i] = static_cast<value>(a);
      }
    }
  }

  value* in(int k) { return inputs[static_cast<std::size_t>(k)].data() + (k * 7 + 1) % 16; }

  static bool same(const value* a, const value* b, std::size_t count) {
    return count == 0 || std::memcmp(a, b, count * sizeof(value)) == 0;
  }

  // Whether only `count` elements at `start` were written.
  static bool kept(const std::vector<value>& out, std::size_t start, std::size_t count) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(out.data());
    const auto untouched = [&](std::size_t from, std::size_t to) {
      return std::all_of(bytes + from * sizeof(value), bytes + to * sizeof(value),
                         [](unsigned char b) { return b == 0xa5; });
    };
    return untouched(0, start) && untouched(start + count, start + count + margin);
  }

  // How many calls went wrong, of all counts and numbers of inputs and outputs.
  int wrong(isa level) {
    const hvd::detail::kernel kernel = hvd::detail::vectorised<typename E::format, Combine>(level);
    int failures = 0;
    for (std::size_t step = 0; step <= 301; ++step) {
      const std::size_t count = step <= 300 ? step : longest;
      for (int n = 1; n <= most_inputs; ++n) {
        const int m = 1 + static_cast<int>((step + static_cast<std::size_t>(n)) % most_outputs);
        failures += apart(kernel, n, m, count) ? 0 : 1;
        failures += aliased(kernel, n, m, count) ? 0 : 1;
      }
    }
    return failures;
  }

  bool apart(hvd::detail::kernel kernel, int n, int m, std::size_t count) {
    std::array<const std::byte*, most_inputs> ins{};
    std::array<std::byte*, most_outputs> outs{};
    for (int k = 0; k != n; ++k) ins[static_cast<std::size_t>(k)] = reinterpret_cast<const std::byte*>(in(k));
    const std::size_t start = margin - count % 16;
    for (std::size_t j = 0; j != static_cast<std::size_t>(m); ++j) {
      std::memset(static_cast<void*>(outputs[j].data()), 0xa5, (start + count + margin) * sizeof(value));
      outs[j] = reinterpret_cast<std::byte*>(outputs[j].data() + start);
    }
    kernel(outs.data(), m, ins.data(), n, count, nullptr);
    const auto& want = expected[static_cast<std::size_t>(n)];
    bool right = true;
    for (std::size_t j = 0; j != static_cast<std::size_t>(m); ++j) {
      right = right && same(outputs[j].data() + start, want.data(), count) && kept(outputs[j], start, count);
    }
    return right;
  }

  // The first output is one of the inputs.
  bool aliased(hvd::detail::kernel kernel, int n, int m, std::size_t count) {
    const int shared = static_cast<int>(count) % n;
    std::array<const std::byte*, most_inputs> ins{};
    for (int k = 0; k != n; ++k) ins[static_cast<std::size_t>(k)] = reinterpret_cast<const std::byte*>(in(k));
    value* const both = outputs[0].data() + margin / 2 + 1;
    std::memcpy(static_cast<void*>(both), in(shared), count * sizeof(value));
    ins[static_cast<std::size_t>(shared)] = reinterpret_cast<const std::byte*>(both);
    std::array<std::byte*, most_outputs> outs{reinterpret_cast<std::byte*>(both),
                                              reinterpret_cast<std::byte*>(outputs[1].data() + 3),
                                              reinterpret_cast<std::byte*>(outputs[2].data())};
    kernel(outs.data(), m, ins.data(), n, count, nullptr);
    const auto& want = expected[static_cast<std::size_t>(n)];
    return same(both, want.data(), count) && (m < 2 || same(outputs[1].data() + 3, want.data(), count)) &&
           (m < 3 || same(outputs[2].data(), want.data(), count));
  }
};

template <class... T>
void check_arithmetic(isa level) {
  const auto one = [&]<class V>(const char* type, V) {
    CAPTURE(type);
    CHECK(bench<element<V>, add>().wrong(level) == 0);
    CHECK(bench<element<V>, multiply>().wrong(level) == 0);
  };
  (one(hvd::name(hvd::dtype_of<T>).data(), T{}), ...);
}
template <class... T>
void check_order(isa level) {
  const auto one = [&]<class V>(const char* type, V) {
    CAPTURE(type);
    CHECK(bench<element<V>, minimum>().wrong(level) == 0);
    CHECK(bench<element<V>, maximum>().wrong(level) == 0);
  };
  (one(hvd::name(hvd::dtype_of<T>).data(), T{}), ...);
}

// Signed integers are added and multiplied in their unsigned twins.
void check_all(isa level) {
  check_arithmetic<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t, half, bfloat16, float, double>(level);
  check_order<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t,
              std::uint64_t, half, bfloat16, float, double>(level);
}

template <class T>
std::vector<T> all_patterns() {
  std::vector<T> all;
  for (unsigned bits = 0; bits != 65536; ++bits) all.push_back(T::from_bits(static_cast<std::uint16_t>(bits)));
  return all;
}

template <class T, class Combine>
std::vector<T> run(isa level, const std::vector<std::vector<T>>& ins, const scaling* scale = nullptr) {
  std::vector<T> out(ins[0].size());
  std::vector<const std::byte*> pointers;
  for (const auto& in : ins) pointers.push_back(reinterpret_cast<const std::byte*>(in.data()));
  auto* to = reinterpret_cast<std::byte*>(out.data());
  hvd::detail::vectorised<typename element<T>::format, Combine>(level)(&to, 1, pointers.data(),
                                                                       static_cast<int>(ins.size()), out.size(), scale);
  return out;
}

// In how many elements the bits differ; the first one is said.
template <class T>
int differences(const std::vector<T>& got, const std::vector<T>& want) {
  int count = 0;
  for (std::size_t i = 0; i != want.size(); ++i) {
    if (got[i].bits != want[i].bits && count++ == 0) {
      MESSAGE("pattern " << i << " gave " << got[i].bits << " instead of " << want[i].bits);
    }
  }
  return count;
}

// Every pattern as it comes through one input, through a sum with zero, and through products of many kinds, which
// reach every rounding: compared with the conversions of dtype.hpp.
template <class T>
void check_conversions(isa level) {
  const std::vector<T> all = all_patterns<T>();
  const std::vector<T> zeros(all.size(), T(0.0f)), nothing(all.size(), T(-0.0f));
  std::vector<T> want = all;

  for (T& v : want) v = T(static_cast<float>(v));
  CHECK(differences(run<T, add>(level, {all}), want) == 0);
  CHECK(differences(run<T, multiply>(level, {all}), want) == 0);
  CHECK(differences(run<T, minimum>(level, {all}), want) == 0);
  CHECK(differences(run<T, maximum>(level, {all, all}), want) == 0);

  want = all;
  for (T& v : want) v = T(static_cast<float>(v) + 0.0f);
  CHECK(differences(run<T, add>(level, {all, zeros}), want) == 0);
  CHECK(differences(run<T, add>(level, {zeros, all}), want) == 0);

  for (const double factor : {1.5, 0x1.8p-3, 1.0 + 0x1p-11, 0x1.004p-10, 0x1.001p-10, 3e-5, 1.0 / 3.0, 65504.0}) {
    CAPTURE(factor);
    want = all;
    for (T& v : want) v = T(static_cast<float>(v) * static_cast<float>(factor));
    const scaling before{factor, 1.0, 1};
    CHECK(differences(run<T, add>(level, {all}, &before), want) == 0);
    const scaling after{1.0, factor, 1};
    CHECK(differences(run<T, add>(level, {all}, &after), want) == 0);
    CHECK(differences(run<T, add>(level, {nothing, all}, &before), want) == 0);
    CHECK(differences(run<T, add>(level, {all, nothing}, &after), want) == 0);
  }
  want = all;
  for (T& v : want) v = T(static_cast<float>(v) / 3.0f);
  const scaling third{1.0, 1.0, 3};
  CHECK(differences(run<T, add>(level, {all}, &third), want) == 0);
}

// Every pattern with many others: sums and products with ties, carries, subnormals, overflow, infinities, and a NaN of
// every payload on either side. (Which of two NaNs is the result is the compiler's choice.)
template <class T>
void check_pairs(isa level) {
  const std::vector<T> all = all_patterns<T>();
  std::vector<T> other = all, sums = all, products = all;
  for (const std::size_t step : {1U, 129U, 4099U, 32767U, 65535U}) {
    for (std::size_t i = 0; i != all.size(); ++i) {
      other[i] = all[(i * step + step) % all.size()];
      const bool ordered = all[i] == all[i] || other[i] == other[i];
      if (!ordered) other[i] = T(1.0f);
      sums[i] = T(static_cast<float>(all[i]) + static_cast<float>(other[i]));
      products[i] = T(static_cast<float>(all[i]) * static_cast<float>(other[i]));
    }
    CAPTURE(step);
    CHECK(differences(run<T, add>(level, {all, other}), sums) == 0);
    CHECK(differences(run<T, multiply>(level, {all, other}), products) == 0);
  }
}

// Signalling NaNs in the rests of vectors, of every length, and a factor that is NaN with all of its payload.
template <class T>
void check_nan_sums(isa level) {
  for (std::size_t count = 1; count != 200; ++count) {
    std::vector<T> nans(count), ones(count, T(1.0f)), want(count);
    for (std::size_t i = 0; i != count; ++i) {
      const unsigned infinity = std::numeric_limits<T>::infinity().bits, sign = i % 2 << 15;
      nans[i] = T::from_bits(static_cast<std::uint16_t>(sign | infinity | (i % 63 + 1)));
      want[i] = T(static_cast<float>(nans[i]) + 1.0f);
    }
    CAPTURE(count);
    CHECK(differences(run<T, add>(level, {nans, ones}), want) == 0);
    CHECK(differences(run<T, add>(level, {ones, nans}), want) == 0);
    CHECK(differences(run<T, multiply>(level, {ones, nans}), want) == 0);

    const double nan = std::bit_cast<double>(0x7fff'ffff'ffff'ffffU);
    for (const scaling s : {scaling{nan, 1.0, 1}, scaling{1.0, nan, 1}}) {
      want.assign(count, T(static_cast<float>(nan)));
      CHECK(differences(run<T, add>(level, {ones, ones}, &s), want) == 0);
    }
  }
}

void check_16_bits(isa level) {
  check_conversions<half>(level);
  check_conversions<bfloat16>(level);
  check_pairs<half>(level);
  check_pairs<bfloat16>(level);
  check_nan_sums<half>(level);
  check_nan_sums<bfloat16>(level);
}

template <class T>
std::vector<T> numbers(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<T> all(count);
  for (T& v : all) v = draw<T>(random);
  return all;
}

// Prescaled sums, averages and plain sums: the same bits as a scalar loop that rounds after every step. A fused
// multiply-add would round once less.
template <class T>
void check_rounding(isa level) {
  using wide = typename element<T>::wide;
  const std::vector<std::vector<T>> ins{numbers<T>(1, 1000), numbers<T>(2, 1000), numbers<T>(3, 1000)};
  for (const scaling s : {scaling{}, scaling{0.1, 1.0, 1}, scaling{0.1, 0.7, 3}, scaling{1.0, 1.0, 7}}) {
    std::vector<T> want(1000);
    for (std::size_t i = 0; i != want.size(); ++i) {
      volatile wide a = 0;  // volatile, so that this loop is not fused either
      for (std::size_t k = 0; k != ins.size(); ++k) {
        volatile wide b = static_cast<wide>(ins[k][i]);
        if (s.pre != 1.0) b = b * static_cast<wide>(s.pre);
        a = k == 0 ? b : a + b;
      }
      if (s.post != 1.0) a = a * static_cast<wide>(s.post);
      if (s.divisor != 1) a = a / static_cast<wide>(s.divisor);
      want[i] = static_cast<T>(static_cast<wide>(a));
    }
    const std::vector<T> got = run<T, add>(level, ins, &s);
    CAPTURE(s.pre);
    CAPTURE(s.post);
    CAPTURE(s.divisor);
    CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(T)) == 0);
  }
}

void check_floats(isa level) {
  check_rounding<float>(level);
  check_rounding<double>(level);
  check_rounding<half>(level);
  check_rounding<bfloat16>(level);
}

// NaN from any rank, at any place of a vector, and nowhere else.
template <class T>
void check_nan(isa level) {
  const T nan = std::numeric_limits<T>::quiet_NaN();
  for (const std::size_t count : {std::size_t{1}, std::size_t{70}, std::size_t{300}}) {
    for (std::size_t from = 0; from != 3; ++from) {
      std::vector<std::vector<T>> ins(3, std::vector<T>(count, T(1.0f)));
      ins[2].assign(count, T(-1.0f));
      for (std::size_t i = from; i < count; i += 3) ins[from][i] = nan;
      const auto low = run<T, minimum>(level, ins);
      const auto high = run<T, maximum>(level, ins);
      bool right = true;
      for (std::size_t i = 0; i != count; ++i) {
        const bool poisoned = i % 3 == from;
        right = right && (poisoned ? low[i] != low[i] : low[i] == T(-1.0f)) &&
                (poisoned ? high[i] != high[i] : high[i] == T(1.0f));
      }
      CAPTURE(count);
      CAPTURE(from);
      CHECK(right);
    }
  }
}

void check_nans(isa level) {
  check_nan<float>(level);
  check_nan<double>(level);
  check_nan<half>(level);
  check_nan<bfloat16>(level);
}

#if defined(__x86_64__)
// This thread treats subnormal floats as zero while the guard exists.
struct flushing {
  unsigned before = _mm_getcsr();
  flushing() { _mm_setcsr(before | 0x8040U); }
  flushing(const flushing&) = delete;
  flushing& operator=(const flushing&) = delete;
  ~flushing() { _mm_setcsr(before); }
};

// half's subnormals are normal floats and must survive; bfloat16's are subnormal floats, and only arithmetic may
// flush them.
void check_flushed(isa level) {
  const auto halves = all_patterns<half>();
  const auto brains = all_patterns<bfloat16>();
  std::vector<half> wanted_halves = halves;
  for (half& v : wanted_halves) v = half(static_cast<float>(v) + 0.0f);
  std::vector<bfloat16> wanted_brains = brains;
  for (bfloat16& v : wanted_brains) v = bfloat16(static_cast<float>(v));
  const std::vector<half> zeros(halves.size(), half(0.0f));

  std::vector<half> sums;
  std::vector<bfloat16> copies;
  {
    const flushing on;
    sums = run<half, add>(level, {halves, zeros});
    copies = run<bfloat16, add>(level, {brains});
  }
  CHECK(differences(sums, wanted_halves) == 0);
  CHECK(differences(copies, wanted_brains) == 0);
}
#endif

}  // namespace

TEST_CASE("kernels are right for all counts, at 16 bytes a vector") { at(isa::baseline, check_all); }
TEST_CASE("kernels are right for all counts, at 32 bytes a vector") { at(isa::avx2, check_all); }
TEST_CASE("kernels are right for all counts, at 64 bytes a vector") { at(isa::avx512, check_all); }

TEST_CASE("16-bit floats are converted as by dtype.hpp, at 16 bytes a vector") { at(isa::baseline, check_16_bits); }
TEST_CASE("16-bit floats are converted as by dtype.hpp, at 32 bytes a vector") { at(isa::avx2, check_16_bits); }
TEST_CASE("16-bit floats are converted as by dtype.hpp, at 64 bytes a vector") { at(isa::avx512, check_16_bits); }

TEST_CASE("scaled sums have the bits of a scalar loop, at 16 bytes a vector") { at(isa::baseline, check_floats); }
TEST_CASE("scaled sums have the bits of a scalar loop, at 32 bytes a vector") { at(isa::avx2, check_floats); }
TEST_CASE("scaled sums have the bits of a scalar loop, at 64 bytes a vector") { at(isa::avx512, check_floats); }

TEST_CASE("NaN wins in minimum and maximum, at 16 bytes a vector") { at(isa::baseline, check_nans); }
TEST_CASE("NaN wins in minimum and maximum, at 32 bytes a vector") { at(isa::avx2, check_nans); }
TEST_CASE("NaN wins in minimum and maximum, at 64 bytes a vector") { at(isa::avx512, check_nans); }

#if defined(__x86_64__)
TEST_CASE("kernels in a thread that flushes subnormals, at 16 bytes a vector") { at(isa::baseline, check_flushed); }
TEST_CASE("kernels in a thread that flushes subnormals, at 32 bytes a vector") { at(isa::avx2, check_flushed); }
TEST_CASE("kernels in a thread that flushes subnormals, at 64 bytes a vector") { at(isa::avx512, check_flushed); }
#endif

TEST_CASE("the default is the widest vector of this CPU") {
  using format = hvd::detail::plain<float>;
  const bool widest =
      hvd::detail::vectorised<format, add>() == hvd::detail::vectorised<format, add>(hvd::detail::cpu_isa());
  CHECK(widest);
}
