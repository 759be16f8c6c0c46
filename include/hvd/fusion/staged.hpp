// hvd/fusion/staged.hpp: batches of tensors on ranks with common memory: through the staging ring, without a buffer.
//
// The vector in which a batch travels never exists as a whole. Chunks of it are packed into the staging ring
// (algorithm/direct/staged.hpp) straight from the tensors, reduced there, and unpacked straight into the tensors, while
// the next chunk is packed: everything between reading a tensor and writing it happens in the cache. (A buffer of the
// batch's size costs a write and a read of memory for packing, and as much again for unpacking.) Parts in memory from
// alloc_shared are reduced without staging.
#pragma once

#include <hvd/fusion/pack.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// What `direct` derives for the group.
inline direct_sizes fused_sizes(const peer_memory& m) noexcept { return direct_sizes::derive(m); }

/// Two-shot allreduce (algorithm/direct/two_shot.hpp) of a vector in parts.
class fused_allreduce {
 public:
  fused_allreduce(peer_memory& m, const fused_vector& v, const fused_reduction& op, std::size_t chunk_bytes, output how)
      : m_(m), v_(v), op_(op), how_(how), slices_(m, v.length, v.unit, chunk_bytes, v.converts()),
        run_(m, slices_.plan(), *this) {}

  bool begin() { return run_.begin(); }
  void meanwhile() const noexcept {}
  void run(std::span<const descriptor> all) { run_.run(all, how_); }

 private:
  friend class two_shot_run<fused_allreduce>;
  using order = two_shot_run<fused_allreduce>;

  /// Calls f(part, first element within it, elements, byte within the slice) for each part in slice q of chunk k.
  template <class F>
  void each(std::uint64_t k, int q, const F& f) const {
    const auto s = slices_.slice(k, q);
    v_.each(s.first, s.first + s.count, [&](const fused_part& p, std::size_t in, std::size_t at, std::size_t n) {
      f(p, in, n, (at - s.first) * v_.unit);
    });
  }
  [[nodiscard]] std::byte* staged(int r, std::uint64_t k, int q) const noexcept { return slices_.staged(m_, r, k, q); }

  void put(std::uint64_t k) const {
    const int r = m_.rank();
    for (int q = 0; q != m_.size(); ++q) {
      if (q == r && !v_.converts()) continue;
      each(k, q, [&, to = staged(r, k, q)](const fused_part& p, std::size_t first, std::size_t n, std::size_t at) {
        v_.pack(to + at, p, first, n, &op_.outer);
      });
    }
  }

  void reduce(std::uint64_t k, order& run) {
    const int r = m_.rank();
    const std::byte** const ins = m_.inputs();
    std::byte** const outs = m_.outputs();
    for (int q = 0; q != m_.size(); ++q) {
      if (q != r) run.await_staged(q, k);
    }
    each(k, r, [&](const fused_part& p, std::size_t first, std::size_t n, std::size_t at) {
      int count = 0;
      for (int q = 0; q != m_.size(); ++q) {
        ins[q] = staged(q, k, r) + at;
        if (q != r) outs[count++] = staged(q, k, r) + at;
      }
      if (v_.converts()) {
        outs[count] = staged(r, k, r) + at;
        op_.inner.complete(outs, count + 1, ins, m_.size(), n);
        return v_.unpack(p, first, n, staged(r, k, r) + at);
      }
      ins[r] = p.in + first * v_.unit;
      outs[count] = p.out + first * v_.unit;
      if (how_ == output::streaming && p.in != p.out) {
        complete_streaming(op_.inner, outs, count + 1, count, ins, m_.size(), n);
      } else {
        op_.inner.complete(outs, count + 1, ins, m_.size(), n);
      }
    });
  }

  void copy_out(std::uint64_t k, order& run) {
    const int r = m_.rank();
    for (int q = 0; q != m_.size(); ++q) {
      if (q == r) continue;
      run.await_reduced(q, k);
      each(k, q, [&, from = staged(r, k, q)](const fused_part& p, std::size_t first, std::size_t n, std::size_t at) {
        if (v_.converts()) return v_.unpack(p, first, n, from + at);
        copy_to(p.in == p.out ? output::cached : how_, p.out + first * v_.unit, from + at, n * v_.unit);
      });
    }
  }

  peer_memory& m_;
  const fused_vector& v_;
  const fused_reduction& op_;
  output how_;
  two_shot_slices slices_;
  order run_;
};

/// Reduces parts that lie at the same offsets of the same shared blocks on all ranks: this rank's slice of all inputs
/// to all outputs, as in run_mapped.
inline void reduce_mapped(peer_memory& m, const fused_vector& v, const reduction& op, output how) {
  const auto ranks = static_cast<std::size_t>(m.size());
  const std::size_t each = round_up((v.length + ranks - 1) / ranks, 128);
  const std::size_t first = std::min(v.length, each * static_cast<std::size_t>(m.rank()));
  v.each(first, std::min(v.length, first + each), [&](const fused_part& p, std::size_t at, std::size_t, std::size_t n) {
    const std::byte** const ins = m.inputs();
    std::byte** const outs = m.outputs();
    const shared_block* const from = m.find_block(p.in, p.count * v.unit);
    const shared_block* const to = m.find_block(p.out, p.count * v.unit);
    for (int q = 0; q != m.size(); ++q) {
      ins[q] = from->part(q) + (p.in - from->part(m.rank())) + at * v.unit;
      outs[q] = to->part(q) + (p.out - to->part(m.rank())) + at * v.unit;
    }
    complete_to(p.in == p.out ? output::cached : how, op, outs, m.size(), ins, m.size(), n);
  });
}

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

/// The descriptor by which ranks compare batches; `hash` is of what else must be equal.
inline descriptor describe_fused(operation kind, std::span<const fused> batch, std::uint64_t hash, int root = -1) {
  descriptor d;
  d.kind = kind;
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

inline std::size_t longest(std::span<const fused_vector> blocks) noexcept {
  std::size_t most = 0;
  for (const fused_vector& v : blocks) most = std::max(most, v.length);
  return most;
}

/// Allgather of the vectors of all ranks; blocks[r] is rank r's vector of bytes, and only this rank's has inputs.
struct fused_gather_form : staged_form {
  peer_memory& m;
  std::span<const fused_vector> blocks;
  output how;

  fused_gather_form(peer_memory& memory, std::span<const fused_vector> of, output write)
      : staged_form{.count = longest(of)}, m(memory), blocks(of), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    part(k, each, m.rank(), [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
      copy_bytes(slot(0) + at, p.in + first, n);
    });
  }
  void own(std::uint64_t k, std::size_t each) const {
    part(k, each, m.rank(), [&](const fused_part& p, std::size_t first, std::size_t, std::size_t n) {
      if (p.in != p.out) copy_to(how, p.out + first, p.in + first, n);
    });
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    for (int q = 0; q != m.size(); ++q) {
      if (q == m.rank()) continue;
      const std::byte* const block = from(q);
      part(k, each, q, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
        take(how, p.out + first, block + at, n);
      });
    }
  }

 private:
  /// Calls f(part, first byte within it, byte within the chunk, bytes) for each part in chunk k of rank q's vector.
  template <class F>
  void part(std::uint64_t k, std::size_t each, int q, const F& f) const {
    blocks[static_cast<std::size_t>(q)].each(
        k * each, (k + 1) * each,
        [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) { f(p, first, at - k * each, n); });
  }
};

/// Broadcast of the root's vector of bytes.
struct fused_broadcast_form : staged_form {
  peer_memory& m;
  const fused_vector& v;
  output how;

  fused_broadcast_form(peer_memory& memory, const fused_vector& vector, int root, output write)
      : staged_form{.source = root, .count = vector.length}, m(memory), v(vector), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    v.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
      copy_bytes(slot(0) + (at - k * each), p.in + first, n);
    });
  }
  void own(std::uint64_t k, std::size_t each) const {
    if (m.rank() != source) return;
    v.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t, std::size_t n) {
      if (p.in != p.out) copy_to(how, p.out + first, p.in + first, n);
    });
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    const std::byte* const block = from(source);
    v.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
      take(how, p.out + first, block + (at - k * each), n);
    });
  }
};

/// Reduce_scatter: blocks[q] is the vector for rank q; this rank's has its outputs.
struct fused_scatter_form : staged_form {
  peer_memory& m;
  std::span<const fused_vector> blocks;
  const fused_reduction& op;
  output how;

  fused_scatter_form(peer_memory& memory, std::span<const fused_vector> of, const fused_reduction& reduce, output write)
      : staged_form{.pairwise = true,
                    .own_slot = of.front().converts(),
                    .count = longest(of),
                    .element_bytes = of.front().unit},
        m(memory), blocks(of), op(reduce), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    for (int q = 0; q != m.size(); ++q) {
      const fused_vector& v = blocks[static_cast<std::size_t>(q)];
      if (q == m.rank() && !v.converts()) continue;
      std::byte* const to = slot(q);
      v.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
        v.pack(to + (at - k * each) * v.unit, p, first, n, &op.outer);
      });
    }
  }
  void own(std::uint64_t, std::size_t) const noexcept {}
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    const fused_vector& own = blocks[static_cast<std::size_t>(m.rank())];
    const std::byte** const ins = m.inputs();
    own.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
      const std::size_t offset = (at - k * each) * own.unit;
      for (int q = 0; q != m.size(); ++q) {
        if (q != m.rank() || own.converts()) ins[q] = from(q) + offset;
      }
      std::byte* out = p.out + first * own.unit;
      if (own.converts()) {  // this rank's own slot takes the result
        out = from(m.rank()) + offset;
        op.inner.complete(&out, 1, ins, m.size(), n);
        return own.unpack(p, first, n, out);
      }
      ins[m.rank()] = p.in + first * own.unit;
      complete_to(out == ins[m.rank()] ? output::cached : how, op.inner, &out, 1, ins, m.size(), n);
    });
  }
};

inline output fused_output(const peer_memory& m, std::size_t bytes) noexcept {
  return bytes > fused_sizes(m).streaming_bytes ? output::streaming : output::cached;
}

/// `ops[i]` is for vectors[i].
inline void run_fused_allreduce(peer_memory& m, std::span<const fused> batch, std::span<const fused_vector> vectors,
                                std::span<const reduction> ops) {
  peer_memory::scope scope(m, name(operation::allreduce));
  std::vector<fused_vector> mapped, rest(vectors.begin(), vectors.end());
  std::uint64_t places = 0, details = 0;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i != vectors.size(); ++i) {
    mapped.push_back(take_mapped(m, rest[i], places));
    details = mix(mix(details, ops[i].op), details_of(ops[i]));
    bytes += vectors[i].length * vectors[i].unit;
  }
  const output how = fused_output(m, bytes);
  descriptor d = describe_fused(operation::allreduce, batch, details);
  d.op = ops[0].op;
  const std::size_t chunk = fused_sizes(m).chunk_bytes;
  if (places == 0) {
    for (std::size_t i = 0; i != vectors.size(); ++i) {
      const fused_reduction op(ops[i], vectors[i].converts(), true);
      fused_allreduce one(m, vectors[i], op, chunk, how);
      one.run(i == 0 ? stage_and_agree(m, d, scope, one) : std::span<const descriptor>());
    }
    return scope.leave();
  }
  d.in_offset = places;
  const auto all = agree(m, d, scope);
  m.check_abort(-1, phase::enter);  // a late rank must not write into memory whose owners have left
  const bool agreed = std::all_of(all.begin(), all.end(), [&](const descriptor& x) { return x.in_offset == places; });
  for (std::size_t i = 0; i != vectors.size(); ++i) {
    const fused_reduction op(ops[i], vectors[i].converts(), true);
    if (agreed) reduce_mapped(m, mapped[i], ops[i], how);
    fused_allreduce(m, agreed ? rest[i] : vectors[i], op, chunk, how)
        .run(i == 0 && !agreed ? all : std::span<const descriptor>());
  }
  if (agreed) mapped_exit(m, how);  // from here on no rank reads or writes the shared blocks
  scope.leave();
}

inline std::uint64_t hash_of(std::span<const std::vector<std::size_t>> counts) noexcept {
  std::uint64_t h = 0;
  for (const auto& c : counts) {
    for (const std::size_t n : c) h = mix(h, n);
  }
  return h;
}

inline void run_fused_broadcast(peer_memory& m, std::span<const fused> batch, const fused_vector& v, int root) {
  peer_memory::scope scope(m, name(operation::broadcast));
  const output how = fused_output(m, v.length);
  fused_broadcast_form form(m, v, root, how);
  staged_run run(m, form, one_way_chunk(fused_sizes(m).chunk_bytes, v.length), how);
  run.run(stage_and_agree(m, describe_fused(operation::broadcast, batch, 0, root), scope, run));
  scope.leave();
}

/// blocks[q] is rank q's vector of bytes.
inline void run_fused_allgather(peer_memory& m, std::span<const fused> batch,
                                std::span<const std::vector<std::size_t>> counts,
                                std::span<const fused_vector> blocks) {
  peer_memory::scope scope(m, name(operation::allgather));
  std::size_t bytes = 0;
  for (const fused_vector& v : blocks) bytes += v.length;
  const output how = fused_output(m, bytes);
  fused_gather_form form(m, blocks, how);
  staged_run run(m, form, fused_sizes(m).chunk_bytes, how);
  run.run(stage_and_agree(m, describe_fused(operation::allgather, batch, hash_of(counts)), scope, run));
  scope.leave();
}

/// `ops[i]` is for vectors[i], whose parts are whole tensors.
inline void run_fused_reduce_scatter(peer_memory& m, std::span<const fused> batch,
                                     std::span<const std::vector<std::size_t>> counts,
                                     std::span<const fused_vector> vectors, std::span<const reduction> ops) {
  peer_memory::scope scope(m, name(operation::reduce_scatter));
  std::uint64_t details = hash_of(counts);
  for (const reduction& op : ops) details = mix(mix(details, op.op), details_of(op));
  descriptor d = describe_fused(operation::reduce_scatter, batch, details);
  d.op = ops[0].op;
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
    const output how = fused_output(m, own.length * own.unit);
    fused_scatter_form form(m, blocks, op, how);
    if (i != 0) meet(m, d);  // from here on no rank reads what the vector before left in the ring
    staged_run run(m, form, fused_sizes(m).chunk_bytes * blocks.size(), how);
    run.run(i == 0 ? stage_and_agree(m, d, scope, run) : std::span<const descriptor>());
  }
  scope.leave();
}

}  // namespace hvd::inline HVD_ABI::detail
