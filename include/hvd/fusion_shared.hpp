// hvd/fusion_shared.hpp: batches of tensors on ranks with common memory: through the staging cells, without a buffer.
//
// The vector in which a batch travels never exists as a whole. Chunks of it are packed into the cells of
// direct_cells.hpp straight from the tensors, reduced there, and unpacked straight into the tensors, while the next
// chunk is packed: all between reading a tensor and writing it happens in the cache. (A buffer of the batch's size
// costs a write and a read of memory for packing, and as much again for unpacking.) Parts in memory from alloc_shared
// are reduced where they are.
#pragma once

#include <hvd/fusion_pack.hpp>
#include <hvd/peer_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// What `direct` derives for the group.
inline direct_sizes fused_sizes(const peer_memory& m) noexcept {
  direct_sizes s = direct_sizes::derive(m.size(), m.crowded(), m.caches().l2, m.caches().l3);
  s.line_bytes = std::min(s.line_bytes, m.line_capacity());
  s.copy_line_bytes = std::min(s.copy_line_bytes, m.line_capacity());
  s.chunk_bytes = std::min<std::size_t>(s.chunk_bytes, m.shape().cell_bytes);
  return s;
}

/// Allreduce of a vector in parts: as staged_reduction in direct_cells.hpp, which has the protocol.
class fused_allreduce {
 public:
  fused_allreduce(peer_memory& m, const fused_vector& v, const fused_reduction& op, std::size_t chunk_bytes, output how)
      : m_(m), v_(v), op_(op), how_(how), slice_(elements_per_part(m, chunk_bytes, m.size(), v.unit)),
        stride_(round_up(slice_ * v.unit, cache_line)), chunks_(parts_in(v.length, slice_ * ranks())),
        base_(m.take_chunks(chunks_)) {}

  void run() {
    if (chunks_ == 0) return;
    stage(0);
    for (std::uint64_t k = 0; k != chunks_; ++k) {
      if (k + 1 != chunks_) stage(k + 1);
      reduce(k);
      if (k != 0) copy_out(k - 1);
    }
    copy_out(chunks_ - 1);
    output_fence(how_);
  }

 private:
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(m_.size()); }
  /// f(part, first element within it, elements, byte within the slice) for what slice q of chunk k has of each part.
  /// The last chunk is cut evenly too, so that no rank reduces all of it.
  template <class F>
  void each(std::uint64_t k, int q, const F& f) const {
    const std::size_t first = k * slice_ * ranks();
    const std::size_t left = std::min(v_.length - first, slice_ * ranks());
    std::size_t width = slice_;
    if (left < slice_ * ranks()) width = std::min(slice_, round_up((left + ranks() - 1) / ranks(), cache_line));
    const std::size_t from = first + std::min(left, width * static_cast<std::size_t>(q));
    v_.each(from, std::min(first + left, from + width),
            [&](const fused_part& p, std::size_t in, std::size_t at, std::size_t n) {
              f(p, in, n, (at - from) * v_.unit);
            });
  }
  [[nodiscard]] std::byte* staged(int r, std::uint64_t k, int q) const noexcept {
    return m_.cell(r, base_ + k) + static_cast<std::size_t>(q) * stride_;
  }

  void stage(std::uint64_t k) {
    const int r = m_.rank();
    for (int q = 0; q != m_.size(); ++q) {
      if (q == r && !v_.converts()) continue;
      each(k, q, [&, to = staged(r, k, q)](const fused_part& p, std::size_t first, std::size_t n, std::size_t at) {
        v_.pack(to + at, p, first, n, &op_.outer);
      });
    }
    m_.store(m_.mine().staged.value, base_ + k + 1);
  }

  void reduce(std::uint64_t k) {
    const int r = m_.rank();
    const std::byte** const ins = m_.inputs();
    std::byte** const outs = m_.outputs();
    for (int q = 0; q != m_.size(); ++q) {
      if (q != r) m_.await(m_.of(q).staged.value, base_ + k + 1, q, phase::stage);
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
    m_.store(m_.mine().reduced.value, base_ + k + 1);
  }

  void copy_out(std::uint64_t k) {
    const int r = m_.rank();
    for (int q = 0; q != m_.size(); ++q) {
      if (q == r) continue;
      m_.await(m_.of(q).reduced.value, base_ + k + 1, q, phase::reduce);
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
  std::size_t slice_;   // elements of a rank's slice of a chunk
  std::size_t stride_;  // bytes between slices in a cell
  std::uint64_t chunks_;
  std::uint64_t base_;
};

/// Parts that lie at the same place of the same shared blocks on all ranks: this rank's slice of them, of all inputs to
/// all outputs, as run_mapped does it.
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

/// Takes the parts in shared blocks out of `v`, and adds to `hash` where they are.
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

/// The batch as other ranks need to know it; `hash` is of what else must be equal.
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

/// The slices of all ranks, to all; blocks[r] is rank r's vector of bytes, of which only this rank's has inputs.
inline void gather_fused(peer_memory& m, std::span<const fused_vector> blocks, std::size_t chunk_bytes, output how) {
  const std::size_t each = elements_per_part(m, chunk_bytes, 1, 1);
  std::size_t longest = 0;
  for (const fused_vector& v : blocks) longest = std::max(longest, v.length);
  staged_copy{m, parts_in(longest, each), true, true, 0, m.size() - 1, how}.run(
      [&](std::uint64_t k, std::uint64_t number) {
        std::byte* const cell = rotating_cell(m, m.rank(), number);
        blocks[static_cast<std::size_t>(m.rank())].each(
            k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
              copy_bytes(cell + (at - k * each), p.in + first, n);
              if (p.in != p.out) copy_to(how, p.out + first, p.in + first, n);
            });
      },
      [&](std::uint64_t k, std::uint64_t number, auto&& arrived) {
        for (int q = 0; q != m.size(); ++q) {
          if (q == m.rank()) continue;
          arrived(q);
          const std::byte* const cell = rotating_cell(m, q, number);
          blocks[static_cast<std::size_t>(q)].each(
              k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
                copy_to(how, p.out + first, cell + (at - k * each), n);
              });
        }
      });
}

/// The root's vector of bytes, to all.
inline void broadcast_fused(peer_memory& m, const fused_vector& v, int root, std::size_t chunk_bytes, output how) {
  const std::size_t each = elements_per_part(m, one_way_chunk(chunk_bytes, v.length), 1, 1);
  const bool sends = m.rank() == root;
  staged_copy{m, parts_in(v.length, each), sends, !sends, 0, m.size() - 1, how}.run(
      [&](std::uint64_t k, std::uint64_t number) {
        std::byte* const cell = m.cell(root, number);
        v.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
          copy_bytes(cell + (at - k * each), p.in + first, n);
          if (p.in != p.out) copy_to(how, p.out + first, p.in + first, n);
        });
      },
      [&](std::uint64_t k, std::uint64_t number, auto&& arrived) {
        arrived(root);
        std::byte* const cell = m.cell(root, number);
        v.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
          if (m.size() == 2) {
            copy_and_keep(how, p.out + first, cell + (at - k * each), n);
          } else {
            copy_to(how, p.out + first, cell + (at - k * each), n);
          }
        });
      });
}

/// blocks[q] is what goes to rank q; this rank's has its outputs.
inline void scatter_fused(peer_memory& m, std::span<const fused_vector> blocks, const fused_reduction& op,
                          std::size_t chunk_bytes, output how) {
  const fused_vector& own = blocks[static_cast<std::size_t>(m.rank())];
  const std::size_t each = elements_per_part(m, chunk_bytes, m.size(), own.unit);
  const std::size_t stride = round_up(each * own.unit, cache_line);
  std::size_t longest = 0;
  for (const fused_vector& v : blocks) longest = std::max(longest, v.length);
  staged_copy{m, parts_in(longest, each), true, true, 0, m.size() - 1, how}.run(
      [&](std::uint64_t k, std::uint64_t number) {
        for (int q = 0; q != m.size(); ++q) {
          if (q == m.rank() && !own.converts()) continue;
          std::byte* const to = mailbox(m, m.rank(), q, number, stride);
          const fused_vector& v = blocks[static_cast<std::size_t>(q)];
          v.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
            v.pack(to + (at - k * each) * v.unit, p, first, n, &op.outer);
          });
        }
      },
      [&](std::uint64_t k, std::uint64_t number, auto&& arrived) {
        const std::byte** const ins = m.inputs();
        for (int q = 0; q != m.size(); ++q) {
          if (q != m.rank()) arrived(q);
        }
        own.each(k * each, (k + 1) * each, [&](const fused_part& p, std::size_t first, std::size_t at, std::size_t n) {
          for (int q = 0; q != m.size(); ++q) {
            ins[q] = mailbox(m, q, m.rank(), number, stride) + (at - k * each) * own.unit;
          }
          std::byte* out = p.out + first * own.unit;
          if (own.converts()) {  // this rank's own place in the cell takes the result
            out = mailbox(m, m.rank(), m.rank(), number, stride) + (at - k * each) * own.unit;
            op.inner.complete(&out, 1, ins, m.size(), n);
            return own.unpack(p, first, n, out);
          }
          ins[m.rank()] = p.in + first * own.unit;
          complete_to(out == ins[m.rank()] ? output::cached : how, op.inner, &out, 1, ins, m.size(), n);
        });
      });
}

/// Before data moves, all ranks compare the batch. Whether all found the same `places`, too.
inline bool agree_fused(peer_memory& m, descriptor d, std::uint64_t places, peer_memory::scope& scope) {
  d.in_offset = places;
  const auto all = agree(m, d, scope);
  m.check_abort(-1, phase::enter);  // a rank that comes late must not write into memory whose owners have left
  return places != 0 && std::all_of(all.begin(), all.end(), [&](const descriptor& x) { return x.in_offset == places; });
}

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
  const bool agreed = agree_fused(m, d, places, scope);
  for (std::size_t i = 0; i != vectors.size(); ++i) {
    const fused_reduction op(ops[i], vectors[i].converts(), true);
    if (agreed) reduce_mapped(m, mapped[i], ops[i], how);
    fused_allreduce(m, agreed ? rest[i] : vectors[i], op, fused_sizes(m).chunk_bytes, how).run();
  }
  if (agreed) mapped_exit(m, how);  // nobody reads or writes the shared blocks any more
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
  agree_fused(m, describe_fused(operation::broadcast, batch, 0, root), 0, scope);
  broadcast_fused(m, v, root, fused_sizes(m).chunk_bytes, fused_output(m, v.length));
  scope.leave();
}

/// blocks[q] is rank q's vector of bytes.
inline void run_fused_allgather(peer_memory& m, std::span<const fused> batch,
                                std::span<const std::vector<std::size_t>> counts,
                                std::span<const fused_vector> blocks) {
  peer_memory::scope scope(m, name(operation::allgather));
  agree_fused(m, describe_fused(operation::allgather, batch, hash_of(counts)), 0, scope);
  std::size_t bytes = 0;
  for (const fused_vector& v : blocks) bytes += v.length;
  gather_fused(m, blocks, fused_sizes(m).chunk_bytes, fused_output(m, bytes));
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
  agree_fused(m, d, 0, scope);
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
    scatter_fused(m, blocks, op, fused_sizes(m).chunk_bytes, fused_output(m, own.length * own.unit));
  }
  scope.leave();
}

}  // namespace hvd::inline HVD_ABI::detail
