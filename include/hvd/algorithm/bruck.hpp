// hvd/algorithm/bruck.hpp: allgather and alltoall in the fewest messages, on any number of ranks; for small blocks.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// In step k every rank sends one message to a rank at distance 2^k. With S the bytes of the whole vector and L =
/// ceil(log2 p), one rank's cost is
///
/// | call      | bytes sent      | steps, messages | temporary memory                     |
/// |-----------|-----------------|-----------------|--------------------------------------|
/// | allgather | S - a block     | L               | S, except on rank 0                  |
/// | alltoall  | L S/2 at most   | L               | S, and twice the blocks of a message |
///
/// allgather sends as many bytes as every other algorithm, but in one message per step; `recursive_doubling` sends two
/// if p is not a power of two. The price is one copy. (With uneven blocks there are more bytes: a rank sends its own
/// block L times.) alltoall trades bytes for messages: the message of step k has the blocks whose distance to their
/// receiver has bit k set, so a block is sent once for each bit set in its distance. Its blocks must be uniform,
/// because a rank does not know the lengths of blocks that it passes on. (J. Bruck, C.-T. Ho, S. Kipnis, E. Upfal, D.
/// Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997.)
struct bruck {
  friend constexpr bool operator==(const bruck&, const bruck&) = default;

  template <PointToPoint T>
  void operator()(T& t, const allgather_call& c) const {
    const int p = t.size();
    const int rank = t.rank();
    // The blocks rank, rank + 1, ... around the group, one after the other: on rank 0 this is their order in `out`.
    const detail::temporary around(rank == 0 ? 0 : c.blocks.total_bytes());
    std::byte* const mine = rank == 0 ? c.out : around.data();
    if (mine != c.in) detail::copy_bytes(mine, c.in, c.blocks.bytes(rank));
    const auto bytes_of = [&](int first, int n) { return detail::run_of(c.blocks, first, n).total(); };
    for (int have = 1; have < p; have *= 2) {
      const int n = std::min(have, p - have);
      const int to = detail::around(rank - have, p);
      const int from = detail::around(rank + have, p);
      t.exchange(mine, bytes_of(rank, n), to, mine + bytes_of(rank, have), bytes_of(from, n), from);
    }
    if (rank == 0) return;
    const std::size_t below = c.blocks.offset(rank);
    const std::size_t above = c.blocks.total_bytes() - below;
    detail::copy_bytes(c.out + below, mine, above);
    detail::copy_bytes(c.out, mine + above, below);
  }

  /// Uniform blocks only: `error` of kind unsupported for those of alltoall_v, on all ranks before anything is sent.
  template <PointToPoint T>
  void operator()(T& t, const alltoall_call& c) const {
    const int p = t.size();
    const int rank = t.rank();
    if (!c.send.uniform()) {
      throw error(error_kind::unsupported, "alltoall_v on rank " + std::to_string(rank) + " of " + std::to_string(p) +
                                               ": bruck forwards blocks whose lengths it does not know; use ring, or "
                                               "alltoall with blocks of one length");
    }
    const std::size_t each = c.send.bytes(0);
    const auto at = [&](int block) { return static_cast<std::size_t>(block) * each; };
    // Block d has to go d ranks further.
    const detail::temporary blocks(at(p));
    detail::copy_bytes(blocks.data(), c.in + at(rank), at(p - rank));
    detail::copy_bytes(blocks.data() + at(p - rank), c.in, at(rank));
    const detail::temporary leaving(at(p / 2));
    const detail::temporary arriving(at(p / 2));
    for (int bit = 1; bit < p; bit *= 2) {
      int n = 0;
      for (int d = bit; d < p; ++d) {
        if ((d & bit) != 0) detail::copy_bytes(leaving.data() + at(n++), blocks.data() + at(d), each);
      }
      t.exchange(leaving.data(), at(n), detail::around(rank + bit, p), arriving.data(), at(n),
                 detail::around(rank - bit, p));
      n = 0;
      for (int d = bit; d < p; ++d) {
        if ((d & bit) != 0) detail::copy_bytes(blocks.data() + at(d), arriving.data() + at(n++), each);
      }
    }
    // Block d has come from the rank d before this one.
    for (int d = 0; d != p; ++d) {
      detail::copy_bytes(c.out + at(detail::around(rank - d, p)), blocks.data() + at(d), each);
    }
  }
};

/// The algorithm, for messages and bench output.
inline std::string name(const bruck&) { return "bruck()"; }

}  // namespace hvd::inline HVD_ABI
