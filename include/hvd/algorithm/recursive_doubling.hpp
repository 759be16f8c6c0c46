// hvd/algorithm/recursive_doubling.hpp: all ranks have all data after log2 p exchanges; for small messages.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// In step k a rank exchanges all that it has with a rank at distance 2^k. The fewest steps of all, at the
/// price of bytes. With S the bytes of the whole vector, one rank's worst case is
///
/// | call      | p                   | bytes sent    | steps             | temporary memory |
/// |-----------|---------------------|---------------|-------------------|------------------|
/// | allreduce | a power of two      | S log2 p      | log2 p            | S                |
/// | allreduce | any other           | S (l + 1)     | l + 2, l = floor(log2 p) | S         |
/// | allgather | any                 | S - a block   | ceil(log2 p)      | none             |
/// | scan      | any                 | S ceil(log2 p) | ceil(log2 p)     | S                |
/// | exscan    | any                 | S ceil(log2 p) | ceil(log2 p)     | 2 S              |
///
/// (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in MPICH",
/// 2005; for allgather on other than a power of two ranks: J. Bruck et al., "Efficient algorithms for
/// all-to-all communications in multiport message-passing systems", 1997, without its final rotation: blocks
/// are received directly into `out`, and a run that wraps around is sent as two messages; for scan: W. D. Hillis
/// and G. L. Steele, "Data parallel algorithms", 1986; exscan also keeps the result without the rank's own input, and
/// combines twice in a step.)
///
/// Both ranks of an exchange take the lower ranks' part as the left operand: all ranks get the same bits, in every run,
/// and operations need not commute.
struct recursive_doubling {
  static constexpr bool rank_ordered = true;

  friend constexpr bool operator==(const recursive_doubling&, const recursive_doubling&) = default;

  template <PointToPoint T>
  void operator()(T& t, const allreduce_call& c) const {
    const int rank = t.rank();
    const detail::pairing group(t.size());
    const std::size_t bytes = c.count * c.op.element_bytes;
    const detail::temporary received(group.acts(rank) && t.size() > 1 ? bytes : 0);
    const std::byte* mine = c.in;
    if (c.op.prepares()) {
      c.op.prepare(c.out, c.in, c.count);
      mine = c.out;
    }
    if (!group.acts(rank)) {
      t.send(mine, bytes, rank - 1);
      t.recv(c.out, bytes, rank - 1);
      return;
    }
    if (group.paired(rank)) {
      t.recv(received.data(), bytes, rank + 1);
      c.op.combine(c.out, mine, received.data(), c.count);
      mine = c.out;
    }
    const int index = group.index(rank);
    for (int distance = 1; distance < group.acting(); distance *= 2) {
      const int peer = group.rank_of(index ^ distance);
      t.exchange(mine, bytes, peer, received.data(), bytes, peer);
      const bool lower = rank < peer;
      c.op.combine(c.out, lower ? mine : received.data(), lower ? received.data() : mine, c.count);
      mine = c.out;
    }
    if (mine != c.out) detail::copy_bytes(c.out, mine, bytes);  // a group of one
    c.op.finish(c.out, c.count);
    if (group.paired(rank)) t.send(c.out, bytes, rank + 1);
  }

  template <PointToPoint T>
  void operator()(T& t, const allgather_call& c) const {
    const int p = t.size();
    const int rank = t.rank();
    std::byte* const own = c.out + c.blocks.offset(rank);
    if (c.in != own) detail::copy_bytes(own, c.in, c.blocks.bytes(rank));
    const bool doubles = std::has_single_bit(static_cast<unsigned>(p));
    for (int have = 1; have < p; have *= 2) {
      if (doubles) {
        // Each rank of an aligned group of `have` ranks has all blocks of the group.
        const int peer = rank ^ have;
        trade(t, c, rank & -have, peer, peer & -have, peer, have);
      } else {
        // This rank has the blocks rank .. rank + have - 1.
        trade(t, c, rank, detail::around(rank - have, p), detail::around(rank + have, p),
              detail::around(rank + have, p), std::min(have, p - have));
      }
    }
  }

  template <PointToPoint T>
  void operator()(T& t, const scan_call& c) const {
    const int rank = t.rank();
    const std::size_t bytes = c.count * c.op.element_bytes;
    const detail::temporary received(rank > 0 ? bytes : 0);
    const std::byte* mine = c.in;
    if (c.op.prepares()) {
      c.op.prepare(c.out, c.in, c.count);
      mine = c.out;
    }
    for (int distance = 1; distance < t.size(); distance *= 2) {  // `mine` has ranks rank - distance + 1 to rank
      const int above = rank + distance, below = rank - distance;
      if (above < t.size() && below >= 0) {
        t.exchange(mine, bytes, above, received.data(), bytes, below);
      } else if (above < t.size()) {
        t.send(mine, bytes, above);
      } else if (below >= 0) {
        t.recv(received.data(), bytes, below);
      }
      if (below < 0) continue;
      c.op.combine(c.out, received.data(), mine, c.count);
      mine = c.out;
    }
    if (mine != c.out) detail::copy_bytes(c.out, mine, bytes);
    c.op.finish(c.out, c.count);
  }

  template <PointToPoint T>
  void operator()(T& t, const exscan_call& c) const {
    const int rank = t.rank();
    const std::size_t bytes = c.count * c.op.element_bytes;
    const auto sends = [&](int distance) { return rank + distance < t.size(); };
    const detail::temporary received(rank > 0 ? bytes : 0);
    const detail::temporary with_own(sends(2) || c.op.prepares() ? bytes : 0);
    const std::byte* mine = c.in;
    if (c.op.prepares()) {
      c.op.prepare(with_own.data(), c.in, c.count);
      mine = with_own.data();
    }
    // `mine` has ranks rank - distance + 1 to rank, `out` the same without this one.
    for (int distance = 1; distance < t.size(); distance *= 2) {
      const int above = rank + distance, below = rank - distance;
      if (sends(distance) && below >= 0) {
        t.exchange(mine, bytes, above, received.data(), bytes, below);
      } else if (sends(distance)) {
        t.send(mine, bytes, above);
      } else if (below >= 0) {
        t.recv(received.data(), bytes, below);
      }
      if (below < 0) continue;
      if (sends(2 * distance)) {  // before `out` changes, which may be `in`
        c.op.combine(with_own.data(), received.data(), mine, c.count);
        mine = with_own.data();
      }
      if (distance == 1) {
        detail::copy_bytes(c.out, received.data(), bytes);
      } else {
        c.op.combine(c.out, received.data(), c.out, c.count);
      }
    }
    if (rank > 0) c.op.finish(c.out, c.count);
  }

 private:
  /// Sends n blocks from block `leaving` on, receives n from block `arriving` on.
  template <PointToPoint T>
  static void trade(T& t, const allgather_call& c, int leaving, int to, int arriving, int from, int n) {
    const detail::block_run out = detail::run_of(c.blocks, leaving, n);
    const detail::block_run in = detail::run_of(c.blocks, arriving, n);
    t.exchange(c.out + out.offset, out.bytes, to, c.out + in.offset, in.bytes, from);
    detail::exchange_rest(t, c.out, out.wrapped, to, c.out, in.wrapped, from);
  }
};

/// The algorithm, for messages and bench output.
inline std::string name(const recursive_doubling&) { return "recursive_doubling()"; }

}  // namespace hvd::inline HVD_ABI
