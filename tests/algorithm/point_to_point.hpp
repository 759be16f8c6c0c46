// tests/algorithm/point_to_point.hpp: what every algorithm over messages must get right, by collective.
//
// Each check runs one collective on the calling rank with inputs whose result is known exactly, out of place
// and in place, and fails the test case if an element is wrong, or the input or memory beside it has changed.
#pragma once

#include <support/queue_transport.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace hvd::test {

inline constexpr int rank_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16};
inline constexpr std::size_t element_counts[] = {0, 1, 2, 7, 8, 9, 63, 64, 65, 1000};
inline constexpr std::size_t large_count = 100003;

/// Whether so many bytes are not too many chunks for a test on many ranks.
constexpr bool few_chunks(std::size_t bytes, std::size_t chunk_bytes, std::size_t element_bytes) {
  return bytes / std::max(chunk_bytes, element_bytes) <= 16;
}

/// 2 x 2 matrices modulo a prime: their product is associative and does not commute.
struct matrix {
  static constexpr std::uint32_t prime = 65521;
  std::uint32_t a, b, c, d;
  std::uint32_t tag = 0;  // a size that is no power of two
  friend bool operator==(const matrix&, const matrix&) = default;
};
struct matrix_product {
  static constexpr bool commutative = false;
  matrix operator()(const matrix& x, const matrix& y) const {
    const auto m = matrix::prime;
    return {(x.a * y.a % m + x.b * y.c % m) % m, (x.a * y.b % m + x.b * y.d % m) % m,
            (x.c * y.a % m + x.d * y.c % m) % m, (x.c * y.b % m + x.d * y.d % m) % m};
  }
};

template <class T>
T input(int rank, std::size_t i) {
  const auto r = static_cast<std::uint32_t>(rank);
  const auto k = static_cast<std::uint32_t>(i);
  if constexpr (std::is_same_v<T, matrix>) {
    return {(k + 1) % 1009, (r + 2) % 1013, (k * r + 3) % 1019, (k + r * r + 5) % 1021};
  } else {
    return static_cast<T>(static_cast<int>((k * 7 + r * 13 + k * r) % 17) - 5);
  }
}
template <class T>
std::vector<T> inputs(int rank, std::size_t count) {
  std::vector<T> v;
  for (std::size_t i = 0; i != count; ++i) v.push_back(input<T>(rank, i));
  return v;
}

template <class T>
T total(std::size_t i, int size) {
  T s{};
  for (int r = 0; r != size; ++r) s += input<T>(r, i);
  return s;
}
// Sums are small integers: exact in every type.
template <class T>
T expected(sum_t, std::size_t i, int size) {
  return total<T>(i, size);
}
template <class T>
T expected(average_t, std::size_t i, int size) {
  return total<T>(i, size) / static_cast<T>(size);
}
template <class T>
T expected(const scaled_op<sum_t>& op, std::size_t i, int size) {
  return total<T>(i, size) * static_cast<T>(op.prescale) * static_cast<T>(op.postscale);
}
template <class T>
T expected(matrix_product op, std::size_t i, int size) {
  T x = input<T>(0, i);
  for (int r = 1; r != size; ++r) x = op(x, input<T>(r, i));
  return x;
}

/// A buffer with elements in front and behind that must not change; with no elements it is a null pointer.
template <class T>
class guarded {
 public:
  explicit guarded(std::size_t count) : all_(count + 2 * margin, canary()) {}
  explicit guarded(const std::vector<T>& v) : guarded(v.size()) { *this = v; }
  guarded& operator=(const std::vector<T>& v) {
    std::copy(v.begin(), v.end(), all_.begin() + margin);
    return *this;
  }

  [[nodiscard]] std::size_t size() const { return all_.size() - 2 * margin; }
  [[nodiscard]] std::byte* bytes() {
    return size() == 0 ? nullptr : reinterpret_cast<std::byte*>(all_.data() + margin);
  }
  /// Where the first element lies that is not what f(i) says; outside of 0 .. size() - 1 it is a guard.
  template <class F>
  [[nodiscard]] std::optional<std::ptrdiff_t> wrong(const F& f) const {
    for (std::size_t k = 0; k != all_.size(); ++k) {
      const bool inside = k >= margin && k < margin + size();
      if (!(all_[k] == (inside ? f(k - margin) : canary()))) {
        return static_cast<std::ptrdiff_t>(k) - static_cast<std::ptrdiff_t>(margin);
      }
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t margin = 4;
  static T canary() { return input<T>(77, 77); }
  std::vector<T> all_;
};

/// Judges one buffer after a call.
template <class T, class F>
void judge(QueueTransport& t, const guarded<T>& buffer, const F& want, const std::string& what) {
  if (const auto at = buffer.wrong(want)) {
    FAIL_CHECK(what << ": rank " << t.rank() << " of " << t.size() << ", " << buffer.size()
                    << " elements: wrong at element " << *at);
  }
}

/// Runs `body(t)` on each of the rank counts.
template <class F>
void on_all_sizes(const F& body) {
  for (const int p : rank_counts) CHECK_NOTHROW(on_ranks(p, body));
}

// ---- reductions -------------------------------------------------------------------------------------------

/// A call that gives every rank a vector: the reduction of the first `ranks` ranks.
template <class T, class Call, class A, class Op>
void check_vector(QueueTransport& t, const A& how, const Op& op, std::size_t count, int ranks) {
  const std::string what(name(Call::kind));
  const reduction r = make_reduction<T>(op, t.size());
  const auto mine = [&](std::size_t i) { return input<T>(t.rank(), i); };
  const auto want = [&](std::size_t i) { return expected<T>(op, i, ranks); };
  guarded<T> in(inputs<T>(t.rank(), count)), out(count);
  how(t, Call{in.bytes(), out.bytes(), count, r});
  judge(t, out, want, what);
  judge(t, in, mine, "input of " + what);
  how(t, Call{in.bytes(), in.bytes(), count, r});
  judge(t, in, want, what + " in place");
}
template <class T, class A, class Op>
void check_allreduce(QueueTransport& t, const A& how, const Op& op, std::size_t count) {
  check_vector<T, allreduce_call>(t, how, op, count, t.size());
}
/// But for average, which scan has not.
template <class T, class A, class Op>
void check_scan(QueueTransport& t, const A& how, const Op& op, std::size_t count) {
  if constexpr (!detail::divides_by_ranks<Op>) check_vector<T, scan_call>(t, how, op, count, t.rank() + 1);
}

template <class T, class A, class Op>
void check_exscan(QueueTransport& t, const A& how, const Op& op, std::size_t count) {
  if constexpr (!detail::divides_by_ranks<Op>) {
    const reduction r = make_reduction<T>(op, t.size());
    const auto mine = [&](std::size_t i) { return input<T>(t.rank(), i); };
    const auto want = [&](std::size_t i) { return t.rank() == 0 ? mine(i) : expected<T>(op, i, t.rank()); };
    guarded<T> in(inputs<T>(t.rank(), count)), out(inputs<T>(t.rank(), count));
    how(t, exscan_call{in.bytes(), out.bytes(), count, r});
    judge(t, out, want, "exscan");
    judge(t, in, mine, "input of exscan");
    how(t, exscan_call{in.bytes(), in.bytes(), count, r});
    judge(t, in, want, "exscan in place");
  }
}

template <class T, class A, class Op>
void check_reduce(QueueTransport& t, const A& how, const Op& op, std::size_t count, int root) {
  const reduction r = make_reduction<T>(op, t.size());
  const bool at_root = t.rank() == root;
  const auto mine = [&](std::size_t i) { return input<T>(t.rank(), i); };
  const auto want = [&](std::size_t i) { return expected<T>(op, i, t.size()); };
  guarded<T> in(inputs<T>(t.rank(), count)), out(count);
  how(t, reduce_call{in.bytes(), at_root ? out.bytes() : nullptr, count, r, root});
  if (at_root) judge(t, out, want, "reduce to " + std::to_string(root));
  judge(t, in, mine, "input of reduce");
  how(t, reduce_call{in.bytes(), in.bytes(), count, r, root});
  if (at_root) judge(t, in, want, "reduce in place to " + std::to_string(root));
  if (!at_root) judge(t, in, mine, "not the root of a reduce in place");
}

/// Element counts for partitions: for each size a uniform one and some with empty blocks.
inline std::vector<std::vector<std::size_t>> layouts(int size, std::size_t scale) {
  const auto p = static_cast<std::size_t>(size);
  std::vector<std::size_t> varied(p), first(p), last(p), middle(p), equal(p, scale);
  for (std::size_t r = 0; r != p; ++r) varied[r] = (r * 5 + 3) % 4 * scale + r % 2;
  first[0] = last[p - 1] = 3 * scale + 1;
  middle[p / 2] = scale;
  return {varied, first, last, middle, equal, std::vector<std::size_t>(p)};
}

/// f(blocks) with uniform and other partitions of elements of type T.
template <class T, class F>
void for_partitions(QueueTransport& t, const F& f) {
  for (const std::size_t each : {0U, 1U, 2U, 9U, 64U, 333U}) f(partition(t.size(), each, sizeof(T)));
  for (const std::size_t scale : {1U, 100U}) {
    for (const auto& counts : layouts(t.size(), scale)) f(partition(counts, sizeof(T)));
  }
}
inline std::size_t start_of(const partition& blocks, int r) { return blocks.offset(r) / blocks.element_bytes(); }
inline std::byte* block_in(std::byte* buffer, const partition& blocks, int r) {
  return buffer == nullptr ? nullptr : buffer + blocks.offset(r);
}
/// Which block an element lies in.
inline int owner_of(const partition& blocks, std::size_t i) {
  int r = 0;
  while (i >= start_of(blocks, r) + blocks.count(r)) ++r;
  return r;
}

template <class T, class A, class Op>
void check_reduce_scatter(QueueTransport& t, const A& how, const Op& op, const partition& blocks) {
  const reduction r = make_reduction<T>(op, t.size());
  const int rank = t.rank();
  const std::size_t start = start_of(blocks, rank);
  const std::size_t count = blocks.count(rank);
  const auto mine = [&](std::size_t i) { return input<T>(rank, i); };
  const auto want = [&](std::size_t i) { return expected<T>(op, start + i, t.size()); };
  guarded<T> in(inputs<T>(rank, blocks.total_count())), out(count);
  how(t, reduce_scatter_call{in.bytes(), out.bytes(), blocks, r});
  judge(t, out, want, "reduce_scatter");
  judge(t, in, mine, "input of reduce_scatter");
  how(t, reduce_scatter_call{in.bytes(), block_in(in.bytes(), blocks, rank), blocks, r});
  const auto either = [&](std::size_t i) { return i - start < count ? want(i - start) : mine(i); };
  judge(t, in, either, "reduce_scatter in place");
}

// ---- copies: element i of rank r's block is input(r, i) ---------------------------------------------------

template <class T, class A>
void check_allgather(QueueTransport& t, const A& how, const partition& blocks) {
  const int rank = t.rank();
  const auto mine = [&](std::size_t i) { return input<T>(rank, i); };
  const auto want = [&](std::size_t i) {
    const int r = owner_of(blocks, i);
    return input<T>(r, i - start_of(blocks, r));
  };
  guarded<T> in(inputs<T>(rank, blocks.count(rank))), out(blocks.total_count());
  how(t, allgather_call{in.bytes(), out.bytes(), blocks});
  judge(t, out, want, "allgather");
  judge(t, in, mine, "input of allgather");
  std::vector<T> before(blocks.total_count(), input<T>(99, 99));
  for (std::size_t i = 0; i != blocks.count(rank); ++i) before[start_of(blocks, rank) + i] = mine(i);
  out = before;
  how(t, allgather_call{block_in(out.bytes(), blocks, rank), out.bytes(), blocks});
  judge(t, out, want, "allgather in place");
}

template <class T, class A>
void check_gather(QueueTransport& t, const A& how, const partition& blocks, int root) {
  const int rank = t.rank();
  const bool at_root = rank == root;
  const auto mine = [&](std::size_t i) { return input<T>(rank, i); };
  const auto want = [&](std::size_t i) {
    const int r = owner_of(blocks, i);
    return input<T>(r, i - start_of(blocks, r));
  };
  guarded<T> in(inputs<T>(rank, blocks.count(rank))), out(at_root ? blocks.total_count() : 0);
  how(t, gather_call{in.bytes(), out.bytes(), blocks, root});
  judge(t, out, want, "gather to " + std::to_string(root));
  judge(t, in, mine, "input of gather");
  if (at_root) {
    std::vector<T> before(blocks.total_count(), input<T>(99, 99));
    for (std::size_t i = 0; i != blocks.count(rank); ++i) before[start_of(blocks, rank) + i] = mine(i);
    out = before;
    how(t, gather_call{block_in(out.bytes(), blocks, rank), out.bytes(), blocks, root});
    judge(t, out, want, "gather in place to " + std::to_string(root));
  } else {
    how(t, gather_call{in.bytes(), nullptr, blocks, root});
  }
}

template <class T, class A>
void check_scatter(QueueTransport& t, const A& how, const partition& blocks, int root) {
  const int rank = t.rank();
  const bool at_root = rank == root;
  const std::size_t start = start_of(blocks, rank);
  const auto all = [&](std::size_t i) { return input<T>(root, i); };
  const auto want = [&](std::size_t i) { return input<T>(root, start + i); };
  guarded<T> in(inputs<T>(root, at_root ? blocks.total_count() : 0)), out(blocks.count(rank));
  how(t, scatter_call{in.bytes(), out.bytes(), blocks, root});
  judge(t, out, want, "scatter from " + std::to_string(root));
  judge(t, in, all, "input of scatter");
  out = std::vector<T>(blocks.count(rank), input<T>(99, 99));
  how(t, scatter_call{in.bytes(), at_root ? block_in(in.bytes(), blocks, rank) : out.bytes(), blocks, root});
  judge(t, in, all, "input of scatter in place");
  if (!at_root) judge(t, out, want, "scatter in place from " + std::to_string(root));
}

template <class T, class A>
void check_broadcast(QueueTransport& t, const A& how, std::size_t count, int root) {
  const bool at_root = t.rank() == root;
  const auto want = [&](std::size_t i) { return input<T>(root, i); };
  guarded<T> in(inputs<T>(root, at_root ? count : 0)), out(count);
  how(t, broadcast_call{in.bytes(), out.bytes(), count * sizeof(T), root});
  judge(t, out, want, "broadcast from " + std::to_string(root));
  judge(t, in, want, "input of broadcast");
  if (!at_root) out = std::vector<T>(count, input<T>(99, 99));
  how(t, broadcast_call{out.bytes(), out.bytes(), count * sizeof(T), root});
  judge(t, out, want, "broadcast in place from " + std::to_string(root));
}

/// What rank `from` sends to rank `to`.
template <class T>
T letter(int from, int to, std::size_t i) {
  return input<T>(from, i + 1000 * static_cast<std::size_t>(to));
}
template <class T, class A>
void check_alltoall(QueueTransport& t, const A& how, const partition& send, const partition& recv) {
  const int rank = t.rank();
  const auto sent = [&](std::size_t i) {
    const int r = owner_of(send, i);
    return letter<T>(rank, r, i - start_of(send, r));
  };
  const auto want = [&](std::size_t i) {
    const int r = owner_of(recv, i);
    return letter<T>(r, rank, i - start_of(recv, r));
  };
  std::vector<T> letters;
  for (std::size_t i = 0; i != send.total_count(); ++i) letters.push_back(sent(i));
  guarded<T> in(letters), out(recv.total_count());
  how(t, alltoall_call{in.bytes(), out.bytes(), send, recv});
  judge(t, out, want, "alltoall");
  judge(t, in, sent, "input of alltoall");
  if (!send.uniform()) return;
  how(t, alltoall_call{in.bytes(), in.bytes(), send, recv});
  judge(t, in, want, "alltoall in place");
}

// ---- over all element counts ------------------------------------------------------------------------------

/// f(type tag, operation) for the reductions that every algorithm must do.
template <class F>
void for_operations(const F& f) {
  f(std::int64_t{}, sum);
  f(float{}, sum);
  f(float{}, average);
  f(std::int64_t{}, average);
  f(float{}, scaled(sum, 2.0, 4.0));
  f(std::int64_t{}, scaled(sum, 3.0, 2.0));
}

/// An allreduce of floats whose sum depends on the order: the same bits on all ranks and in a second run.
template <class A>
void check_same_bits(int size, const A& how, std::size_t count) {
  std::vector<std::vector<float>> results(static_cast<std::size_t>(2 * size), std::vector<float>(count));
  on_ranks(size, [&](QueueTransport& t) {
    const reduction r = make_reduction<float>(average, size);
    std::vector<float> in;
    for (std::size_t i = 0; i != count; ++i) {
      const auto k = static_cast<int>(i * 31 + static_cast<std::size_t>(t.rank()) * 17);
      in.push_back(std::ldexp(1.0F + static_cast<float>(k % 101) / 7.0F, k % 40 - 20) * (k % 2 == 0 ? 1.0F : -1.0F));
    }
    for (int run = 0; run != 2; ++run) {
      auto& out = results[static_cast<std::size_t>(run * size + t.rank())];
      how(t, allreduce_call{reinterpret_cast<const std::byte*>(in.data()), reinterpret_cast<std::byte*>(out.data()),
                            count, r});
    }
  });
  for (const auto& result : results) {
    CHECK(std::memcmp(result.data(), results[0].data(), count * sizeof(float)) == 0);
  }
}

/// What each rank sends in one call; f(t) makes it.
template <class F>
std::vector<QueueTransport::traffic> traffic_of(int size, const F& f) {
  std::vector<QueueTransport::traffic> all(static_cast<std::size_t>(size));
  on_ranks(size, [&](QueueTransport& t) {
    f(t);
    all[static_cast<std::size_t>(t.rank())] = t.sent();
  });
  return all;
}

}  // namespace hvd::test
