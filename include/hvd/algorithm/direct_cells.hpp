// hvd/algorithm/direct_cells.hpp: large messages through three reused cells of staging memory for each rank.
//
// Chunk k of an operation goes through cell k mod 3 of each rank, small enough to stay in cache. While chunk k is
// reduced, chunk k+1 is copied in and chunk k-1 copied out. There are no barriers, only two words for each rank
// that grow with k: `staged` and `reduced` (or read).
//
// Who writes a line is, wherever a collective allows it, the rank that last read it. The other way round, where one
// rank writes again and again what another reads, each store must first take the line back from a cache that shares it,
// which costs several times as much as the read did (docs/performance.md has the measurement): a reduction pushes its
// result into the cell that its input came from, and pairs of ranks that send to each other swap their cells.
//
// Why three cells suffice for allreduce with no further flag: before a rank copies chunk j in, it has copied chunk
// j-3 out of the same cell, for which it saw everybody's `reduced` pass j-3, so nobody else touches it any more.
// Where not everybody waits for everybody anyway, staging waits for `reduced` of those who read the cell. The first
// three chunks of an operation wait for nothing: `agree` has shown that all earlier operations are over. tests/model/
// has the proof by exhaustion for 2 and 3 ranks.
//
// The reduction follows YHCCL (Peng et al., SC'23) in moving little: a rank does not stage its own slice. 6 - 4/p
// accesses for each byte.
#pragma once

#include <hvd/agree.hpp>
#include <hvd/algorithm/direct_output.hpp>
#include <hvd/detail/blocks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// The order of steps that all staged collectives share: stage(k + 1), then consume(k). `writer` ranks stage;
/// `reader` ranks consume. A chunk's cell is reused when all ranks in [first_reader, last_reader] have read it.
/// `stage` and `consume` get the chunk's number in this operation and, for its cell, in the group; `consume` also a
/// function that waits until rank q has staged it.
struct staged_copy {
  peer_memory& m;
  std::uint64_t chunks;
  bool writer;
  bool reader;
  int first_reader;
  int last_reader;
  output how;  ///< for the fence at the end

  template <class Stage, class Consume>
  void run(Stage&& stage, Consume&& consume) {
    const std::uint64_t base = m.take_chunks(chunks);
    for (std::uint64_t k = 0; k != chunks + 1; ++k) {
      if (writer && k != chunks) {
        for (int q = first_reader; k >= cells_per_rank && q <= last_reader; ++q) {
          if (q != m.rank()) m.await(m.of(q).reduced.value, base + k - cells_per_rank + 1, q, phase::consume);
        }
        stage(k, base + k);
        m.store(m.mine().staged.value, base + k + 1);
      }
      if (reader && k != 0) {
        consume(k - 1, base + k - 1, [&](int q) { m.await(m.of(q).staged.value, base + k, q, phase::stage); });
        m.store(m.mine().reduced.value, base + k);
      }
    }
    output_fence(how);
  }
};

/// The cell for what rank q sends to all in chunk n. Cells go around, so that with two ranks each writes where it read.
inline std::byte* rotating_cell(const peer_memory& m, int q, std::uint64_t n) noexcept {
  const auto turn = static_cast<int>(n / cells_per_rank % static_cast<unsigned>(m.size()));
  return m.cell(around(q + turn, m.size()), n);
}
/// Where what rank `from` sends to rank `to` alone in chunk n lies. The two swap places each time around their cells.
inline std::byte* mailbox(const peer_memory& m, int from, int to, std::uint64_t n, std::size_t stride) noexcept {
  if (n / cells_per_rank % 2 != 0) std::swap(from, to);
  return m.cell(from, n) + static_cast<std::size_t>(to) * stride;
}

/// Copies from a cell that this rank alone reads, and leaves its lines with this core, changed: for when the rank that
/// wrote them will write them again. (Broadcast, scatter and gather have no other way to have lines change hands.)
inline void copy_and_keep(output how, std::byte* to, std::byte* from, std::size_t bytes) noexcept {
  for (std::size_t done = 0; done < bytes; done += output_tile) {
    const std::size_t n = std::min(output_tile, bytes - done);
    copy_to(how, to + done, from + done, n);
    for (std::size_t i = done; i < done + n; i += cache_line) {
      auto* const w = reinterpret_cast<volatile std::byte*>(from + i);
      *w = *w;
    }
  }
}

/// Stages `bytes` and copies them to this rank's own output, with one reading of the input.
inline void stage_and_copy(output how, std::byte* cell, std::byte* out, const std::byte* in,
                           std::size_t bytes) noexcept {
  for (std::size_t done = 0; done < bytes; done += output_tile) {
    const std::size_t n = std::min(output_tile, bytes - done);
    copy_bytes(cell + done, in + done, n);
    copy_to(how, out + done, in + done, n);
  }
}

/// How many elements of a block go through a cell at once, when a cell holds `parts` blocks' worth: whole lines where
/// elements allow it, at most `chunk_bytes` for the cell. Throws if not even one element fits.
inline std::size_t elements_per_part(const peer_memory& m, std::size_t chunk_bytes, int parts,
                                     std::size_t element_bytes) {
  const std::size_t cell = std::min<std::size_t>(chunk_bytes, m.shape().cell_bytes);
  std::size_t room = cell / static_cast<std::size_t>(parts) / cache_line * cache_line;
  if (room < element_bytes) room = m.shape().cell_bytes / static_cast<std::size_t>(parts) / cache_line * cache_line;
  // Their greatest common divisor: a line is a power of two, so the powers of two in an element count.
  const std::size_t common = std::min(element_bytes & (~element_bytes + 1), cache_line);
  const std::size_t line_of_elements = element_bytes / common * cache_line;
  if (room >= line_of_elements) return room / line_of_elements * line_of_elements / element_bytes;
  if (room >= element_bytes) return room / element_bytes;
  fail(error_kind::unsupported, {m.operation_name(), " on ", m.label(), ": an element of ", element_bytes,
                                 " bytes does not fit into the staging memory (", m.shape().cell_bytes,
                                 " bytes a cell for ", parts, " ranks); raise memory_policy::staging_bytes"});
}

/// Where data goes one way only, ranks overlap by chunks: at least four, of at most 32 KiB.
inline std::size_t one_way_chunk(std::size_t chunk_bytes, std::size_t bytes) noexcept {
  return std::min(chunk_bytes, std::clamp<std::size_t>(round_up(bytes / 4, 4096), 4096, std::size_t{32} << 10));
}

/// Part k of a block of `count` elements when `each` go at once.
struct part_of_block {
  std::size_t first, count;
  part_of_block(std::size_t block_count, std::uint64_t k, std::size_t each)
      : first(std::min<std::size_t>(block_count, k * each)), count(std::min(block_count - first, each)) {}
};

inline std::uint64_t parts_in(std::size_t count, std::size_t each) { return (count + each - 1) / each; }

/// Allreduce (root < 0), or reduce to a root: two-shot over chunks of all ranks' slices.
class staged_reduction {
 public:
  staged_reduction(peer_memory& m, const std::byte* in, std::byte* out, std::size_t count, const reduction& op,
                   int root, std::size_t chunk_bytes, output how)
      : m_(m), in_(in), out_(out), count_(count), op_(op), root_(root), how_(how),
        slice_(elements_per_part(m, chunk_bytes, m.size(), op.element_bytes)),
        stride_(round_up(slice_ * op.element_bytes, cache_line)), chunks_(parts_in(count, slice_ * ranks())),
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
  [[nodiscard]] bool rooted() const noexcept { return root_ >= 0; }

  struct range {
    std::size_t at, count;  // bytes into the buffers, elements
  };
  /// Slice q of chunk k. The last chunk is cut evenly too, so that no rank reduces all of it.
  [[nodiscard]] range slice(std::uint64_t k, int q) const noexcept {
    const std::size_t first = k * slice_ * ranks();
    const std::size_t left = std::min(count_ - first, slice_ * ranks());
    std::size_t each = slice_;
    if (left < slice_ * ranks()) {
      const std::size_t unit = op_.element_bytes < cache_line ? cache_line / op_.element_bytes : 1;
      each = std::min(slice_, round_up((left + ranks() - 1) / ranks(), unit));
    }
    const std::size_t from = std::min(left, each * static_cast<std::size_t>(q));
    return {(first + from) * op_.element_bytes, std::min(left - from, each)};
  }
  [[nodiscard]] std::byte* staged(int r, std::uint64_t k, int q) const noexcept {
    return m_.cell(r, base_ + k) + static_cast<std::size_t>(q) * stride_;
  }

  void stage(std::uint64_t k) {
    for (int q = 0; rooted() && k >= cells_per_rank && q != m_.size(); ++q) {
      if (q != m_.rank()) m_.await(m_.of(q).reduced.value, base_ + k - cells_per_rank + 1, q, phase::reduce);
    }
    for (int q = 0; q != m_.size(); ++q) {
      if (q == m_.rank()) continue;
      const range s = slice(k, q);
      copy_bytes(staged(m_.rank(), k, q), in_ + s.at, s.count * op_.element_bytes);
    }
    m_.store(m_.mine().staged.value, base_ + k + 1);
  }

  /// Reduces this rank's slice, and puts the result where each rank staged its part of it. (Also where nobody will read
  /// it, in a reduction to a root: that leaves the lines with the rank that does not write them next.)
  void reduce(std::uint64_t k) {
    const int r = m_.rank();
    const range s = slice(k, r);
    const std::byte** const ins = m_.inputs();
    std::byte** const outs = m_.outputs();
    int n = 0;
    for (int q = 0; q != m_.size(); ++q) {
      ins[q] = in_ + s.at;
      if (q == r) continue;
      m_.await(m_.of(q).staged.value, base_ + k + 1, q, phase::stage);
      ins[q] = outs[n++] = staged(q, k, r);
    }
    const int staged = n;
    if (!rooted() || r == root_) outs[n++] = out_ + s.at;
    if (n != staged && how_ == output::streaming) {
      complete_streaming(op_, outs, n, staged, ins, m_.size(), s.count);
    } else if (s.count != 0) {
      op_.complete(outs, n, ins, m_.size(), s.count);
    }
    m_.store(m_.mine().reduced.value, base_ + k + 1);
  }

  void copy_out(std::uint64_t k) {
    if (rooted() && m_.rank() != root_) return;
    for (int q = 0; q != m_.size(); ++q) {
      if (q == m_.rank()) continue;
      m_.await(m_.of(q).reduced.value, base_ + k + 1, q, phase::reduce);
      const range s = slice(k, q);
      copy_to(how_, out_ + s.at, staged(m_.rank(), k, q), s.count * op_.element_bytes);
    }
  }

  peer_memory& m_;
  const std::byte* in_;
  std::byte* out_;
  std::size_t count_;
  const reduction& op_;
  int root_;
  output how_;
  std::size_t slice_;   // elements of a rank's slice of a chunk
  std::size_t stride_;  // bytes between slices in a cell
  std::uint64_t chunks_;
  std::uint64_t base_;
};

/// Part k of the blocks for all peers, `each` elements of a block at most, to where `place(q)` says.
template <class Place>
void stage_blocks(const peer_memory& m, const std::byte* in, const partition& blocks, std::uint64_t k, std::size_t each,
                  Place&& place) {
  const std::size_t e = blocks.element_bytes();
  for (int q = 0; q != m.size(); ++q) {
    if (q == m.rank()) continue;
    const part_of_block part(blocks.count(q), k, each);
    copy_bytes(place(q), in + blocks.offset(q) + part.first * e, part.count * e);
  }
}

inline void run_cells(peer_memory& m, const reduce_scatter_call& c, std::size_t chunk_bytes, output how) {
  const std::size_t e = c.op.element_bytes;
  const std::size_t each = elements_per_part(m, chunk_bytes, m.size(), e);
  const std::size_t stride = round_up(each * e, cache_line);
  const std::byte** const ins = m.inputs();
  staged_copy{m, parts_in(c.blocks.max_bytes() / e, each), true, true, 0, m.size() - 1, how}.run(
      [&](std::uint64_t k, std::uint64_t n) {
        stage_blocks(m, c.in, c.blocks, k, each, [&](int q) { return mailbox(m, m.rank(), q, n, stride); });
      },
      [&](std::uint64_t k, std::uint64_t n, auto&& arrived) {
        const part_of_block part(c.blocks.count(m.rank()), k, each);
        for (int q = 0; q != m.size(); ++q) {
          if (q == m.rank()) {
            ins[q] = c.in + c.blocks.offset(q) + part.first * e;
          } else {
            arrived(q);
            ins[q] = mailbox(m, q, m.rank(), n, stride);
          }
        }
        std::byte* out = c.out + part.first * e;
        complete_to(out == ins[m.rank()] ? output::cached : how, c.op, &out, 1, ins, m.size(), part.count);
      });
}

/// Blocks of every rank to some ranks: allgather (root < 0) and gather.
inline void run_cells_gather(peer_memory& m, const std::byte* in, std::byte* out, const partition& blocks, int root,
                             std::size_t chunk_bytes, output how) {
  const bool writer = root != m.rank(), reader = root < 0 || root == m.rank();
  const std::size_t e = blocks.element_bytes();
  if (root >= 0) chunk_bytes = one_way_chunk(chunk_bytes, blocks.max_bytes());
  const std::size_t each = elements_per_part(m, chunk_bytes, 1, e);
  const auto cell = [&](int q, std::uint64_t n) { return root < 0 ? rotating_cell(m, q, n) : m.cell(q, n); };
  std::byte* const own = reader && out + blocks.offset(m.rank()) != in ? out + blocks.offset(m.rank()) : nullptr;
  if (own != nullptr && !writer) copy_to(how, own, in, blocks.bytes(m.rank()));
  staged_copy{
      m,  parts_in(blocks.max_bytes() / e, each), writer, reader, root < 0 ? 0 : root, root < 0 ? m.size() - 1 : root,
      how}
      .run(
          [&](std::uint64_t k, std::uint64_t n) {
            const part_of_block part(blocks.count(m.rank()), k, each);
            if (own != nullptr) {
              stage_and_copy(how, cell(m.rank(), n), own + part.first * e, in + part.first * e, part.count * e);
            } else {
              copy_bytes(cell(m.rank(), n), in + part.first * e, part.count * e);
            }
          },
          [&](std::uint64_t k, std::uint64_t n, auto&& arrived) {
            for (int q = 0; q != m.size(); ++q) {
              if (q == m.rank()) continue;
              const part_of_block part(blocks.count(q), k, each);
              std::byte* const to = out + blocks.offset(q) + part.first * e;
              arrived(q);
              if (root < 0) {
                copy_to(how, to, cell(q, n), part.count * e);
              } else {
                copy_and_keep(how, to, cell(q, n), part.count * e);
              }
            }
          });
}
inline void run_cells(peer_memory& m, const allgather_call& c, std::size_t chunk_bytes, output how) {
  run_cells_gather(m, c.in, c.out, c.blocks, -1, chunk_bytes, how);
}
inline void run_cells(peer_memory& m, const gather_call& c, std::size_t chunk_bytes, output how) {
  run_cells_gather(m, c.in, c.out, c.blocks, c.root, chunk_bytes, how);
}

inline void run_cells(peer_memory& m, const broadcast_call& c, std::size_t chunk_bytes, output how) {
  const std::size_t each = elements_per_part(m, one_way_chunk(chunk_bytes, c.bytes), 1, 1);
  const bool root = m.rank() == c.root;
  staged_copy{m, parts_in(c.bytes, each), root, !root, 0, m.size() - 1, how}.run(
      [&](std::uint64_t k, std::uint64_t n) {
        const part_of_block part(c.bytes, k, each);
        if (c.in != c.out) {
          stage_and_copy(how, m.cell(c.root, n), c.out + part.first, c.in + part.first, part.count);
        } else {
          copy_bytes(m.cell(c.root, n), c.in + part.first, part.count);
        }
      },
      [&](std::uint64_t k, std::uint64_t n, auto&& arrived) {
        const part_of_block part(c.bytes, k, each);
        arrived(c.root);
        if (m.size() == 2) {
          copy_and_keep(how, c.out + part.first, m.cell(c.root, n), part.count);
        } else {
          copy_to(how, c.out + part.first, m.cell(c.root, n), part.count);
        }
      });
}

inline void run_cells(peer_memory& m, const scatter_call& c, std::size_t chunk_bytes, output how) {
  const std::size_t e = c.blocks.element_bytes();
  const std::size_t each = elements_per_part(m, one_way_chunk(chunk_bytes, c.blocks.total_bytes()), m.size(), e);
  const std::size_t stride = round_up(each * e, cache_line);
  const bool root = m.rank() == c.root;
  const std::byte* const own = root ? c.in + c.blocks.offset(m.rank()) : nullptr;
  const auto place = [&](int q, std::uint64_t n) { return m.cell(c.root, n) + static_cast<std::size_t>(q) * stride; };
  if (root && own != c.out) copy_to(how, c.out, own, c.blocks.bytes(m.rank()));
  staged_copy{m, parts_in(c.blocks.max_bytes() / e, each), root, !root, 0, m.size() - 1, how}.run(
      [&](std::uint64_t k, std::uint64_t n) {
        stage_blocks(m, c.in, c.blocks, k, each, [&](int q) { return place(q, n); });
      },
      [&](std::uint64_t k, std::uint64_t n, auto&& arrived) {
        const part_of_block part(c.blocks.count(m.rank()), k, each);
        arrived(c.root);
        copy_and_keep(how, c.out + part.first * e, place(m.rank(), n), part.count * e);
      });
}

/// `largest_block`: the most elements that any rank sends to any other.
inline void run_cells(peer_memory& m, const alltoall_call& c, std::size_t largest_block, std::size_t chunk_bytes,
                      output how) {
  const std::size_t e = c.send.element_bytes();
  const std::size_t each = elements_per_part(m, chunk_bytes, m.size(), e);
  const std::size_t stride = round_up(each * e, cache_line);
  if (c.in != c.out)
    copy_to(how, c.out + c.recv.offset(m.rank()), c.in + c.send.offset(m.rank()), c.send.bytes(m.rank()));
  staged_copy{m, parts_in(largest_block, each), true, true, 0, m.size() - 1, how}.run(
      [&](std::uint64_t k, std::uint64_t n) {
        stage_blocks(m, c.in, c.send, k, each, [&](int q) { return mailbox(m, m.rank(), q, n, stride); });
      },
      [&](std::uint64_t k, std::uint64_t n, auto&& arrived) {
        for (int q = 0; q != m.size(); ++q) {
          if (q == m.rank()) continue;
          const part_of_block part(c.recv.count(q), k, each);
          arrived(q);
          copy_to(how, c.out + c.recv.offset(q) + part.first * e, mailbox(m, q, m.rank(), n, stride), part.count * e);
        }
      });
}

}  // namespace hvd::inline HVD_ABI::detail
