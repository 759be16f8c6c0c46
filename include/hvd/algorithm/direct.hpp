// hvd/algorithm/direct.hpp: every collective by loads and stores in the peers' memory.
#pragma once

#include <hvd/algorithm/direct/counts.hpp>
#include <hvd/algorithm/direct/forms.hpp>
#include <hvd/algorithm/direct/mapped.hpp>
#include <hvd/algorithm/direct/two_shot.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// Where `direct` changes its protocol. Zeros in its tunables stand for what `derive` finds.
struct direct_sizes {
  std::size_t one_shot_bytes = 0;   ///< the largest reduction that every rank does whole
  std::size_t chunk_bytes = 0;      ///< what a rank stages at a time
  std::size_t mapped_bytes = 0;     ///< buffers from alloc_shared are used in place from here
  std::size_t streaming_bytes = 0;  ///< output above this, and out of place, goes past the caches
  bool touch = true;                ///< who reads what goes one way touches it

  friend constexpr bool operator==(const direct_sizes&, const direct_sizes&) = default;

  /// From the number of ranks, whether they are more than CPUs, the sizes of the caches (0 if unknown) and what lines
  /// cost. A pure function: all ranks of a group find the same. The measurements are in docs/performance.md, section
  /// "How the sizes were chosen".
  [[nodiscard]] static constexpr direct_sizes derive(int ranks, bool oversubscribed, std::size_t l2, std::size_t l3,
                                                     const line_costs& lines = {}) noexcept {
    const auto p = static_cast<std::size_t>(ranks);
    direct_sizes s;
    // One shot saves two synchronisations. On two ranks it reads as many lines of the peer as two shots, but each rank
    // reduces all of them: the longer a line is under way, the larger the message that gains. On more ranks each reads
    // p - 1 inputs instead of 2 - 2/p. Where a synchronisation has to wait for a CPU it counts more.
    const std::size_t pair =
        lines.known() ? std::clamp<std::size_t>(std::size_t{lines.transfer} / 2, 16384, 49152) : 32768;
    s.one_shot_bytes = p <= 2 ? pair : 4928 * p / ((p - 1) * (p - 2));
    if (oversubscribed) s.one_shot_bytes = std::max<std::size_t>(s.one_shot_bytes, 4096);
    // The reader's second-level cache gives lines away for half of what its first-level cache takes, so a chunk is
    // larger than that, and small against the second-level one.
    s.chunk_bytes = std::max({std::size_t{64} << 10, l2 / 32, p * 4096});
    // One synchronisation more than staging, and no copy.
    s.mapped_bytes = 4096;
    // All outputs together against three quarters of the cache that they would fill (the rule of YHCCL, SC'23). The
    // last level that a virtual machine tells of is the host's: no more than 32 MiB of it are counted on.
    const std::size_t outputs = std::clamp<std::size_t>(l3, std::size_t{16} << 20, std::size_t{32} << 20) / 4 * 3;
    s.streaming_bytes = p == 2 ? outputs / 2 : outputs / p;  // no division in the usual case
    s.touch = lines.touching_pays();
    return s;
  }
  /// The same for a group.
  [[nodiscard]] static direct_sizes derive(const detail::peer_memory& m) noexcept {
    return derive(m.size(), m.oversubscribed(), m.caches().l2, m.caches().l3, m.costs());
  }
};

/// The algorithm for ranks with common memory. Inputs of all ranks are reduced at once by one n-ary kernel, in rank
/// order: the same bits on every rank and in every run, and 16-bit floats are rounded once. By size and kind of buffer:
///  * an exchange: what fits into 2,168 bytes. One synchronisation (algorithm/direct/staged.hpp).
///  * one shot: every rank reads what it needs of its peers' staged inputs; one synchronisation for the first chunk.
///  * two shots: large reductions in private buffers. Each rank reduces a slice for all; 6 - 4/p accesses for each byte
///    of an allreduce on p ranks (algorithm/direct/two_shot.hpp).
///  * mapped: buffers from alloc_shared. 2 accesses for each byte, the lower bound (algorithm/direct/mapped.hpp).
/// Tunables are bytes; 0 derives them (direct_sizes). They must be equal on all ranks.
struct direct {
  static constexpr bool rank_ordered = true;  ///< inputs are combined in the order of ranks

  std::size_t one_shot_bytes = 0;   ///< reductions up to this are done whole by every rank that has the result
  std::size_t chunk_bytes = 0;      ///< staged at a time; at most a third of the staging ring
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
  void operator()(T& t, const scan_call& c) const {
    detail::peer_memory& m = t.peers();
    const std::size_t bytes = c.count * c.op.element_bytes;
    const direct_sizes limits = sizes(m);
    const detail::output how = c.in != c.out ? output_of(limits, bytes) : detail::output::cached;
    detail::reduce_form form(m, c.in, c.out, c.count, c.op, -1, how);
    form.inputs = m.rank() + 1;
    run(m, c, form, limits, limits.chunk_bytes, how, c.in, bytes, [](const auto&) { return false; });
  }
  template <PeerMemory T>
  void operator()(T& t, const reduce_scatter_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.blocks.max_bytes());
    detail::reduce_scatter_form form(m, c, how);
    run(m, c, form, limits, pairwise_chunk(m, limits), how, c.in, c.blocks.total_bytes(),
        [&](const auto& b) { return b.all_inputs() && detail::run_mapped(m, b, c, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const allgather_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.blocks.total_bytes());
    detail::gather_form form(m, c.in, c.out, c.blocks, -1, how);
    run(m, c, form, limits, limits.chunk_bytes, how, c.in, c.blocks.bytes(m.rank()),
        [&](const auto& b) { return b.all_inputs() && detail::run_mapped(m, b, c.out, c.blocks, -1, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const gather_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.blocks.total_bytes());
    detail::gather_form form(m, c.in, c.out, c.blocks, c.root, how);
    run(m, c, form, limits, one_way_chunk(limits, form.count * form.element_bytes), how, c.in, c.blocks.bytes(m.rank()),
        [&](const auto& b) { return b.all_inputs() && detail::run_mapped(m, b, c.out, c.blocks, c.root, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const broadcast_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.bytes);
    detail::broadcast_form form(m, c, how);
    run(m, c, form, limits, one_way_chunk(limits, c.bytes), how, c.in, m.rank() == c.root ? c.bytes : 0,
        [&](const auto& b) { return b.input_of(c.root) && detail::run_mapped(m, b, c, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const scatter_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.blocks.max_bytes());
    detail::scatter_form form(m, c, how);
    run(m, c, form, limits, one_way_chunk(limits, c.blocks.total_bytes()), how, c.in,
        m.rank() == c.root ? c.blocks.total_bytes() : 0,
        [&](const auto& b) { return b.input_of(c.root) && detail::run_mapped(m, b, c, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const alltoall_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.recv.total_bytes());
    if (c.send.uniform() && c.recv.uniform()) {
      detail::alltoall_form form(m, c, c.send.max_count(), how);
      run(m, c, form, limits, pairwise_chunk(m, limits), how, c.in, c.in != c.out ? c.send.total_bytes() : 0,
          [&](const auto& b) { return b.all_inputs() && detail::run_mapped(m, b, c, how); });
    } else {
      detail::peer_memory::scope scope(m, name(c.kind));
      const detail::count_matrix counts = detail::exchange_counts(m, c, scope);
      detail::alltoall_form form(m, c, counts.largest_block(), how);
      detail::staged_run(m, form, pairwise_chunk(m, limits), how).run({});
      scope.leave();
    }
  }

 private:
  /// The tunables, with derived values for zeros, within what the group's memory can hold.
  [[nodiscard]] direct_sizes sizes(const detail::peer_memory& m) const noexcept {
    direct_sizes s = direct_sizes::derive(m);
    if (one_shot_bytes != 0) s.one_shot_bytes = one_shot_bytes;
    if (chunk_bytes != 0) s.chunk_bytes = chunk_bytes;
    if (mapped_bytes != 0) s.mapped_bytes = mapped_bytes;
    if (streaming_bytes != 0) s.streaming_bytes = streaming_bytes;
    return s;
  }
  [[nodiscard]] static std::size_t one_way_chunk(const direct_sizes& limits, std::size_t bytes) noexcept {
    return detail::one_way_chunk(limits.chunk_bytes, bytes);
  }
  /// Of blocks for every rank.
  [[nodiscard]] static std::size_t pairwise_chunk(const detail::peer_memory& m, const direct_sizes& limits) noexcept {
    return limits.chunk_bytes * static_cast<std::size_t>(m.size());
  }
  /// How a collective writes its output.
  [[nodiscard]] static detail::output output_of(const direct_sizes& limits, std::size_t bytes) noexcept {
    return bytes > limits.streaming_bytes ? detail::output::streaming : detail::output::cached;
  }

  template <class Call>
  void reduce_to(detail::peer_memory& m, const Call& c, const std::byte* in, std::byte* out, int root) const {
    const std::size_t bytes = c.count * c.op.element_bytes;
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, bytes);
    const detail::output staged = in != out ? how : detail::output::cached;
    const auto mapped = [&](const auto& b) {
      return b.all_inputs() && (root < 0 ? b.all_outputs() : b.output_of(root)) &&
             detail::run_mapped(m, b, c.count, c.op, root, how);
    };
    // To a root one shot moves half of what two do, but one rank alone reduces, from lines that go one way.
    if (bytes <= limits.one_shot_bytes || (root >= 0 && m.size() == 2 && !limits.touch)) {
      detail::reduce_form form(m, in, out, c.count, c.op, root, staged);
      const std::size_t chunk = root < 0 ? limits.chunk_bytes : one_way_chunk(limits, bytes);
      run(m, c, form, limits, chunk, staged, in, bytes, mapped, out);
    } else {
      detail::peer_memory::scope scope(m, name(c.kind));
      detail::descriptor d = detail::describe(c);
      if (bytes >= limits.mapped_bytes) detail::locate(m, d, in, bytes, out, out != nullptr ? bytes : 0);
      detail::two_shot_reduction two(m, in, out, c.count, c.op, root, limits.chunk_bytes, staged);
      compare_and_run(m, d, scope, two, mapped);
      scope.leave();
    }
  }

  /// Runs a form through an exchange or the ring, unless `mapped` runs it in the buffers themselves.
  template <class Call, class Form, class Mapped>
  static void run(detail::peer_memory& m, const Call& c, Form& form, const direct_sizes& limits, std::size_t chunk,
                  detail::output how, const std::byte* in, std::size_t in_bytes, Mapped&& mapped,
                  const std::byte* out = nullptr) {
    detail::peer_memory::scope scope(m, name(c.kind));
    detail::descriptor d = detail::describe(c);
    if (detail::fits_mailbox(form, m.size())) {
      detail::run_exchange(m, form, d.signature());
    } else {
      const std::size_t block =
          form.count * form.element_bytes * static_cast<std::size_t>(form.pairwise ? m.size() : 1);
      if (block >= limits.mapped_bytes) detail::locate(m, d, in, in_bytes, out, out != nullptr ? in_bytes : 0);
      detail::staged_run staged(m, form, chunk, how);
      compare_and_run(m, d, scope, staged, mapped);
    }
    scope.leave();
  }
  /// Ranks compare their calls, those with private buffers having staged their first chunk.
  template <class Run, class Mapped>
  static void compare_and_run(detail::peer_memory& m, detail::descriptor& d, detail::peer_memory::scope& scope,
                              Run& run, Mapped&& mapped) {
    const auto all = d.in_block == 0 ? detail::stage_and_agree(m, d, scope, run) : detail::agree(m, d, scope);
    const detail::mapped_buffers buffers(m, all);
    if (!mapped(buffers)) run.run(all);
  }
};

/// The algorithm with its tunables, for messages and bench output.
inline std::string name(const direct& a) {
  return detail::joined({"direct(one_shot_bytes=", a.one_shot_bytes, ", chunk_bytes=", a.chunk_bytes,
                         ", mapped_bytes=", a.mapped_bytes, ", streaming_bytes=", a.streaming_bytes, ")"});
}

}  // namespace hvd::inline HVD_ABI
