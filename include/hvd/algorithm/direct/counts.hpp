// hvd/algorithm/direct/counts.hpp: all ranks learn all counts of an alltoall with blocks of different sizes.
#pragma once

#include <hvd/algorithm/direct/forms.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The number of elements that every rank sends to every other, for alltoall with blocks of different sizes.
struct count_matrix {
  int size = 0;
  std::vector<std::size_t> sends, receives;  // elements, [from * size + to] and [to * size + from]

  [[nodiscard]] std::size_t send(int from, int to) const {
    return sends[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) + static_cast<std::size_t>(to)];
  }
  [[nodiscard]] std::size_t receive(int to, int from) const {
    return receives[static_cast<std::size_t>(to) * static_cast<std::size_t>(size) + static_cast<std::size_t>(from)];
  }
  [[nodiscard]] std::size_t largest_block() const { return *std::max_element(sends.begin(), sends.end()); }
};

/// All ranks compare their calls and learn all counts, and throw the same mismatch error if a receiver expects another
/// count than its sender sends. Cost: two exchanges, and 16 bytes for each pair of ranks.
inline count_matrix exchange_counts(peer_memory& m, const alltoall_call& c, peer_memory::scope& scope) {
  const std::size_t p = static_cast<std::size_t>(m.size());
  std::vector<std::size_t> own(2 * p), all(2 * p * p);
  for (std::size_t q = 0; q != p; ++q) {
    own[q] = c.send.count(static_cast<int>(q));
    own[p + q] = c.recv.count(static_cast<int>(q));
  }
  const partition rows(m.size(), 2 * p, sizeof(std::size_t));
  const blocks_to_gather blocks{
      {reinterpret_cast<const std::byte*>(own.data()), reinterpret_cast<std::byte*>(all.data()), rows}};
  gather_form form(m, blocks, -1, output::cached);
  staged_run run(m, form, 2 * p * sizeof(std::size_t), output::cached);
  descriptor d = describe(c);
  run.run(stage_and_agree(m, d, scope, run));
  meet(m, d);  // from here on no rank reads counts in the memory that receives the blocks

  count_matrix counts{m.size(), std::vector<std::size_t>(p * p), std::vector<std::size_t>(p * p)};
  for (std::size_t q = 0; q != p; ++q) {
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(2 * p * q), p,
                counts.sends.begin() + static_cast<std::ptrdiff_t>(p * q));
    std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(2 * p * q + p), p,
                counts.receives.begin() + static_cast<std::ptrdiff_t>(p * q));
  }
  for (int from = 0; from != m.size(); ++from) {
    for (int to = 0; to != m.size(); ++to) {
      if (counts.send(from, to) == counts.receive(to, from)) continue;
      scope.leave();
      fail(error_kind::mismatch,
           {m.operation_name(), " on ", m.label(), ": rank ", from, " sends ", counts.send(from, to),
            " elements to rank ", to, ", which expects ", counts.receive(to, from)},
           to);
    }
  }
  return counts;
}

}  // namespace hvd::inline HVD_ABI::detail
