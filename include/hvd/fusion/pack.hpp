// hvd/fusion/pack.hpp: tensors as parts of one vector, copied in and out with scaling and conversion.
#pragma once

#include <hvd/algorithm/direct.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/fusion/convert.hpp>
#include <hvd/tensors.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

struct conversions {
  converter narrow = nullptr, widen = nullptr;
};
/// Null if the type cannot be sent as the other, or need not be converted. (A template, so that it is compiled
/// only in files that call it.)
template <class = void>
conversions make_conversions(dtype type, dtype wire) noexcept {
  if (type == dtype::float32 && wire == dtype::float16) {
    return {conversion<plain<float>, half_format>(), conversion<half_format, plain<float>>()};
  }
  if (type == dtype::float32 && wire == dtype::bfloat16) {
    return {conversion<plain<float>, bfloat16_format>(), conversion<bfloat16_format, plain<float>>()};
  }
  if (type == dtype::float64 && wire == dtype::float32) {
    return {conversion<plain<double>, widened_float>(), conversion<widened_float, plain<double>>()};
  }
  return {};
}
#if HVD_COMPILED
conversions find_conversions(dtype type, dtype wire) noexcept;  // in hvd/compiled.hpp
#else
inline conversions find_conversions(dtype type, dtype wire) noexcept { return make_conversions(type, wire); }
#endif

/// A reduction in two parts: `outer` in packing and unpacking, `inner` in the collective. If kernels read all inputs at
/// once, they scale at no cost and round once; but converted values are scaled before they are rounded.
struct fused_reduction {
  reduction outer, inner;

  fused_reduction(const reduction& op, bool converts, bool kernels_scale) : outer(op), inner(op) {
    const scaling before{op.scale.pre, 1.0, 1}, after{1.0, op.scale.post, op.scale.divisor};
    if (!kernels_scale) {
      inner.scale = {};
    } else if (converts) {
      outer.scale = before;
      inner.scale = after;
    } else {
      outer.scale = {};
    }
  }
};

/// A tensor, or a rank's block of one, and its start in the vector.
struct fused_part {
  const std::byte* in;
  std::byte* out;
  std::size_t count;  ///< elements, here and below
  std::size_t start;
  std::size_t index;  ///< of the tensor in the batch
  [[nodiscard]] std::size_t end() const noexcept { return start + count; }
};

/// Tensors of one type one after the other, as one vector in which they travel. Each starts on a cache line of the
/// vector, so there may be gaps; their contents are never used.
struct fused_vector {
  dtype type{}, wire{};
  std::size_t unit = 1;       ///< bytes of an element as it travels
  std::size_t side_unit = 1;  ///< and in the tensors
  conversions convert{};
  std::vector<fused_part> parts{};
  std::size_t length = 0;

  fused_vector() = default;
  fused_vector(dtype t, dtype w)
      : type(t), wire(w), unit(size_of(w)), side_unit(size_of(t)), convert(find_conversions(t, w)) {}

  [[nodiscard]] bool converts() const noexcept { return convert.narrow != nullptr; }
  void add(const std::byte* in, std::byte* out, std::size_t count, std::size_t index,
           std::size_t alignment = cache_line) {
    if (count == 0) return;
    parts.push_back({in, out, count, round_up(length, std::max<std::size_t>(1, alignment / unit)), index});
    length = parts.back().end();
  }
  /// Calls f(part, first element within it, index in the vector, elements) for all parts of [first, last).
  template <class F>
  void each(std::size_t first, std::size_t last, const F& f) const {
    auto p = std::upper_bound(parts.begin(), parts.end(), first,
                              [](std::size_t at, const fused_part& part) { return at < part.end(); });
    for (; p != parts.end() && p->start < last; ++p) {
      const std::size_t begin = std::max(first, p->start), end = std::min(last, p->end());
      f(*p, begin - p->start, begin, end - begin);
    }
  }
  /// Copy elements [first, first + n) of a part to the memory in which they travel, and back. `op`, if given, scales.
  void pack(std::byte* to, const fused_part& p, std::size_t first, std::size_t n, const reduction* op = nullptr) const {
    const std::byte* const from = p.in + first * side_unit;
    const scaling part{op != nullptr ? op->scale.pre : 1.0, 1.0, 1};
    if (converts()) {
      convert.narrow(to, from, n, &part);
    } else if (op != nullptr) {
      op->prepare(to, from, n);
    } else {
      copy_bytes(to, from, n * unit);
    }
  }
  /// As `pack`, to the staging ring. Scales only converted elements; kernels scale the rest.
  void stage(std::byte* to, const fused_part& p, std::size_t first, std::size_t n, const reduction* op) const {
    if (converts()) return pack(to, p, first, n, op);
    stage_bytes(to, p.in + first * unit, n * unit);
  }
  void unpack(const fused_part& p, std::size_t first, std::size_t n, const std::byte* from,
              const reduction* op = nullptr) const {
    std::byte* const to = p.out + first * side_unit;
    const scaling part = op != nullptr ? scaling{1.0, op->scale.post, op->scale.divisor} : scaling{};
    if (converts()) {
      convert.widen(to, from, n, &part);
    } else if (op != nullptr && op->scale.postscales()) {
      op->fold(&to, 1, &from, 1, n * op->components, &part);
    } else {
      copy_bytes(to, from, n * unit);
    }
  }
};

/// One vector for each pair of types, in order of appearance; `add(vector, i)` puts tensor i in.
template <class Add>
std::vector<fused_vector> by_type(std::span<const fused> tensors, const Add& add) {
  std::vector<fused_vector> all;
  for (std::size_t i = 0; i != tensors.size(); ++i) {
    const fused& t = tensors[i];
    if (t.count == 0) continue;
    auto v = std::find_if(all.begin(), all.end(), [&](const auto& x) { return x.type == t.type && x.wire == t.wire; });
    if (v == all.end()) v = all.emplace(all.end(), t.type, t.wire);
    add(*v, i);
  }
  return all;
}

/// The sum of the first `ranks` counts.
inline std::size_t sum_of(const std::vector<std::size_t>& counts, std::size_t ranks) noexcept {
  return std::accumulate(counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(ranks), std::size_t{0});
}

/// Blocks of `counts` elements of `unit` bytes each; uniform if they are equal, because there are better calls for
/// that.
inline partition partition_of(const std::vector<std::size_t>& counts, std::size_t unit) {
  const bool even = std::all_of(counts.begin(), counts.end(), [&](std::size_t n) { return n == counts.front(); });
  return even ? partition(static_cast<int>(counts.size()), counts.front(), unit) : partition(counts, unit);
}

/// Checks the tensors of a batch, like `arguments` for the collectives.
class fused_arguments : public arguments {
 public:
  fused_arguments(operation kind, int rank, int size) : arguments(kind, rank, size) {}

  /// extent(i): elements of the input and the output of tensor i. in_place(i): true if the two may have bytes in
  /// common.
  template <class Extent, class InPlace>
  fused_arguments& tensors(std::span<const fused> all, const Extent& extent, const InPlace& in_place) {
    for (std::size_t i = 0; i != all.size(); ++i) {
      const fused& t = all[i];
      const std::size_t unit = size_of(t.type);
      if (unit == 0) {
        refuse({"tensor ", i, " has elements of the type ", hvd::name(t.type), "; allowed: the built-in types"});
        return *this;
      }
      if (t.wire != t.type && find_conversions(t.type, t.wire).narrow == nullptr) {
        refuse({"tensor ", i, " of ", hvd::name(t.type), " cannot have the wire type ", hvd::name(t.wire),
                "; allowed: float16 and bfloat16 for float32, float32 for float64"});
      }
      const std::pair<std::size_t, std::size_t> elements = extent(i);
      if (std::max(elements.first, elements.second) > PTRDIFF_MAX / unit) [[unlikely]] {
        addressable(joined({"tensor ", i}).c_str(), std::max(elements.first, elements.second), unit);
        return *this;
      }
      if (t.in == nullptr && elements.first != 0) {
        refuse({"the input of tensor ", i, " is null but has ", elements.first, " elements"});
      }
      if (t.out == nullptr && elements.second != 0) {
        refuse({"the output of tensor ", i, " is null but has ", elements.second, " elements"});
      }
      if (overlap(t.in, elements.first * unit, t.out, elements.second * unit) && !in_place(i)) {
        refuse({"input and output of tensor ", i, " overlap; allowed: no common element, or in place"});
      }
    }
    return *this;
  }
  /// Checks that no two outputs overlap.
  fused_arguments& distinct(std::span<const fused> all) {
    struct block {
      std::uintptr_t begin, end;
      std::size_t index;
    };
    std::vector<block> blocks;
    for (std::size_t i = 0; i != all.size(); ++i) {
      const auto begin = reinterpret_cast<std::uintptr_t>(all[i].out);
      if (all[i].count != 0) blocks.push_back({begin, begin + all[i].count * size_of(all[i].type), i});
    }
    std::sort(blocks.begin(), blocks.end(), [](const block& a, const block& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < blocks.size(); ++i) {
      if (blocks[i].begin >= blocks[i - 1].end) continue;
      const auto [first, second] = std::minmax(blocks[i].index, blocks[i - 1].index);
      refuse({"the outputs of tensors ", first, " and ", second, " overlap; allowed: memory of its own for each"});
      break;
    }
    return *this;
  }
  /// For collectives that do not convert.
  fused_arguments& moves(std::span<const fused> all) {
    for (std::size_t i = 0; i != all.size(); ++i) {
      if (all[i].wire == all[i].type) continue;
      refuse({"tensor ", i, " of ", hvd::name(all[i].type), " has the wire type ", hvd::name(all[i].wire),
              "; allowed: its own type, because only reductions convert"});
    }
    return *this;
  }
  /// Checks that tensor i has length_of(i) elements.
  template <class Length>
  fused_arguments& lengths(std::span<const fused> all, const char* what, const Length& length_of) {
    for (std::size_t i = 0; i != all.size(); ++i) {
      if (all[i].count == length_of(i)) continue;
      refuse({"tensor ", i, " has ", all[i].count, " elements; allowed: ", length_of(i), " (", what, ")"});
    }
    return *this;
  }
  fused_arguments& root(int r) {
    arguments::root(r);
    return *this;
  }
  /// counts[t][r] for allgather and reduce_scatter.
  fused_arguments& counts(std::span<const fused> all, std::span<const std::vector<std::size_t>> c) {
    if (c.size() != all.size()) {
      refuse({"counts has ", c.size(), " entries; allowed: one for each of the ", all.size(), " tensors"});
      return *this;
    }
    for (std::size_t i = 0; i != all.size(); ++i) {
      const std::string which = joined({"counts of tensor ", i});
      arguments::counts(which.c_str(), c[i], std::max<std::size_t>(1, size_of(all[i].type)));
    }
    return *this;
  }
  /// Checks that `op` is defined for all of them.
  fused_arguments& reduces(std::span<const fused> all, const dynamic_op& op) {
    for (std::size_t i = 0; i != all.size(); ++i) {
      try {
        static_cast<void>(make_reduction(all[i].type, op, 1));
      } catch (const error& e) {
        refuse({"tensor ", i, ": ", sentence(e)});
        break;
      }
    }
    return *this;
  }
};

/// Checks that no two outputs of an allreduce overlap. Only with HVD_CHECK, because for small tensors sorting takes as
/// long as the call.
template <class T>
void check_distinct(T& comm, std::span<const fused> all) {
  if (checks(comm)) fused_arguments(operation::allreduce, comm.rank(), comm.size()).distinct(all).check(comm);
}

}  // namespace hvd::inline HVD_ABI::detail
