// hvd/engine/layout.hpp: what the collective of a batch takes and gives: shapes of results, and elements for each rank.
#pragma once

#include <hvd/engine/device.hpp>
#include <hvd/engine/plan.hpp>
#include <hvd/fusion.hpp>
#include <hvd/tensors.hpp>

#include <cstddef>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The type in which tensor `t` travels: see request::wire.
inline dtype wire_of(const signature& s, std::size_t t) noexcept {
  const bool converts = s.wire != dtype::user && find_conversions(s.types[t], s.wire).narrow != nullptr;
  return converts ? s.wire : s.types[t];
}

/// The caller's memory for the result of tensor `t`, or the result of `memory(bytes)`. Only an alltoall may have a
/// result for which the caller's memory has another size.
template <class Memory>
std::byte* output_of(const work& w, std::size_t t, std::size_t bytes, std::vector<std::size_t> shape,
                     const Memory& memory) {
  result& r = w.end->results[t];
  r.type = w.what.types[t];
  r.shape = std::move(shape);
  const tensor& mine = w.mine->tensors[t];
  const bool fits = w.what.kind != operation::alltoall || r.shape.front() == mine.out_rows;
  if (mine.out != nullptr && fits) return mine.out;
  r.data = memory(bytes);
  return r.data.get();
}

/// Rows of an alltoall for each rank.
inline std::vector<std::size_t> splits_of(const tensor& t, std::size_t ranks) {
  return t.splits.empty() ? std::vector<std::size_t>(ranks, t.shape.front() / ranks) : t.splits;
}

/// The shape of an allgather's or alltoall's result with `rows` rows.
inline std::vector<std::size_t> shape_of_rows(const signature& s, std::size_t t, std::size_t rows) {
  std::vector<std::size_t> shape{rows};
  shape.insert(shape.end(), s.shapes[t].begin() + (s.even ? 1 : 0), s.shapes[t].end());
  return shape;
}

/// The shares of a reduce_scatter's result: the number of elements for each rank, and the shape of this rank's share.
struct row_shares {
  std::vector<std::size_t> counts, shape;
};
inline row_shares shares_of(const signature& s, std::size_t t, std::size_t rank, std::size_t ranks) {
  row_shares found{std::vector<std::size_t>(ranks), s.shapes[t]};
  const std::size_t rows = found.shape.front(), row = rows == 0 ? 0 : s.elements(t) / rows;
  for (std::size_t r = 0; r != ranks; ++r) found.counts[r] = share_of(rows, r, ranks) * row;
  found.shape.front() = share_of(rows, rank, ranks);
  return found;
}

/// The tensors of a batch as its collective takes them.
struct layout {
  /// The tensors of all works, in their order. Those of an allreduce have no memory on a rank that has joined.
  std::vector<fused> tensors{};
  /// counts[t][r]: elements that come from rank r into tensor t, or, of a reduce_scatter, go to rank r; for operations
  /// whose ranks all have all elements, empty.
  std::vector<std::vector<std::size_t>> counts{};
};

/// Fills in `to`, and type, shape, received_splits and memory of the results. `rows` are what executor::exchange_rows
/// gives; `memory(bytes)` makes a result for which the caller has passed no memory.
template <class Memory>
void lay_out(layout& to, std::span<const work> works, const received_rows& rows, int rank, int size,
             const Memory& memory) {
  to.tensors.clear();
  to.counts.clear();
  const auto me = static_cast<std::size_t>(rank), ranks = static_cast<std::size_t>(size);
  for (const work& w : works) {
    for (std::size_t t = 0; t != w.what.types.size(); ++t) {
      const dtype type = w.what.types[t];
      fused f{.in = nullptr, .out = nullptr, .count = w.what.elements(t), .type = type, .wire = wire_of(w.what, t)};
      std::vector<std::size_t> shape = w.what.shapes[t];
      std::size_t result = f.count;
      if (w.what.kind == operation::reduce_scatter) {
        row_shares parts = shares_of(w.what, t, me, ranks);
        shape = std::move(parts.shape);
        result = parts.counts[me];
        to.counts.push_back(std::move(parts.counts));
      } else if (!rows.empty()) {  // allgather, alltoall
        std::vector<std::size_t> of = rows[to.counts.size()];
        const std::size_t all = std::reduce(of.begin(), of.end()), row = w.what.row_elements(t);
        if (w.what.kind == operation::alltoall) w.end->results[t].received_splits = of;
        for (std::size_t& n : of) n *= row;
        shape = shape_of_rows(w.what, t, all);
        result = all * row;
        f.count = of[me];
        f.wire = type;
        to.counts.push_back(std::move(of));
      } else if (w.what.kind == operation::broadcast) {
        f.wire = type;
      }
      if (w.mine != nullptr) {
        f.in = w.mine->tensors[t].in;
        f.out = output_of(w, t, result * size_of(type), std::move(shape), memory);
      }
      to.tensors.push_back(f);
    }
  }
}

/// The elements of tensor `t` of an alltoall for each rank.
inline std::vector<std::size_t> sent_by(const work& w, std::size_t t, int size) {
  std::vector<std::size_t> counts = splits_of(w.mine->tensors[t], static_cast<std::size_t>(size));
  for (std::size_t& n : counts) n *= w.what.row_elements(t);
  return counts;
}

}  // namespace hvd::inline HVD_ABI::detail
