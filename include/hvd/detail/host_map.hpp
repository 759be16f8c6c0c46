// hvd/detail/host_map.hpp: which ranks of a group are neighbours on one host.
#pragma once

#include <hvd/version.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Where one rank of a group is: the lowest rank of its host, its number there, and of how many.
struct host_place {
  int leader = 0;
  int local_rank = 0;
  int local_size = 0;
};

/// The ranks of a group, host by host. Hosts are numbered in the order of their lowest ranks.
struct host_map {
  std::vector<int> host_of, local_of;  ///< of each rank
  std::vector<int> first, ranks;       ///< of each host: its lowest rank, and how many it has
  int lanes = 0;                       ///< local ranks that every host has
  bool consecutive = true;             ///< hosts one after the other have consecutive ranks, in local order

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
};

}  // namespace hvd::inline HVD_ABI::detail
