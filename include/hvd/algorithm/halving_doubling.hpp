// hvd/algorithm/halving_doubling.hpp: reductions and broadcast in about 2 log2 p steps that send few bytes; not for
// small messages.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>
#include <vector>

namespace hvd::inline HVD_ABI {

/// Rabenseifner's algorithm. In the first phase, rank distances double and the part of the vector that a rank is
/// responsible for halves with each step; the second phase is the reverse. With S the bytes of the whole vector, p a
/// power of two, one rank's cost is
///
/// | call           | bytes sent          | steps    | temporary memory              |
/// |----------------|---------------------|----------|-------------------------------|
/// | allreduce      | 2 S (p-1)/p         | 2 log2 p | S/2                           |
/// | reduce         | 3/2 S at most       | 2 log2 p | S/2, and S except on the root |
/// | reduce_scatter | S (p-1)/p           | log2 p   | S, and the larger half of S   |
/// | broadcast      | 2 S (p-1)/p         | 2 log2 p | none                          |
///
/// On other numbers of ranks, p - 2^floor(log2 p) pairs of ranks act as one: two more steps at the start, in which a
/// rank sends at most S bytes, and one more at the end, in which the other rank of the pair gets its result (S bytes in
/// allreduce, a block in reduce_scatter). (R. Rabenseifner, "Optimization of collective reduction operations", 2004;
/// the order of blocks in reduce_scatter after M. Bernaschi, G. Iannello, M. Lauria, "Efficient implementation of
/// reduce-scatter in MPI", 2003.)
///
/// broadcast scatters the vector and gathers it again, in 2 ceil(log2 p) steps on any number of ranks. (M. Barnett, L.
/// Shuler, R. van de Geijn et al., "Interprocessor collective communication library (InterCom)", 1994.)
///
/// Neighbours combine first, and the lower ranks' part is the left operand: all ranks get the same bits, in every run,
/// and operations need not commute.
struct halving_doubling {
  static constexpr bool rank_ordered = true;

  friend constexpr bool operator==(const halving_doubling&, const halving_doubling&) = default;

  template <PointToPoint T>
  void operator()(T& t, const allreduce_call& c) const {
    const int rank = t.rank();
    const detail::pairing group(t.size());
    const detail::even_blocks parts(group.acting(), c.count, c.op.element_bytes);
    const std::size_t bytes = c.count * c.op.element_bytes;
    const auto start = [&](int k) { return parts.start(k); };
    int part = halve(t, group, c.op, prepared(c.op, c.in, c.out, c.count), c.out, start);
    if (!group.acts(rank)) return t.recv(c.out, bytes, rank - 1);
    c.op.finish(c.out + parts.offset(part), parts.count(part));
    const int index = group.index(rank);
    for (int have = 1, distance = group.acting() / 2; distance != 0; distance /= 2, have *= 2) {
      const int peer = group.rank_of(index ^ distance);
      const int theirs = part ^ have;
      t.exchange(c.out + parts.offset(part), parts.offset(part + have) - parts.offset(part), peer,
                 c.out + parts.offset(theirs), parts.offset(theirs + have) - parts.offset(theirs), peer);
      part &= theirs;
    }
    if (group.paired(rank)) t.send(c.out, bytes, rank + 1);
  }

  template <PointToPoint T>
  void operator()(T& t, const reduce_call& c) const {
    const int rank = t.rank();
    const detail::pairing group(t.size(), c.root);
    const detail::even_blocks parts(group.acting(), c.count, c.op.element_bytes);
    // Ranks other than the root may have no `out`.
    const detail::temporary elsewhere(rank == c.root ? 0 : c.count * c.op.element_bytes);
    std::byte* const reduced = rank == c.root ? c.out : elsewhere.data();
    const auto start = [&](int k) { return parts.start(k); };
    int part = halve(t, group, c.op, prepared(c.op, c.in, reduced, c.count), reduced, start);
    if (!group.acts(rank)) return;
    c.op.finish(reduced + parts.offset(part), parts.count(part));
    const int index = group.index(rank);
    const int goal = group.index(c.root);
    for (int have = 1, distance = group.acting() / 2; distance != 0; distance /= 2, have *= 2) {
      const int peer = group.rank_of(index ^ distance);
      if (((index ^ goal) & distance) != 0) {
        return t.send(reduced + parts.offset(part), parts.offset(part + have) - parts.offset(part), peer);
      }
      const int theirs = part ^ have;
      t.recv(reduced + parts.offset(theirs), parts.offset(theirs + have) - parts.offset(theirs), peer);
      part &= theirs;
    }
  }

  template <PointToPoint T>
  void operator()(T& t, const reduce_scatter_call& c) const {
    const int rank = t.rank();
    const detail::pairing group(t.size());
    const int acting = group.acting();
    const std::size_t unit = c.op.element_bytes;
    const std::size_t own_bytes = c.blocks.bytes(rank);
    // Acting rank i ends with part reversed(i), so that part is made of the blocks of the ranks that it stands for.
    const detail::temporary reduced(c.blocks.total_bytes());
    std::vector<std::size_t> starts{0};
    starts.reserve(static_cast<std::size_t>(acting) + 1);
    for (int part = 0; part != acting; ++part) {
      const int index = reversed(part, acting);
      const int lowest = group.lowest(index);
      const detail::block_run blocks = detail::run_of(c.blocks, lowest, group.lowest(index + 1) - lowest);
      c.op.prepare(reduced.data() + starts.back() * unit, c.in + blocks.offset, blocks.bytes / unit);
      starts.push_back(starts.back() + blocks.bytes / unit);
    }
    const auto start = [&](int part) { return starts[static_cast<std::size_t>(part)]; };
    const int part = halve(t, group, c.op, reduced.data(), reduced.data(), start);
    if (!group.acts(rank)) return t.recv(c.out, own_bytes, rank - 1);
    std::byte* const result = reduced.data() + start(part) * unit;
    c.op.finish(result, start(part + 1) - start(part));
    if (group.paired(rank)) t.send(result + own_bytes, c.blocks.bytes(rank + 1), rank + 1);
    detail::copy_bytes(c.out, result, own_bytes);
  }

  template <PointToPoint T>
  void operator()(T& t, const broadcast_call& c) const {
    const int p = t.size();
    const int place = detail::around(t.rank() - c.root, p);  // from the root; the number of this rank's part
    const detail::even_blocks parts(p, c.bytes, 1);
    const auto rank_of = [&](int v) { return detail::around(c.root + v, p); };
    const std::byte* const data = place == 0 ? c.in : c.out;

    // Scatters down the binomial tree: a place receives the parts of its subtree.
    const int span = place == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(p))) : place & -place;
    if (place != 0) {
      const detail::block_run mine = run_of(parts, p, place, std::min(span, p - place));
      t.recv(c.out + mine.offset, mine.bytes, rank_of(place - span));
    }
    for (int half = span / 2; half != 0; half /= 2) {
      const int child = place + half;
      if (child >= p) continue;
      const detail::block_run theirs = run_of(parts, p, child, std::min(half, p - child));
      t.send(data + theirs.offset, theirs.bytes, rank_of(child));
    }
    // Gathers: in each step a place adds to its parts those of the place `have` further on. The root needs none.
    for (int have = 1; have < p; have *= 2) {
      const int n = std::min(have, p - have);
      const int to = detail::around(place - have, p);
      const int from = detail::around(place + have, p);
      const detail::block_run out = run_of(parts, p, place, n);
      const detail::block_run in = run_of(parts, p, from, n);
      if (place == 0) {
        t.send(data, out.bytes, rank_of(to));
      } else if (to == 0) {
        t.recv(c.out + in.offset, in.bytes, rank_of(from));
        if (in.wrapped != 0) t.recv(c.out, in.wrapped, rank_of(from));
      } else {
        t.exchange(data + out.offset, out.bytes, rank_of(to), c.out + in.offset, in.bytes, rank_of(from));
        detail::exchange_rest(t, data, out.wrapped, rank_of(to), c.out, in.wrapped, rank_of(from));
      }
    }
    if (place == 0 && c.in != c.out) detail::copy_bytes(c.out, c.in, c.bytes);
  }

 private:
  /// The `n` parts from `first` on, counted around the group.
  static detail::block_run run_of(const detail::even_blocks& parts, int p, int first, int n) {
    const int end = std::min(first + n, p);
    return {parts.offset(first), parts.offset(end) - parts.offset(first), parts.offset(first + n - end)};
  }

  /// This rank's input, prepared in `memory` if it has to be.
  static const std::byte* prepared(const reduction& op, const std::byte* in, std::byte* memory, std::size_t count) {
    if (!op.prepares()) return in;
    op.prepare(memory, in, count);
    return memory;
  }

  /// The bits of `i` < `n`, a power of two, in reverse.
  static int reversed(int i, int n) {
    int result = 0;
    for (int bit = 1; bit < n; bit *= 2) result = result * 2 + ((i & bit) != 0 ? 1 : 0);
    return result;
  }

  /// Reduces the vector `own` into `reduced` (they may be the same), cut into one part for each acting rank; part k
  /// starts at element start(k). Returns the part of `reduced` that is complete on this rank: its index with the bits
  /// reversed. Ranks that do not act have none (-1).
  template <PointToPoint T, class Start>
  static int halve(T& t, const detail::pairing& group, const reduction& op, const std::byte* own, std::byte* reduced,
                   const Start& start) {
    const int rank = t.rank();
    const int index = group.index(rank);
    const int acting = group.acting();
    const std::size_t unit = op.element_bytes;
    const std::size_t count = start(acting);
    const std::size_t half = count / 2;  // where a pair cuts
    const bool upper = (rank & 1) != 0;  // of a pair

    std::size_t most = 0;
    if (group.paired(rank)) most = upper ? count - half : half;
    if (group.acts(rank) && acting > 1) {
      const std::size_t middle = start(acting / 2);
      most = std::max(most, (index & 1) != 0 ? count - middle : middle);
    }
    const detail::temporary received(most * unit);
    const auto swap = [&](std::size_t keep, std::size_t keep_end, std::size_t give, std::size_t give_end, int peer) {
      const std::size_t n = keep_end - keep;
      t.exchange(own + give * unit, (give_end - give) * unit, peer, received.data(), n * unit, peer);
      const std::byte* const mine = own + keep * unit;
      const std::byte* const theirs = received.data();
      op.combine(reduced + keep * unit, rank < peer ? mine : theirs, rank < peer ? theirs : mine, n);
    };

    if (group.paired(rank)) {
      // Each rank of the pair reduces one half; then the acting rank receives the other half.
      const int peer = rank ^ 1;
      const std::size_t keep = upper ? half : 0;
      const std::size_t give = half - keep;
      const std::size_t keep_end = upper ? count : half;
      const std::size_t give_end = upper ? half : count;
      swap(keep, keep_end, give, give_end, peer);
      if (!group.acts(rank)) {
        t.send(reduced + keep * unit, (keep_end - keep) * unit, peer);
        return -1;
      }
      t.recv(reduced + give * unit, (give_end - give) * unit, peer);
      own = reduced;
    }
    int first = 0;
    int last = acting;
    for (int distance = 1; distance < acting; distance *= 2) {
      const int middle = (first + last) / 2;
      const int peer = group.rank_of(index ^ distance);
      if ((index & distance) != 0) {
        swap(start(middle), start(last), start(first), start(middle), peer);
        first = middle;
      } else {
        swap(start(first), start(middle), start(middle), start(last), peer);
        last = middle;
      }
      own = reduced;
    }
    if (own != reduced) detail::copy_bytes(reduced, own, count * unit);  // a group of one
    return first;
  }
};

/// The algorithm, for messages and bench output.
inline std::string name(const halving_doubling&) { return "halving_doubling()"; }

}  // namespace hvd::inline HVD_ABI
