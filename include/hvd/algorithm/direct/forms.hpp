// hvd/algorithm/direct/forms.hpp: the data that each collective stages and reads, both for exchanges and for the
// staging ring.
#pragma once

#include <hvd/algorithm/direct/staged.hpp>

#include <cstddef>
#include <cstdint>

namespace hvd::inline HVD_ABI::detail {

/// One-shot reduction: every rank's input goes to all ranks (root < 0) or to the root, where the inputs are reduced in
/// rank order. In an allreduce on p ranks each rank reads p - 1 whole inputs: for small vectors, and for reductions on
/// two ranks. A scan combines only the inputs up to its own rank, `inputs` of them; with none (an exscan on rank 0)
/// nothing is written.
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
      if (inputs > 0) complete_to(to == ins[m.rank()] ? output::cached : how, op, &to, 1, ins, inputs, n);
      for (int q = 0; touches && q != m.size(); ++q) {
        if (q != m.rank()) touch_lines(from(q) + at, n * element_bytes);
      }
      done += tile;
    } while (done < part.count);
  }
};

/// Stages part k of the blocks for all peers.
template <class Slot>
void stage_blocks(const peer_memory& m, const std::byte* in, const partition& blocks, std::uint64_t k, std::size_t each,
                  Slot&& slot) {
  const std::size_t e = blocks.element_bytes();
  for (int q = 0; q != m.size(); ++q) {
    if (q == m.rank()) continue;
    const part_of_block part(blocks.count(q), k, each);
    stage_bytes(slot(q), in + blocks.offset(q) + part.first * e, part.count * e);
  }
}

/// The blocks of a call as vectors of its elements: block(q) is what rank q sends or gets. `in` and `out` are the start
/// of rank 0's block; null if this rank has none.
struct call_blocks {
  const std::byte* in;
  std::byte* out;
  const partition& cut;

  [[nodiscard]] std::size_t longest() const noexcept { return cut.max_count(); }
  [[nodiscard]] std::size_t unit() const noexcept { return cut.element_bytes(); }
  static constexpr bool converts() noexcept { return false; }
};
/// Of a reduce_scatter: every block has an input, and this rank's has the output.
struct blocks_to_reduce : call_blocks {
  [[nodiscard]] contiguous block(int q) const noexcept { return {in + cut.offset(q), out, cut.count(q), unit()}; }
};
/// Of an allgather: this rank's block has the input, and every block has a place in the output.
struct blocks_to_gather : call_blocks {
  [[nodiscard]] contiguous block(int q) const noexcept {
    return {in, out != nullptr ? out + cut.offset(q) : nullptr, cut.count(q), unit()};
  }
};

/// Reduce_scatter: every rank stages a block for each other rank; the receiver reduces its blocks. (alltoall_form
/// copies them.) `op` reduces in the type in which blocks travel; `outer` scales before they are converted.
template <class Blocks>
struct reduce_scatter_form : staged_form {
  peer_memory& m;
  Blocks blocks;
  const reduction& op;
  const reduction* outer;
  output how;

  reduce_scatter_form(peer_memory& memory, const Blocks& of, const reduction& inner, const reduction* scale,
                      output write)
      : staged_form{.pairwise = true, .own_slot = of.converts(), .count = of.longest(), .element_bytes = of.unit()},
        m(memory), blocks(of), op(inner), outer(scale), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    for (int q = 0; q != m.size(); ++q) {
      if (q == m.rank() && !blocks.converts()) continue;
      const auto& v = blocks.block(q);
      each_in_chunk(v, k, each, [&, to = slot(q)](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
        v.stage(to + at, p, first, n, outer);
      });
    }
  }
  void own(std::uint64_t, std::size_t) const noexcept {}
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    const int r = m.rank();
    const auto& own = blocks.block(r);
    const std::byte** const ins = m.inputs();
    if (k * each >= own.length) {  // nothing to read: wait for the peers all the same
      for (int q = 0; q != m.size(); ++q) {
        if (q != r) from(q);
      }
    }
    each_in_chunk(own, k, each, [&](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
      for (int q = 0; q != m.size(); ++q) {
        if (q != r || blocks.converts()) ins[q] = from(q) + at;
      }
      if (blocks.converts()) {  // this rank's own slot takes the result
        std::byte* const result = const_cast<std::byte*>(ins[r]);
        op.complete(&result, 1, ins, m.size(), n);
        return own.unpack(p, first, n, result);
      }
      std::byte* out = p.out + first * element_bytes;
      ins[r] = p.in + first * element_bytes;
      complete_to(out == ins[r] ? output::cached : how, op, &out, 1, ins, m.size(), n);
    });
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
    stage_blocks(m, c.in, c.send, k, each, slot);
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
      take(how, c.out + c.recv.offset(q) + part.first * element_bytes, block, part.count * element_bytes);
    }
  }
};

/// Every rank's block goes to all ranks (allgather, root < 0) or to the root (gather).
template <class Blocks>
struct gather_form : staged_form {
  peer_memory& m;
  Blocks blocks;
  output how;

  gather_form(peer_memory& memory, const Blocks& of, int root, output write)
      : staged_form{.target = root, .count = of.longest(), .element_bytes = of.unit()}, m(memory), blocks(of),
        how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    const auto& v = blocks.block(m.rank());
    each_in_chunk(v, k, each, [&, to = slot(0)](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
      stage_bytes(to + at, p.in + first * element_bytes, n * element_bytes);
    });
  }
  void own(std::uint64_t k, std::size_t each) const {
    if (!reads(m.rank())) return;
    each_in_chunk(blocks.block(m.rank()), k, each, [&](const auto& p, std::size_t first, std::size_t, std::size_t n) {
      if (p.in != p.out) copy_to(how, p.out + first * element_bytes, p.in + first * element_bytes, n * element_bytes);
    });
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    for (int q = 0; q != m.size(); ++q) {
      if (q == m.rank()) continue;
      const auto& v = blocks.block(q);
      each_in_chunk(v, k, each, [&, b = from(q)](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
        take(how, p.out + first * element_bytes, b + at, n * element_bytes);
      });
    }
  }
};

/// The root's vector of bytes goes to all ranks.
template <class V>
struct broadcast_form : staged_form {
  peer_memory& m;
  const V& v;
  output how;

  broadcast_form(peer_memory& memory, const V& bytes, int root, output write)
      : staged_form{.source = root, .count = bytes.length}, m(memory), v(bytes), how(write) {}

  template <class Slot>
  void stage(std::uint64_t k, std::size_t each, Slot&& slot) const {
    each_in_chunk(v, k, each, [&, to = slot(0)](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
      stage_bytes(to + at, p.in + first, n);
    });
  }
  void own(std::uint64_t k, std::size_t each) const {
    if (m.rank() != source) return;
    each_in_chunk(v, k, each, [&](const auto& p, std::size_t first, std::size_t, std::size_t n) {
      if (p.in != p.out) copy_to(how, p.out + first, p.in + first, n);
    });
  }
  template <class From>
  void read(std::uint64_t k, std::size_t each, From&& from) const {
    each_in_chunk(v, k, each, [&, b = from(source)](const auto& p, std::size_t first, std::size_t at, std::size_t n) {
      take(how, p.out + first, b + at, n);
    });
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
    stage_blocks(m, c.in, c.blocks, k, each, slot);
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
