// tests/op.cpp: what each operation means on each type, through the erased form that algorithms use.
#include <hvd/op.hpp>

#include <support/verifiable.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace {

using hvd::bfloat16;
using hvd::half;
using hvd::make_reduction;
using hvd::reduction;

template <class T>
inline constexpr bool complex_type = false;
template <class T>
inline constexpr bool complex_type<std::complex<T>> = true;

template <class T>
const std::byte* bytes(const std::vector<T>& v) {
  return reinterpret_cast<const std::byte*>(v.data());
}
template <class T>
std::byte* bytes(std::vector<T>& v) {
  return reinterpret_cast<std::byte*>(v.data());
}
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b, std::size_t count) {
  if constexpr (std::is_same_v<T, long double>) {  // has bytes that mean nothing
    return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(count), b.begin(),
                      [](T x, T y) { return x == y || (std::isnan(x) && std::isnan(y)); });
  }
  return count == 0 || std::memcmp(bytes(a), bytes(b), count * sizeof(T)) == 0;
}

// `count` elements of every rank, reduced at once into an output of its own and onto the last input. (An element
// before and one after are there to see that nothing else is written.)
template <class T>
std::vector<T> at_once(const reduction& r, std::vector<std::vector<T>> ranks, std::size_t count) {
  std::vector<const std::byte*> ins;
  for (const auto& v : ranks) ins.push_back(bytes(v));
  std::vector<T> out(count + 2);
  std::memset(static_cast<void*>(out.data()), 0x5a, out.size() * sizeof(T));
  const std::vector<T> guard = out;
  const std::array<std::byte*, 2> to{bytes(out) + sizeof(T), bytes(ranks.back())};
  r.complete(to.data(), 2, ins.data(), static_cast<int>(ins.size()), count);
  CHECK(std::memcmp(&out[0], &guard[0], sizeof(T)) == 0);
  CHECK(std::memcmp(&out[count + 1], &guard[count + 1], sizeof(T)) == 0);
  out.erase(out.begin());
  CHECK(same(out, ranks.back(), count));
  return out;
}

// The same in steps, as algorithms with several hops do it; the output of `combine` is either of its inputs.
template <class T>
std::vector<T> in_steps(const reduction& r, std::vector<std::vector<T>> ranks, std::size_t count) {
  for (auto& v : ranks) {
    const std::vector<T> own = v;
    r.prepare(bytes(v), bytes(own), count);
  }
  std::byte* sum = bytes(ranks[0]);
  for (std::size_t k = 1; k != ranks.size(); ++k) {
    std::byte* const next = bytes(ranks[k]);
    std::byte* const to = k % 2 == 0 ? sum : next;
    r.combine(to, sum, next, count);
    sum = to;
  }
  r.finish(sum, count);
  std::vector<T> result(count);
  if (count != 0) std::memcpy(bytes(result), sum, count * sizeof(T));
  return result;
}

// One element from each rank.
template <class T, class Op>
T one(const Op& op, const std::vector<T>& ranks) {
  std::vector<std::vector<T>> ins;
  for (const T& v : ranks) ins.push_back({v});
  return at_once(make_reduction<T>(op, static_cast<int>(ranks.size())), ins, 1)[0];
}

// ---- every operation on every type ---------------------------------------------------------------------------

// Small whole numbers: sums and products of nine are exact in every type but the integers of 8 bits, which wrap.
template <class T>
T element(int rank, std::size_t i) {
  const int n = (rank * 3 + static_cast<int>(i) * 5) % 4 - (std::is_unsigned_v<T> ? 0 : 2);
  if constexpr (complex_type<T>) {
    return T(static_cast<typename T::value_type>(n), static_cast<typename T::value_type>(rank % 3 - 1));
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(n);
  } else {
    return T(static_cast<float>(n));
  }
}

// Wide enough for all of them.
template <class T>
auto widen(T v) {
  if constexpr (complex_type<T>)
    return std::complex<double>(v);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<std::int64_t>(v);
  else if constexpr (sizeof(T) == 2)
    return static_cast<double>(static_cast<float>(v));
  else
    return static_cast<double>(v);
}
template <class T, class W>
T narrow(W w) {
  if constexpr (sizeof(T) == 2 && !std::is_integral_v<T>)
    return T(static_cast<float>(w));
  else
    return static_cast<T>(w);
}

// The value rounded where the library rounds: whole numbers divided in the type of the accumulator, once.
template <class T>
T divided(T total, int ranks) {
  if constexpr (complex_type<T>)
    return total / static_cast<typename T::value_type>(ranks);
  else if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<std::int64_t>(total) / ranks);
  else if constexpr (sizeof(T) == 2)
    return T(static_cast<float>(total) / static_cast<float>(ranks));
  else
    return total / static_cast<T>(ranks);
}

template <class T>
using inputs = std::vector<std::vector<T>>;  // one for each rank

template <class T>
void check_reduction(const reduction& r, const inputs<T>& ranks, const std::vector<T>& want) {
  CAPTURE(hvd::name(hvd::dtype_of<T>));
  CAPTURE(ranks.size());
  CHECK(r.type == hvd::dtype_of<T>);
  CHECK(r.element_bytes == sizeof(T));
  CHECK(r.commutative);
  for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{9}, std::size_t{64}, want.size()}) {
    CAPTURE(count);
    CHECK(same(at_once(r, ranks, count), want, count));
    CHECK(same(in_steps(r, ranks, count), want, count));
  }
}

template <class T, class Op, class Fold>
void check(const Op& op, Fold fold) {
  inputs<T> ranks;
  for (int size = 1; size <= 9; ++size) {
    auto& last = ranks.emplace_back();
    for (std::size_t i = 0; i != 257; ++i) last.push_back(element<T>(size - 1, i));
    std::vector<T> want;
    for (std::size_t i = 0; i != last.size(); ++i) {
      auto w = widen(ranks[0][i]);
      for (std::size_t k = 1; k != ranks.size(); ++k) w = fold(w, widen(ranks[k][i]));
      want.push_back(narrow<T>(w));
      if constexpr (std::is_same_v<Op, hvd::average_t>) want.back() = divided(want.back(), size);
    }
    check_reduction(make_reduction<T>(op, size), ranks, want);
  }
}

constexpr auto plus = [](auto a, auto b) { return a + b; };
constexpr auto times = [](auto a, auto b) { return a * b; };
constexpr auto least = [](auto a, auto b) { return b < a ? b : a; };
constexpr auto greatest = [](auto a, auto b) { return b > a ? b : a; };

template <class T>
void check_numbers() {
  check<T>(hvd::sum, plus);
  check<T>(hvd::average, plus);
  check<T>(hvd::product, times);
}
template <class T>
void check_ordered() {
  check_numbers<T>();
  check<T>(hvd::min, least);
  check<T>(hvd::max, greatest);
}

}  // namespace

TEST_CASE("integers") {
  check_ordered<std::int8_t>();
  check_ordered<std::uint8_t>();
  check_ordered<std::int16_t>();
  check_ordered<std::uint16_t>();
  check_ordered<std::int32_t>();
  check_ordered<std::uint32_t>();
  check_ordered<std::int64_t>();
  check_ordered<std::uint64_t>();
}
TEST_CASE("other spellings of integers") {
  check<char>(hvd::max, greatest);
  check<long long>(hvd::sum, plus);
  check<wchar_t>(hvd::average, plus);
}
TEST_CASE("floating point") {
  check_ordered<half>();
  check_ordered<bfloat16>();
  check_ordered<float>();
  check_ordered<double>();
  check_ordered<long double>();
}

namespace {

// A 16-bit float of somebody else.
struct their_half {
  std::uint16_t pattern;
};

}  // namespace
template <>
inline constexpr hvd::dtype hvd::dtype_of<their_half> = hvd::dtype::float16;

TEST_CASE("types that dtype_of was told about") {
  const auto theirs = [](float v) { return std::bit_cast<their_half>(half(v)); };
  const auto value = [](their_half v) { return static_cast<float>(std::bit_cast<half>(v)); };
  const std::vector<their_half> ranks{theirs(1.5f), theirs(-4.0f), theirs(4.0f)};
  CHECK(value(one<their_half>(hvd::sum, ranks)) == 1.5f);
  CHECK(value(one<their_half>(hvd::average, ranks)) == 0.5f);
  CHECK(value(one<their_half>(hvd::min, ranks)) == -4.0f);
  CHECK(value(one<their_half>(hvd::product, ranks)) == -24.0f);
  CHECK(value(one<their_half>(hvd::scaled(hvd::max, 2.0, 4.0), ranks)) == 32.0f);
  CHECK(one<std::byte>(hvd::max, {std::byte{3}, std::byte{200}}) == std::byte{200});
}

TEST_CASE("complex numbers") {
  check_numbers<std::complex<float>>();
  check_numbers<std::complex<double>>();
}

TEST_CASE("bool: min is and, max is or") {
  for (int pattern = 0; pattern != 8; ++pattern) {
    std::array<std::array<bool, 40>, 3> ranks{};
    for (int q = 0; q != 3; ++q) ranks[static_cast<std::size_t>(q)].fill((pattern >> q & 1) != 0);
    std::array<const std::byte*, 3> ins{};
    for (std::size_t q = 0; q != 3; ++q) ins[q] = reinterpret_cast<const std::byte*>(ranks[q].data());
    std::array<bool, 40> all{}, any{};
    auto* to = reinterpret_cast<std::byte*>(all.data());
    make_reduction<bool>(hvd::min, 3).complete(&to, 1, ins.data(), 3, all.size());
    to = reinterpret_cast<std::byte*>(any.data());
    make_reduction<bool>(hvd::max, 3).complete(&to, 1, ins.data(), 3, any.size());
    CHECK(std::count(all.begin(), all.end(), true) == (pattern == 7 ? 40 : 0));
    CHECK(std::count(any.begin(), any.end(), true) == (pattern == 0 ? 0 : 40));
  }
}

// ---- what is easy to get wrong -------------------------------------------------------------------------------

TEST_CASE("integers wrap") {
  CHECK(one<std::int8_t>(hvd::sum, {127, 1}) == -128);
  CHECK(one<std::uint8_t>(hvd::sum, {255, 2}) == 1);
  CHECK(one<std::int16_t>(hvd::product, {300, 300}) == static_cast<std::int16_t>(90000 - 65536));
  CHECK(one<std::int32_t>(hvd::sum, {std::numeric_limits<int>::max(), 1}) == std::numeric_limits<int>::min());
  CHECK(one<std::int64_t>(hvd::product, {std::numeric_limits<std::int64_t>::max(), 2}) == -2);
  CHECK(one<std::uint64_t>(hvd::sum, {std::numeric_limits<std::uint64_t>::max(), 3}) == 2);
}

TEST_CASE("averages of integers are truncated toward zero") {
  CHECK(one<int>(hvd::average, {-1, 0}) == 0);
  CHECK(one<int>(hvd::average, {-3, -4}) == -3);
  CHECK(one<int>(hvd::average, {3, 4}) == 3);
  CHECK(one<int>(hvd::average, {-5, -5, -1}) == -3);
  CHECK(one<unsigned>(hvd::average, {7, 8, 8}) == 7);
  // Exact where a double would not be.
  CHECK(one<std::int64_t>(hvd::average, {(std::int64_t{1} << 62) + 1, 2}) == (std::int64_t{1} << 61) + 1);
  CHECK(one<std::uint64_t>(hvd::average, {std::uint64_t{1} << 63, 6, 3}) == ((std::uint64_t{1} << 63) + 9) / 3);
  // The sum wraps first.
  CHECK(one<std::int8_t>(hvd::average, {100, 100}) == -28);
}

TEST_CASE("more ranks than the type can count") {
  const std::vector<std::int8_t> ones(200, 1);
  CHECK(one<std::int8_t>(hvd::average, ones) == 0);  // the sum, 200, wraps to -56; -56 / 200
  std::vector<std::int8_t> few(200, 0);
  few[3] = 120;
  CHECK(one<std::int8_t>(hvd::average, few) == 0);
  few[4] = -30;
  CHECK(one<std::int8_t>(hvd::scaled(hvd::average, 1.0, 20.0), few) == 9);
  CHECK(one<std::uint8_t>(hvd::average, std::vector<std::uint8_t>(255, 1)) == 1);
  CHECK(one<std::uint8_t>(hvd::average, std::vector<std::uint8_t>(300, 1)) == 0);  // 44 / 300
}

TEST_CASE("scaled integers are truncated and clamped") {
  CHECK(one<int>(hvd::scaled(hvd::sum, 0.5), {3, -3}) == 0);  // 1 and -1
  CHECK(one<int>(hvd::scaled(hvd::sum, 1.0, 0.5), {3, 4}) == 3);
  CHECK(one<int>(hvd::scaled(hvd::sum, 1.0, 0.5), {-3, -4}) == -3);
  CHECK(one<std::int8_t>(hvd::scaled(hvd::sum, 100.0), {5}) == 127);
  CHECK(one<std::int8_t>(hvd::scaled(hvd::sum, 100.0), {-5}) == -128);
  CHECK(one<std::uint8_t>(hvd::scaled(hvd::sum, -1.0), {5}) == 0);
  CHECK(one<std::int64_t>(hvd::scaled(hvd::sum, 1e30), {1}) == std::numeric_limits<std::int64_t>::max());
  CHECK(one<std::int64_t>(hvd::scaled(hvd::sum, 1e30), {-1}) == std::numeric_limits<std::int64_t>::min());
  CHECK(one<std::uint64_t>(hvd::scaled(hvd::sum, 1.0, 2.0), {std::uint64_t{1} << 63}) ==
        std::numeric_limits<std::uint64_t>::max());
  CHECK(one<int>(hvd::scaled(hvd::min, 2.0), {3, -3}) == -6);
  CHECK(one<int>(hvd::scaled(hvd::average, 1.0, 2.0), {1, 2}) == 3);  // 3 * 2 / 2
}

TEST_CASE("scaled floating point") {
  CHECK(one<float>(hvd::scaled(hvd::sum, 0.5, 4.0), {1.0f, 2.0f}) == 6.0f);
  CHECK(one<double>(hvd::scaled(hvd::average, 2.0, 3.0), {1.0, 2.0, 3.0}) == 12.0);
  CHECK(one<half>(hvd::scaled(hvd::sum, 0.25), {half(4.0f), half(8.0f)}) == half(3.0f));
  CHECK(one<bfloat16>(hvd::scaled(hvd::max, -1.0), {bfloat16(4.0f), bfloat16(8.0f)}) == bfloat16(-4.0f));
  CHECK(one<float>(hvd::scaled(hvd::scaled(hvd::sum, 2.0), 3.0, 5.0), {1.0f, 1.0f}) == 60.0f);
  using c = std::complex<float>;
  CHECK(one<c>(hvd::scaled(hvd::sum, 2.0, 0.5), {c(1, 2), c(3, -4)}) == c(4, -2));
  CHECK(one<c>(hvd::scaled(hvd::product, 2.0, 0.25), {c(1, 2), c(3, -4)}) == c(11, 2));
  // The product overflows half before it is scaled down, and fits afterwards.
  CHECK(one<half>(hvd::scaled(hvd::sum, 1.0, 0.5), {half(65504.0f), half(65504.0f)}) == half(65504.0f));
  CHECK(one<half>(hvd::average, std::vector<half>(4, half(65504.0f))) == half(65504.0f));
}

TEST_CASE("16-bit floats are rounded once") {
  // Pairwise, each of these ones would be lost: 2048 + 1 is a tie that goes to 2048 in half.
  std::vector<half> halves(9, half(1.0f));
  halves[0] = half(2048.0f);
  CHECK(one<half>(hvd::sum, halves) == half(2056.0f));
  std::vector<bfloat16> brains(9, bfloat16(1.0f));
  brains[0] = bfloat16(256.0f);
  CHECK(one<bfloat16>(hvd::sum, brains) == bfloat16(264.0f));
  // A sum that only float can hold on the way.
  CHECK(one<half>(hvd::sum, {half(65504.0f), half(65504.0f), half(-65504.0f)}) == half(65504.0f));
}

TEST_CASE("a complex product is one, and no product of parts") {
  using c = std::complex<double>;
  CHECK(one<c>(hvd::product, {c(1, 2), c(3, 4)}) == c(-5, 10));
  CHECK(one<c>(hvd::product, {c(0, 1), c(0, 1), c(0, 1)}) == c(0, -1));
  CHECK(one<c>(hvd::average, {c(1, 2), c(3, 4)}) == c(2, 3));
}

TEST_CASE("NaN on any rank is NaN") {
  for (std::size_t from = 0; from != 5; ++from) {
    std::vector<float> v{3.0f, 1.0f, 4.0f, 1.0f, 5.0f};
    v[from] = std::numeric_limits<float>::quiet_NaN();
    CHECK(std::isnan(one<float>(hvd::min, v)));
    CHECK(std::isnan(one<float>(hvd::max, v)));
    CHECK(std::isnan(one<float>(hvd::sum, v)));
    std::vector<long double> wide(v.begin(), v.end());  // no vector form
    CHECK(std::isnan(one<long double>(hvd::min, wide)));
    CHECK(std::isnan(one<long double>(hvd::max, wide)));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(one<float>(hvd::min, {1.0f, -infinity}) == -infinity);
  CHECK(one<half>(hvd::max, {half(1.0f), half(infinity)}) == half(infinity));
}

// ---- user-defined operations and types ------------------------------------------------------------------------

namespace {

struct pair {
  std::int32_t value;
  std::int32_t rank;
  friend bool operator==(const pair&, const pair&) = default;
};
struct largest_with_rank {
  pair operator()(pair a, pair b) const { return b.value > a.value ? b : a; }
};

struct three_bytes {
  unsigned char part[3];
  friend bool operator==(const three_bytes&, const three_bytes&) = default;
};
struct xor_bytes {
  three_bytes operator()(const three_bytes& a, const three_bytes& b) const {
    three_bytes c{};
    for (int i = 0; i != 3; ++i) c.part[i] = static_cast<unsigned char>(a.part[i] ^ b.part[i]);
    return c;
  }
};

struct no_default {
  explicit no_default(int n) : number(n) {}
  int number;
};
struct add_no_default {
  no_default operator()(no_default a, no_default b) const { return no_default(a.number + b.number); }
};

struct alignas(64) wide_element {
  float lane[16];
};
struct add_wide {
  wide_element operator()(const wide_element& a, const wide_element& b) const {
    wide_element c{};
    for (int i = 0; i != 16; ++i) c.lane[i] = a.lane[i] + b.lane[i];
    return c;
  }
};

struct big {
  std::array<std::int32_t, 1000> part;  // longer than a tile
};
struct add_big {
  big operator()(const big& a, const big& b) const {
    big c{};
    for (std::size_t i = 0; i != c.part.size(); ++i) c.part[i] = a.part[i] + b.part[i];
    return c;
  }
};

struct subtract {
  static constexpr bool commutative = false;
  int operator()(int a, int b) const { return a - b; }
};
struct plain_subtract {
  int operator()(int a, int b) const { return a - b; }
};

}  // namespace

TEST_CASE("a user's operation on a user's type") {
  const reduction r = make_reduction<pair>(largest_with_rank{}, 3);
  CHECK(r.type == hvd::dtype::user);
  CHECK(r.element_bytes == sizeof(pair));
  CHECK(r.commutative);
  std::vector<std::vector<pair>> ranks;
  for (int q = 0; q != 3; ++q) {
    auto& v = ranks.emplace_back();
    for (int i = 0; i != 1000; ++i) v.push_back({(q * 7 + i * 3) % 11, q});
  }
  const auto got = at_once(r, ranks, 1000);
  const auto steps = in_steps(r, ranks, 1000);
  bool right = true;
  for (std::size_t i = 0; i != 1000; ++i) {
    pair want = ranks[0][i];
    for (std::size_t q = 1; q != 3; ++q) want = ranks[q][i].value > want.value ? ranks[q][i] : want;
    right = right && got[i] == want && steps[i] == want;
  }
  CHECK(right);
  CHECK(one<three_bytes>(xor_bytes{}, {{{1, 2, 3}}, {{255, 2, 4}}}) == three_bytes{{254, 0, 7}});
}

TEST_CASE("a user's type of any size and alignment, without a default") {
  const std::vector<no_default> a(50, no_default(1)), b(50, no_default(2));
  const std::array<const std::byte*, 2> ins{bytes(a), bytes(b)};
  std::vector<no_default> out(50, no_default(0));
  std::byte* to = bytes(out);
  make_reduction<no_default>(add_no_default{}, 2).complete(&to, 1, ins.data(), 2, 50);
  CHECK(std::all_of(out.begin(), out.end(), [](const no_default& v) { return v.number == 3; }));

  std::vector<std::vector<wide_element>> wide(3, std::vector<wide_element>(70));
  for (std::size_t q = 0; q != 3; ++q) {
    for (auto& e : wide[q]) std::fill(e.lane, e.lane + 16, static_cast<float>(q + 1));
  }
  const auto sums = at_once(make_reduction<wide_element>(add_wide{}, 3), wide, 70);
  CHECK(std::all_of(sums.begin(), sums.begin() + 70, [](const wide_element& e) { return e.lane[15] == 6.0f; }));

  std::vector<std::vector<big>> large(2, std::vector<big>(3));
  for (auto& v : large) {
    for (auto& e : v) e.part.fill(4);
  }
  const auto eights = at_once(make_reduction<big>(add_big{}, 2), large, 3);
  CHECK(eights[2].part[999] == 8);
}

/// The elements of two ranks and the result, each some bytes behind a multiple of 256 as payloads of messages are.
template <class T, class Op>
bool right_at_any_address(const Op& op) {
  using hvd::test::expected;
  using hvd::test::input;
  constexpr std::size_t n = 10, room = n * sizeof(T) + 256;
  alignas(256) std::byte memory[3 * room];
  const reduction r = make_reduction<T>(op, 2);
  for (const std::size_t past : {0, 1, 8, 16, 64}) {
    std::byte *const in = memory + past, *const other = in + room, *const out = other + room;
    for (std::size_t i = 0; i != n; ++i) {
      const T x = input<T>(op, i, 0, 2), y = input<T>(op, i, 1, 2);
      std::memcpy(in + i * sizeof(T), &x, sizeof(T));
      std::memcpy(other + i * sizeof(T), &y, sizeof(T));
    }
    r.combine(out, in, other, n);
    for (std::size_t i = 0; i != n; ++i) {
      T got;
      std::memcpy(static_cast<void*>(&got), out + i * sizeof(T), sizeof(T));
      if (got != expected<T>(op, i, 2)) return false;
    }
  }
  return true;
}

TEST_CASE("elements at any address") {
  using hvd::test::aligned;
  CHECK(right_at_any_address<aligned<16>>(hvd::test::add_aligned{}));
  CHECK(right_at_any_address<aligned<32>>(hvd::test::add_aligned{}));
  CHECK(right_at_any_address<aligned<64>>(hvd::test::add_aligned{}));
  CHECK(right_at_any_address<aligned<256>>(hvd::test::add_aligned{}));
  CHECK(right_at_any_address<std::int32_t>(hvd::sum));
  CHECK(right_at_any_address<std::complex<double>>(hvd::product));
  CHECK(right_at_any_address<long double>(hvd::sum));
}

TEST_CASE("a lambda is an operation") {
  CHECK(one<int>([](int a, int b) { return a > 100 ? a : a * 10 + b; }, {1, 2, 3, 4}) == 123);
  CHECK(one<std::complex<float>>([](auto a, auto b) { return std::norm(b) > std::norm(a) ? b : a; },
                                 {{1, 1}, {-3, 0}, {2, 2}}) == std::complex<float>(-3, 0));
}

TEST_CASE("non-commutative operations keep the order of ranks") {
  CHECK(one<int>(subtract{}, {10, 3, 2}) == 5);
  CHECK_FALSE(make_reduction<int>(subtract{}, 3).commutative);
  CHECK(make_reduction<int>(plain_subtract{}, 3).commutative);
  const reduction r = make_reduction<int>(hvd::non_commutative(plain_subtract{}), 3);
  CHECK_FALSE(r.commutative);
  CHECK(in_steps<int>(r, {{10}, {3}, {2}}, 1)[0] == 5);
  CHECK_FALSE(make_reduction<int>(hvd::scaled(hvd::non_commutative(plain_subtract{}), 2.0), 3).commutative);
  CHECK(one<int>(hvd::scaled(subtract{}, 2.0), {10, 3, 2}) == 10);
}

// ---- how ranks tell operations apart ----------------------------------------------------------------------------

TEST_CASE("operations have numbers of their own") {
  const std::vector<std::uint32_t> ids{make_reduction<int>(hvd::sum, 2).op,
                                       make_reduction<int>(hvd::average, 2).op,
                                       make_reduction<int>(hvd::min, 2).op,
                                       make_reduction<int>(hvd::max, 2).op,
                                       make_reduction<int>(hvd::product, 2).op,
                                       make_reduction<int>(subtract{}, 2).op,
                                       make_reduction<int>(plain_subtract{}, 2).op,
                                       make_reduction<pair>(largest_with_rank{}, 2).op,
                                       make_reduction<int>([](int a, int) { return a; }, 2).op};
  for (std::size_t i = 0; i != ids.size(); ++i) {
    CHECK(ids[i] != 0);
    CHECK(std::count(ids.begin(), ids.end(), ids[i]) == 1);
  }
  CHECK(make_reduction<float>(hvd::sum, 2).op == make_reduction<int>(hvd::sum, 3).op);
  CHECK(make_reduction<int>(hvd::scaled(hvd::sum, 2.0), 2).op == make_reduction<int>(hvd::sum, 2).op);
  CHECK(hvd::detail::op_name(make_reduction<int>(hvd::average, 2).op) == "average");
  CHECK(hvd::detail::op_name(make_reduction<int>(subtract{}, 2).op) == "user-defined");
}

TEST_CASE("a reduction that scales nothing says so") {
  CHECK_FALSE(make_reduction<float>(hvd::sum, 4).scales());
  CHECK_FALSE(make_reduction<float>(hvd::scaled(hvd::sum, 1.0), 4).scales());
  CHECK_FALSE(make_reduction<float>(hvd::average, 1).scales());
  CHECK(make_reduction<float>(hvd::average, 4).scales());
  CHECK_FALSE(make_reduction<float>(hvd::average, 4).prepares());
  CHECK(make_reduction<float>(hvd::scaled(hvd::sum, 0.5), 4).prepares());
}

TEST_CASE("operations are values") {
  CHECK(hvd::sum == hvd::sum_t{});
  static_assert(std::is_empty_v<hvd::sum_t> && std::is_empty_v<hvd::non_commutative_op<subtract>>);
  constexpr auto half_of = hvd::scaled(hvd::sum, 0.5);
  static_assert(half_of.prescale == 0.5 && half_of.postscale == 1.0);
}
