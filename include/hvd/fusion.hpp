// hvd/fusion.hpp: many tensors in one collective.
#pragma once

#include <hvd/fusion/buffered.hpp>
#include <hvd/fusion/staged.hpp>
#include <hvd/tensors.hpp>
#include <hvd/transport.hpp>

#if HVD_COMPILED
#include <hvd/transport/shm.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// Collectives on batches of tensors: a batch costs as much as one tensor of the same length. Horovod calls this fusion
/// (A. Sergeev, M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018). All calls are
/// collective: the same operation on tensors of the same counts and types, in the same order, on all ranks. (Their
/// addresses may differ.) The types in a batch may differ: each pair of `type` and `wire` is reduced separately.
///
/// On ranks with common memory (ShmTransport, ThreadTransport) there is no buffer: chunks go through the group's
/// staging memory, straight from the tensors and straight into them, while the next chunk is packed
/// (fusion/staged.hpp): 6 - 4/p memory accesses for each byte, as for one long private buffer. Tensors in memory from
/// `bucket` (or `alloc_shared`), at the same offsets on all ranks, are not packed: 2 accesses. On other transports
/// tensors are packed into a buffer of at most `threshold` bytes, each on a cache line, reduced with `automatic`, and
/// unpacked. The buffer is memory from alloc_shared if the transport has it; it is allocated when it is first needed,
/// and doubles as it grows. Packing and unpacking, or the kernels, also scale and convert, without a separate pass.
///
/// All ranks get the same bits, and the same tensors give the same bits in every run with the same threshold and number
/// of ranks. On ranks with common memory a tensor's result does not depend on the rest of the batch, and equals that of
/// hvd::allreduce (for all operations except adasum). Elsewhere a tensor's position in the buffer may decide the order
/// in which an algorithm adds.
///
/// Errors of all calls, before anything is sent: invalid_argument (null with a count, input and output that overlap
/// without being the same, types that cannot be converted, an operation that is not defined for the type, counts that
/// do not fit). Later: mismatch (found before data moves on ranks with common memory), peer_lost, timeout, aborted,
/// no_memory.
template <Transport T>
class FusionBuffer {
 public:
  /// Uses `comm`, which must outlive it. Allocates nothing yet. `threshold`: see threshold().
  explicit FusionBuffer(T& comm, std::size_t threshold = default_fusion_threshold)
      : comm_(comm), fusion_(comm, threshold) {}

  /// The most bytes that travel together through a buffer; 0: each tensor travels by itself, on all transports. A
  /// longer tensor travels alone: without a copy if it is not converted, otherwise in parts. (Adasum and reduce_scatter
  /// cannot cut a tensor: for a long converted tensor, their buffer grows above the threshold.)
  [[nodiscard]] std::size_t threshold() const noexcept { return fusion_.threshold; }
  /// Sets it. Only between calls, and the same on all ranks.
  void threshold(std::size_t bytes) noexcept { fusion_.threshold = bytes; }

  /// out[i] = op over all ranks of in[i], for each tensor. `op` as in all collectives (`hvd::average`,
  /// `hvd::scaled(hvd::sum, 0.5)`), or a reduce_op, whose `adasum` calls the function below. A converted tensor's
  /// result is rounded to the wire type.
  void allreduce(std::span<const fused> tensors, dynamic_op op = {});

  /// Adaptive summation (hvd/algorithm/adasum.hpp); each tensor has its own factors. It uses messages and runs on every
  /// transport that has them (otherwise unsupported). Types: float16, bfloat16, float32 and float64.
  void adasum(std::span<const fused> tensors, double prescale = 1.0, double postscale = 1.0);

  /// `in` of each tensor on root, to `out` on all ranks. `in` is not used elsewhere. No conversion.
  void broadcast(std::span<const fused> tensors, int root);

  /// `in` of each tensor t, which has counts[t][rank] elements, from all ranks to all: `out` has the blocks of all
  /// ranks in rank order. `in` may be this rank's block of `out`. No conversion.
  void allgather(std::span<const fused> tensors, std::span<const std::vector<std::size_t>> counts);

  /// Like allreduce, but rank r gets only block r of each tensor t, of counts[t][r] elements. `out` may be this rank's
  /// block of `in`; the rest of `in` is not changed.
  void reduce_scatter(std::span<const fused> tensors, std::span<const std::vector<std::size_t>> counts,
                      dynamic_op op = {});

  /// Allocates n elements in which tensors are reduced without packing; collective. Fill them, and pass parts of them
  /// as tensors with in == out, at the same offsets on all ranks. If the transport has no shared memory, this is
  /// private memory, with the same results. Errors: those of alloc_shared.
  template <class E>
  [[nodiscard]] shared_array<E> bucket(std::size_t n) {
    if constexpr (requires { comm_.template alloc_shared<E>(n); }) {
      return comm_.template alloc_shared<E>(n);
    } else {
      const std::shared_ptr<E[]> memory(new E[n]());
      return {memory.get(), n, memory};
    }
  }

  /// The current size of this rank's buffer in bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return fusion_.bytes(); }
  /// Frees the buffer. Only between calls, and on all ranks.
  void release() noexcept { fusion_.release(); }

 private:
  [[nodiscard]] detail::fused_arguments check_arguments(operation kind) const {
    return {kind, comm_.rank(), comm_.size()};
  }
  [[nodiscard]] detail::fused_arguments same_length(operation kind, std::span<const fused> tensors) const {
    detail::fused_arguments check = check_arguments(kind);
    check.tensors(
        tensors, [&](std::size_t i) { return std::pair(tensors[i].count, tensors[i].count); },
        [&](std::size_t i) { return tensors[i].in == tensors[i].out; });
    return check;
  }
  [[nodiscard]] std::vector<reduction> reductions(std::span<const detail::fused_vector> vectors,
                                                  const dynamic_op& op) const {
    std::vector<reduction> all;
    for (const detail::fused_vector& v : vectors) all.push_back(make_reduction(v.wire, op, comm_.size()));
    return all;
  }
  template <class F>
  void each_batch(std::span<const fused> tensors, const F& f) {
    if (fusion_.threshold != 0 && comm_.size() != 1) return f(tensors, std::size_t{0});
    for (std::size_t i = 0; i != tensors.size(); ++i) f(tensors.subspan(i, 1), i);
  }

  T& comm_;
  typename detail::fusion_of<T>::type fusion_;
};

// Defined outside of the class: members defined inside are inline, so every file would compile them despite `extern
// template`.

template <Transport T>
void FusionBuffer<T>::allreduce(std::span<const fused> tensors, dynamic_op op) {
  if (op.op == reduce_op::adasum) return adasum(tensors, op.prescale, op.postscale);
  same_length(operation::allreduce, tensors).reduces(tensors, op).check(comm_);
  each_batch(tensors, [&](std::span<const fused> batch, std::size_t) {
    const auto vectors = detail::by_type(
        batch, [&](detail::fused_vector& v, std::size_t i) { v.add(batch[i].in, batch[i].out, batch[i].count, i); });
    const auto ops = reductions(vectors, op);
    fusion_.allreduce(batch, vectors, ops);
  });
}

template <Transport T>
void FusionBuffer<T>::adasum(std::span<const fused> tensors, double prescale, double postscale) {
  detail::fused_arguments check = same_length(operation::allreduce, tensors);
  for (std::size_t i = 0; i != tensors.size(); ++i) {
    if (detail::find_adasum(tensors[i].wire) != nullptr) continue;
    check.refuse(
        {"tensor ", i, ": adasum is for float16, bfloat16, float32 and float64, not for ", hvd::name(tensors[i].wire)});
  }
  check.check(comm_);
  each_batch(tensors, [&](std::span<const fused> batch, std::size_t) {
    const auto vectors = detail::by_type(batch, [&](detail::fused_vector& v, std::size_t i) {
      v.add(batch[i].in, batch[i].out, batch[i].count, i, 1);  // no gaps: they would be tensors too
    });
    const auto ops = reductions(vectors, {reduce_op::sum, prescale, postscale});
    if constexpr (PointToPoint<T>) {
      fusion_.adasum(vectors, ops);
    } else {
      detail::fail(error_kind::unsupported, {"adasum on rank ", comm_.rank(), " of ", comm_.size(),
                                             ": it needs messages, which this transport does not support"});
    }
  });
}

template <Transport T>
void FusionBuffer<T>::broadcast(std::span<const fused> tensors, int root) {
  const bool sends = comm_.rank() == root;
  check_arguments(operation::broadcast)
      .tensors(
          tensors, [&](std::size_t i) { return std::pair(sends ? tensors[i].count : 0, tensors[i].count); },
          [&](std::size_t i) { return tensors[i].in == tensors[i].out; })
      .moves(tensors)
      .root(root)
      .check(comm_);
  each_batch(tensors, [&](std::span<const fused> batch, std::size_t) {
    detail::fused_vector v;
    for (const fused& t : batch) v.add(t.in, t.out, t.count * size_of(t.type), 0);
    fusion_.broadcast(batch, v, root);
  });
}

template <Transport T>
void FusionBuffer<T>::allgather(std::span<const fused> tensors, std::span<const std::vector<std::size_t>> counts) {
  detail::fused_arguments check = check_arguments(operation::allgather);
  check.counts(tensors, counts).check(comm_);
  const std::size_t own = static_cast<std::size_t>(comm_.rank()), ranks = static_cast<std::size_t>(comm_.size());
  check
      .tensors(
          tensors, [&](std::size_t i) { return std::pair(counts[i][own], detail::sum_of(counts[i], ranks)); },
          [&](std::size_t i) {
            return detail::lies_at(tensors[i].in, tensors[i].out,
                                   detail::sum_of(counts[i], own) * size_of(tensors[i].type));
          })
      .moves(tensors)
      .lengths(tensors, "its count for this rank", [&](std::size_t i) { return counts[i][own]; })
      .check(comm_);
  each_batch(tensors, [&](std::span<const fused> batch, std::size_t at) {
    fusion_.allgather(batch, counts.subspan(at, batch.size()));
  });
}

template <Transport T>
void FusionBuffer<T>::reduce_scatter(std::span<const fused> tensors, std::span<const std::vector<std::size_t>> counts,
                                     dynamic_op op) {
  detail::fused_arguments check = check_arguments(operation::reduce_scatter);
  check.counts(tensors, counts).check(comm_);
  const std::size_t own = static_cast<std::size_t>(comm_.rank()), ranks = static_cast<std::size_t>(comm_.size());
  check
      .tensors(
          tensors, [&](std::size_t i) { return std::pair(detail::sum_of(counts[i], ranks), counts[i][own]); },
          [&](std::size_t i) {
            return detail::lies_at(tensors[i].out, tensors[i].in,
                                   detail::sum_of(counts[i], own) * size_of(tensors[i].type));
          })
      .reduces(tensors, op)
      .lengths(tensors, "the sum of its counts", [&](std::size_t i) { return detail::sum_of(counts[i], ranks); })
      .check(comm_);
  each_batch(tensors, [&](std::span<const fused> batch, std::size_t at) {
    const auto vectors = detail::by_type(
        batch, [&](detail::fused_vector& v, std::size_t i) { v.add(batch[i].in, batch[i].out, batch[i].count, i); });
    const auto ops = reductions(vectors, op);
    if constexpr (memory_of<T> == memory_kind::device) {
      fusion_.reduce_scatter(batch, counts.subspan(at, batch.size()), vectors, ops, op);
    } else {
      fusion_.reduce_scatter(batch, counts.subspan(at, batch.size()), vectors, ops);
    }
  });
}

#if HVD_COMPILED
extern template class FusionBuffer<ShmTransport>;
#endif

/// Many tensors, in one collective: `hvd::allreduce(comm, hvd::tensors(a, b, c), hvd::average)`. The lists of all ranks
/// have the same counts and types in the same order; no two tensors overlap, which is checked with HVD_CHECK. Results,
/// errors and cost are those of FusionBuffer. If ranks have no common memory, keeping a FusionBuffer saves the
/// allocation of a buffer in each call.
template <Transport T>
void allreduce(T& comm, const tensor_list& list, dynamic_op op = {}) {
  detail::check_distinct(comm, list);
  FusionBuffer<T>(comm).allreduce(list, op);
}
/// Every rank gets the root's tensors.
template <Transport T>
void broadcast(T& comm, const tensor_list& list, int root = 0) {
  FusionBuffer<T>(comm).broadcast(list, root);
}

}  // namespace hvd::inline HVD_ABI
