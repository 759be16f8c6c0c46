// hvd/fusion/device.hpp: the collectives on many tensors of a GPU, as batches.
#pragma once

#include <hvd/call.hpp>
#include <hvd/cuda/copy.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/fusion/device_batches.hpp>
#include <hvd/fusion/pack.hpp>
#include <hvd/fusion/staged.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/nccl.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Tensors of at least this size travel without a copy: one more call of NCCL in the group costs less.
inline constexpr std::size_t device_direct_bytes = std::size_t{1} << 20;

/// The alignment of tensors in the buffer, in bytes: the unit in which a GPU's memory is read and written.
inline constexpr std::size_t device_alignment = 128;

/// A batch that reduces each part of the vectors. A part without addresses belongs to a joined rank and contributes
/// zeros. `alike`: whether every rank's tensor, by its index, lies alike in registered memory; empty: all do. Others
/// travel in the buffer, which is registered on all ranks or on none.
inline std::shared_ptr<device_batch> device_allreduce(nccl_group& group, std::vector<fused_vector> vectors,
                                                      std::span<const reduction> ops,
                                                      const std::vector<bool>& alike = {}) {
  struct side {
    fused_vector vector;
    reduction op;
    nccl_reduction how;
    std::vector<fused_part> direct{};
    std::size_t start = 0;  // of the packed ones in the buffer
  };
  auto batch = std::make_shared<device_batch>();
  auto sides = std::make_shared<std::vector<side>>();
  std::size_t total = 0;
  for (const fused_vector& v : vectors) total += v.parts.size();
  std::size_t end = 0;
  for (std::size_t i = 0; i != vectors.size(); ++i) {
    side s{fused_vector(vectors[i].type, vectors[i].wire), ops[i],
           nccl_reduction_of(ops[i], group.size(), group.average(), operation::allreduce)};
    for (const fused_part& p : vectors[i].parts) {
      const bool alone = total == 1 || p.count * s.vector.unit >= device_direct_bytes;
      const bool same = alike.empty() || alike[p.index];
      if (alone && same && !s.vector.converts() && !s.how.rest.prescales()) {
        s.direct.push_back(p);
        if (p.out != nullptr || p.count == 0) continue;
        // Not in the buffer, which has one length on all ranks.
        const std::size_t bytes = p.count * s.vector.unit;
        const auto& zeros = batch->kept.emplace_back(cuda_memory(group.device(), bytes));
        s.direct.back().in = s.direct.back().out = static_cast<std::byte*>(zeros.get());
        batch->zeros.emplace_back(s.direct.back().out, bytes);
      } else {
        s.vector.add(p.in, p.out, p.count, p.index, device_alignment);
      }
    }
    s.start = end;
    end = round_up(end + s.vector.length * s.vector.unit, device_alignment);
    sides->push_back(std::move(s));
  }
  batch->what = "allreduce";
  batch->buffer_bytes = end;
  batch->place = [sides, b = batch.get()](std::byte* buffer) {
    for (side& s : *sides) {
      device_copy in{s.vector.type, s.vector.wire, s.how.rest.pre, 1, {}};
      device_copy out{s.vector.wire, s.vector.type, s.how.rest.post, s.how.rest.divisor, {}};
      for (const fused_part& p : s.vector.parts) {
        std::byte* const at = buffer + s.start + p.start * s.vector.unit;
        if (p.out == nullptr) {
          b->zeros.emplace_back(at, p.count * s.vector.unit);
        } else {
          in.parts.push_back({p.in, at, p.count});
          out.parts.push_back({at, p.out, p.count});
        }
      }
      for (const fused_part& p : s.direct) {
        if (s.how.rest.postscales()) out.parts.push_back({p.out, p.out, p.count});
      }
      b->before.push_back(std::move(in));
      b->after.push_back(std::move(out));
    }
    b->calls = [sides, buffer](nccl_group_call& calls) {
      for (const side& s : *sides) {
        nccl_reduction how = s.how;
        if (how.multiplies) how.op = calls.multiply(s.op.type, how.type);
        for (const fused_part& p : s.direct) calls.add(allreduce_call{p.in, p.out, p.count, s.op}, how);
        std::byte* const at = buffer + s.start;
        if (s.vector.length != 0) calls.add(allreduce_call{at, at, s.vector.length, s.op}, how);
      }
    };
  };
  std::erase_if(*sides, [](const side& s) { return s.direct.empty() && s.vector.parts.empty(); });
  return batch;
}

/// A batch of broadcasts, in one group.
inline std::shared_ptr<device_batch> device_broadcast(std::vector<fused_part> parts, int root) {
  auto batch = std::make_shared<device_batch>();
  batch->what = "broadcast";
  batch->calls = [parts = std::move(parts), root](nccl_group_call& calls) {
    for (const fused_part& p : parts) calls.add(broadcast_call{p.in, p.out, p.count, root});
  };
  return batch;
}

/// A batch of allgathers: `counts[t][r]` elements of tensor t come from rank r.
inline std::shared_ptr<device_batch> device_allgather(std::vector<fused> tensors,
                                                      std::vector<std::vector<std::size_t>> counts) {
  auto batch = std::make_shared<device_batch>();
  batch->what = "allgather";
  batch->calls = [tensors = std::move(tensors), counts = std::move(counts)](nccl_group_call& calls) {
    for (std::size_t t = 0; t != tensors.size(); ++t) {
      const fused& f = tensors[t];
      calls.add(allgather_call{f.in, f.out, partition_of(counts[t], size_of(f.type))});
    }
  };
  return batch;
}

/// A batch of reduce_scatters: rank r gets `counts[t][r]` elements of tensor t. `alike` as in device_allreduce.
inline std::shared_ptr<device_batch> device_reduce_scatter(nccl_group& group, std::vector<fused> tensors,
                                                           std::vector<std::vector<std::size_t>> counts,
                                                           const dynamic_op& op, const std::vector<bool>& alike = {}) {
  struct side {
    fused tensor;
    reduction op;
    nccl_reduction how;
    std::size_t own, in, out;  // elements of this rank; offsets of copies in the buffer
    bool copies;
  };
  const auto me = static_cast<std::size_t>(group.rank());
  auto batch = std::make_shared<device_batch>();
  auto sides = std::make_shared<std::vector<side>>();
  std::size_t end = 0;
  const auto take = [&](std::size_t bytes) { return std::exchange(end, round_up(end + bytes, device_alignment)); };
  for (std::size_t t = 0; t != tensors.size(); ++t) {
    const fused& f = tensors[t];
    const reduction r = make_reduction(f.wire, op, group.size());
    side s{f, r,    nccl_reduction_of(r, group.size(), group.average(), operation::reduce_scatter), counts[t][me], 0,
           0, false};
    s.copies = f.wire != f.type || s.how.rest.prescales() || (!alike.empty() && !alike[t]);
    if (s.copies) {
      s.in = take(f.count * size_of(f.wire));
      // Of the longest part: the buffer has one length on all ranks.
      s.out = take(*std::max_element(counts[t].begin(), counts[t].end()) * size_of(f.wire));
    }
    sides->push_back(s);
  }
  batch->what = "reduce_scatter";
  batch->buffer_bytes = end;
  const auto counts_of = std::make_shared<std::vector<std::vector<std::size_t>>>(std::move(counts));
  batch->place = [sides, counts_of, b = batch.get()](std::byte* buffer) {
    for (const side& s : *sides) {
      const fused& f = s.tensor;
      if (s.copies) b->before.push_back({f.type, f.wire, s.how.rest.pre, 1, {{f.in, buffer + s.in, f.count}}});
      if (s.copies || s.how.rest.postscales()) {
        b->after.push_back(
            {f.wire, f.type, s.how.rest.post, s.how.rest.divisor, {{s.copies ? buffer + s.out : f.out, f.out, s.own}}});
      }
    }
    b->calls = [sides, counts_of, buffer](nccl_group_call& calls) {
      for (std::size_t t = 0; t != sides->size(); ++t) {
        const side& s = (*sides)[t];
        nccl_reduction how = s.how;
        if (how.multiplies) how.op = calls.multiply(s.op.type, how.type);
        calls.add(reduce_scatter_call{s.copies ? buffer + s.in : s.tensor.in, s.copies ? buffer + s.out : s.tensor.out,
                                      partition_of((*counts_of)[t], size_of(s.tensor.wire)), s.op},
                  how);
      }
    };
  };
  return batch;
}

/// FusionBuffer on an NcclTransport: batches as above, and each call waits.
class device_fusion {
 public:
  device_fusion(NcclTransport& comm, std::size_t most) : threshold(most), batches_(comm.group()) {}

  std::size_t threshold;
  [[nodiscard]] std::size_t bytes() const noexcept { return batches_.bytes(); }
  void release() noexcept { batches_.release(); }

  void allreduce(std::span<const fused>, std::span<const fused_vector> vectors, std::span<const reduction> ops) {
    for (std::size_t i = 0; i != vectors.size(); ++i) {
      const fused_vector& v = vectors[i];
      std::vector<fused_vector> round{fused_vector(v.type, v.wire)};
      std::size_t bytes = 0;
      for (const fused_part& p : v.parts) {
        check(operation::allreduce, p.in, p.out, p.count * v.side_unit, p.count * v.side_unit);
        if (bytes != 0 && bytes + p.count * v.unit > threshold) {
          run(device_allreduce(group(), std::exchange(round, {fused_vector(v.type, v.wire)}), ops.subspan(i, 1)));
          bytes = 0;
        }
        round[0].add(p.in, p.out, p.count, p.index, device_alignment);
        bytes += p.count * v.unit;
      }
      run(device_allreduce(group(), std::move(round), ops.subspan(i, 1)));
    }
  }
  void broadcast(std::span<const fused>, const fused_vector& v, int root) {
    for (const fused_part& p : v.parts) {
      check(operation::broadcast, p.in, p.out, group().rank() == root ? p.count : 0, p.count);
    }
    run(device_broadcast(v.parts, root));
  }
  void allgather(std::span<const fused> tensors, std::span<const std::vector<std::size_t>> counts) {
    check_blocks(operation::allgather, tensors, counts);
    run(device_allgather({tensors.begin(), tensors.end()}, {counts.begin(), counts.end()}));
  }
  void reduce_scatter(std::span<const fused> tensors, std::span<const std::vector<std::size_t>> counts,
                      std::span<const fused_vector> /*vectors*/, std::span<const reduction> /*ops*/,
                      const dynamic_op& op) {
    check_blocks(operation::reduce_scatter, tensors, counts);
    run(device_reduce_scatter(group(), {tensors.begin(), tensors.end()}, {counts.begin(), counts.end()}, op));
  }

 private:
  [[nodiscard]] nccl_group& group() noexcept { return batches_.group(); }
  void check(operation kind, const std::byte* in, const std::byte* out, std::size_t in_bytes, std::size_t out_bytes) {
    group().check_memory(kind, "input", in, in_bytes);
    group().check_memory(kind, "output", out, out_bytes);
  }
  void check_blocks(operation kind, std::span<const fused> tensors, std::span<const std::vector<std::size_t>> counts) {
    const auto me = static_cast<std::size_t>(group().rank()), ranks = static_cast<std::size_t>(group().size());
    for (std::size_t t = 0; t != tensors.size(); ++t) {
      const std::size_t unit = size_of(tensors[t].type), own = counts[t][me] * unit,
                        all = sum_of(counts[t], ranks) * unit;
      const bool gathers = kind == operation::allgather;
      check(kind, tensors[t].in, tensors[t].out, gathers ? own : all, gathers ? all : own);
    }
  }
  void run(const std::shared_ptr<device_batch>& batch) {
    device_batch& b = *batch;
    batches_.start(batch);
    nccl_communicator& comm = group().communicator();
    comm.await(b.what, comm.options().timeout, [&] { return batches_.poll(b); });
  }

  device_batches batches_;
};
template <>
struct fusion_of<NcclTransport> {
  using type = device_fusion;
};

}  // namespace hvd::inline HVD_ABI::detail
