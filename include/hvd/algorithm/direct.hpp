// hvd/algorithm/direct.hpp: every collective by loads and stores in the peers' memory.
#pragma once

#include <hvd/algorithm/direct/counts.hpp>
#include <hvd/algorithm/direct/forms.hpp>
#include <hvd/algorithm/direct/mapped.hpp>
#include <hvd/algorithm/direct/two_shot.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// The sizes at which `direct` changes its protocol. A zero in its tunables stands for the value from `derive`.
struct direct_sizes {
  std::size_t one_shot_bytes = 0;   ///< the largest reduction that every rank computes whole
  std::size_t chunk_bytes = 0;      ///< bytes that a rank stages at a time
  std::size_t mapped_bytes = 0;     ///< from this size on buffers from alloc_shared are not staged
  std::size_t streaming_bytes = 0;  ///< larger outputs, out of place, bypass the caches
  bool touch = true;                ///< the reader touches lines that go one way: see line_costs

  friend constexpr bool operator==(const direct_sizes&, const direct_sizes&) = default;

  /// From the number of ranks, whether they are oversubscribed, the sizes of the caches (0 if unknown) and the costs of
  /// cache lines. A pure function: all ranks of a group get the same sizes. The measurements are in
  /// docs/performance.md, section "How the sizes were chosen".
  [[nodiscard]] static constexpr direct_sizes derive(int ranks, bool oversubscribed, std::size_t l2, std::size_t l3,
                                                     const line_costs& lines = {}) noexcept {
    const auto p = static_cast<std::size_t>(ranks);
    direct_sizes s;
    // One shot saves two synchronisations. On two ranks it reads as many lines of the peer as two shots do, but each
    // rank reduces all of them: the longer a line takes from core to core, the larger the messages that gain. On more
    // ranks each rank reads p - 1 inputs instead of 2 - 2/p. If ranks are oversubscribed, a synchronisation waits for a
    // CPU and costs more.
    const std::size_t pair =
        lines.known() ? std::clamp<std::size_t>(std::size_t{lines.transfer} / 2, 16384, 49152) : 32768;
    s.one_shot_bytes = p <= 2 ? pair : 4928 * p / ((p - 1) * (p - 2));
    if (oversubscribed) s.one_shot_bytes = std::max<std::size_t>(s.one_shot_bytes, 4096);
    // A line from another core's second-level cache costs half as much as one from its first-level cache, so a chunk is
    // larger than the first-level cache and small compared to the second-level one.
    s.chunk_bytes = std::max({std::size_t{64} << 10, l2 / 32, p * 4096});
    // One synchronisation more than staging, and no copy.
    s.mapped_bytes = 4096;
    // All outputs together may fill three quarters of the cache (the rule of YHCCL, SC'23). A virtual machine reports
    // the last-level cache of its host, so at most 32 MiB of it are counted.
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

/// The algorithm for ranks with common memory. One n-ary kernel reduces the inputs of all ranks at once, in rank order:
/// the same bits on every rank and in every run, and 16-bit floats are rounded once. Size and kind of buffer decide:
///  * an exchange: for up to 2,168 bytes. One synchronisation (algorithm/direct/staged.hpp).
///  * one shot: every rank reads its share of its peers' staged inputs; one synchronisation for the first chunk.
///  * two shots: large reductions in private buffers. Each rank reduces a slice for all; 6 - 4/p accesses for each byte
///    of an allreduce on p ranks (algorithm/direct/two_shot.hpp).
///  * mapped: buffers from alloc_shared. 2 accesses for each byte, the lower bound (algorithm/direct/mapped.hpp).
/// Tunables are bytes; 0 derives them (direct_sizes). They must be equal on all ranks.
struct direct {
  static constexpr bool rank_ordered = true;  ///< inputs are combined in the order of ranks

  std::size_t one_shot_bytes = 0;   ///< up to this size every rank that gets the result reduces all of it
  std::size_t chunk_bytes = 0;      ///< staged at a time; at most a third of the staging ring
  std::size_t mapped_bytes = 0;     ///< from this size on buffers from alloc_shared are not staged
  std::size_t streaming_bytes = 0;  ///< larger outputs, out of place, bypass the caches

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
    reduce_prefix(t.peers(), c, t.rank() + 1);
  }
  template <PeerMemory T>
  void operator()(T& t, const exscan_call& c) const {
    reduce_prefix(t.peers(), c, t.rank());
  }
  template <PeerMemory T>
  void operator()(T& t, const reduce_scatter_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.blocks.max_bytes());
    detail::reduce_scatter_form form(m, detail::blocks_to_reduce{{c.in, c.out, c.blocks}}, c.op, nullptr, how);
    run(m, c, form, limits, pairwise_chunk(m, limits), how, c.in, c.blocks.total_bytes(),
        [&](const auto& b) { return b.all_inputs() && detail::run_mapped(m, b, c, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const allgather_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.blocks.total_bytes());
    detail::gather_form form(m, detail::blocks_to_gather{{c.in, c.out, c.blocks}}, -1, how);
    run(m, c, form, limits, limits.chunk_bytes, how, c.in, c.blocks.bytes(m.rank()),
        [&](const auto& b) { return b.all_inputs() && detail::run_mapped(m, b, c.out, c.blocks, -1, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const gather_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.blocks.total_bytes());
    detail::gather_form form(m, detail::blocks_to_gather{{c.in, c.out, c.blocks}}, c.root, how);
    run(m, c, form, limits, one_way_chunk(limits, form.count * form.element_bytes), how, c.in, c.blocks.bytes(m.rank()),
        [&](const auto& b) { return b.all_inputs() && detail::run_mapped(m, b, c.out, c.blocks, c.root, how); });
  }
  template <PeerMemory T>
  void operator()(T& t, const broadcast_call& c) const {
    detail::peer_memory& m = t.peers();
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, c.bytes);
    const detail::contiguous all{c.in, c.out, c.bytes, 1};
    detail::broadcast_form form(m, all, c.root, how);
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
  /// The tunables, with derived values in place of zeros.
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
  /// The chunk size if a rank stages a block for every rank.
  [[nodiscard]] static std::size_t pairwise_chunk(const detail::peer_memory& m, const direct_sizes& limits) noexcept {
    return limits.chunk_bytes * static_cast<std::size_t>(m.size());
  }
  /// The way in which a collective writes its output.
  [[nodiscard]] static detail::output output_of(const direct_sizes& limits, std::size_t bytes) noexcept {
    return bytes > limits.streaming_bytes ? detail::output::streaming : detail::output::cached;
  }

  template <class Call>
  void reduce_to(detail::peer_memory& m, const Call& c, const std::byte* in, std::byte* out, int root) const {
    const std::size_t bytes = c.count * c.op.element_bytes;
    const direct_sizes limits = sizes(m);
    const detail::output how = output_of(limits, bytes);
    const detail::output staged = in != out ? how : detail::output::cached;
    const detail::contiguous all{in, out, c.count, c.op.element_bytes};
    const auto mapped = [&](const auto& b) {
      return b.all_inputs() && (root < 0 ? b.all_outputs() : b.output_of(root)) &&
             detail::run_mapped(m, b, all, c.op, root, how);
    };
    // One shot to a root moves half as many bytes as two shots, but one rank alone reduces, from lines that go one way.
    // Above one_shot_bytes it is used only on two ranks, if touching does not pay.
    if (bytes <= limits.one_shot_bytes || (root >= 0 && m.size() == 2 && !limits.touch)) {
      detail::reduce_form form(m, in, out, c.count, c.op, root, staged);
      const std::size_t chunk = root < 0 ? limits.chunk_bytes : one_way_chunk(limits, bytes);
      run(m, c, form, limits, chunk, staged, in, bytes, mapped, out);
    } else {
      detail::peer_memory::scope scope(m, name(c.kind));
      detail::descriptor d = detail::describe(c);
      if (bytes >= limits.mapped_bytes) detail::locate(m, d, in, bytes, out, out != nullptr ? bytes : 0);
      detail::two_shot_reduction two(m, all, c.op, nullptr, root, limits.chunk_bytes, staged);
      compare_and_run(m, d, scope, two, mapped);
      scope.leave();
    }
  }

  /// The reduction of the first `inputs` ranks.
  template <class Call>
  void reduce_prefix(detail::peer_memory& m, const Call& c, int inputs) const {
    const std::size_t bytes = c.count * c.op.element_bytes;
    const direct_sizes limits = sizes(m);
    const detail::output how = c.in != c.out ? output_of(limits, bytes) : detail::output::cached;
    detail::reduce_form form(m, c.in, c.out, c.count, c.op, -1, how);
    form.inputs = inputs;
    // No buffer is used without staging, so none is located: the first chunk is staged before ranks compare their
    // calls.
    run(m, c, form, limits, limits.chunk_bytes, how, c.in, 0, [](const auto&) { return false; });
  }

  /// Runs a form by an exchange or through the staging ring, unless `mapped` runs it directly in shared buffers.
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
  /// Lets ranks compare their calls; ranks with private buffers stage their first chunk before.
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
