// hvd/engine/execute.hpp: runs one batch of operations that all ranks have agreed on.
#pragma once

#include <hvd/engine/device.hpp>
#include <hvd/engine/layout.hpp>
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
    if (first.kind == operation::barrier) return;  // done, because all ranks have submitted it
    lay_out(layout_, works, exchange_rows(works), comm_.rank(), comm_.size(), result_memory);
    const dynamic_op op{first.op, first.prescale, first.postscale};
    switch (first.kind) {
      case operation::allreduce:
        add_zeros();
        if (first.op == reduce_op::adasum) return comm_.adasum(layout_.tensors, op.prescale, op.postscale);
        return comm_.allreduce(layout_.tensors, op);
      case operation::broadcast: return comm_.broadcast(layout_.tensors, first.root);
      case operation::allgather: return comm_.allgather(layout_.tensors, layout_.counts);
      case operation::reduce_scatter: return comm_.reduce_scatter(layout_.tensors, layout_.counts, op);
      default: return alltoall(works.front());
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
  template <class F>
  static void each(std::span<const work> works, const F& f) {
    for (const work& w : works) {
      for (std::size_t t = 0; t != w.what.types.size(); ++t) f(w, t);
    }
  }

  received_rows even_rows(std::span<const std::size_t> own, std::span<const work> works) const {
    received_rows rows;
    each(works, [&](const work& w, std::size_t t) {
      rows.emplace_back(static_cast<std::size_t>(comm_.size()), own[rows.size()]);
      total_rows(rows.back(), w, t);
    });
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

  /// A joined rank's tensors: zeros, with place for the result, which it does not use.
  void add_zeros() {
    std::size_t zeros = 0;
    const auto each_missing = [&](const auto& f) {
      for (fused& f_of : layout_.tensors) {
        if (f_of.out == nullptr) f(f_of, f_of.count * size_of(f_of.type) / 64 * 64 + 64);
      }
    };
    each_missing([&](fused&, std::size_t bytes) { zeros += bytes; });
    zeros_.assign(zeros, std::byte{});
    std::byte* zero = zeros_.data();
    each_missing([&](fused& f, std::size_t bytes) {
      f.in = f.out = zero;
      zero += bytes;
    });
  }

  void alltoall(const work& w) {
    for (std::size_t t = 0; t != layout_.tensors.size(); ++t) {
      const fused& f = layout_.tensors[t];
      const std::size_t unit = size_of(f.type);
      comm_.run(
          alltoall_call{f.in, f.out, partition(sent_by(w, t, comm_.size()), unit), partition(layout_.counts[t], unit)});
    }
  }

  erased_transport& comm_;
  std::size_t threshold_ = 0;
  layout layout_;
  std::vector<std::byte> zeros_;
};

}  // namespace hvd::inline HVD_ABI::detail
