// hvd/shared_memory/survivors.hpp: the ranks that are left in a group agree on who they are.
#pragma once

#include <hvd/detail/random_word.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

#include <chrono>
#include <cstdint>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The ranks that make the next group, and a number that only they know.
struct next_members {
  std::vector<int> ranks;  ///< of the group that has lost some, in order; empty if the deadline has passed
  std::uint64_t nonce = 0;
  int awaited = -1;  ///< the rank that was not ready by the deadline
};

/// Agrees on the ranks that are alive, for the `round`th time in this group, from 1. Collective over these ranks, of
/// which others may be lost meanwhile. `gone(q)`: rank q has left, or does not exist any more.
///
/// A rank that sees every other one ready for the round, or gone, writes those that are ready into its window and puts
/// its own number into the header, unless another rank was faster. So the header names one proposal, which is complete
/// before anyone can find it and remains when its author dies. Later rounds overwrite it only when all ranks that are
/// alive are ready for them, and thus have read it. (The uniform agreement that MPI_Comm_shrink of ULFM needs messages
/// for: Bland et al., "Post-failure recovery of MPI communication capability", 2013.)
template <class Gone>
next_members agree_on_survivors(peer_memory& m, group_header& header, std::uint32_t round, const Gone& gone,
                                std::chrono::steady_clock::time_point deadline) {
  auto& mine = m.mine().next;
  mine.round.store(round, std::memory_order_release);
  backoff rest(paces::other_process);
  for (int q = 0;;) {
    std::uint64_t agreed = header.next.value.load(std::memory_order_acquire);
    if (agreed >> 32 == round) {
      const auto& author = m.of(abort_rank(agreed, m.size()) < 0 ? m.rank() : abort_rank(agreed, m.size())).next;
      next_members found{{}, author.nonce, -1};
      for (int r = 0; r != m.size(); ++r) {
        if (author.members.has(r)) found.ranks.push_back(r);
      }
      return found;
    }
    const auto ready = [&](int r) { return m.of(r).next.round.load(std::memory_order_acquire) >= round; };
    while (q != m.size() && (q == m.rank() || ready(q) || gone(q))) ++q;
    if (q == m.size()) {
      mine.members.clear();
      mine.nonce = random_word();
      for (int r = 0; r != m.size(); ++r) {
        if (r == m.rank() || (ready(r) && !gone(r))) mine.members.add(r);
      }
      const auto own = static_cast<std::uint64_t>(round) << 32 | static_cast<std::uint64_t>(m.rank() + 1);
      header.next.value.compare_exchange_strong(agreed, own);
      continue;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      mine.round.store(0, std::memory_order_release);
      return {{}, 0, q};
    }
    rest.step();
  }
}

/// Whether a group of survivors has come together. Decided once, for all its ranks: by the first one that has seen all
/// of them (`formed`), or that has given up (not `formed`). So no rank goes on alone in a group that the others have
/// missed.
inline bool settle_formed(group_header& header, bool formed) noexcept {
  std::uint64_t before = 0;
  const std::uint64_t now = formed ? 1 : 2;
  return header.formed.value.compare_exchange_strong(before, now) ? formed : before == 1;
}

}  // namespace hvd::inline HVD_ABI::detail
