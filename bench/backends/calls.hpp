// bench/backends/calls.hpp: from a collective as a value to hvd's call.
#pragma once

#include <bench/job.hpp>

#include <hvd/call.hpp>
#include <hvd/op.hpp>

#include <cstddef>

namespace hvd::bench {

/// f(call) for hvd's call of the collective in a group of `ranks`; nothing for send_recv and barrier, which have none.
template <class F>
void with_call(const call& c, int ranks, const reduction& op, F f) {
  const auto* const in = static_cast<const std::byte*>(c.in);
  auto* const out = static_cast<std::byte*>(c.out);
  const std::size_t unit = hvd::size_of(c.type);
  const auto blocks = [&] { return partition(ranks, c.count, unit); };
  switch (c.kind) {
    case collective::fused:
    case collective::engine:
    case collective::allreduce: return f(allreduce_call{in, out, c.count, op});
    case collective::reduce: return f(reduce_call{in, out, c.count, op, c.root});
    case collective::reduce_scatter: return f(reduce_scatter_call{in, out, blocks(), op});
    case collective::allgather: return f(allgather_call{in, out, blocks()});
    case collective::broadcast: return f(broadcast_call{in, out, c.count * unit, c.root});
    case collective::alltoall: {
      const partition even = blocks();
      return f(alltoall_call{in, out, even, even});
    }
    case collective::gather: return f(gather_call{in, out, blocks(), c.root});
    case collective::scatter: return f(scatter_call{in, out, blocks(), c.root});
    case collective::scan: return f(scan_call{in, out, c.count, op});
    case collective::exscan: return f(exscan_call{in, out, c.count, op});
    case collective::send_recv:
    case collective::barrier: break;
  }
}

}  // namespace hvd::bench
