// tests/support/verifiable.hpp: inputs whose exact reduction is known, in whatever order.
//
// Values are integers so small that every partial result of up to 8 ranks is exact in every element type (8
// bits of mantissa in bfloat16, 8 bits in int8). Integer types wrap, and averages truncate, as op.hpp
// documents. Results are computed in 64-bit integers, never by the library.
#pragma once

#include <hvd/dtype.hpp>
#include <hvd/op.hpp>

#include "require.hpp"  // also found from bench, which has another root

#include <bit>
#include <cmath>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace hvd::test {

/// 64 well-mixed bits for element i of a rank, or for part `part` of it. (The finaliser of splitmix64.)
constexpr std::uint64_t draw(std::size_t i, int rank, int part = 0) noexcept {
  std::uint64_t x = i * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(rank * 2 + part + 1) * 0xd1342543de82ef95ULL;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

namespace exact {

template <class T>
inline constexpr bool is_complex = false;
template <class T>
inline constexpr bool is_complex<std::complex<T>> = true;

/// A number as an element: integers wrap, complex numbers take it as their real part.
template <class T>
constexpr T element(std::int64_t value) {
  if constexpr (std::integral<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(value));
  } else if constexpr (std::is_same_v<T, half> || std::is_same_v<T, bfloat16>) {
    return T(static_cast<float>(value));
  } else if constexpr (is_complex<T>) {
    return T(static_cast<typename T::value_type>(value));
  } else {
    return static_cast<T>(value);
  }
}
/// make(0) as an element; a complex number has make(1) as its imaginary part.
template <class T, class Make>
constexpr T of_parts(const Make& make) {
  if constexpr (is_complex<T>) {
    using real = typename T::value_type;
    return T(static_cast<real>(make(0)), static_cast<real>(make(1)));
  } else {
    return element<T>(make(0));
  }
}

/// A term of a sum: `span` values, from 0 for unsigned types, around 0 for others.
template <class T>
constexpr std::int64_t term(std::size_t i, int rank, int part, int span) {
  const auto value = static_cast<std::int64_t>(draw(i, rank, part) % static_cast<unsigned>(span));
  return std::is_unsigned_v<T> ? value : value - span / 2;
}
/// A term of an average: where the quotient would not be exact, the last rank makes the sum divisible.
template <class T>
constexpr std::int64_t average_term(std::size_t i, int rank, int size, int part, int span) {
  std::int64_t value = term<T>(i, rank, part, span);
  if (std::integral<T> || rank != size - 1) return value;
  std::int64_t sum = 0;
  for (int r = 0; r != size; ++r) sum += term<T>(i, r, part, span);
  return value - (sum % size + size) % size;
}
template <class Term>
constexpr std::int64_t total(int size, const Term& term_of) {
  std::int64_t sum = 0;
  for (int r = 0; r != size; ++r) sum += term_of(r);
  return sum;
}

/// Powers of two, so that products are exact: 1, 2, -1 or -2, times 1 or i for complex numbers.
struct factor {
  std::int64_t value;
  bool imaginary;
};
constexpr factor factor_of(std::size_t i, int rank) {
  const std::uint64_t d = draw(i, rank);
  return {(d & 1 ? 1 : 2) * (d & 2 ? 1 : -1), (d & 4) != 0};
}

inline constexpr int span = 31;         // 8 x 30 < 256, 8 x 15 < 128
inline constexpr int scaled_span = 15;  // the same where inputs are doubled

}  // namespace exact

// ---- the built-in operations: element i of what `rank` of `size` gives, and of the result -------------

template <class T>
T input(sum_t, std::size_t i, int rank, int /*size*/) {
  return exact::of_parts<T>([&](int part) { return exact::term<T>(i, rank, part, exact::span); });
}
template <class T>
T expected(sum_t, std::size_t i, int size) {
  return exact::of_parts<T>(
      [&](int part) { return exact::total(size, [&](int r) { return exact::term<T>(i, r, part, exact::span); }); });
}

template <class T>
T input(average_t, std::size_t i, int rank, int size) {
  return exact::of_parts<T>([&](int part) { return exact::average_term<T>(i, rank, size, part, exact::span); });
}
template <class T>
T expected(average_t, std::size_t i, int size) {
  return exact::of_parts<T>([&](int part) {
    return exact::total(size, [&](int r) { return exact::average_term<T>(i, r, size, part, exact::span); }) / size;
  });
}

/// Any value of an integer type, its limits among them; half of all rounds of bool decide by a single rank.
template <class T>
T extreme(std::size_t i, int rank, bool rare) {
  const std::uint64_t d = draw(i, rank);
  if constexpr (std::is_same_v<T, bool>) {
    return (d % 8 == 0) == rare;
  } else if constexpr (std::integral<T>) {
    if (d % 16 == 0) return std::numeric_limits<T>::min();
    if (d % 16 == 1) return std::numeric_limits<T>::max();
    return static_cast<T>(d >> 8);
  } else {
    return exact::element<T>(static_cast<std::int64_t>(d % 511) - 255);
  }
}
/// The input that `before` puts in front of all others. Compared exactly.
template <class T, class Before>
T foremost(std::size_t i, int size, bool rare, const Before& before) {
  const auto value = [](T x) {
    if constexpr (std::integral<T>) {
      return x;
    } else if constexpr (sizeof(T) == 2) {
      return static_cast<double>(static_cast<float>(x));
    } else {
      return static_cast<double>(x);
    }
  };
  T best = extreme<T>(i, 0, rare);
  for (int r = 1; r != size; ++r) {
    const T x = extreme<T>(i, r, rare);
    if (before(value(x), value(best))) best = x;
  }
  return best;
}
template <class T>
T input(min_t, std::size_t i, int rank, int /*size*/) {
  return extreme<T>(i, rank, false);
}
template <class T>
T expected(min_t, std::size_t i, int size) {
  return foremost<T>(i, size, false, [](auto a, auto b) { return a < b; });
}
template <class T>
T input(max_t, std::size_t i, int rank, int /*size*/) {
  return extreme<T>(i, rank, true);
}
template <class T>
T expected(max_t, std::size_t i, int size) {
  return foremost<T>(i, size, true, [](auto a, auto b) { return a > b; });
}

template <class T>
T input(product_t, std::size_t i, int rank, int /*size*/) {
  const exact::factor f = exact::factor_of(i, rank);
  return exact::of_parts<T>([&](int part) { return exact::is_complex<T> && f.imaginary != (part == 1) ? 0 : f.value; });
}
template <class T>
T expected(product_t, std::size_t i, int size) {
  std::int64_t value = 1;
  int turns = 0;  // factors i
  for (int r = 0; r != size; ++r) {
    const exact::factor f = exact::factor_of(i, r);
    value *= f.value;
    turns += f.imaginary ? 1 : 0;
  }
  if constexpr (exact::is_complex<T>) {
    if (turns % 4 >= 2) value = -value;
    return exact::of_parts<T>([&](int part) { return (turns % 2 == 1) == (part == 1) ? value : 0; });
  }
  return exact::element<T>(value);
}

/// Scale factors must keep values exact: a prescale of at most 2, a postscale of few bits.
template <class T, class Op>
T input(const scaled_op<Op>&, std::size_t i, int rank, int size) {
  static_assert(std::is_same_v<Op, sum_t> || std::is_same_v<Op, average_t>);
  return exact::of_parts<T>([&](int part) {
    return std::is_same_v<Op, average_t> ? exact::average_term<T>(i, rank, size, part, exact::scaled_span)
                                         : exact::term<T>(i, rank, part, exact::scaled_span);
  });
}
template <class T, class Op>
T expected(const scaled_op<Op>& op, std::size_t i, int size) {
  const auto scaled_total = [&](int part) {
    double sum = 0;
    for (int r = 0; r != size; ++r) {
      const auto value = static_cast<double>(std::is_same_v<Op, average_t>
                                                 ? exact::average_term<T>(i, r, size, part, exact::scaled_span)
                                                 : exact::term<T>(i, r, part, exact::scaled_span));
      sum += std::integral<T> ? std::trunc(value * op.prescale) : value * op.prescale;
    }
    sum *= op.postscale;
    return std::is_same_v<Op, average_t> ? sum / size : sum;
  };
  if constexpr (std::integral<T>) {
    return exact::element<T>(static_cast<std::int64_t>(std::trunc(scaled_total(0))));
  } else if constexpr (exact::is_complex<T>) {
    using real = typename T::value_type;
    return T(static_cast<real>(scaled_total(0)), static_cast<real>(scaled_total(1)));
  } else if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(scaled_total(0)));
  } else {
    return static_cast<T>(scaled_total(0));
  }
}

// ---- operations of a user -----------------------------------------------------------------------------

/// x -> a x + b modulo a prime: composition is associative and does not commute. 12 bytes, no power of two.
struct affine {
  static constexpr std::uint32_t prime = 65521;
  std::uint32_t a, b, tag;
  friend bool operator==(const affine&, const affine&) = default;
};
struct compose {
  static constexpr bool commutative = false;
  affine operator()(const affine& f, const affine& g) const {
    return {f.a * g.a % affine::prime, (f.a * g.b % affine::prime + f.b) % affine::prime, f.tag ^ g.tag};
  }
};
template <std::same_as<affine> T>
T input(compose, std::size_t i, int rank, int /*size*/) {
  const std::uint64_t d = draw(i, rank);
  return {static_cast<std::uint32_t>(d % (affine::prime - 1) + 1),
          static_cast<std::uint32_t>((d >> 20) % affine::prime), static_cast<std::uint32_t>(d >> 32)};
}

/// An element that is larger than a cache line and than any vector.
struct block {
  std::uint64_t words[37];
  friend bool operator==(const block&, const block&) = default;
};
struct combine_blocks {
  block operator()(const block& x, const block& y) const {
    block z{};
    for (int k = 0; k != 37; ++k) z.words[k] = k % 2 == 0 ? x.words[k] ^ y.words[k] : x.words[k] + y.words[k];
    return z;
  }
};
template <std::same_as<block> T>
T input(combine_blocks, std::size_t i, int rank, int /*size*/) {
  block x{};
  for (int k = 0; k != 37; ++k) x.words[k] = draw(i * 37 + static_cast<std::size_t>(k), rank);
  return x;
}

/// An element as vectors of SIMD and of small linear algebra are, and an operation that insists on its alignment.
template <std::size_t Alignment>
struct alignas(Alignment) aligned {
  std::uint64_t words[Alignment / 8];
  friend bool operator==(const aligned&, const aligned&) = default;
};
struct add_aligned {
  template <std::size_t Alignment>
  aligned<Alignment> operator()(const aligned<Alignment>& x, const aligned<Alignment>& y) const {
    for (const void* volatile at : {static_cast<const void*>(&x), static_cast<const void*>(&y)}) {
      require(reinterpret_cast<std::uintptr_t>(at) % Alignment == 0,
              "an element at an address that is none of its type");
    }
    aligned<Alignment> z{};
    for (std::size_t k = 0; k != Alignment / 8; ++k) z.words[k] = x.words[k] + y.words[k];
    return z;
  }
};
template <class T>
T input(add_aligned, std::size_t i, int rank, int /*size*/) {
  T x{};
  for (std::size_t k = 0; k != sizeof x.words / 8; ++k) x.words[k] = draw(i, rank, static_cast<int>(k));
  return x;
}

/// A function on a built-in type.
struct exclusive_or {
  std::uint32_t operator()(std::uint32_t x, std::uint32_t y) const { return x ^ y; }
};
template <std::same_as<std::uint32_t> T>
T input(exclusive_or, std::size_t i, int rank, int /*size*/) {
  return static_cast<std::uint32_t>(draw(i, rank));
}
/// The left one: nothing is further from commuting.
struct first_of {
  std::int16_t operator()(std::int16_t x, std::int16_t) const { return x; }
};
template <std::same_as<std::int16_t> T>
T input(non_commutative_op<first_of>, std::size_t i, int rank, int /*size*/) {
  return static_cast<std::int16_t>(draw(i, rank));
}

/// A user's function is its own reference: a fold in rank order, by hand.
template <class T, class F>
  requires std::is_invocable_r_v<T, const F&, const T&, const T&>
T expected(const F& op, std::size_t i, int size) {
  T x = input<T>(op, i, 0, size);
  for (int r = 1; r != size; ++r) x = op(x, input<T>(op, i, r, size));
  return x;
}
template <class T, class F>
T expected(const non_commutative_op<F>& op, std::size_t i, int size) {
  T x = input<T>(op, i, 0, size);
  for (int r = 1; r != size; ++r) x = op.op(x, input<T>(op, i, r, size));
  return x;
}

// ---- where the order matters --------------------------------------------------------------------------

/// A value whose sum over ranks depends on the order of additions, finite in every floating-point type.
template <class T>
T order_sensitive(std::size_t i, int rank) {
  const std::uint64_t d = draw(i, rank);
  const double fraction = 1.0 + static_cast<double>(d >> 12) * 0x1p-52;
  const double value = std::ldexp(fraction, static_cast<int>(d % 16) - 8) * (d & 32 ? 1 : -1);
  if constexpr (sizeof(T) == 2) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// A number for the bits of a vector; different bits give the same one in a case out of 2^64.
inline std::uint64_t hash_of_bits(const void* data, std::size_t bytes) {
  std::uint64_t h = 0x9e3779b97f4a7c15ULL ^ bytes;
  const auto* p = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; p += 8, bytes -= 8) {
    std::uint64_t w;
    std::memcpy(&w, p, 8);
    h = std::rotl((h ^ w) * 0xff51afd7ed558ccdULL, 31);
  }
  for (; bytes != 0; ++p, --bytes) h = std::rotl((h ^ *p) * 0xff51afd7ed558ccdULL, 31);
  return h;
}

#ifdef HVD_VERIFIABLE
// Without optimisation, as most tests are compiled, a value costs some fifty calls, and tests spent most of their time
// there. So HVD_VERIFIABLE is `extern` for tests, and empty in verifiable.cpp, which is optimised and has the
// functions.
#define HVD_VERIFIABLE_BY(T, OP)                                                                                       \
  HVD_VERIFIABLE template T input<T>(OP, std::size_t, int, int);                                                       \
  HVD_VERIFIABLE template T expected<T>(OP, std::size_t, int);
#define HVD_VERIFIABLE_NUMBER(T)                                                                                       \
  HVD_VERIFIABLE_BY(T, sum_t)                                                                                          \
  HVD_VERIFIABLE_BY(T, average_t)                                                                                      \
  HVD_VERIFIABLE_BY(T, product_t)                                                                                      \
  HVD_VERIFIABLE_BY(T, const scaled_op<sum_t>&)                                                                        \
  HVD_VERIFIABLE_BY(T, const scaled_op<average_t>&)
#define HVD_VERIFIABLE_ORDERED(T)                                                                                      \
  HVD_VERIFIABLE_NUMBER(T)                                                                                             \
  HVD_VERIFIABLE_BY(T, min_t)                                                                                          \
  HVD_VERIFIABLE_BY(T, max_t)
HVD_VERIFIABLE_BY(bool, min_t)
HVD_VERIFIABLE_BY(bool, max_t)
HVD_VERIFIABLE_ORDERED(std::int8_t)
HVD_VERIFIABLE_ORDERED(std::uint8_t)
HVD_VERIFIABLE_ORDERED(std::int16_t)
HVD_VERIFIABLE_ORDERED(std::uint16_t)
HVD_VERIFIABLE_ORDERED(std::int32_t)
HVD_VERIFIABLE_ORDERED(std::uint32_t)
HVD_VERIFIABLE_ORDERED(std::int64_t)
HVD_VERIFIABLE_ORDERED(std::uint64_t)
HVD_VERIFIABLE_ORDERED(half)
HVD_VERIFIABLE_ORDERED(bfloat16)
HVD_VERIFIABLE_ORDERED(float)
HVD_VERIFIABLE_ORDERED(double)
HVD_VERIFIABLE_NUMBER(std::complex<float>)
HVD_VERIFIABLE_NUMBER(std::complex<double>)
HVD_VERIFIABLE template affine input<affine>(compose, std::size_t, int, int);
HVD_VERIFIABLE template affine expected<affine>(const compose&, std::size_t, int);
HVD_VERIFIABLE template block input<block>(combine_blocks, std::size_t, int, int);
HVD_VERIFIABLE template block expected<block>(const combine_blocks&, std::size_t, int);
HVD_VERIFIABLE template half order_sensitive(std::size_t, int);
HVD_VERIFIABLE template bfloat16 order_sensitive(std::size_t, int);
HVD_VERIFIABLE template float order_sensitive(std::size_t, int);
HVD_VERIFIABLE template double order_sensitive(std::size_t, int);
#undef HVD_VERIFIABLE_BY
#undef HVD_VERIFIABLE_NUMBER
#undef HVD_VERIFIABLE_ORDERED
#endif

}  // namespace hvd::test
