// collective.hpp: one collective of torch.distributed, as Python describes it.
#pragma once

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/dtype.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <vector>

namespace hvd_python {

/// The reductions of torch.distributed, in its order.
enum class torch_op : unsigned char { sum, average, product, min, max, bit_and, bit_or, bit_xor };

/// One collective. Counts are in elements of `type`.
struct collective {
  hvd::operation kind = hvd::operation::barrier;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::size_t count = 0;  ///< in the whole vector, or in one of several equal blocks
  hvd::dtype type = hvd::dtype::uint8;
  torch_op op = torch_op::sum;
  double factor = 1.0;  ///< of each input
  int root = 0;
  bool may_share = false;               ///< for an allreduce in place, the same on all ranks: ranks exchange `file`
  int file = -1;                        ///< descriptor of the buffer's shared memory, which other ranks may map
  std::vector<std::size_t> send, recv;  ///< elements of each block if blocks differ; `recv` also for an allgather

  /// Bytes of this rank's input in a group of `ranks` ranks.
  [[nodiscard]] std::uint64_t input_bytes(int ranks) const noexcept {
    std::size_t elements = count;
    if (!send.empty()) {
      elements = std::accumulate(send.begin(), send.end(), std::size_t{0});
    } else if (kind == hvd::operation::reduce_scatter || kind == hvd::operation::alltoall) {
      elements *= static_cast<std::size_t>(ranks);
    }
    return elements * hvd::size_of(type);
  }
};

/// A bitwise operation on elements of `type`, by their size.
template <template <class> class Bits>
hvd::reduction reduce_bits(hvd::dtype type, int size) {
  using enum hvd::dtype;
  switch (type) {
    case boolean:
    case int8:
    case uint8: return hvd::make_reduction<std::uint8_t>(Bits<std::uint8_t>(), size);
    case int16:
    case uint16: return hvd::make_reduction<std::uint16_t>(Bits<std::uint16_t>(), size);
    case int32:
    case uint32: return hvd::make_reduction<std::uint32_t>(Bits<std::uint32_t>(), size);
    case int64:
    case uint64: return hvd::make_reduction<std::uint64_t>(Bits<std::uint64_t>(), size);
    default:
      hvd::detail::fail(hvd::error_kind::invalid_argument,
                        {"bitwise operations of ", hvd::name(type), " are not defined; allowed: integers and bool"});
  }
}

/// The sum of bool is the logical or, and its product the logical and, as in NCCL's process group.
inline hvd::reduction reduction_of(const collective& c, int size) {
  using hvd::reduce_op;
  const bool truth = c.type == hvd::dtype::boolean;
  const auto make = [&](reduce_op op) { return hvd::make_reduction(c.type, op, size, c.factor); };
  switch (c.op) {
    case torch_op::sum: return make(truth ? reduce_op::max : reduce_op::sum);
    case torch_op::average: return make(reduce_op::average);
    case torch_op::product: return make(truth ? reduce_op::min : reduce_op::product);
    case torch_op::min: return make(reduce_op::min);
    case torch_op::max: return make(reduce_op::max);
    case torch_op::bit_and: return reduce_bits<std::bit_and>(c.type, size);
    case torch_op::bit_or: return reduce_bits<std::bit_or>(c.type, size);
    default: return reduce_bits<std::bit_xor>(c.type, size);
  }
}

/// Runs a collective on any transport, by the algorithm `how`. The caller has checked the buffers.
template <hvd::Transport T, class Algorithm = hvd::automatic<>>
void run_on(T& comm, const collective& c, const Algorithm& how = {}) {
  const std::size_t unit = hvd::size_of(c.type);
  const auto go = [&](const auto& call) { hvd::detail::run(comm, call, how); };
  const auto blocks = [&](const std::vector<std::size_t>& counts) {
    return counts.empty() ? hvd::partition(comm.size(), c.count, unit) : hvd::partition(counts, unit);
  };
  using hvd::operation;
  switch (c.kind) {
    case operation::barrier: return comm.barrier();
    case operation::allreduce: return go(hvd::allreduce_call{c.in, c.out, c.count, reduction_of(c, comm.size())});
    case operation::reduce: return go(hvd::reduce_call{c.in, c.out, c.count, reduction_of(c, comm.size()), c.root});
    case operation::reduce_scatter:
      return go(hvd::reduce_scatter_call{c.in, c.out, blocks(c.send), reduction_of(c, comm.size())});
    case operation::allgather: return go(hvd::allgather_call{c.in, c.out, blocks(c.recv)});
    case operation::broadcast: return go(hvd::broadcast_call{c.in, c.out, c.count * unit, c.root});
    case operation::alltoall: return go(hvd::alltoall_call{c.in, c.out, blocks(c.send), blocks(c.recv)});
    case operation::gather: return go(hvd::gather_call{c.in, c.out, blocks(c.recv), c.root});
    case operation::scatter: return go(hvd::scatter_call{c.in, c.out, blocks(c.send), c.root});
    default:
      hvd::detail::fail(hvd::error_kind::invalid_argument, {hvd::name(c.kind), " is not a collective of a group"});
  }
}

}  // namespace hvd_python
