// bench/cases/inputs.cpp: exact inputs by type and operation, from the generators that the tests use.
//
// Elements repeat with a prime period: no power-of-two error of place maps an element to an equal one, and a table of
// one period makes filling and comparing as fast as copying.
#include <bench/cases/inputs.hpp>

#include <hvd/op.hpp>

#include <tests/support/verifiable.hpp>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvd::bench {
namespace {

constexpr std::size_t period = 8191;

/// f(T{}, o) for the type; false if hvd does not define the operation.
template <class Op, class F>
bool with_type(dtype type, Op o, F f) {
  using types = hvd::detail::dtypes;
  const auto one = [&]<class T>(std::type_identity<T>) {
    constexpr bool exists = Op::of_ordered ? hvd::detail::is_ordered<T> : hvd::detail::is_number<T>;
    if constexpr (exists) f(T{}, o);
    return exists;
  };
  return [&]<std::size_t... I>(std::index_sequence<I...>) {
    return ((static_cast<std::size_t>(type) == I && one(std::type_identity<std::tuple_element_t<I, types>>())) || ...);
  }(std::make_index_sequence<std::tuple_size_v<types>>());
}

/// f(T{}, Op{}) for the type and operation; false if hvd does not define the operation.
template <class F>
bool with(dtype type, redop op, F f) {
  switch (op) {
    case redop::sum: return with_type(type, sum, f);
    case redop::prod: return with_type(type, product, f);
    case redop::min: return with_type(type, min, f);
    case redop::max: return with_type(type, max, f);
    case redop::avg: return with_type(type, average, f);
  }
  return false;
}

/// Operations that do not exist give the inputs of one that does: a broadcast needs inputs too.
redop usable(dtype type, redop op) {
  if (defined(type, op)) return op;
  return type == dtype::boolean ? redop::max : redop::sum;
}

using table = std::vector<std::byte>;

/// One period of a rank's input, or of the result (rank -1).
const table& table_of(dtype type, redop op, int rank, int size) {
  static std::mutex mutex;  // ranks may be threads
  static std::map<std::tuple<dtype, redop, int, int>, table> tables;
  const std::lock_guard lock(mutex);
  table& t = tables[{type, op, rank, size}];
  if (t.empty()) {
    t.resize(period * hvd::size_of(type));
    with(type, op, [&]<class T, class Op>(T, Op o) {
      for (std::size_t i = 0; i != period; ++i) {
        const T x = rank < 0 ? test::expected<T>(o, i, size) : test::input<T>(o, i, rank, size);
        std::memcpy(t.data() + i * sizeof(T), &x, sizeof(T));
      }
    });
  }
  return t;
}

/// Calls f(offset in the buffer, offset in the table, bytes) for each run that lies in one period.
template <class F>
void runs(std::size_t unit, std::size_t first, std::size_t count, F f) {
  for (std::size_t done = 0; done != count;) {
    const std::size_t at = (first + done) % period;
    const std::size_t n = std::min(period - at, count - done);
    f(done * unit, at * unit, n * unit);
    done += n;
  }
}

std::uint64_t count_wrong(dtype type, redop op, const table& want, std::size_t first, std::size_t count,
                          const void* got) {
  const auto* const data = static_cast<const std::byte*>(got);
  std::uint64_t wrong = 0;
  runs(hvd::size_of(type), first, count, [&](std::size_t at, std::size_t in_table, std::size_t bytes) {
    if (std::memcmp(data + at, want.data() + in_table, bytes) == 0) return;
    // Equal values may have other bits: zeros have two signs.
    with(type, op, [&]<class T, class Op>(T, Op) {
      for (std::size_t i = 0; i != bytes; i += sizeof(T)) {
        if (std::memcmp(data + at + i, want.data() + in_table + i, sizeof(T)) == 0) continue;
        if constexpr (std::is_same_v<T, bool>) {
          ++wrong;
        } else {
          T a, b;
          std::memcpy(&a, data + at + i, sizeof(T));
          std::memcpy(&b, want.data() + in_table + i, sizeof(T));
          wrong += a == b ? 0 : 1;
        }
      }
    });
  });
  return wrong;
}

}  // namespace

bool defined(dtype type, redop op) {
  return with(type, op, [](auto, auto) {});
}

bool verifiable(dtype type, redop op, int size) {
  if (!defined(type, op)) return false;
  // verifiable.hpp: terms of magnitude 15 and factors of 2; integers wrap as they should.
  if (op == redop::min || op == redop::max) return true;
  const bool product = op == redop::prod;
  if (type == dtype::bfloat16) return product ? size < 127 : size <= 17;
  if (type == dtype::float16) return product ? size <= 15 : size <= 136;
  if (type == dtype::float32 || type == dtype::complex64) return !product || size < 127;
  return !product || size < 1023 || hvd::size_of(type) <= 8;
}

void fill_exact(dtype type, redop op, int rank, int size, std::size_t first, std::size_t count, void* to) {
  const table& t = table_of(type, usable(type, op), rank, size);
  runs(hvd::size_of(type), first, count, [&](std::size_t at, std::size_t in_table, std::size_t bytes) {
    std::memcpy(static_cast<std::byte*>(to) + at, t.data() + in_table, bytes);
  });
}

std::uint64_t wrong_copies(dtype type, redop op, int rank, int size, std::size_t first, std::size_t count,
                           const void* got) {
  op = usable(type, op);
  return count_wrong(type, op, table_of(type, op, rank, size), first, count, got);
}

std::uint64_t wrong_results(dtype type, redop op, int size, std::size_t first, std::size_t count, const void* got) {
  return count_wrong(type, op, table_of(type, op, -1, size), first, count, got);
}

void rewrite(dtype type, redop op, int rank, std::uint64_t round, void* to, std::size_t bytes) {
  // Two tiles of nonzero values: small numbers for sums, +-1 for products so that they stay finite. Copied in pieces
  // that no memcpy would write around the cache.
  constexpr std::size_t tile = 512;
  struct tiles {
    dtype type = dtype::user;
    redop op{};
    int rank = -1;
    alignas(64) std::byte data[2][tile];
  };
  thread_local tiles t;
  if (t.type != type || t.op != op || t.rank != rank) {
    t.type = type;
    t.op = op;
    t.rank = rank;
    const redop any = usable(type, op);
    with(type, any, [&]<class T, class Op>(T, Op) {
      for (std::size_t i = 0; i != tile / sizeof(T); ++i) {
        for (int turn = 0; turn != 2; ++turn) {
          const auto place = static_cast<std::int64_t>(i) + rank;
          const std::int64_t small = any == redop::prod ? 1 : 1 + place % 7;
          T x{};
          if constexpr (std::is_same_v<T, bool>) {
            x = true;
          } else {
            x = test::exact::element<T>(any == redop::prod && turn == 1 ? -small : small * (turn + 1));
          }
          std::memcpy(t.data[turn] + i * sizeof(T), &x, sizeof(T));
        }
      }
    });
  }
  const std::byte* const from = t.data[round % 2];
  auto* at = static_cast<std::byte*>(to);
  for (; bytes >= tile; bytes -= tile, at += tile) {
    // A line at a time becomes plain vector stores.
    for (std::size_t line = 0; line != tile; line += 64) std::memcpy(at + line, from + line, 64);
  }
  std::memcpy(at, from, bytes);
}

}  // namespace hvd::bench
