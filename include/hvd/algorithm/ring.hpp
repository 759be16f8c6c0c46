// hvd/algorithm/ring.hpp: collectives by messages between neighbours in a ring; for large messages.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// Ranks in a ring: rank r sends to r + 1 and receives from r - 1. With S the bytes of the whole vector and p
/// the number of ranks, the critical path of one rank is
///
/// | call           | bytes sent     | steps           | temporary memory            |
/// |----------------|----------------|-----------------|-----------------------------|
/// | allreduce      | 2 S (p-1)/p    | 2 (p-1)         | one chunk                   |
/// | reduce_scatter | S - a block    | p-1             | largest block and one chunk |
/// | allgather      | S - a block    | p-1             | none                        |
/// | alltoall       | S - own block  | p-1             | none; in place: S           |
/// | broadcast      | S              | p-2 + S/chunk   | none                        |
///
/// A step is one message, or one for each chunk if data is reduced. Bytes are optimal for allreduce: P. Patarasuk, X.
/// Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. Steps grow with p, so small
/// messages need another algorithm.
///
/// The sum of a block starts at the rank after its owner and goes around: the same bits on all ranks and in
/// every run, but not in rank order.
struct ring {
  static constexpr bool rank_ordered = false;

  /// Bytes that are received before they are reduced; equal on all ranks. Small enough that a chunk, the rank's own
  /// data for it and the result fit into the second-level cache together; while a rank reduces a chunk, its predecessor
  /// already sends the next one, as far as the transport buffers. (16 MiB between 2 threads: 64 KiB to 1 MiB are equal
  /// within 2 %, 16 KiB takes 27 % more time, 8 MiB 8 %.) At least one element is taken, even for smaller values.
  std::size_t chunk_bytes = detail::ring_chunk_bytes;

  friend constexpr bool operator==(const ring&, const ring&) = default;

  template <PointToPoint T>
  void operator()(T& t, const allreduce_call& c) const {
    const detail::even_blocks blocks(t.size(), c.count, c.op.element_bytes);
    reduce_around(t, c.in, blocks, c.op, [&](int block) { return c.out + blocks.offset(block); });
    pass_around(t, c.out, blocks);
  }

  template <PointToPoint T>
  void operator()(T& t, const reduce_scatter_call& c) const {
    const int rank = t.rank();
    // Memory for a block on its way around: `in` must not change.
    const detail::temporary partial(t.size() > 2 || c.op.prepares() ? c.blocks.max_bytes() : 0);
    reduce_around(t, c.in, c.blocks, c.op, [&](int block) { return block == rank ? c.out : partial.data(); });
  }

  template <PointToPoint T>
  void operator()(T& t, const allgather_call& c) const {
    std::byte* const own = c.out + c.blocks.offset(t.rank());
    if (c.in != own) detail::copy_bytes(own, c.in, c.blocks.bytes(t.rank()));
    pass_around(t, c.out, c.blocks);
  }

  /// Pairwise: in step s to rank + s and from rank - s.
  template <PointToPoint T>
  void operator()(T& t, const alltoall_call& c) const {
    const int p = t.size();
    const int rank = t.rank();
    // In place works on a copy, so that ranks in place and ranks out of place exchange the same messages.
    const detail::temporary saved(c.in == c.out ? c.send.total_bytes() : 0);
    const std::byte* in = c.in;
    if (c.in == c.out) {
      detail::copy_bytes(saved.data(), c.in, c.send.total_bytes());
      in = saved.data();
    }
    detail::copy_bytes(c.out + c.recv.offset(rank), in + c.send.offset(rank), c.send.bytes(rank));
    for (int s = 1; s < p; ++s) {
      const int to = detail::around(rank + s, p);
      const int from = detail::around(rank - s, p);
      t.exchange(in + c.send.offset(to), c.send.bytes(to), to, c.out + c.recv.offset(from), c.recv.bytes(from), from);
    }
  }

  /// A chain from the root around the ring; a rank passes a chunk on while it receives the next.
  template <PointToPoint T>
  void operator()(T& t, const broadcast_call& c) const {
    const int p = t.size();
    const int rank = t.rank();
    const int next = detail::around(rank + 1, p);
    const int previous = detail::around(rank - 1, p);
    const bool first = rank == c.root;
    const bool last = next == c.root;
    const std::byte* const data = first ? c.in : c.out;
    const std::size_t chunk = detail::chunk_elements(chunk_bytes, 1, c.bytes);
    const auto length_at = [&](std::size_t at) { return std::min(chunk, c.bytes - at); };
    std::size_t at = 0;
    if (!first) t.recv(c.out, length_at(0), previous);
    for (; c.bytes - at > chunk; at += chunk) {
      const std::size_t ahead = at + chunk;
      if (first && !last) {
        t.send(data + at, chunk, next);
      } else if (last && !first) {
        t.recv(c.out + ahead, length_at(ahead), previous);
      } else if (!first) {
        t.exchange(data + at, chunk, next, c.out + ahead, length_at(ahead), previous);
      }
    }
    if (!last) t.send(data + at, length_at(at), next);
    if (first && c.out != c.in) detail::copy_bytes(c.out, c.in, c.bytes);
  }

 private:
  /// Leaves the finished reduction of block r in memory_of(r) on rank r. A block that goes around is kept in
  /// memory_of(block) from its arrival till it is sent on; the next one may have the same memory.
  template <PointToPoint T, class Blocks, class Memory>
  void reduce_around(T& t, const std::byte* in, const Blocks& blocks, const reduction& op, Memory memory_of) const {
    const int p = t.size();
    const int rank = t.rank();
    const std::size_t unit = op.element_bytes;
    const std::size_t chunk = detail::chunk_elements(chunk_bytes, unit, blocks.max_bytes() / unit);
    const detail::temporary received(p > 1 ? chunk * unit : 0);
    // This rank's input, prepared if it has to be; each part is requested once.
    const auto own = [&](int block, std::size_t at, std::size_t n) -> const std::byte* {
      const std::byte* const part = in + blocks.offset(block) + at * unit;
      if (!op.prepares()) return part;
      op.prepare(memory_of(block) + at * unit, part, n);
      return memory_of(block) + at * unit;
    };
    const auto length_at = [&](int block, std::size_t at) {
      return at < blocks.count(block) ? std::min(chunk, blocks.count(block) - at) : 0;
    };
    if (p == 1) {
      op.prepare(memory_of(0), in, blocks.count(0));
      op.finish(memory_of(0), blocks.count(0));
    }
    const int to = detail::around(rank + 1, p);
    const int from = detail::around(rank - 1, p);
    for (int step = 0; step < p - 1; ++step) {
      const int leaving = detail::around(rank - 1 - step, p);
      const int arriving = detail::around(rank - 2 - step, p);
      const std::size_t most = std::max(blocks.count(leaving), blocks.count(arriving));
      for (std::size_t at = 0; at == 0 || at < most; at += chunk) {
        const std::size_t leaving_now = length_at(leaving, at);
        const std::size_t n = length_at(arriving, at);
        const std::byte* out = nullptr;
        if (leaving_now != 0) {
          out = step == 0 ? own(leaving, at, leaving_now) : memory_of(leaving) + at * unit;
        }
        if (at == 0) {
          t.exchange(out, leaving_now * unit, to, received.data(), n * unit, from);
        } else {
          detail::exchange_rest(t, out, leaving_now * unit, to, received.data(), n * unit, from);
        }
        if (n == 0) continue;
        std::byte* const result = memory_of(arriving) + at * unit;
        op.combine(result, received.data(), own(arriving, at, n), n);
        if (step == p - 2) op.finish(result, n);
      }
    }
  }

  /// From block r on rank r to all blocks on all ranks.
  template <PointToPoint T, class Blocks>
  static void pass_around(T& t, std::byte* out, const Blocks& blocks) {
    const int p = t.size();
    const int rank = t.rank();
    const int to = detail::around(rank + 1, p);
    const int from = detail::around(rank - 1, p);
    for (int step = 0; step < p - 1; ++step) {
      const int leaving = detail::around(rank - step, p);
      const int arriving = detail::around(rank - 1 - step, p);
      t.exchange(out + blocks.offset(leaving), blocks.bytes(leaving), to, out + blocks.offset(arriving),
                 blocks.bytes(arriving), from);
    }
  }
};

/// The algorithm with its tunables, for messages and bench output.
inline std::string name(const ring& a) { return detail::joined({"ring(chunk_bytes=", a.chunk_bytes, ")"}); }

}  // namespace hvd::inline HVD_ABI
