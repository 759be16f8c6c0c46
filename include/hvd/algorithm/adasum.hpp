// hvd/algorithm/adasum.hpp: allreduce that adds orthogonal vectors and averages parallel ones.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

/// The kernels of adasum for one element type. They sum in eight columns, whatever the vector width of the CPU.
struct adasum_kernels {
  /// Adds to `sums`: the dot product of a and b, the square of a, and the square of b.
  void (*measure)(double* sums, const std::byte* a, const std::byte* b, std::size_t count);
  /// out[i] = fa a[i] + fb b[i]; `out` may be a or b.
  void (*mix)(std::byte* out, double fa, const std::byte* a, double fb, const std::byte* b, std::size_t count);
};

template <class T>
double wide(T value) noexcept {
  if constexpr (is_half<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}
template <class T>
T narrow(double value) noexcept {
  if constexpr (is_half<T>) {
    return T(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <class T>
void measure_products(double* sums, const std::byte* a_bytes, const std::byte* b_bytes, std::size_t count) {
  constexpr std::size_t columns = 8;
  const T* const a = reinterpret_cast<const T*>(a_bytes);
  const T* const b = reinterpret_cast<const T*>(b_bytes);
  std::array<double, columns> dot{}, aa{}, bb{};
  const auto add = [&](std::size_t i, std::size_t column) {
    const double x = wide(a[i]);
    const double y = wide(b[i]);
    dot[column] += x * y;
    aa[column] += x * x;
    bb[column] += y * y;
  };
  std::size_t i = 0;
  for (; count - i >= columns; i += columns) {
    for (std::size_t column = 0; column != columns; ++column) add(i + column, column);
  }
  for (std::size_t column = 0; i != count; ++i, ++column) add(i, column);
  for (std::size_t column = 0; column != columns; ++column) {
    sums[0] += dot[column];
    sums[1] += aa[column];
    sums[2] += bb[column];
  }
}

template <class T>
void mix_vectors(std::byte* out_bytes, double fa, const std::byte* a_bytes, double fb, const std::byte* b_bytes,
                 std::size_t count) {
  T* const out = reinterpret_cast<T*>(out_bytes);
  const T* const a = reinterpret_cast<const T*>(a_bytes);
  const T* const b = reinterpret_cast<const T*>(b_bytes);
  for (std::size_t i = 0; i != count; ++i) out[i] = narrow<T>(fa * wide(a[i]) + fb * wide(b[i]));
}

template <class T>
inline constexpr adasum_kernels adasum_of{&measure_products<T>, &mix_vectors<T>};

/// Null for types that adasum does not support.
constexpr const adasum_kernels* find_adasum(dtype type) noexcept {
  switch (type) {
    case dtype::float16: return &adasum_of<half>;
    case dtype::bfloat16: return &adasum_of<bfloat16>;
    case dtype::float32: return &adasum_of<float>;
    case dtype::float64: return &adasum_of<double>;
    default: return nullptr;
  }
}

}  // namespace detail

/// Adaptive summation: `hvd::allreduce(comm, gradient, hvd::sum, hvd::adasum{})`. Two vectors become
///
///   A(a, b) = (1 - a.b / (2 |a|^2)) a  +  (1 - a.b / (2 |b|^2)) b
///
/// which is their sum if they are orthogonal, their average if they are parallel, and the other one if one is zero (S.
/// Maleki et al., "Scaling distributed training with adaptive summation", 2021). It is commutative but not associative,
/// so the order is part of the definition. A power of two ranks form a balanced tree of neighbours: 4 ranks compute
/// A(A(x0, x1), A(x2, x3)). For other numbers, the first p - 2^floor(log2 p) pairs of ranks come before that: 5 ranks
/// compute A(A(A(x0, x1), x2), A(x3, x4)), 6 compute A(A(A(x0, x1), A(x2, x3)), A(x4, x5)).
///
/// `op` must be `sum`, which may be `scaled`: inputs are multiplied by prescale first, the result by postscale last.
/// Elements must be half, bfloat16, float or double. Otherwise all ranks throw an `error` of kind unsupported before
/// anything is sent.
///
/// Products are computed and added in double, and each A is rounded once to the type; all ranks get the same bits, in
/// every run. A NaN or infinity in an input gives NaN in all of its tensor. The squares of doubles should be within the
/// range of double: a vector with smaller ones counts as orthogonal to all others, one with larger ones may give NaN.
///
/// Vector halving, distance doubling as in `halving_doubling`. With S the bytes of the whole vector, k tensors and L =
/// log2 p, one rank's cost is
///
/// | bytes sent                     | messages         | temporary memory |
/// |--------------------------------|------------------|------------------|
/// | 2 S (p-1)/p + 12 k L (L+1)     | 2 L + L (L+1)/2  | S/2 + 48 k       |
///
/// The second terms are the products: at each level they are added over the ranks that share its vectors. If p is not a
/// power of two, L = floor(log2 p), and a rank of a pair sends three messages more, at most 3/2 S + 24 k bytes.
struct adasum {
  static constexpr bool rank_ordered = false;

  /// The number of elements of each tensor. Tensors lie one after the other in the buffer, and each has its own
  /// factors. Empty: the whole buffer is one tensor. Must be equal on all ranks, and valid during the call. Counts that
  /// do not add up to that of the buffer are an `error` of kind invalid_argument.
  std::span<const std::size_t> tensors{};

  friend bool operator==(const adasum& a, const adasum& b) { return std::ranges::equal(a.tensors, b.tensors); }

  template <PointToPoint T>
  void operator()(T& t, const allreduce_call& c) const {
    const int rank = t.rank();
    const auto refuse = [&](error_kind kind, const std::string& why) {
      throw error(kind, "allreduce on rank " + std::to_string(rank) + " of " + std::to_string(t.size()) + ": " + why,
                  kind == error_kind::invalid_argument ? rank : -1);
    };
    if (c.op.op != detail::op_id<sum_t>) {
      refuse(error_kind::unsupported, "adasum replaces the sum, not " + std::string(detail::op_name(c.op.op)) +
                                          "; pass hvd::sum (adasum averages parallel parts by itself)");
    }
    const detail::adasum_kernels* const kernels = detail::find_adasum(c.op.type);
    if (kernels == nullptr) {
      refuse(error_kind::unsupported, "adasum is for half, bfloat16, float and double, not for " +
                                          std::string(hvd::name(c.op.type)) +
                                          "; convert the elements, or use another algorithm");
    }
    const std::size_t whole[] = {c.count};
    const std::span<const std::size_t> counts = tensors.empty() ? std::span<const std::size_t>(whole) : tensors;
    std::size_t left = c.count;
    bool fits = true;
    for (const std::size_t n : counts) {
      fits = fits && n <= left;
      left -= fits ? n : 0;
    }
    if (!fits || left != 0) {
      refuse(error_kind::invalid_argument, "the counts of adasum's " + std::to_string(counts.size()) +
                                               " tensors do not add up to " + std::to_string(c.count) +
                                               ", the elements of the buffer; they must cover all of it");
    }
    reduce(t, c, *kernels, counts);
  }

 private:
  template <PointToPoint T>
  static void reduce(T& t, const allreduce_call& c, const detail::adasum_kernels& kernels,
                     std::span<const std::size_t> counts) {
    const int rank = t.rank();
    const detail::pairing group(t.size());
    const int index = group.index(rank);
    const int acting = group.acting();
    const detail::even_blocks parts(acting, c.count, c.op.element_bytes);
    const std::size_t unit = c.op.element_bytes;
    const std::size_t sums_bytes = 3 * counts.size() * sizeof(double);
    const detail::temporary received((c.count - c.count / 2) * unit);
    std::vector<double> sums(3 * counts.size()), others(sums);
    const auto raw = [](std::vector<double>& v) { return reinterpret_cast<std::byte*>(v.data()); };

    // First this rank's input; later the part of its group's vector that this rank keeps, in `out`.
    const std::byte* own = c.in;
    if (c.op.prepares()) {
      c.op.prepare(c.out, c.in, c.count);
      own = c.out;
    }
    // Receives the elements of `peer` that this rank keeps, and computes the products of both.
    const auto swap = [&](std::size_t keep, std::size_t keep_end, std::size_t give, std::size_t give_end, int peer) {
      t.exchange(own + give * unit, (give_end - give) * unit, peer, received.data(), (keep_end - keep) * unit, peer);
      std::fill(sums.begin(), sums.end(), 0.0);
      each_tensor(counts, keep, keep_end, [&](std::size_t tensor, std::size_t begin, std::size_t end) {
        const std::byte* const mine = own + begin * unit;
        const std::byte* const theirs = received.data() + (begin - keep) * unit;
        kernels.measure(&sums[3 * tensor], rank < peer ? mine : theirs, rank < peer ? theirs : mine, end - begin);
      });
    };
    // The sums of the lower ranks are the left operands.
    const auto add_up = [&](int peer) {
      t.exchange(raw(sums), sums_bytes, peer, raw(others), sums_bytes, peer);
      for (std::size_t i = 0; i != sums.size(); ++i) sums[i] = rank < peer ? sums[i] + others[i] : others[i] + sums[i];
    };
    const auto mix = [&](std::size_t keep, std::size_t keep_end, int peer) {
      each_tensor(counts, keep, keep_end, [&](std::size_t tensor, std::size_t begin, std::size_t end) {
        const double* const s = &sums[3 * tensor];
        const double fa = s[1] == 0.0 ? 1.0 : 1.0 - s[0] / (2.0 * s[1]);
        const double fb = s[2] == 0.0 ? 1.0 : 1.0 - s[0] / (2.0 * s[2]);
        const std::byte* const mine = own + begin * unit;
        const std::byte* const theirs = received.data() + (begin - keep) * unit;
        kernels.mix(c.out + begin * unit, fa, rank < peer ? mine : theirs, fb, rank < peer ? theirs : mine,
                    end - begin);
      });
    };

    if (group.paired(rank)) {
      // Each rank of the pair reduces one half; then the acting rank receives the other half.
      const int peer = rank ^ 1;
      const bool upper = rank > peer;
      const std::size_t half = c.count / 2;
      const std::size_t keep = upper ? half : 0, keep_end = upper ? c.count : half;
      const std::size_t give = upper ? 0 : half, give_end = upper ? half : c.count;
      swap(keep, keep_end, give, give_end, peer);
      add_up(peer);
      mix(keep, keep_end, peer);
      if (!group.acts(rank)) {
        t.send(c.out + keep * unit, (keep_end - keep) * unit, peer);
        return t.recv(c.out, c.count * unit, peer);
      }
      t.recv(c.out + give * unit, (give_end - give) * unit, peer);
      own = c.out;
    }
    int part = 0;
    int last = acting;
    for (int distance = 1; distance < acting; distance *= 2) {
      const int peer = group.rank_of(index ^ distance);
      const int middle = (part + last) / 2;
      const bool upper = (index & distance) != 0;
      const std::size_t begin = parts.start(part), cut = parts.start(middle), end = parts.start(last);
      const std::size_t keep = upper ? cut : begin, keep_end = upper ? end : cut;
      swap(keep, keep_end, upper ? begin : cut, upper ? cut : end, peer);
      for (int step = 1; step <= distance; step *= 2) add_up(group.rank_of(index ^ step));
      mix(keep, keep_end, peer);
      own = c.out;
      (upper ? part : last) = middle;
    }
    if (own != c.out) detail::copy_bytes(c.out, own, c.count * unit);  // a group of one
    c.op.finish(c.out + parts.offset(part), parts.count(part));
    for (int have = 1, distance = acting / 2; distance != 0; distance /= 2, have *= 2) {
      const int peer = group.rank_of(index ^ distance);
      const int theirs = part ^ have;
      t.exchange(c.out + parts.offset(part), parts.offset(part + have) - parts.offset(part), peer,
                 c.out + parts.offset(theirs), parts.offset(theirs + have) - parts.offset(theirs), peer);
      part &= theirs;
    }
    if (group.paired(rank)) t.send(c.out, c.count * unit, rank + 1);
  }

  /// Calls f(number, begin, end) for each tensor that has elements from `first` to `last`.
  template <class F>
  static void each_tensor(std::span<const std::size_t> counts, std::size_t first, std::size_t last, const F& f) {
    std::size_t start = 0;
    for (std::size_t k = 0; k != counts.size() && start < last; ++k) {
      const std::size_t end = start + counts[k];
      if (end > first && counts[k] != 0) f(k, std::max(start, first), std::min(end, last));
      start = end;
    }
  }
};

/// The algorithm with its tunables, for messages and bench output.
inline std::string name(const adasum& a) { return "adasum(tensors=" + std::to_string(a.tensors.size()) + ")"; }

}  // namespace hvd::inline HVD_ABI
