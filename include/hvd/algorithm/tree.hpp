// hvd/algorithm/tree.hpp: collectives from and to a root along a binomial tree; for small messages.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// Binomial trees: place v, counted from the root, has the subtree v .. v + (lowest set bit of v) - 1. With S
/// the bytes of the whole vector and L = ceil(log2 p) the depth, one rank's worst case is
///
/// | call      | bytes sent    | hops to the last rank | temporary memory                          |
/// |-----------|---------------|-----------------------|-------------------------------------------|
/// | broadcast | L S           | L                     | none                                      |
/// | reduce    | S             | L (+1: see below)     | two chunks                                |
/// | allreduce | L S           | 2 L                   | one chunk                                 |
/// | gather    | its subtree   | L                     | its subtree, except on leaves and root    |
/// | scatter   | S - own block | L                     | its subtree, except on leaves and root    |
///
/// (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
/// 2005.) Messages are cut into chunks, so that the levels of the tree work at once on different chunks.
///
/// A node combines its children in rank order: the same bits in every run. An operation that is not commutative is
/// reduced to rank 0, which sends the result to the root: one hop more.
struct tree {
  static constexpr bool rank_ordered = true;

  /// Bytes that travel up or down at once in broadcast, reduce and allreduce; equal on all ranks. (Allreduce of 16 MiB:
  /// on 2 threads 16 KiB takes 70 % more time than 64 KiB, and larger chunks are no faster; on 3 threads 1 MiB takes
  /// 20 % more and no chunks 60 %.) At least one element is taken, even for smaller values.
  std::size_t chunk_bytes = detail::tree_chunk_bytes;

  friend constexpr bool operator==(const tree&, const tree&) = default;

  template <PointToPoint T>
  void operator()(T& t, const broadcast_call& c) const {
    const bool at_root = t.rank() == c.root;
    spread(t, at_root ? c.in : c.out, c.out, c.bytes, detail::chunk_elements(chunk_bytes, 1, c.bytes), c.root);
    if (at_root && c.in != c.out) detail::copy_bytes(c.out, c.in, c.bytes);
  }

  template <PointToPoint T>
  void operator()(T& t, const reduce_call& c) const {
    const node here(t.rank(), t.size(), c.op.commutative ? c.root : 0);
    const std::size_t unit = c.op.element_bytes;
    const std::size_t chunk = detail::chunk_elements(chunk_bytes, unit, c.count);
    const bool at_root = t.rank() == c.root;
    const bool forwards = !c.op.commutative && c.root != 0;
    const bool writes_out = here.is_top() && at_root;
    // Ranks other than the root may have no `out`; a leaf sends its input directly.
    const detail::temporary sums(!writes_out && (here.children() || c.op.prepares()) ? chunk * unit : 0);
    const detail::temporary received(here.children() ? chunk * unit : 0);
    for (std::size_t at = 0; at == 0 || at < c.count; at += chunk) {
      const std::size_t n = std::min(chunk, c.count - at);
      std::byte* const reduced = writes_out ? c.out + at * unit : sums.data();
      collect(t, here, c.in + at * unit, reduced, received.data(), n, c.op);
      if (forwards && here.is_top()) t.send(reduced, n * unit, c.root);
      if (forwards && at_root) t.recv(c.out + at * unit, n * unit, 0);
    }
  }

  template <PointToPoint T>
  void operator()(T& t, const allreduce_call& c) const {
    const node here(t.rank(), t.size(), 0);
    const std::size_t unit = c.op.element_bytes;
    const std::size_t chunk = detail::chunk_elements(chunk_bytes, unit, c.count);
    const detail::temporary received(here.children() ? chunk * unit : 0);
    for (std::size_t at = 0; at == 0 || at < c.count; at += chunk) {
      const std::size_t n = std::min(chunk, c.count - at);
      collect(t, here, c.in + at * unit, c.out + at * unit, received.data(), n, c.op);
    }
    spread(t, c.out, c.out, c.count * unit, chunk * unit, 0);
  }

  template <PointToPoint T>
  void operator()(T& t, const gather_call& c) const {
    const node here(t.rank(), t.size(), c.root);
    const std::size_t own_bytes = c.blocks.bytes(t.rank());
    const detail::block_run mine = here.run(c.blocks);
    // The root receives into `out`, a leaf sends from `in`, and nodes in between collect their subtree.
    const detail::temporary collected(!here.is_top() && here.children() ? mine.total() : 0);
    if (here.is_top()) {
      std::byte* const own = c.out + c.blocks.offset(t.rank());
      if (c.in != own) detail::copy_bytes(own, c.in, own_bytes);
    } else if (here.children()) {
      detail::copy_bytes(collected.data(), c.in, own_bytes);
    }
    std::size_t filled = own_bytes;
    for (int bit = 1; bit < here.span; bit *= 2) {
      if (!here.has_child(bit)) continue;
      const node child = here.child(bit);
      const detail::block_run theirs = child.run(c.blocks);
      std::byte* const to = here.is_top() ? c.out + theirs.offset : collected.data() + filled;
      t.recv(to, theirs.bytes, child.rank());
      if (theirs.wrapped != 0) {
        t.recv(here.is_top() ? c.out : to + theirs.bytes, theirs.wrapped, child.rank());
      }
      filled += theirs.total();
    }
    if (here.is_top()) return;
    const std::byte* const from = here.children() ? collected.data() : c.in;
    t.send(from, mine.bytes, here.parent());
    if (mine.wrapped != 0) t.send(from + mine.bytes, mine.wrapped, here.parent());
  }

  template <PointToPoint T>
  void operator()(T& t, const scatter_call& c) const {
    const node here(t.rank(), t.size(), c.root);
    const std::size_t own_bytes = c.blocks.bytes(t.rank());
    const detail::block_run mine = here.run(c.blocks);
    const detail::temporary collected(!here.is_top() && here.children() ? mine.total() : 0);
    if (!here.is_top()) {
      std::byte* const to = here.children() ? collected.data() : c.out;
      t.recv(to, mine.bytes, here.parent());
      if (mine.wrapped != 0) t.recv(to + mine.bytes, mine.wrapped, here.parent());
    }
    // The largest subtree first: it has the longest way to go.
    std::size_t left = mine.total();
    for (int bit = here.span / 2; bit != 0; bit /= 2) {
      if (!here.has_child(bit)) continue;
      const node child = here.child(bit);
      const detail::block_run theirs = child.run(c.blocks);
      left -= theirs.total();
      const std::byte* const from = here.is_top() ? c.in + theirs.offset : collected.data() + left;
      t.send(from, theirs.bytes, child.rank());
      if (theirs.wrapped != 0) {
        t.send(here.is_top() ? c.in : from + theirs.bytes, theirs.wrapped, child.rank());
      }
    }
    const std::byte* const own = here.is_top() ? c.in + c.blocks.offset(t.rank()) : collected.data();
    if ((here.is_top() || here.children()) && c.out != own) detail::copy_bytes(c.out, own, own_bytes);
  }

 private:
  /// A place in the tree whose top is rank `top`.
  struct node {
    node(int rank, int ranks, int top_rank)
        : size(ranks), top(top_rank), place(detail::around(rank - top_rank, ranks)),
          span(place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks))) : place & -place) {}

    int size;
    int top;
    int place;  // rank, counted from the top
    int span;   // the subtree has the places from `place` up to `place + span`, as far as they exist

    [[nodiscard]] int rank() const { return detail::around(top + place, size); }
    [[nodiscard]] int parent() const { return detail::around(top + place - span, size); }
    [[nodiscard]] bool is_top() const { return place == 0; }
    /// The child whose place is `bit` above; `bit` is a power of two below `span`.
    [[nodiscard]] bool has_child(int bit) const { return place + bit < size; }
    [[nodiscard]] node child(int bit) const { return {detail::around(rank() + bit, size), size, top}; }
    [[nodiscard]] bool children() const { return span > 1 && has_child(1); }
    [[nodiscard]] detail::block_run run(const partition& blocks) const {
      return detail::run_of(blocks, rank(), std::min(span, size - place));
    }
  };

  /// Reduces one chunk up the tree. On the top `reduced` receives the finished result; elsewhere it is memory for that
  /// of the subtree (a leaf needs none unless the operation prepares).
  template <PointToPoint T>
  static void collect(T& t, const node& here, const std::byte* in, std::byte* reduced, std::byte* received,
                      std::size_t n, const reduction& op) {
    const std::size_t bytes = n * op.element_bytes;
    if (op.prepares()) {
      op.prepare(reduced, in, n);
      in = reduced;
    }
    for (int bit = 1; bit < here.span; bit *= 2) {
      if (!here.has_child(bit)) continue;
      t.recv(received, bytes, here.child(bit).rank());
      op.combine(reduced, in, received, n);
      in = reduced;
    }
    if (!here.is_top()) return t.send(in, bytes, here.parent());
    if (in != reduced) detail::copy_bytes(reduced, in, bytes);  // a group of one
    op.finish(reduced, n);
  }

  /// Broadcasts down the tree: `data` on the top; the other ranks receive into `out`.
  template <PointToPoint T>
  static void spread(T& t, const std::byte* data, std::byte* out, std::size_t bytes, std::size_t chunk, int top) {
    const node here(t.rank(), t.size(), top);
    for (std::size_t at = 0; at == 0 || at < bytes; at += chunk) {
      const std::size_t n = std::min(chunk, bytes - at);
      if (!here.is_top()) t.recv(out + at, n, here.parent());
      for (int bit = here.span / 2; bit != 0; bit /= 2) {
        if (here.has_child(bit)) t.send(data + at, n, here.child(bit).rank());
      }
    }
  }
};

/// The algorithm with its tunables, for messages and bench output.
inline std::string name(const tree& a) { return detail::joined({"tree(chunk_bytes=", a.chunk_bytes, ")"}); }

}  // namespace hvd::inline HVD_ABI
