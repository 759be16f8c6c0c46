// hvd/engine/execute.hpp: runs one batch of operations that all ranks have agreed on.
#pragma once

#include <hvd/algorithm/automatic.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/engine/plan.hpp>
#include <hvd/fusion.hpp>

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

/// One operation of a batch on this rank.
struct work {
  const signature& what;
  const request* mine = nullptr;  ///< null on a rank that has joined: it gives zeros
  completion* end = nullptr;
};

template <Transport T>
class executor {
 public:
  executor(T& comm, std::size_t threshold) : comm_(comm), buffer_(comm, threshold) {}

  [[nodiscard]] FusionBuffer<T>& buffer() noexcept { return buffer_; }

  /// Runs works that are `fusable`; collective, with the same works in the same order on all ranks.
  void operator()(std::span<const work> works) {
    for (const work& w : works) {
      if (w.end != nullptr) w.end->results.resize(w.what.types.size());
    }
    const signature& first = works.front().what;
    switch (first.kind) {
      case operation::allreduce: return allreduce(works, first);
      case operation::broadcast: return broadcast(works, first.root);
      case operation::allgather: return allgather(works);
      case operation::reduce_scatter: return reduce_scatter(works, first);
      case operation::alltoall: return alltoall(works.front());
      default: return;  // a barrier: done, because all ranks have submitted it
    }
  }

 private:
  using counts = std::vector<std::vector<std::size_t>>;

  template <class F>
  static void each(std::span<const work> works, const F& f) {
    for (const work& w : works) {
      for (std::size_t t = 0; t != w.what.types.size(); ++t) f(w, t);
    }
  }
  /// The caller's memory for the result, or memory of the engine.
  static std::byte* output(const work& w, std::size_t t, std::size_t bytes, std::vector<std::size_t> shape) {
    result& r = w.end->results[t];
    r.type = w.what.types[t];
    r.shape = std::move(shape);
    std::byte* const given = w.mine->tensors[t].out;
    if (given != nullptr && !rows_differ(w.what.kind)) return given;
    r.data = result_memory(bytes);
    return r.data.get();
  }

  /// Rows of tensor `t` of all ranks together. The numbers come from other ranks, so the sum may be too large to
  /// address.
  [[nodiscard]] std::size_t total_rows(std::span<const std::size_t> rows, const work& w, std::size_t t) const {
    const std::size_t row_bytes = w.what.elements(t) * size_of(w.what.types[t]);
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
    zeros_.assign(zeros, std::byte{});  // also holds the result on a joined rank, which is not used
    std::byte* zero = zeros_.data();
    each(works, [&](const work& w, std::size_t t) {
      const std::size_t count = w.what.elements(t), bytes = count * size_of(w.what.types[t]);
      fused f{.in = zero, .out = zero, .count = count, .type = w.what.types[t], .wire = w.what.types[t]};
      if (w.mine != nullptr) {
        f.in = w.mine->tensors[t].in;
        f.out = output(w, t, bytes, w.what.shapes[t]);
      } else {
        zero += bytes + 64 - bytes % 64;
      }
      tensors_.push_back(f);
    });
    if (common.op == reduce_op::adasum) return buffer_.adasum(tensors_, common.prescale, common.postscale);
    buffer_.allreduce(tensors_, common.op, common.prescale, common.postscale);
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
    buffer_.broadcast(tensors_, root);
  }

  void allgather(std::span<const work> works) {
    // How many rows each rank has of each tensor.
    std::vector<std::uint64_t> rows;
    each(works, [&](const work& w, std::size_t t) { rows.push_back(w.mine->tensors[t].shape.front()); });
    const std::size_t n = rows.size(), p = static_cast<std::size_t>(comm_.size());
    std::vector<std::uint64_t> all(n * p);
    const partition blocks(comm_.size(), n, sizeof(std::uint64_t));
    const auto* const own = reinterpret_cast<const std::byte*>(rows.data());
    run(comm_, allgather_call{own, reinterpret_cast<std::byte*>(all.data()), blocks}, automatic<>{});

    tensors_.clear();
    counts elements;
    each(works, [&](const work& w, std::size_t t) {
      const std::size_t index = tensors_.size(), row = w.what.elements(t);
      std::vector<std::size_t>& of = elements.emplace_back(p);
      for (std::size_t r = 0; r != p; ++r) of[r] = all[r * n + index];
      const std::size_t sum = total_rows(of, w, t);
      for (std::size_t& rows_of : of) rows_of *= row;
      std::vector<std::size_t> shape{sum};
      shape.insert(shape.end(), w.what.shapes[t].begin(), w.what.shapes[t].end());
      const std::size_t bytes = sum * row * size_of(w.what.types[t]);
      tensors_.push_back({.in = w.mine->tensors[t].in,
                          .out = output(w, t, bytes, std::move(shape)),
                          .count = of[static_cast<std::size_t>(comm_.rank())],
                          .type = w.what.types[t],
                          .wire = w.what.types[t]});
    });
    buffer_.allgather(tensors_, elements);
  }

  void reduce_scatter(std::span<const work> works, const signature& common) {
    tensors_.clear();
    counts elements;
    each(works, [&](const work& w, std::size_t t) {
      const std::size_t rows = w.what.shapes[t].front();
      const std::size_t row = rows == 0 ? 0 : w.what.elements(t) / rows;
      const std::size_t p = static_cast<std::size_t>(comm_.size());
      const std::size_t mine = share_of(rows, static_cast<std::size_t>(comm_.rank()), p);
      std::vector<std::size_t>& of = elements.emplace_back(p);
      for (std::size_t r = 0; r != p; ++r) of[r] = share_of(rows, r, p) * row;
      std::vector<std::size_t> shape = w.what.shapes[t];
      shape.front() = mine;
      tensors_.push_back({.in = w.mine->tensors[t].in,
                          .out = output(w, t, mine * row * size_of(w.what.types[t]), std::move(shape)),
                          .count = w.what.elements(t),
                          .type = w.what.types[t],
                          .wire = w.what.types[t]});
    });
    buffer_.reduce_scatter(tensors_, common.op, common.prescale, common.postscale, elements);
  }

  void alltoall(const work& w) {
    const auto p = static_cast<std::size_t>(comm_.size());
    for (std::size_t t = 0; t != w.what.types.size(); ++t) {
      const tensor& in = w.mine->tensors[t];
      std::vector<std::size_t> send = in.splits, receive(p);
      if (send.empty()) send.assign(p, in.shape.front() / p);
      const partition one(comm_.size(), 1, sizeof(std::size_t));
      run(comm_,
          alltoall_call{reinterpret_cast<const std::byte*>(send.data()), reinterpret_cast<std::byte*>(receive.data()),
                        one, one},
          automatic<>{});
      const std::size_t rows = total_rows(receive, w, t);
      const std::size_t row = w.what.elements(t), bytes = size_of(w.what.types[t]);
      std::vector<std::size_t> shape{rows};
      shape.insert(shape.end(), w.what.shapes[t].begin(), w.what.shapes[t].end());
      std::byte* const out = output(w, t, rows * row * bytes, std::move(shape));
      w.end->results[t].received_splits = receive;
      for (std::size_t r = 0; r != p; ++r) {
        send[r] *= row;
        receive[r] *= row;
      }
      run(comm_, alltoall_call{in.in, out, partition(send, bytes), partition(receive, bytes)}, automatic<>{});
    }
  }

  T& comm_;
  FusionBuffer<T> buffer_;
  std::vector<fused> tensors_;
  std::vector<std::byte> zeros_;
};

}  // namespace hvd::inline HVD_ABI::detail
