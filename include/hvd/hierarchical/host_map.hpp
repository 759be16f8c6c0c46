// hvd/hierarchical/host_map.hpp: the hosts of a group's ranks.
#pragma once

#include <hvd/error.hpp>
#include <hvd/version.hpp>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The place of one rank of a group: the leader of its host (local rank 0), its local rank, and the local number of
/// ranks.
struct host_place {
  int leader = 0;
  int local_rank = 0;
  int local_size = 0;
};

/// Checks that the places of all ranks fit together, before anything is computed from them. Errors: invalid_argument,
/// the same on all ranks, unless the ranks that name one leader are the ranks 0 to n-1 of a local group of n that
/// includes the leader. `rank` is for messages.
inline void check_places(std::span<const host_place> places, int rank) {
  const auto refuse = [&](std::size_t r, std::initializer_list<piece> why) {
    fail(error_kind::invalid_argument,
         {"Hierarchical on rank ", rank, " of ", places.size(), ": the local group of rank ", r, joined(why),
          "; allowed: local groups that are a partition of all ranks"},
         static_cast<int>(r));
  };
  const auto leader_of = [&](std::size_t r) { return static_cast<std::size_t>(places[r].leader); };
  std::vector<int> ranks(places.size());  // that name each one as their leader
  for (std::size_t r = 0; r != places.size(); ++r) {
    if (leader_of(r) >= places.size() || leader_of(leader_of(r)) != leader_of(r)) {
      refuse(r, {" has rank ", places[r].leader, " as its lowest, which is in another group"});
    }
    ++ranks[leader_of(r)];
  }
  std::vector<std::size_t> first(places.size() + 1);  // index in `taken` of each host's local rank 0
  for (std::size_t r = 0; r != places.size(); ++r) {
    if (ranks[leader_of(r)] != places[r].local_size) {
      refuse(r,
             {" has ", places[r].local_size, " ranks, but ", ranks[leader_of(r)], " ranks name the same lowest rank"});
    }
    first[r + 1] = first[r] + static_cast<std::size_t>(ranks[r]);
  }
  std::vector<bool> taken(places.size());
  for (std::size_t r = 0; r != places.size(); ++r) {
    const int own = places[r].local_rank;
    const std::size_t at = first[leader_of(r)] + static_cast<std::size_t>(own);
    if (own < 0 || own >= places[r].local_size || taken[at])
      refuse(r, {" does not have a local rank ", own, " for it"});
    taken[at] = true;
  }
}

/// The ranks of a group, host by host, from places that check_places has passed. Hosts are ordered by their leaders.
struct host_map {
  std::vector<int> host_of, local_of;  ///< of each rank
  std::vector<int> first, ranks;       ///< of each host: its leader, and its number of ranks
  int lanes = 0;                       ///< local ranks that every host has
  bool consecutive = true;             ///< each host has consecutive ranks, in local order

  explicit host_map(std::span<const host_place> places) : host_of(places.size()), local_of(places.size()) {
    for (std::size_t r = 0; r != places.size(); ++r) {
      if (places[r].leader != static_cast<int>(r)) continue;
      first.push_back(static_cast<int>(r));
      ranks.push_back(0);
    }
    for (std::size_t r = 0; r != places.size(); ++r) {
      const auto host = std::lower_bound(first.begin(), first.end(), places[r].leader) - first.begin();
      host_of[r] = static_cast<int>(host);
      local_of[r] = places[r].local_rank;
      ++ranks[static_cast<std::size_t>(host)];
      consecutive = consecutive && places[r].leader + places[r].local_rank == static_cast<int>(r);
    }
    if (!ranks.empty()) lanes = *std::min_element(ranks.begin(), ranks.end());
  }

  [[nodiscard]] int hosts() const noexcept { return static_cast<int>(first.size()); }
  /// The rank with this host and local rank, or -1.
  [[nodiscard]] int rank_of(int host, int local) const noexcept {
    for (std::size_t r = 0; r != host_of.size(); ++r) {
      if (host_of[r] == host && local_of[r] == local) return static_cast<int>(r);
    }
    return -1;
  }
  /// Runs f on a level whose rank r is rank `whole(r)` of the whole group: an error then names that rank as well.
  template <class F, class Whole>
  static auto on_level(const F& f, const Whole& whole) -> decltype(f()) {
    try {
      return f();
    } catch (const error& e) {
      const int rank = e.rank() < 0 ? -1 : whole(e.rank());
      if (rank < 0) throw;
      throw error(e.kind(), joined({sentence(e), " (of all ranks: rank ", rank, ")"}), rank);
    }
  }
};

}  // namespace hvd::inline HVD_ABI::detail
