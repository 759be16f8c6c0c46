// hvd/algorithm/direct/mapped.hpp: collectives on buffers from alloc_shared, by loads and stores in peers' memory.
//
// Nothing is staged. In allreduce each rank reads its slice of all inputs and writes it to all outputs: every input
// byte is read once and every output byte written once, which is the lower bound. The other collectives read their
// peers' inputs directly. The `agree` before a collective proves that all inputs are ready; the barrier after it proves
// that no rank reads or writes the caller's buffers any more.
#pragma once

#include <hvd/algorithm/direct/output.hpp>
#include <hvd/algorithm/direct/vector.hpp>
#include <hvd/shared_memory/agree.hpp>

#include <algorithm>
#include <cstddef>
#include <span>

namespace hvd::inline HVD_ABI::detail {

/// The buffers of all ranks, as `agree` found them.
class mapped_buffers {
 public:
  /// Throws if a rank has given up: a late rank must not write into buffers whose owners have left.
  mapped_buffers(peer_memory& m, std::span<const descriptor> all) : m_(m), all_(all) {
    m.check_abort(-1, phase::enter);
  }

  [[nodiscard]] bool all_inputs() const noexcept {
    return std::all_of(all_.begin(), all_.end(), [](const descriptor& d) { return d.in_block != 0; });
  }
  [[nodiscard]] bool all_outputs() const noexcept {
    return std::all_of(all_.begin(), all_.end(), [](const descriptor& d) { return d.out_block != 0; });
  }
  [[nodiscard]] bool input_of(int q) const noexcept { return of(q).in_block != 0; }
  [[nodiscard]] bool output_of(int q) const noexcept { return of(q).out_block != 0; }

  /// The start of rank q's input or output, of which `bytes` are used.
  [[nodiscard]] const std::byte* in(int q, std::size_t bytes) const {
    return at(q, of(q).in_block, of(q).in_offset, bytes);
  }
  [[nodiscard]] std::byte* out(int q, std::size_t bytes) const {
    return at(q, of(q).out_block, of(q).out_offset, bytes);
  }

 private:
  [[nodiscard]] const descriptor& of(int q) const noexcept { return all_[static_cast<std::size_t>(q)]; }
  [[nodiscard]] std::byte* at(int q, std::uint32_t id, std::uint64_t offset, std::size_t bytes) const {
    const shared_block* const b = m_.block(id);
    // This rank has freed its part of a block that rank q still uses in a collective; or rank q's words are corrupt.
    if (b == nullptr || offset > b->bytes || bytes > b->bytes - offset) {
      m_.give_up(error_kind::mismatch, q, phase::enter);
    }
    return b->part(q) + offset;
  }

  peer_memory& m_;
  std::span<const descriptor> all_;
};

/// Writes the shared blocks and offsets of a call's buffers into the descriptor.
inline void locate(const peer_memory& m, descriptor& d, const std::byte* in, std::size_t in_bytes, const std::byte* out,
                   std::size_t out_bytes) {
  if (const shared_block* b = in_bytes == 0 ? nullptr : m.find_block(in, in_bytes)) {
    d.in_block = b->id;
    d.in_offset = static_cast<std::uint64_t>(in - b->part(m.rank()));
  }
  if (const shared_block* b = out_bytes == 0 ? nullptr : m.find_block(out, out_bytes)) {
    d.out_block = b->id;
    d.out_offset = static_cast<std::uint64_t>(out - b->part(m.rank()));
  }
}

/// Ends a collective on mapped buffers: no rank leaves before all are done. Returns true: the collective has been run.
inline bool mapped_exit(peer_memory& m, output how) {
  output_fence(how);
  descriptor d;
  d.kind = operation::barrier;
  d.details = 1;
  meet(m, d);
  return true;
}

/// Allreduce (root < 0) or reduce of a vector (vector.hpp): this rank's slice of all inputs is reduced to all outputs
/// or to the root's. in(piece, q) and out(piece, q) are rank q's addresses of the piece. (In place the output is not
/// streamed: its lines are in the cache anyway.)
template <class V, class In, class Out>
void reduce_mapped(peer_memory& m, const V& v, const reduction& op, int root, output how, const In& in,
                   const Out& out) {
  const std::size_t p = static_cast<std::size_t>(m.size());
  const std::size_t unit = v.unit < 128 ? 128 / v.unit : 1;  // no line with two writers
  const std::size_t each = round_up((v.length + p - 1) / p, unit);
  const std::size_t first = std::min(v.length, each * static_cast<std::size_t>(m.rank()));
  v.each(first, std::min(v.length, first + each), [&](const auto& piece, std::size_t at, std::size_t, std::size_t n) {
    const std::byte** const ins = m.inputs();
    std::byte** const outs = m.outputs();
    output write = how;
    int nouts = 0;
    for (int q = 0; q != m.size(); ++q) {
      ins[q] = in(piece, q) + at * v.unit;
      if (root >= 0 && q != root) continue;
      outs[nouts++] = out(piece, q) + at * v.unit;
      if (outs[nouts - 1] == ins[q]) write = output::cached;
    }
    complete_to(write, op, outs, nouts, ins, m.size(), n);
  });
}

/// The same for a call whose buffers lie in shared blocks.
inline bool run_mapped(peer_memory& m, const mapped_buffers& b, const contiguous& v, const reduction& op, int root,
                       output how) {
  const std::size_t bytes = v.length * v.unit;
  reduce_mapped(
      m, v, op, root, how, [&](const contiguous&, int q) { return b.in(q, bytes); },
      [&](const contiguous&, int q) { return b.out(q, bytes); });
  return mapped_exit(m, how);
}

inline bool run_mapped(peer_memory& m, const mapped_buffers& b, const reduce_scatter_call& c, output how) {
  const std::byte** const ins = m.inputs();
  for (int q = 0; q != m.size(); ++q) {
    ins[q] = b.in(q, c.blocks.total_bytes()) + c.blocks.offset(m.rank());
  }
  std::byte* out = c.out;
  if (out == ins[m.rank()]) how = output::cached;
  complete_to(how, c.op, &out, 1, ins, m.size(), c.blocks.count(m.rank()));
  return mapped_exit(m, how);
}

/// Allgather (root < 0) and gather.
inline bool run_mapped(peer_memory& m, const mapped_buffers& b, std::byte* out, const partition& blocks, int root,
                       output how) {
  // Each rank starts with its own block, so that not all read the same memory at once.
  for (int step = 0; step != m.size() && (root < 0 || root == m.rank()); ++step) {
    const int q = (m.rank() + step) % m.size();
    std::byte* const to = out + blocks.offset(q);
    const std::byte* const from = b.in(q, blocks.bytes(q));
    if (to != from) copy_to(how, to, from, blocks.bytes(q));
  }
  return mapped_exit(m, how);
}

inline bool run_mapped(peer_memory& m, const mapped_buffers& b, const broadcast_call& c, output how) {
  const std::byte* const from = b.in(c.root, c.bytes);
  if (c.out != from) copy_to(how, c.out, from, c.bytes);
  return mapped_exit(m, how);
}

inline bool run_mapped(peer_memory& m, const mapped_buffers& b, const scatter_call& c, output how) {
  const std::byte* const from = b.in(c.root, c.blocks.total_bytes()) + c.blocks.offset(m.rank());
  if (c.out != from) copy_to(how, c.out, from, c.blocks.bytes(m.rank()));
  return mapped_exit(m, how);
}

inline bool run_mapped(peer_memory& m, const mapped_buffers& b, const alltoall_call& c, output how) {
  for (int step = 0; step != m.size(); ++step) {
    const int q = (m.rank() + step) % m.size();
    const std::byte* const from = b.in(q, c.send.total_bytes()) + c.send.offset(m.rank());
    copy_to(how, c.out + c.recv.offset(q), from, c.send.bytes(0));
  }
  return mapped_exit(m, how);
}

}  // namespace hvd::inline HVD_ABI::detail
