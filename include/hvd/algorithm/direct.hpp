// hvd/algorithm/direct.hpp: every collective by loads and stores in the peers' memory.
#pragma once

#include <hvd/algorithm/direct_cells.hpp>
#include <hvd/algorithm/direct_lines.hpp>
#include <hvd/algorithm/direct_mapped.hpp>
#include <hvd/topology.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// The algorithm for ranks with common memory. Inputs of all ranks are reduced at once by one n-ary kernel, in rank
/// order: the same bits on every rank and in every run, and 16-bit floats are rounded once. Three protocols, by size
/// and kind of buffer:
///  * lines: small messages. One synchronisation; every rank reads every payload (detail in direct_lines.hpp).
///  * cells: large messages in private buffers. Pipelined through staging memory that stays in cache; 5 - 2/p
///    accesses for each byte of an allreduce on p ranks (direct_cells.hpp).
///  * mapped: buffers from alloc_shared. 2 accesses for each byte, the lower bound (direct_mapped.hpp).
/// Tunables must be equal on all ranks.
struct direct {
  static constexpr bool rank_ordered = true;

  /// The largest payload, in bytes, that goes through lines in a reduction; 0 derives it from the number of ranks.
  std::size_t line_bytes = 0;
  /// The same where data is only copied.
  std::size_t copy_line_bytes = 4096;
  /// Bytes that a rank stages at a time; 0 derives them from the number of ranks.
  std::size_t chunk_bytes = 0;
  /// Buffers from alloc_shared are used in place from this size.
  std::size_t mapped_bytes = std::size_t{16} << 10;

  friend constexpr bool operator==(const direct&, const direct&) = default;

  template <PeerMemory T>
  void operator()(T& t, const allreduce_call& c) const {
    reduce_to(t.peers(), c, c.in, c.out, -1);
  }
  template <PeerMemory T>
  void operator()(T& t, const reduce_call& c) const {
    reduce_to(t.peers(), c, c.in, t.rank() == c.root ? c.out : nullptr, c.root);
  }
  template <PeerMemory T>
  void operator()(T& t, const reduce_scatter_call& c) const {
    detail::peer_memory& m = t.peers();
    run(m, c, c.blocks.total_bytes(), reduction_lines(m), c.in, c.blocks.total_bytes(),
        [](const auto& b) { return b.all_inputs(); }, [&](const auto& b) { detail::run_mapped(m, b, c); });
  }
  template <PeerMemory T>
  void operator()(T& t, const allgather_call& c) const {
    detail::peer_memory& m = t.peers();
    run(m, c, c.blocks.max_bytes(), copy_lines(m), c.in, c.blocks.bytes(m.rank()),
        [](const auto& b) { return b.all_inputs(); },
        [&](const auto& b) { detail::run_mapped(m, b, c.out, c.blocks, -1); });
  }
  template <PeerMemory T>
  void operator()(T& t, const gather_call& c) const {
    detail::peer_memory& m = t.peers();
    run(m, c, c.blocks.max_bytes(), copy_lines(m), c.in, c.blocks.bytes(m.rank()),
        [](const auto& b) { return b.all_inputs(); },
        [&](const auto& b) { detail::run_mapped(m, b, c.out, c.blocks, c.root); });
  }
  template <PeerMemory T>
  void operator()(T& t, const broadcast_call& c) const {
    detail::peer_memory& m = t.peers();
    run(m, c, c.bytes, copy_lines(m), c.in, m.rank() == c.root ? c.bytes : 0,
        [&](const auto& b) { return b.input_of(c.root); }, [&](const auto& b) { detail::run_mapped(m, b, c); });
  }
  template <PeerMemory T>
  void operator()(T& t, const scatter_call& c) const {
    detail::peer_memory& m = t.peers();
    run(m, c, c.blocks.total_bytes(), copy_lines(m), c.in, m.rank() == c.root ? c.blocks.total_bytes() : 0,
        [&](const auto& b) { return b.input_of(c.root); }, [&](const auto& b) { detail::run_mapped(m, b, c); });
  }
  template <PeerMemory T>
  void operator()(T& t, const alltoall_call& c) const {
    detail::peer_memory& m = t.peers();
    detail::peer_memory::scope scope(m, name(c.kind));
    if (!c.send.uniform() || !c.recv.uniform()) {
      const detail::count_matrix counts = detail::exchange_counts(m, c, scope);
      detail::run_cells(m, c, counts.largest_block(), chunk(m));
    } else if (c.send.total_bytes() <= copy_lines(m)) {
      detail::run_lines(m, c);
    } else {
      detail::descriptor d = detail::describe(c);
      if (c.in != c.out) detail::locate(m, d, c.in, c.send.total_bytes(), nullptr, 0);
      const detail::mapped_buffers buffers(m, detail::agree(m, d, scope));
      if (c.send.total_bytes() >= mapped_bytes && buffers.all_inputs()) {
        detail::run_mapped(m, buffers, c);
      } else {
        detail::run_cells(m, c, c.send.count(0), chunk(m));
      }
    }
    scope.leave();
  }

 private:
  /// One-shot against two-shot: with alpha for a synchronisation (0.3 us) and beta for an access (20 GB/s) they are
  /// equal at alpha / (beta (p - 2 + 2/p)): 6 KB at 2 ranks, 1 KB at 8.
  [[nodiscard]] std::size_t reduction_lines(const detail::peer_memory& m) const {
    const std::size_t p = static_cast<std::size_t>(m.size());
    const std::size_t derived = 1536 * p / (p * p - 2 * p + 2);
    return std::min(line_bytes != 0 ? line_bytes : derived, m.line_capacity());
  }
  [[nodiscard]] std::size_t copy_lines(const detail::peer_memory& m) const {
    return std::min(copy_line_bytes, m.line_capacity());
  }
  [[nodiscard]] std::size_t chunk(const detail::peer_memory& m) const {
    const std::size_t derived = std::max<std::size_t>(std::size_t{64} << 10, static_cast<std::size_t>(m.size()) * 4096);
    return std::min<std::size_t>(chunk_bytes != 0 ? chunk_bytes : derived, m.shape().cell_bytes);
  }
  /// Outputs that fill the last-level cache, and were not just read as inputs, go past the caches: that saves the read
  /// for ownership of each line.
  [[nodiscard]] static bool streams(const detail::peer_memory& m, std::size_t bytes) {
    return bytes * static_cast<std::size_t>(m.size()) > std::max<std::size_t>(host().l3, std::size_t{1} << 24) / 4 * 3;
  }
  template <class Call>
  void reduce_to(detail::peer_memory& m, const Call& c, const std::byte* in, std::byte* out, int root) const {
    const std::size_t bytes = c.count * c.op.element_bytes;
    detail::peer_memory::scope scope(m, name(c.kind));
    if (bytes <= reduction_lines(m)) {
      detail::run_lines(m, c);
    } else {
      detail::descriptor d = detail::describe(c);
      if (bytes >= mapped_bytes) detail::locate(m, d, in, bytes, out, out != nullptr ? bytes : 0);
      const detail::mapped_buffers buffers(m, detail::agree(m, d, scope));
      if (buffers.all_inputs() && (root < 0 ? buffers.all_outputs() : buffers.output_of(root))) {
        detail::run_mapped(m, buffers, c.count, c.op, root, streams(m, bytes));
      } else {
        const bool streaming = in != out && streams(m, bytes);
        detail::staged_reduction(m, in, out, c.count, c.op, root, chunk(m), streaming).run();
      }
    }
    scope.leave();
  }

  template <class Call, class Mappable, class Mapped>
  void run(detail::peer_memory& m, const Call& c, std::size_t bytes, std::size_t lines, const std::byte* in,
           std::size_t in_bytes, Mappable mappable, Mapped mapped) const {
    detail::peer_memory::scope scope(m, name(c.kind));
    if (bytes <= lines) {
      detail::run_lines(m, c);
    } else {
      detail::descriptor d = detail::describe(c);
      if (bytes >= mapped_bytes) detail::locate(m, d, in, in_bytes, nullptr, 0);
      const detail::mapped_buffers buffers(m, detail::agree(m, d, scope));
      if (mappable(buffers)) {
        mapped(buffers);
      } else {
        detail::run_cells(m, c, chunk(m));
      }
    }
    scope.leave();
  }
};

/// The algorithm with its tunables, for messages and bench output.
inline std::string name(const direct& a) {
  return "direct(line_bytes=" + std::to_string(a.line_bytes) + ", copy_line_bytes=" + std::to_string(a.copy_line_bytes) +
         ", chunk_bytes=" + std::to_string(a.chunk_bytes) + ", mapped_bytes=" + std::to_string(a.mapped_bytes) + ")";
}

}  // namespace hvd::inline HVD_ABI
