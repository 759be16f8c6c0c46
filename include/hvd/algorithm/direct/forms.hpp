// hvd/algorithm/direct/forms.hpp: what each collective stages and reads, for exchanges and the staging ring alike.
#pragma once

#include <hvd/algorithm/direct/staged.hpp>

#include <cstddef>
#include <cstdint>

namespace hvd::inline HVD_ABI::detail {

/// One-shot reduction: every rank's input goes to all ranks (root < 0) or to the root, where the inputs are reduced in
/// rank order. In an allreduce on p ranks each rank reads p - 1 whole inputs: for small vectors, and for reductions on
/// two ranks. A scan combines only the inputs up to its own rank, `inputs` of them.
struct reduce_form : staged_form {
  peer_memory& m;
  const std::byte* in;
  std::byte* out;
  const reduction& op;
  output how;
  int inputs;

  reduce_form(peer_memory& memory, const std::byte* input, std::byte* output_at, std::size_t elements,
              const reduction& reduce, int root, output write)
      : staged_form{.target = root, .count = elements, .element_bytes = reduce.element_bytes}, m(memory), in(input),
        out(output_at), op(reduce), how(write), inputs(memory.size()) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    const part_of_block part(count, k, each);
    stage_bytes(slot(0), in + part.first * element_bytes, part.count * element_bytes);
  }
  void own(std::uint64_t, std::size_t) const noexcept {}
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    const part_of_block part(count, k, each);
    const std::byte** const ins = m.inputs();
    const std::size_t tile = touches ? std::max(touched_tile / element_bytes, std::size_t{1}) : part.count;
    std::size_t done = 0;
    do {  // once even without elements: `from` waits for the peers
      const std::size_t n = std::min(tile, part.count - done), at = done * element_bytes;
      for (int q = 0; q != m.size(); ++q) ins[q] = (q == m.rank() ? in + part.first * element_bytes : from(q)) + at;
      std::byte* to = out + part.first * element_bytes + at;
      complete_to(to == ins[m.rank()] ? output::cached : how, op, &to, 1, ins, inputs, n);
      for (int q = 0; touches && q != m.size(); ++q) {
        if (q != m.rank()) touch_lines(from(q) + at, n * element_bytes);
      }
      done += tile;
    } while (done < part.count);
  }
};

/// Every rank stages a block for each other rank; the receiver reduces its blocks. (alltoall_form copies them.)
struct reduce_scatter_form : staged_form {
  peer_memory& m;
  const reduce_scatter_call& c;
  output how;

  reduce_scatter_form(peer_memory& memory, const reduce_scatter_call& call, output write)
      : staged_form{.pairwise = true, .count = call.blocks.max_count(), .element_bytes = call.op.element_bytes},
        m(memory), c(call), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    stage_blocks(m, c.in, c.blocks, k, each, slot);
  }
  void own(std::uint64_t, std::size_t) const noexcept {}
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    const part_of_block part(c.blocks.count(m.rank()), k, each);
    const std::byte** const ins = m.inputs();
    for (int q = 0; q != m.size(); ++q) {
      ins[q] = q == m.rank() ? c.in + c.blocks.offset(q) + part.first * element_bytes : from(q);
    }
    std::byte* to = c.out + part.first * element_bytes;
    complete_to(to == ins[m.rank()] ? output::cached : how, c.op, &to, 1, ins, m.size(), part.count);
  }
  /// Stages part k of the blocks for all peers.
  template <class Slot>
  static void stage_blocks(const peer_memory& m, const std::byte* in, const partition& blocks, std::uint64_t k,
                           std::size_t each, Slot&& slot) {
    const std::size_t e = blocks.element_bytes();
    for (int q = 0; q != m.size(); ++q) {
      if (q == m.rank()) continue;
      const part_of_block part(blocks.count(q), k, each);
      stage_bytes(slot(q), in + blocks.offset(q) + part.first * e, part.count * e);
    }
  }
};

struct alltoall_form : staged_form {
  peer_memory& m;
  const alltoall_call& c;
  output how;

  /// `largest`: the most elements that any rank sends to any other.
  alltoall_form(peer_memory& memory, const alltoall_call& call, std::size_t largest, output write)
      : staged_form{.pairwise = true, .count = largest, .element_bytes = call.send.element_bytes()}, m(memory), c(call),
        how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    reduce_scatter_form::stage_blocks(m, c.in, c.send, k, each, slot);
  }
  void own(std::uint64_t k, std::size_t each) const noexcept {
    if (c.in == c.out) return;
    const part_of_block part(c.send.count(m.rank()), k, each);
    copy_to(how, c.out + c.recv.offset(m.rank()) + part.first * element_bytes,
            c.in + c.send.offset(m.rank()) + part.first * element_bytes, part.count * element_bytes);
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    for (int q = 0; q != m.size(); ++q) {
      if (q == m.rank()) continue;
      const part_of_block part(c.recv.count(q), k, each);
      const std::byte* const block = from(q);
      copy_to(how, c.out + c.recv.offset(q) + part.first * element_bytes, block, part.count * element_bytes);
    }
  }
};

/// Every rank's block goes to all ranks (allgather, root < 0) or to the root (gather).
struct gather_form : staged_form {
  peer_memory& m;
  const std::byte* in;
  std::byte* out;
  const partition& blocks;
  output how;

  gather_form(peer_memory& memory, const std::byte* input, std::byte* output_at, const partition& of, int root,
              output write)
      : staged_form{.target = root, .count = of.max_count(), .element_bytes = of.element_bytes()}, m(memory), in(input),
        out(output_at), blocks(of), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    const part_of_block part(blocks.count(m.rank()), k, each);
    stage_bytes(slot(0), in + part.first * element_bytes, part.count * element_bytes);
  }
  void own(std::uint64_t k, std::size_t each) const noexcept {
    if (!reads(m.rank()) || out + blocks.offset(m.rank()) == in) return;
    const part_of_block part(blocks.count(m.rank()), k, each);
    copy_to(how, out + blocks.offset(m.rank()) + part.first * element_bytes, in + part.first * element_bytes,
            part.count * element_bytes);
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    for (int q = 0; q != m.size(); ++q) {
      if (q == m.rank()) continue;
      const part_of_block part(blocks.count(q), k, each);
      const std::byte* const block = from(q);
      take(how, out + blocks.offset(q) + part.first * element_bytes, block, part.count * element_bytes);
    }
  }
};

struct broadcast_form : staged_form {
  peer_memory& m;
  const broadcast_call& c;
  output how;

  broadcast_form(peer_memory& memory, const broadcast_call& call, output write)
      : staged_form{.source = call.root, .count = call.bytes}, m(memory), c(call), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    const part_of_block part(c.bytes, k, each);
    stage_bytes(slot(0), c.in + part.first, part.count);
  }
  void own(std::uint64_t k, std::size_t each) const noexcept {
    if (m.rank() != c.root || c.in == c.out) return;
    const part_of_block part(c.bytes, k, each);
    copy_to(how, c.out + part.first, c.in + part.first, part.count);
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    const part_of_block part(c.bytes, k, each);
    const std::byte* const block = from(c.root);
    take(how, c.out + part.first, block, part.count);
  }
};

struct scatter_form : staged_form {
  peer_memory& m;
  const scatter_call& c;
  output how;

  scatter_form(peer_memory& memory, const scatter_call& call, output write)
      : staged_form{.source = call.root,
                    .pairwise = true,
                    .count = call.blocks.max_count(),
                    .element_bytes = call.blocks.element_bytes()},
        m(memory), c(call), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    reduce_scatter_form::stage_blocks(m, c.in, c.blocks, k, each, slot);
  }
  void own(std::uint64_t k, std::size_t each) const noexcept {
    if (m.rank() != c.root || c.out == c.in + c.blocks.offset(c.root)) return;
    const part_of_block part(c.blocks.count(c.root), k, each);
    copy_to(how, c.out + part.first * element_bytes, c.in + c.blocks.offset(c.root) + part.first * element_bytes,
            part.count * element_bytes);
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    const part_of_block part(c.blocks.count(m.rank()), k, each);
    const std::byte* const block = from(c.root);
    take(how, c.out + part.first * element_bytes, block, part.count * element_bytes);
  }
};

}  // namespace hvd::inline HVD_ABI::detail
