// hvd/algorithm/direct.hpp: every collective by loads and stores in the peers' memory.
#pragma once

#include <hvd/algorithm/direct_cells.hpp>
#include <hvd/algorithm/direct_lines.hpp>
#include <hvd/algorithm/direct_mapped.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// Where `direct` changes its protocol. Zeros in its tunables stand for what `derive` finds.
struct direct_sizes {
  std::size_t line_bytes = 0;       ///< the largest reduction that goes through lines
  std::size_t copy_line_bytes = 0;  ///< the same where data is only copied
  std::size_t chunk_bytes = 0;      ///< what a rank stages at a time
  std::size_t mapped_bytes = 0;     ///< buffers from alloc_shared are used in place from here
  std::size_t streaming_bytes = 0;  ///< output above this, and out of place, goes past the caches

  friend constexpr bool operator==(const direct_sizes&, const direct_sizes&) = default;

  /// From the number of ranks, whether they are more than CPUs, and the sizes of the caches (0 if unknown). A pure
  /// function: all ranks of a group find the same. The measurements are in docs/performance.md, section "How the sizes
  /// were chosen".
  [[nodiscard]] static constexpr direct_sizes derive(int ranks, bool crowded, std::size_t l2, std::size_t l3) noexcept {
    const auto p = static_cast<std::size_t>(ranks);
    direct_sizes s;
    // Lines cost one synchronisation instead of three, and p + 1 accesses for each byte instead of 6 - 4/p, which
    // come one line at a time: equal at 1 KiB for 2 ranks. Where a synchronisation has to wait for a CPU it counts
    // more.
    s.line_bytes = crowded ? 4096 : 1024 * p / (p * p - 2 * p + 2);
    s.copy_line_bytes = crowded ? 4096 : 1024;
    // Three cells of each of two ranks in the second-level cache, with room for the buffers; more ranks share it.
    s.chunk_bytes = std::max({std::size_t{64} << 10, l2 / (4 * p), p * 4096});
    // One synchronisation more than lines, and no copy: better from about where lines end.
    s.mapped_bytes = 1024;
    // All outputs together against three quarters of the cache that they would fill (the rule of YHCCL, SC'23).
    s.streaming_bytes = std::max<std::size_t>(l3, std::size_t{16} << 20) / 4 * 3 / p;
    return s;
  }
};

/// The algorithm for ranks with common memory. Inputs of all ranks are reduced at once by one n-ary kernel, in rank
/// order: the same bits on every rank and in every run, and 16-bit floats are rounded once. Three protocols, by size
/// and kind of buffer:
///  * lines: small messages. One synchronisation; every rank reads every payload (detail in direct_lines.hpp).
///  * cells: large messages in private buffers. Pipelined through staging memory that stays in cache; 6 - 4/p
///    accesses for each byte of an allreduce on p ranks (direct_cells.hpp).
///  * mapped: buffers from alloc_shared. 2 accesses for each byte, the lower bound (direct_mapped.hpp).
/// Tunables are bytes; 0 derives them (direct_sizes). They must be equal on all ranks.
struct direct {
  static constexpr bool rank_ordered = true;  ///< inputs are combined in the order of ranks

  std::size_t line_bytes = 0;       ///< reductions up to this go through lines
  std::size_t copy_line_bytes = 0;  ///< the same for collectives that only copy
  std::size_t chunk_bytes = 0;      ///< staged at a time; at most what a cell of the staging memory holds
  std::size_t mapped_bytes = 0;     ///< buffers from alloc_shared are used in place from here
  std::size_t streaming_bytes = 0;  ///< larger outputs, out of place, go past the caches

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
    run(
        m, c, c.blocks.total_bytes(), &direct_sizes::line_bytes, c.in, c.blocks.total_bytes(),
        [](const auto& b) { return b.all_inputs(); },
        [&](const auto& b, detail::output how) { detail::run_mapped(m, b, c, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const allgather_call& c) const {
    detail::peer_memory& m = t.peers();
    run(
        m, c, c.blocks.max_bytes(), &direct_sizes::copy_line_bytes, c.in, c.blocks.bytes(m.rank()),
        [](const auto& b) { return b.all_inputs(); },
        [&](const auto& b, detail::output how) { detail::run_mapped(m, b, c.out, c.blocks, -1, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const gather_call& c) const {
    detail::peer_memory& m = t.peers();
    run(
        m, c, c.blocks.max_bytes(), &direct_sizes::copy_line_bytes, c.in, c.blocks.bytes(m.rank()),
        [](const auto& b) { return b.all_inputs(); },
        [&](const auto& b, detail::output how) { detail::run_mapped(m, b, c.out, c.blocks, c.root, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const broadcast_call& c) const {
    detail::peer_memory& m = t.peers();
    run(
        m, c, c.bytes, &direct_sizes::copy_line_bytes, c.in, m.rank() == c.root ? c.bytes : 0,
        [&](const auto& b) { return b.input_of(c.root); },
        [&](const auto& b, detail::output how) { detail::run_mapped(m, b, c, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const scatter_call& c) const {
    detail::peer_memory& m = t.peers();
    run(
        m, c, c.blocks.total_bytes(), &direct_sizes::copy_line_bytes, c.in,
        m.rank() == c.root ? c.blocks.total_bytes() : 0, [&](const auto& b) { return b.input_of(c.root); },
        [&](const auto& b, detail::output how) { detail::run_mapped(m, b, c, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const alltoall_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    detail::peer_memory::scope scope(m, name(c.kind));
    if (!c.send.uniform() || !c.recv.uniform()) {
      const detail::count_matrix counts = detail::exchange_counts(m, c, scope);
      detail::run_cells(m, c, counts.largest_block(), limits.chunk_bytes, output_of(limits, c));
    } else if (c.send.total_bytes() <= limits.copy_line_bytes) {
      detail::run_lines(m, c);
    } else {
      detail::descriptor d = detail::describe(c);
      if (c.in != c.out) detail::locate(m, d, c.in, c.send.total_bytes(), nullptr, 0);
      const detail::mapped_buffers buffers(m, detail::agree(m, d, scope));
      if (c.send.total_bytes() >= limits.mapped_bytes && buffers.all_inputs()) {
        detail::run_mapped(m, buffers, c, output_of(limits, c));
      } else {
        detail::run_cells(m, c, c.send.count(0), limits.chunk_bytes, output_of(limits, c));
      }
    }
    scope.leave();
  }

 private:
  /// The tunables, with derived values for zeros, within what the group's memory can hold.
  [[nodiscard]] direct_sizes sizes(const detail::peer_memory& m) const noexcept {
    direct_sizes s = direct_sizes::derive(m.size(), m.crowded(), m.caches().l2, m.caches().l3);
    if (line_bytes != 0) s.line_bytes = line_bytes;
    if (copy_line_bytes != 0) s.copy_line_bytes = copy_line_bytes;
    if (chunk_bytes != 0) s.chunk_bytes = chunk_bytes;
    if (mapped_bytes != 0) s.mapped_bytes = mapped_bytes;
    if (streaming_bytes != 0) s.streaming_bytes = streaming_bytes;
    s.line_bytes = std::min(s.line_bytes, m.line_capacity());
    s.copy_line_bytes = std::min(s.copy_line_bytes, m.line_capacity());
    s.chunk_bytes = std::min<std::size_t>(s.chunk_bytes, m.shape().cell_bytes);
    return s;
  }
  /// How a collective writes its output.
  template <class Call>
  [[nodiscard]] static detail::output output_of(const direct_sizes& limits, const Call& c) noexcept {
    std::size_t bytes = 0;
    if constexpr (requires { c.recv; }) {
      bytes = c.recv.total_bytes();
    } else if constexpr (requires { c.bytes; }) {
      bytes = c.bytes;
    } else {
      constexpr bool all = Call::kind == operation::allgather || Call::kind == operation::gather;
      bytes = all ? c.blocks.total_bytes() : c.blocks.max_bytes();
    }
    return bytes > limits.streaming_bytes ? detail::output::streaming : detail::output::cached;
  }
  template <class Call>
  void reduce_to(detail::peer_memory& m, const Call& c, const std::byte* in, std::byte* out, int root) const {
    const std::size_t bytes = c.count * c.op.element_bytes;
    const direct_sizes limits = sizes(m);
    const detail::output how = bytes > limits.streaming_bytes ? detail::output::streaming : detail::output::cached;
    detail::peer_memory::scope scope(m, name(c.kind));
    if (bytes <= limits.line_bytes) {
      detail::run_lines(m, c);
    } else {
      detail::descriptor d = detail::describe(c);
      if (bytes >= limits.mapped_bytes) detail::locate(m, d, in, bytes, out, out != nullptr ? bytes : 0);
      const detail::mapped_buffers buffers(m, detail::agree(m, d, scope));
      if (buffers.all_inputs() && (root < 0 ? buffers.all_outputs() : buffers.output_of(root))) {
        detail::run_mapped(m, buffers, c.count, c.op, root, how);
      } else {
        const detail::output staged = in != out ? how : detail::output::cached;
        detail::staged_reduction(m, in, out, c.count, c.op, root, limits.chunk_bytes, staged).run();
      }
    }
    scope.leave();
  }

  template <class Call, class Mappable, class Mapped>
  void run(detail::peer_memory& m, const Call& c, std::size_t bytes, std::size_t direct_sizes::*lines,
           const std::byte* in, std::size_t in_bytes, Mappable mappable, Mapped mapped) const {
    const direct_sizes limits = sizes(m);
    detail::peer_memory::scope scope(m, name(c.kind));
    if (bytes <= limits.*lines) {
      detail::run_lines(m, c);
    } else {
      detail::descriptor d = detail::describe(c);
      if (bytes >= limits.mapped_bytes) detail::locate(m, d, in, in_bytes, nullptr, 0);
      const detail::mapped_buffers buffers(m, detail::agree(m, d, scope));
      if (mappable(buffers)) {
        mapped(buffers, output_of(limits, c));
      } else {
        detail::run_cells(m, c, limits.chunk_bytes, output_of(limits, c));
      }
    }
    scope.leave();
  }
};

/// The algorithm with its tunables, for messages and bench output.
inline std::string name(const direct& a) {
  return detail::joined({"direct(line_bytes=", a.line_bytes, ", copy_line_bytes=", a.copy_line_bytes,
                         ", chunk_bytes=", a.chunk_bytes, ", mapped_bytes=", a.mapped_bytes,
                         ", streaming_bytes=", a.streaming_bytes, ")"});
}

}  // namespace hvd::inline HVD_ABI
