// hvd/fusion/staged.hpp: batches of tensors on ranks with common memory: through the staging ring, without a buffer.
//
// The vector in which a batch travels never exists as a whole. Chunks of it are packed into the staging ring
// (algorithm/direct/staged.hpp) straight from the tensors, reduced there, and unpacked straight into the tensors, while
// the next chunk is packed: everything between reading a tensor and writing it stays in the cache. (A buffer of the
// batch's size costs a write and a read of memory for packing, and as much again for unpacking.) Parts in memory from
// alloc_shared are reduced without staging.
#pragma once

#include <hvd/algorithm/direct.hpp>
#include <hvd/fusion/buffered.hpp>
#include <hvd/fusion/pack.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Moves the parts in shared blocks out of `v`, and mixes their blocks and offsets into `hash`.
inline fused_vector take_mapped(const peer_memory& m, fused_vector& v, std::uint64_t& hash) {
  fused_vector mapped(v.type, v.wire), rest(v.type, v.wire);
  for (const fused_part& p : v.parts) {
    const shared_block* const from = v.converts() ? nullptr : m.find_block(p.in, p.count * v.unit);
    const shared_block* const to = v.converts() ? nullptr : m.find_block(p.out, p.count * v.unit);
    if (from == nullptr || to == nullptr) {
      rest.add(p.in, p.out, p.count, p.index);
      continue;
    }
    mapped.add(p.in, p.out, p.count, p.index);
    hash = mix(mix(mix(hash, p.index), from->id), static_cast<std::uint64_t>(p.in - from->part(m.rank())));
    hash = mix(mix(hash, to->id), static_cast<std::uint64_t>(p.out - to->part(m.rank())));
  }
  if (!mapped.parts.empty()) v = std::move(rest);
  return mapped;
}

/// The descriptor by which ranks compare batches; `hash` covers the other values that must be equal.
inline descriptor describe_fused(operation kind, std::span<const fused> batch, std::uint64_t hash, int root = -1) {
  descriptor d;
  d.kind = kind;
  d.flags |= descriptor::of_list;
  d.root = static_cast<std::int16_t>(root);
  d.details = mix(hash, batch.size());
  for (const fused& t : batch) {
    const bool everywhere = kind == operation::allreduce || kind == operation::broadcast;
    if (everywhere) d.count += t.count;
    const std::uint64_t types = static_cast<std::uint64_t>(t.type) << 8 | static_cast<std::uint64_t>(t.wire);
    d.details = mix(mix(d.details, everywhere ? t.count : 0), types);
  }
  return d;
}

/// The vectors of a batch that is cut into a block for each rank.
struct fused_blocks {
  std::span<const fused_vector> each;

  [[nodiscard]] const fused_vector& block(int q) const noexcept { return each[static_cast<std::size_t>(q)]; }
  [[nodiscard]] std::size_t longest() const noexcept {
    return std::max_element(each.begin(), each.end(), [](const auto& a, const auto& b) { return a.length < b.length; })
        ->length;
  }
  [[nodiscard]] std::size_t unit() const noexcept { return each.front().unit; }
  [[nodiscard]] bool converts() const noexcept { return each.front().converts(); }
};

inline std::uint64_t hash_of(std::span<const std::vector<std::size_t>> counts) noexcept {
  std::uint64_t h = 0;
  for (const auto& c : counts) {
    for (const std::size_t n : c) h = mix(h, n);
  }
  return h;
}

/// Fusion on ranks with common memory. A batch that fits into one exchange as a packed buffer goes through the buffer,
/// and so does Adasum, which needs messages.
template <PeerMemory T>
class staged_fusion : public buffered_fusion<T> {
  using buffered = buffered_fusion<T>;

 public:
  using buffered::buffered;

  void allreduce(std::span<const fused> batch, std::span<const fused_vector> vectors, std::span<const reduction> ops) {
    if (!pays(vectors)) return buffered::allreduce(batch, vectors, ops);
    peer_memory& m = peers();
    peer_memory::scope scope(m, name(operation::allreduce));
    std::vector<fused_vector> mapped, rest(vectors.begin(), vectors.end());
    std::uint64_t places = 0, details = 0;
    std::size_t bytes = 0;
    for (std::size_t i = 0; i != vectors.size(); ++i) {
      mapped.push_back(take_mapped(m, rest[i], places));
      details = mix(mix(details, ops[i].op), details_of(ops[i]));
      bytes += vectors[i].length * vectors[i].unit;
    }
    descriptor d = describe_fused(operation::allreduce, batch, details);
    d.op = ops[0].op;
    const direct_sizes sizes = direct_sizes::derive(m);
    const output how = written(sizes, bytes);
    std::span<const descriptor> all;
    bool agreed = places != 0;
    if (agreed) {
      d.in_offset = places;
      all = agree(m, d, scope);
      m.check_abort(-1, phase::enter);  // a late rank must not write into memory whose owners have left
      agreed = std::all_of(all.begin(), all.end(), [&](const descriptor& x) { return x.in_offset == places; });
    }
    for (std::size_t i = 0; i != vectors.size(); ++i) {
      if (agreed) reduce_shared(m, mapped[i], ops[i], how);
      const fused_reduction op(ops[i], vectors[i].converts(), true);
      two_shot_reduction one(m, agreed ? rest[i] : vectors[i], op.inner, &op.outer, -1, sizes.chunk_bytes, how);
      if (i == 0 && places == 0) all = stage_and_agree(m, d, scope, one);
      one.run(i == 0 && !agreed ? all : std::span<const descriptor>());
    }
    if (agreed) mapped_exit(m, how);  // from here on no rank reads or writes the shared blocks
    scope.leave();
  }

  void broadcast(std::span<const fused> batch, const fused_vector& v, int root) {
    if (!pays({&v, 1})) return buffered::broadcast(batch, v, root);
    peer_memory& m = peers();
    peer_memory::scope scope(m, name(operation::broadcast));
    const direct_sizes sizes = direct_sizes::derive(m);
    const output how = written(sizes, v.length);
    broadcast_form form(m, v, root, how);
    staged_run run(m, form, one_way_chunk(sizes.chunk_bytes, v.length), how);
    run.run(stage_and_agree(m, describe_fused(operation::broadcast, batch, 0, root), scope, run));
    scope.leave();
  }

  void allgather(std::span<const fused> batch, std::span<const std::vector<std::size_t>> counts) {
    peer_memory& m = peers();
    std::vector<fused_vector> blocks(static_cast<std::size_t>(m.size()));  // each rank's, of bytes
    for (std::size_t i = 0; i != batch.size(); ++i) {
      std::byte* to = batch[i].out;
      for (std::size_t r = 0; r != blocks.size(); ++r) {
        const std::size_t bytes = counts[i][r] * size_of(batch[i].type);
        blocks[r].add(batch[i].in, to, bytes, i);
        to += bytes;
      }
    }
    if (batch.size() == 1 || !pays(blocks)) return buffered::allgather(batch, counts);
    peer_memory::scope scope(m, name(operation::allgather));
    std::size_t bytes = 0;
    for (const fused_vector& v : blocks) bytes += v.length;
    const direct_sizes sizes = direct_sizes::derive(m);
    const output how = written(sizes, bytes);
    gather_form form(m, fused_blocks{blocks}, -1, how);
    staged_run run(m, form, sizes.chunk_bytes, how);
    run.run(stage_and_agree(m, describe_fused(operation::allgather, batch, hash_of(counts)), scope, run));
    scope.leave();
  }

  void reduce_scatter(std::span<const fused> batch, std::span<const std::vector<std::size_t>> counts,
                      std::span<const fused_vector> vectors, std::span<const reduction> ops) {
    if (!pays(vectors)) return buffered::reduce_scatter(batch, counts, vectors, ops);
    peer_memory& m = peers();
    peer_memory::scope scope(m, name(operation::reduce_scatter));
    std::uint64_t details = hash_of(counts);
    for (const reduction& op : ops) details = mix(mix(details, op.op), details_of(op));
    descriptor d = describe_fused(operation::reduce_scatter, batch, details);
    d.op = ops[0].op;
    const direct_sizes sizes = direct_sizes::derive(m);
    for (std::size_t i = 0; i != vectors.size(); ++i) {
      const fused_vector& v = vectors[i];
      std::vector<fused_vector> blocks(static_cast<std::size_t>(m.size()), fused_vector(v.type, v.wire));
      for (const fused_part& p : v.parts) {
        std::size_t from = 0;
        for (std::size_t q = 0; q != blocks.size(); ++q) {
          const std::size_t n = counts[p.index][q];
          blocks[q].add(p.in + from * v.side_unit, p.out, n, p.index);
          from += n;
        }
      }
      const fused_vector& own = blocks[static_cast<std::size_t>(m.rank())];
      const fused_reduction op(ops[i], v.converts(), true);
      const output how = written(sizes, own.length * own.unit);
      reduce_scatter_form form(m, fused_blocks{blocks}, op.inner, &op.outer, how);
      if (i != 0) meet(m, d);  // from here on no rank reads the previous vector's data in the ring
      staged_run run(m, form, sizes.chunk_bytes * blocks.size(), how);
      run.run(i == 0 ? stage_and_agree(m, d, scope, run) : std::span<const descriptor>());
    }
    scope.leave();
  }

 private:
  [[nodiscard]] peer_memory& peers() const noexcept { return this->comm_.peers(); }
  /// True if there is something to fuse that does not fit into one exchange as a packed buffer.
  [[nodiscard]] bool pays(std::span<const fused_vector> vectors) const noexcept {
    std::size_t most = 0, parts = 0;
    for (const fused_vector& v : vectors) {
      most = std::max(most, v.length * v.unit);
      parts += v.parts.size() + (v.converts() ? 1 : 0);
    }
    return this->comm_.size() > 1 && parts > 1 && most > staging_page;
  }
  static output written(const direct_sizes& sizes, std::size_t bytes) noexcept {
    return bytes > sizes.streaming_bytes ? output::streaming : output::cached;
  }
  /// Reduces parts that lie at the same offsets of the same shared blocks on all ranks.
  static void reduce_shared(peer_memory& m, const fused_vector& v, const reduction& op, output how) {
    const auto at = [&](const std::byte* mine, std::size_t bytes, int q) {
      const shared_block* const b = m.find_block(mine, bytes);
      return b->part(q) + (mine - b->part(m.rank()));
    };
    reduce_mapped(
        m, v, op, -1, how, [&](const fused_part& p, int q) { return at(p.in, p.count * v.unit, q); },
        [&](const fused_part& p, int q) { return at(p.out, p.count * v.unit, q); });
  }
};

/// The way in which batches travel over a transport, decided once.
template <Transport T>
struct fusion_of {
  using type = buffered_fusion<T>;
};
template <PeerMemory T>
struct fusion_of<T> {
  using type = staged_fusion<T>;
};

}  // namespace hvd::inline HVD_ABI::detail
