// hvd/algorithm/double_tree.hpp: two binary trees that carry half of the data each; for large messages on many ranks.
#pragma once

#include <hvd/algorithm/double_tree/two_trees.hpp>
#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>

namespace hvd::inline HVD_ABI {

/// In a binary tree half of the ranks, the leaves, have no work. So there are two trees: an inner rank of one is a leaf
/// of the other, and each carries half of the vector, in chunks. With S the bytes of the whole vector and m the chunks
/// in half of it, one rank's cost is
///
/// | call      | bytes sent at most | steps at most (L = ceil(log2 p)) | temporary memory         |
/// |-----------|--------------------|----------------------------------|--------------------------|
/// | broadcast | S                  | 2 m + 2 L                        | none                     |
/// | reduce    | S                  | 2 m + 2 L                        | three chunks (see below) |
/// | allreduce | 2 S                | 4 m + 4 L                        | one chunk                |
///
/// In a step a rank sends one chunk and receives one at the same time. So bytes are those of the ring, and steps grow
/// with log p only: for vectors that are large, but not large compared to the number of ranks. (P. Sanders, J. Speck,
/// J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; here the second tree is
/// the first one shifted by one rank, on any number of ranks.)
///
/// A rank combines its left subtree, its own input and its right subtree, in this order: the same bits on all ranks and
/// in every run, and operations need not commute. An operation that does not commute is reduced to rank 0, which needs
/// memory for the whole vector (S) and then sends it to the root: S bytes more.
struct double_tree {
  static constexpr bool rank_ordered = true;

  /// Bytes that travel at once; equal on all ranks. (Allreduce of 16 MiB: on 2 threads all sizes from 16 KiB on are
  /// equal within 15 %; on 3 and 4 threads 64 KiB to 1 MiB are equal within the variation of runs, 16 KiB takes a
  /// quarter more time on 3, and no chunks take half more.) At least one element is taken, even for smaller values.
  std::size_t chunk_bytes = detail::tree_chunk_bytes;

  friend constexpr bool operator==(const double_tree&, const double_tree&) = default;

  template <PointToPoint T>
  void operator()(T& t, const broadcast_call& c) const {
    const bool at_root = t.rank() == c.root;
    spread(t, neighbours(t.rank(), t.size(), c.root), at_root ? c.in : c.out, c.out, pieces(chunk_bytes, c.bytes, 1));
    if (at_root && c.in != c.out) detail::copy_bytes(c.out, c.in, c.bytes);
  }

  template <PointToPoint T>
  void operator()(T& t, const reduce_call& c) const {
    const int top = c.op.commutative ? c.root : 0;
    const bool forwards = top != c.root;
    const std::size_t bytes = c.count * c.op.element_bytes;
    const detail::temporary whole(forwards && t.rank() == top ? bytes : 0);
    std::byte* const result = t.rank() != top ? nullptr : forwards ? whole.data() : c.out;
    collect(t, neighbours(t.rank(), t.size(), top), c.in, result, c.op,
            pieces(chunk_bytes, c.count, c.op.element_bytes));
    if (forwards && t.rank() == top) t.send(result, bytes, c.root);
    if (forwards && t.rank() == c.root) t.recv(c.out, bytes, top);
  }

  template <PointToPoint T>
  void operator()(T& t, const allreduce_call& c) const {
    const neighbours here(t.rank(), t.size(), 0);
    const pieces cut(chunk_bytes, c.count, c.op.element_bytes);
    collect(t, here, c.in, c.out, c.op, cut);
    spread(t, here, c.out, c.out, cut);
  }

 private:
  /// A vector cut into halves, and each into chunks.
  struct pieces {
    pieces(std::size_t bytes, std::size_t count, std::size_t element_bytes)
        : halves(2, count, element_bytes), unit(element_bytes),
          chunk(detail::chunk_elements(bytes, element_bytes, (count + 1) / 2)) {}

    /// A half without elements is sent as a message, too, so that ranks that disagree on counts find out.
    [[nodiscard]] std::size_t chunks(int half) const {
      return std::max<std::size_t>(1, halves.count(half) / chunk + (halves.count(half) % chunk != 0 ? 1 : 0));
    }

    detail::even_blocks halves;
    std::size_t unit;
    std::size_t chunk;
  };

  /// An edge to another rank. The first chunk passes down it in step `arrival`, one more every two steps.
  struct link {
    int peer;
    int tree;
    int arrival;
    bool left = false;  // the child's subtree stands on the left
    bool last = true;   // the last child of this tree that a chunk goes down to
  };
  /// The chunk that passes an edge in one step, if any.
  struct passing {
    const link* along = nullptr;
    std::size_t offset = 0;  // in bytes
    std::size_t count = 0;
  };

  /// A rank's edges.
  class neighbours {
   public:
    neighbours(int rank, int size, int top) {
      const detail::two_trees trees(size);
      const int place = detail::around(rank - top, size);
      depth_ = static_cast<std::size_t>(trees.depth());
      for (const int tree : {0, 1}) {
        const auto add = [&](std::array<link, 2>& links, std::size_t& n, int other, int lower, bool left) {
          links[n++] = {detail::around(top + other, size), tree, trees.arrival(tree, lower), left};
        };
        if (place != 0) add(parents_, nparents_, trees.parent(tree, place), place, false);
        const auto below = trees.below(tree, place);
        if (below.left != 0) add(children_, nchildren_, below.left, below.left, true);
        if (below.right != 0) add(children_, nchildren_, below.right, below.right, false);
        if (below.left != 0 && below.right != 0) {
          const bool right_is_last = children_[1].arrival > children_[0].arrival;
          children_[right_is_last ? 0 : 1].last = false;
        }
      }
    }

    [[nodiscard]] std::span<const link> parents() const { return std::span(parents_).first(nparents_); }
    [[nodiscard]] std::span<const link> children() const { return std::span(children_).first(nchildren_); }
    [[nodiscard]] bool alone() const { return nparents_ + nchildren_ == 0; }
    [[nodiscard]] bool inside(int tree) const {
      return std::any_of(children().begin(), children().end(), [&](const link& l) { return l.tree == tree; });
    }

    [[nodiscard]] std::size_t steps(const pieces& cut) const { return depth_ + 2 * cut.chunks(1); }
    /// The link in `links` that is busy in a step, of which there is at most one. Upwards the order of steps is
    /// reversed.
    [[nodiscard]] passing busy(std::span<const link> links, bool upwards, std::size_t step, const pieces& cut) const {
      for (const link& l : links) {
        const auto arrival = static_cast<std::size_t>(l.arrival);
        const std::size_t first = upwards ? depth_ - arrival : arrival;
        if (step < first || (step - first) % 2 != 0) continue;
        const std::size_t k = (step - first) / 2;
        if (k >= cut.chunks(l.tree)) continue;
        const std::size_t at = k * cut.chunk;
        return {&l, cut.halves.offset(l.tree) + at * cut.unit, std::min(cut.chunk, cut.halves.count(l.tree) - at)};
      }
      return {};
    }

   private:
    // A place other than the top has two parents, and up to two children in one tree; the top has a child in each.
    std::array<link, 2> parents_{};
    std::array<link, 2> children_{};
    std::size_t nparents_ = 0;
    std::size_t nchildren_ = 0;
    std::size_t depth_ = 0;
  };

  template <PointToPoint T>
  static void move(T& t, const passing& to, const std::byte* out, const passing& from, std::byte* in,
                   std::size_t unit) {
    if (to.along != nullptr && from.along != nullptr) {
      t.exchange(out, to.count * unit, to.along->peer, in, from.count * unit, from.along->peer);
    } else if (to.along != nullptr) {
      t.send(out, to.count * unit, to.along->peer);
    } else if (from.along != nullptr) {
      t.recv(in, from.count * unit, from.along->peer);
    }
  }

  /// Broadcasts down both trees: `data` on the top; the other ranks receive into `out`.
  template <PointToPoint T>
  static void spread(T& t, const neighbours& here, const std::byte* data, std::byte* out, const pieces& cut) {
    for (std::size_t step = 0; step != here.steps(cut); ++step) {
      const passing to = here.busy(here.children(), false, step, cut);
      const passing from = here.busy(here.parents(), false, step, cut);
      move(t, to, data + to.offset, from, out + from.offset, cut.unit);
    }
  }

  /// Reduces up both trees. On the top `out` receives the result; elsewhere it is memory for partial ones, or null.
  template <PointToPoint T>
  static void collect(T& t, const neighbours& here, const std::byte* in, std::byte* out, const reduction& op,
                      const pieces& cut) {
    const std::size_t chunk_bytes = cut.chunk * cut.unit;
    const detail::temporary partial(out == nullptr ? 2 * chunk_bytes : 0);
    const detail::temporary received(here.children().empty() ? 0 : chunk_bytes);
    const auto memory = [&](const passing& p) {
      return out != nullptr ? out + p.offset : partial.data() + (p.along->tree == 0 ? 0 : chunk_bytes);
    };
    const auto own = [&](const passing& p) -> const std::byte* {
      if (!op.prepares()) return in + p.offset;
      op.prepare(memory(p), in + p.offset, p.count);
      return memory(p);
    };
    if (here.alone()) {
      const std::size_t count = cut.halves.start(2);
      op.prepare(out, in, count);
      return op.finish(out, count);
    }
    for (std::size_t step = 0; step != here.steps(cut); ++step) {
      const passing to = here.busy(here.parents(), true, step, cut);
      const passing from = here.busy(here.children(), true, step, cut);
      const std::byte* sent = nullptr;
      if (to.along != nullptr) sent = here.inside(to.along->tree) ? memory(to) : own(to);
      move(t, to, sent, from, received.data(), cut.unit);
      if (from.along == nullptr) continue;
      // The child that is last on the way down is first on the way up.
      std::byte* const reduced = memory(from);
      const std::byte* const mine = from.along->last ? own(from) : reduced;
      const bool left = from.along->left;
      op.combine(reduced, left ? received.data() : mine, left ? mine : received.data(), from.count);
      if (here.parents().empty()) op.finish(reduced, from.count);
    }
  }
};

/// The algorithm with its tunables, for messages and bench output.
inline std::string name(const double_tree& a) {
  return "double_tree(chunk_bytes=" + std::to_string(a.chunk_bytes) + ")";
}

}  // namespace hvd::inline HVD_ABI
