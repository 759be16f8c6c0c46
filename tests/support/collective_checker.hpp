// tests/support/collective_checker.hpp: runs one collective and compares every byte that it may touch.
#pragma once

#include <hvd/hvd.hpp>

#include <support/require.hpp>
#include <support/verifiable.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace hvd::test {

/// The first `count` elements that each of `size` ranks gives, and the reduction of them.
template <class T, class Op>
class tables {
 public:
  tables(int size, std::size_t count, const Op& op = {}) : size_(size), result_(count) {
    static_assert(std::has_unique_object_representations_v<T>, "compared by its bytes");
    for (int r = 0; r != size; ++r) {
      auto& mine = inputs_.emplace_back(count);
      for (std::size_t i = 0; i != count; ++i) mine[i] = input<T>(op, i, r, size);
    }
    for (std::size_t i = 0; i != count; ++i) result_[i] = expected<T>(op, i, size);
  }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::size_t count() const { return result_.size(); }
  [[nodiscard]] const T* of(int rank) const { return inputs_[static_cast<std::size_t>(rank)].data(); }
  [[nodiscard]] const T* result() const { return result_.data(); }

 private:
  int size_;
  std::vector<std::vector<T>> inputs_;
  std::vector<T> result_;
};

/// Where the buffers of a call lie.
enum class placement { apart, shared, shared_in, shared_out, some_shared };
inline constexpr placement placements[] = {placement::apart, placement::shared, placement::shared_in,
                                           placement::shared_out, placement::some_shared};

/// One variant of a call.
struct variant {
  placement where = placement::apart;
  bool in_place = false;
  int root = 0;
  unsigned shift = 0;  ///< elements from the boundary of a cache line
};

/// The memory of one rank: an input and an output, private and from alloc_shared.
class buffers {
 public:
  static constexpr std::size_t guard = 128;

  template <class C>
  buffers(C& comm, std::size_t bytes)
      : bytes_(bytes), own_{std::vector<std::byte>(room()), std::vector<std::byte>(room())},
        shared_{comm.template alloc_shared<std::byte>(room()), comm.template alloc_shared<std::byte>(room())},
        rank_(comm.rank()) {}

  [[nodiscard]] std::byte* in(placement where) { return place(0, where, placement::shared_in); }
  [[nodiscard]] std::byte* out(placement where) { return place(1, where, placement::shared_out); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::size_t room() const { return bytes_ + 2 * guard + 1024; }
  std::byte* place(std::size_t k, placement where, placement only_this) {
    const bool alternates = where == placement::some_shared && rank_ % 2 == 0;
    const bool shares = where == placement::shared || where == only_this || alternates;
    std::byte* const p = shares ? shared_[k].data() : own_[k].data();
    const std::size_t past = reinterpret_cast<std::uintptr_t>(p) % 64;
    return p + guard + (past == 0 ? 0 : 64 - past);
  }

  std::size_t bytes_;
  std::array<std::vector<std::byte>, 2> own_;
  std::array<shared_array<std::byte>, 2> shared_;
  int rank_;
};

/// Blocks of different sizes, as the _v collectives take them; `pattern` tells how they differ.
inline std::vector<std::size_t> uneven(int size, std::size_t scale, unsigned pattern) {
  const auto p = static_cast<std::size_t>(size);
  std::vector<std::size_t> counts(p, 0);
  switch (pattern % 5) {
    case 0:
      for (std::size_t r = 0; r != p; ++r) counts[r] = (r * 5 + 3) % 4 * scale + r % 2;
      break;
    case 1: counts.front() = scale; break;
    case 2: counts.back() = 3 * scale + 1; break;
    case 3: break;
    default:
      for (std::size_t r = 0; r != p; ++r) counts[r] = r == pattern % p ? 0 : scale + r % 3;
  }
  return counts;
}
/// An upper bound of their sum.
constexpr std::size_t uneven_total(int size, std::size_t scale) {
  return static_cast<std::size_t>(size) * (3 * scale + 2);
}

/// A loop would make several calls for each byte of what is not optimised.
inline bool all_are(std::byte value, const std::byte* p, std::size_t n) {
  return n == 0 || (p[0] == value && std::memcmp(p, p + 1, n - 1) == 0);
}

/// Every collective with inputs from a table. All its members are collective; they throw requirement_failed.
template <class C, class T, class Op, class How = automatic<>>
class checker {
 public:
  checker(C& comm, buffers& memory, const tables<T, Op>& table, const How& how = {}, const Op& op = {})
      : comm_(comm), memory_(memory), table_(table), how_(how), op_(op) {
    require(table.size() == comm.size(), "a table for another number of ranks");
  }

  template <class Call>
  static constexpr bool answers = Answers<How, C, Call>;

  void allreduce(std::size_t n, const variant& v) {
    whole_vector("allreduce", n, v, table_.result(),
                 [&](auto... buffers) { hvd::allreduce(comm_, buffers..., op_, how_); });
  }

  void reduce(std::size_t n, const variant& v) {
    const bool root = rank() == v.root;
    const std::span<T> in = given(v, mine(), n);
    const std::span<T> out = v.in_place ? in : root || v.shift % 2 == 0 ? blank(v, n) : std::span<T>();
    if (v.in_place) {
      hvd::reduce(comm_, in, op_, v.root, how_);
    } else {
      hvd::reduce(comm_, constant(in), out, op_, v.root, how_);
    }
    if (!v.in_place || !root) unchanged(in, mine(), "reduce", v);
    if (root) {
      equal(out, table_.result(), "reduce", v);
    } else if (!v.in_place) {
      untouched(out, "reduce", v);
    }
  }

  void broadcast(std::size_t n, const variant& v) {
    const bool root = rank() == v.root;
    const T* const want = table_.of(v.root);
    if (v.in_place) {
      const std::span<T> both = root ? given(v, want, n) : blank(v, n);
      hvd::broadcast(comm_, both, v.root, how_);
      return equal(both, want, "broadcast", v);
    }
    const std::span<T> in = root ? given(v, want, n) : std::span<T>();
    const std::span<T> out = blank(v, n);
    hvd::broadcast(comm_, constant(in), out, v.root, how_);
    if (root) unchanged(in, want, "broadcast", v);
    equal(out, want, "broadcast", v);
  }

  void scan(std::size_t n, const variant& v) {
    for (std::size_t i = prefix_.size(); i < n; ++i) prefix_.push_back(expected<T>(op_, i, rank() + 1));
    whole_vector("scan", n, v, prefix_.data(), [&](auto... buffers) { hvd::scan(comm_, buffers..., op_, how_); });
  }

  void exscan(std::size_t n, const variant& v) {
    const std::span<T> in = given(v, mine(), n);
    const std::span<T> out = v.in_place ? in : blank(v, n);
    if (v.in_place) {
      hvd::exscan(comm_, in, op_, how_);
    } else {
      hvd::exscan(comm_, constant(in), out, op_, how_);
      unchanged(in, mine(), "exscan", v);
    }
    if (rank() > 0) {
      for (std::size_t i = before_.size(); i < n; ++i) before_.push_back(expected<T>(op_, i, rank()));
      equal(out, before_.data(), "exscan", v);
    } else if (v.in_place) {
      equal(in, mine(), "exscan", v);
    } else {
      untouched(out, "exscan", v);
    }
  }

  /// The collectives on blocks; `uniform` ones by the call without counts.
  void reduce_scatter(const std::vector<std::size_t>& counts, bool uniform, const variant& v) {
    const std::size_t start = start_of(counts, rank()), n = count_of(counts, rank());
    const std::span<T> in = given(v, mine(), start_of(counts, size()));
    const std::span<T> out = v.in_place ? in.subspan(start, n) : blank(v, n);
    if (uniform) {
      hvd::reduce_scatter(comm_, constant(in), out, op_, how_);
    } else {
      hvd::reduce_scatter_v(comm_, constant(in), out, counts, op_, how_);
    }
    if (v.in_place) {
      same(in.first(start), mine(), "reduce_scatter beside its block", v);
      same(in.subspan(start + n), mine() + start + n, "reduce_scatter beside its block", v);
      same(out, table_.result() + start, "reduce_scatter", v);
      return guarded(in, "reduce_scatter", v);
    }
    unchanged(in, mine(), "reduce_scatter", v);
    equal(out, table_.result() + start, "reduce_scatter", v);
  }

  void allgather(const std::vector<std::size_t>& counts, bool uniform, const variant& v) {
    const std::size_t start = start_of(counts, rank()), n = count_of(counts, rank());
    const std::span<T> out = blank(v, start_of(counts, size()));
    const std::span<T> in = v.in_place ? out.subspan(start, n) : given(v, mine(), n);
    if (v.in_place) std::copy_n(mine(), n, in.begin());
    if (uniform) {
      hvd::allgather(comm_, constant(in), out, how_);
    } else {
      hvd::allgather_v(comm_, constant(in), out, counts, how_);
    }
    if (!v.in_place) unchanged(in, mine(), "allgather", v);
    gathered(out, counts, "allgather", v);
  }

  void gather(const std::vector<std::size_t>& counts, bool uniform, const variant& v) {
    const bool root = rank() == v.root;
    const std::size_t start = start_of(counts, rank()), n = count_of(counts, rank());
    const bool needs_out = root || (!v.in_place && v.shift % 2 == 0);
    const std::span<T> out = needs_out ? blank(v, start_of(counts, size())) : std::span<T>();
    const bool own_block = root && v.in_place;
    const std::span<T> in = own_block ? out.subspan(start, n) : given(v, mine(), n);
    if (own_block) std::copy_n(mine(), n, in.begin());
    if (uniform) {
      hvd::gather(comm_, constant(in), out, v.root, how_);
    } else {
      hvd::gather_v(comm_, constant(in), out, counts, v.root, how_);
    }
    if (!own_block) unchanged(in, mine(), "gather", v);
    if (root) {
      gathered(out, counts, "gather", v);
    } else {
      untouched(out, "gather", v);
    }
  }

  void scatter(const std::vector<std::size_t>& counts, bool uniform, const variant& v) {
    const bool root = rank() == v.root;
    const std::size_t start = start_of(counts, rank()), n = count_of(counts, rank());
    const T* const all = table_.of(v.root);
    const std::span<T> in = root ? given(v, all, start_of(counts, size())) : std::span<T>();
    const std::span<T> out = root && v.in_place ? in.subspan(start, n) : blank(v, n);
    if (uniform) {
      hvd::scatter(comm_, constant(in), out, v.root, how_);
    } else {
      hvd::scatter_v(comm_, constant(in), out, counts, v.root, how_);
    }
    if (root) unchanged(in, all, "scatter", v);
    if (!root || !v.in_place) equal(out, all + start, "scatter", v);
  }

  void alltoall(std::size_t n, const variant& v) {
    const auto p = static_cast<std::size_t>(size());
    const std::span<T> in = given(v, mine(), n * p);
    const std::span<T> out = v.in_place ? in : blank(v, n * p);
    if (v.in_place) {
      hvd::alltoall(comm_, in, how_);
    } else {
      hvd::alltoall(comm_, constant(in), out, how_);
      unchanged(in, mine(), "alltoall", v);
    }
    for (int q = 0; q != size(); ++q) {
      same(out.subspan(static_cast<std::size_t>(q) * n, n), table_.of(q) + static_cast<std::size_t>(rank()) * n,
           "alltoall", v);
    }
    guarded(out, "alltoall", v);
  }

  void alltoall_v(std::size_t scale, unsigned pattern, const variant& v) {
    const auto row = [&](int from) {
      std::vector<std::size_t> counts = uneven(size(), scale, pattern);
      std::rotate(counts.begin(), counts.begin() + from % size(), counts.end());
      return counts;
    };
    const std::vector<std::size_t> sends = row(rank());
    std::vector<std::size_t> receives;
    for (int q = 0; q != size(); ++q) receives.push_back(count_of(row(q), rank()));
    const std::span<T> in = given(v, mine(), start_of(sends, size()));
    const std::span<T> out = blank(v, start_of(receives, size()));
    hvd::alltoall_v(comm_, constant(in), out, sends, receives, how_);
    unchanged(in, mine(), "alltoall_v", v);
    for (int q = 0; q != size(); ++q) {
      same(out.subspan(start_of(receives, q), count_of(receives, q)), table_.of(q) + start_of(row(q), rank()),
           "alltoall_v", v);
    }
    guarded(out, "alltoall_v", v);
  }

  /// All that the algorithm answers: vectors, or blocks, of n elements.
  void all(std::size_t n, const variant& v) {
    const std::vector<std::size_t> equal_blocks(static_cast<std::size_t>(size()), n);
    if constexpr (answers<allreduce_call>) allreduce(n, v);
    if constexpr (answers<reduce_call>) reduce(n, v);
    if constexpr (answers<scan_call> && !detail::divides_by_ranks<Op>) scan(n, v);
    if constexpr (answers<exscan_call> && !detail::divides_by_ranks<Op>) exscan(n, v);
    if constexpr (answers<broadcast_call>) broadcast(n, v);
    if constexpr (answers<reduce_scatter_call>) reduce_scatter(equal_blocks, true, v);
    if constexpr (answers<allgather_call>) allgather(equal_blocks, true, v);
    if constexpr (answers<alltoall_call>) alltoall(n, v);
    if constexpr (answers<gather_call>) gather(equal_blocks, true, v);
    if constexpr (answers<scatter_call>) scatter(equal_blocks, true, v);
  }
  void all_uneven(std::size_t scale, unsigned pattern, const variant& v) {
    const std::vector<std::size_t> counts = uneven(size(), scale, pattern);
    if constexpr (answers<reduce_scatter_call>) reduce_scatter(counts, false, v);
    if constexpr (answers<allgather_call>) allgather(counts, false, v);
    if constexpr (answers<alltoall_call>) alltoall_v(scale, pattern, v);
    if constexpr (answers<gather_call>) gather(counts, false, v);
    if constexpr (answers<scatter_call>) scatter(counts, false, v);
  }
  void barrier() { hvd::barrier(comm_); }

  /// The longest vector that the table has values for.
  [[nodiscard]] std::size_t capacity() const { return table_.count(); }

  [[nodiscard]] int size() const { return table_.size(); }

 private:
  static constexpr std::byte canary{0xa5};
  static constexpr std::byte nothing{0x5a};

  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] const T* mine() const { return table_.of(rank()); }
  static std::span<const T> constant(std::span<T> s) { return s; }
  static std::size_t start_of(const std::vector<std::size_t>& counts, int r) {
    std::size_t start = 0;
    for (int q = 0; q != r; ++q) start += counts[static_cast<std::size_t>(q)];
    return start;
  }
  static std::size_t count_of(const std::vector<std::size_t>& counts, int r) {
    return counts[static_cast<std::size_t>(r)];
  }

  /// A reduction of vectors that every rank receives: `call` takes the buffers, one in place.
  template <class F>
  void whole_vector(const char* what, std::size_t n, const variant& v, const T* want, const F& call) {
    const std::span<T> in = given(v, mine(), n);
    const std::span<T> out = v.in_place ? in : blank(v, n);
    if (v.in_place) {
      call(in);
    } else {
      call(constant(in), out);
      unchanged(in, mine(), what, v);
    }
    equal(out, want, what, v);
  }

  [[nodiscard]] std::span<T> placed(std::byte* at, std::size_t n, unsigned shift) {
    require(n <= table_.count() && (n + shift) * sizeof(T) <= memory_.bytes(), "the test's own memory is too small");
    at += shift * sizeof(T);
    std::memset(at - buffers::guard, std::to_integer<int>(canary), buffers::guard);
    std::memset(at + n * sizeof(T), std::to_integer<int>(canary), buffers::guard);
    return {reinterpret_cast<T*>(at), n};
  }
  std::span<T> given(const variant& v, const T* values, std::size_t n) {
    const std::span<T> s = placed(memory_.in(v.where), n, v.shift);
    std::copy_n(values, n, s.begin());
    return s;
  }
  std::span<T> blank(const variant& v, std::size_t n) {
    const std::span<T> s = placed(memory_.out(v.where), n, v.shift);
    std::memset(static_cast<void*>(s.data()), std::to_integer<int>(nothing), n * sizeof(T));
    return s;
  }

  [[nodiscard]] std::string say(const char* what, const variant& v) const {
    return std::string(what) + (v.in_place ? " in place" : "") + " on rank " + std::to_string(rank()) + " of " +
           std::to_string(size()) + " (" + std::string(name(dtype_of<T>)) + ", placement " +
           std::to_string(static_cast<int>(v.where)) + ", root " + std::to_string(v.root) + ", shift " +
           std::to_string(v.shift) + ")";
  }
  void same(std::span<const T> got, const T* want, const char* what, const variant& v) const {
    if (got.empty() || std::memcmp(got.data(), want, got.size_bytes()) == 0) return;
    std::size_t i = 0, wrong = 0;
    for (std::size_t k = got.size(); k-- != 0;) {
      if (std::memcmp(&got[k], want + k, sizeof(T)) != 0) i = k, ++wrong;
    }
    std::uint64_t is = 0, should_be = 0;
    std::memcpy(&is, &got[i], std::min(sizeof is, sizeof(T)));
    std::memcpy(&should_be, want + i, std::min(sizeof is, sizeof(T)));
    require(false, say(what, v) + ": " + std::to_string(wrong) + " of " + std::to_string(got.size()) +
                       " elements are wrong, the first is " + std::to_string(i) + ": its bytes, as a number, are " +
                       std::to_string(is) + ", not " + std::to_string(should_be));
  }
  void guarded(std::span<const T> s, const char* what, const variant& v) const {
    const auto* const front = reinterpret_cast<const std::byte*>(s.data()) - buffers::guard;
    const auto* const back = reinterpret_cast<const std::byte*>(s.data() + s.size());
    if (all_are(canary, front, buffers::guard) && all_are(canary, back, buffers::guard)) return;
    for (std::size_t k = 0; k != buffers::guard; ++k) {
      require(front[k] == canary && back[k] == canary, [&] {
        return say(what, v) + ": wrote outside a buffer of " + std::to_string(s.size()) + " elements, near byte " +
               std::to_string(k) + " of its guards";
      });
    }
  }
  void equal(std::span<const T> got, const T* want, const char* what, const variant& v) const {
    same(got, want, what, v);
    guarded(got, what, v);
  }
  void unchanged(std::span<const T> in, const T* before, const char* what, const variant& v) const {
    same(in, before, (std::string("the input of ") + what).c_str(), v);
    guarded(in, what, v);
  }
  void untouched(std::span<const T> out, const char* what, const variant& v) const {
    if (out.data() == nullptr) return;
    require(all_are(nothing, reinterpret_cast<const std::byte*>(out.data()), out.size_bytes()),
            [&] { return say(what, v) + ": wrote to the output, which this rank does not get"; });
    guarded(out, what, v);
  }
  void gathered(std::span<const T> out, const std::vector<std::size_t>& counts, const char* what,
                const variant& v) const {
    for (int q = 0; q != size(); ++q) {
      same(out.subspan(start_of(counts, q), count_of(counts, q)), table_.of(q), what, v);
    }
    guarded(out, what, v);
  }

  std::vector<T> prefix_, before_;  // results of scan and exscan, as far as they were needed
  C& comm_;
  buffers& memory_;
  const tables<T, Op>& table_;
  How how_;
  Op op_;
};

}  // namespace hvd::test
