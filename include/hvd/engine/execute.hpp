// hvd/engine/execute.hpp: runs one batch of operations that all ranks have agreed on.
#pragma once

#include <hvd/engine/device.hpp>
#include <hvd/engine/plan.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/tensors.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Memory for a result; aligned to cache lines.
inline std::shared_ptr<std::byte> result_memory(std::size_t bytes) {
  constexpr std::align_val_t line{64};
  return {static_cast<std::byte*>(::operator new(bytes == 0 ? 1 : bytes, line)),
          [](std::byte* p) { ::operator delete(p, line); }};
}

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

class executor {
 public:
  executor(erased_transport& comm, std::size_t fusion_threshold) : comm_(comm) { threshold(fusion_threshold); }

  /// See FusionBuffer::threshold.
  [[nodiscard]] std::size_t threshold() const noexcept { return threshold_; }
  void threshold(std::size_t bytes) {
    threshold_ = bytes;
    comm_.threshold(bytes);
  }

  /// Runs works that are `fusable`; collective, with the same works in the same order on all ranks. Each has a place
  /// for its results.
  void operator()(std::span<const work> works) {
    const signature& first = works.front().what;
    switch (first.kind) {
      case operation::allreduce: return allreduce(works, first);
      case operation::broadcast: return broadcast(works, first.root);
      case operation::allgather: return allgather(works, exchange_rows(works));
      case operation::reduce_scatter: return reduce_scatter(works, first);
      case operation::alltoall: return alltoall(works.front(), exchange_rows(works));
      default: return;  // a barrier: done, because all ranks have submitted it
    }
  }

  /// The numbers of rows, for works of allgather or alltoall; empty for others. Collective: ranks exchange them if they
  /// may differ. All ranks have submitted these works: no rank has joined. Errors: mismatch if a result would be larger
  /// than can be addressed.
  [[nodiscard]] received_rows exchange_rows(std::span<const work> works) {
    const auto p = static_cast<std::size_t>(comm_.size());
    const bool each_to_all = works.front().what.kind == operation::allgather;
    if (!each_to_all && works.front().what.kind != operation::alltoall) return {};
    std::vector<std::size_t> own;  // of each tensor; for alltoall to each rank, by rank and then by tensor
    std::size_t tensors = 0;
    each(works, [&](const work&, std::size_t) { ++tensors; });
    if (each_to_all) {
      each(works, [&](const work& w, std::size_t t) { own.push_back(w.mine->tensors[t].shape.front()); });
    } else {
      own.resize(p * tensors);
      std::size_t index = 0;
      each(works, [&](const work& w, std::size_t t) {
        const std::vector<std::size_t> rows = splits_of(w.mine->tensors[t], p);
        for (std::size_t r = 0; r != p; ++r) own[r * tensors + index] = rows[r];
        ++index;
      });
    }
    if (works.front().what.even) return even_rows(own, works);
    std::vector<std::size_t> all(p * tensors);
    const partition blocks(comm_.size(), tensors, sizeof(std::size_t));
    const auto* const in = reinterpret_cast<const std::byte*>(own.data());
    auto* const out = reinterpret_cast<std::byte*>(all.data());
    if (each_to_all) {
      comm_.run(allgather_call{in, out, blocks});
    } else {
      comm_.run(alltoall_call{in, out, blocks, blocks});
    }
    received_rows rows(tensors, std::vector<std::size_t>(p));
    for (std::size_t r = 0; r != p; ++r) {
      for (std::size_t t = 0; t != tensors; ++t) rows[t][r] = all[r * tensors + t];
    }
    std::size_t index = 0;
    each(works, [&](const work& w, std::size_t t) { total_rows(rows[index++], w, t); });
    return rows;
  }

 private:
  using counts = std::vector<std::vector<std::size_t>>;

  template <class F>
  static void each(std::span<const work> works, const F& f) {
    for (const work& w : works) {
      for (std::size_t t = 0; t != w.what.types.size(); ++t) f(w, t);
    }
  }
  static std::byte* output(const work& w, std::size_t t, std::size_t bytes, std::vector<std::size_t> shape) {
    return output_of(w, t, bytes, std::move(shape), result_memory);
  }

  received_rows even_rows(std::span<const std::size_t> own, std::span<const work> works) const {
    received_rows rows;
    for (const std::size_t n : own) rows.emplace_back(static_cast<std::size_t>(comm_.size()), n);
    std::size_t index = 0;
    each(works, [&](const work& w, std::size_t t) { total_rows(rows[index++], w, t); });
    return rows;
  }
  /// Rows of tensor `t` of all ranks together. The numbers come from other ranks, so the sum may be too large to
  /// address.
  std::size_t total_rows(std::span<const std::size_t> rows, const work& w, std::size_t t) const {
    const std::size_t row_bytes = w.what.row_elements(t) * size_of(w.what.types[t]);
    const std::size_t most = PTRDIFF_MAX / std::max<std::size_t>(row_bytes, 1);
    std::size_t sum = 0;
    for (std::size_t r = 0; r != rows.size(); ++r) {
      if (rows[r] > most - sum) {
        fail(error_kind::mismatch,
             {name(w.what.kind), " on rank ", comm_.rank(), " of ", comm_.size(), ": the ", rows[r], " rows of rank ",
              r, " and those before are more than can be addressed"},
             static_cast<int>(r));
      }
      sum += rows[r];
    }
    return sum;
  }

  void allreduce(std::span<const work> works, const signature& common) {
    tensors_.clear();
    std::size_t zeros = 0;
    each(works, [&](const work& w, std::size_t t) {
      if (w.mine == nullptr) zeros += w.what.elements(t) * size_of(w.what.types[t]) + 64;
    });
    zeros_.assign(zeros, std::byte{});  // also receives the unused result on a joined rank
    std::byte* zero = zeros_.data();
    each(works, [&](const work& w, std::size_t t) {
      const std::size_t count = w.what.elements(t), bytes = count * size_of(w.what.types[t]);
      fused f{.in = zero, .out = zero, .count = count, .type = w.what.types[t], .wire = wire_of(w.what, t)};
      if (w.mine != nullptr) {
        f.in = w.mine->tensors[t].in;
        f.out = output(w, t, bytes, w.what.shapes[t]);
      } else {
        zero += bytes + 64 - bytes % 64;
      }
      tensors_.push_back(f);
    });
    if (common.op == reduce_op::adasum) return comm_.adasum(tensors_, common.prescale, common.postscale);
    comm_.allreduce(tensors_, {common.op, common.prescale, common.postscale});
  }

  void broadcast(std::span<const work> works, int root) {
    tensors_.clear();
    each(works, [&](const work& w, std::size_t t) {
      const std::size_t count = w.what.elements(t), bytes = count * size_of(w.what.types[t]);
      tensors_.push_back({.in = w.mine->tensors[t].in,
                          .out = output(w, t, bytes, w.what.shapes[t]),
                          .count = count,
                          .type = w.what.types[t],
                          .wire = w.what.types[t]});
    });
    comm_.broadcast(tensors_, root);
  }

  void allgather(std::span<const work> works, counts elements) {
    tensors_.clear();
    each(works, [&](const work& w, std::size_t t) {
      const std::size_t row = w.what.row_elements(t);
      std::vector<std::size_t>& of = elements[tensors_.size()];
      const std::size_t sum = total_rows(of, w, t);
      for (std::size_t& rows_of : of) rows_of *= row;
      const std::size_t bytes = sum * row * size_of(w.what.types[t]);
      tensors_.push_back({.in = w.mine->tensors[t].in,
                          .out = output(w, t, bytes, shape_of_rows(w.what, t, sum)),
                          .count = of[static_cast<std::size_t>(comm_.rank())],
                          .type = w.what.types[t],
                          .wire = w.what.types[t]});
    });
    comm_.allgather(tensors_, elements);
  }

  void reduce_scatter(std::span<const work> works, const signature& common) {
    tensors_.clear();
    counts elements;
    const auto p = static_cast<std::size_t>(comm_.size()), me = static_cast<std::size_t>(comm_.rank());
    each(works, [&](const work& w, std::size_t t) {
      row_shares parts = shares_of(w.what, t, me, p);
      const std::size_t bytes = parts.counts[me] * size_of(w.what.types[t]);
      elements.push_back(std::move(parts.counts));
      tensors_.push_back({.in = w.mine->tensors[t].in,
                          .out = output(w, t, bytes, std::move(parts.shape)),
                          .count = w.what.elements(t),
                          .type = w.what.types[t],
                          .wire = wire_of(w.what, t)});
    });
    comm_.reduce_scatter(tensors_, elements, {common.op, common.prescale, common.postscale});
  }

  void alltoall(const work& w, received_rows receive) {
    for (std::size_t t = 0; t != w.what.types.size(); ++t) {
      const tensor& in = w.mine->tensors[t];
      std::vector<std::size_t> send = splits_of(in, static_cast<std::size_t>(comm_.size()));
      const std::size_t rows = total_rows(receive[t], w, t);
      const std::size_t row = w.what.elements(t), bytes = size_of(w.what.types[t]);
      std::byte* const out = output(w, t, rows * row * bytes, shape_of_rows(w.what, t, rows));
      w.end->results[t].received_splits = receive[t];
      for (std::size_t& n : send) n *= row;
      for (std::size_t& n : receive[t]) n *= row;
      comm_.run(alltoall_call{in.in, out, partition(send, bytes), partition(receive[t], bytes)});
    }
  }

  erased_transport& comm_;
  std::size_t threshold_ = 0;
  std::vector<fused> tensors_;
  std::vector<std::byte> zeros_;
};

}  // namespace hvd::inline HVD_ABI::detail
