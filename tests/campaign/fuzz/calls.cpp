// tests/campaign/fuzz/calls.cpp: what ranks read of each other in shared memory and in messages, one value each: calls
// to compare (HVD_CHECK=1), and where ranks of a host are.
//
// Findings besides those of fuzz.hpp: calls that differ in what is compared, and that nobody says differ; ranks that
// are on no host, or two of which have one place.
#include <hvd/hierarchical/host_map.hpp>
#include <hvd/shared_memory/agree.hpp>

#include "fuzz.hpp"

#include <numeric>
#include <set>

using namespace hvd::detail;

FUZZ(in) {
  switch (in.below(2)) {
    case 0: {
      std::vector<descriptor> all;
      while (!in.ended() && all.size() != 4) all.push_back(in.take<descriptor>());
      const auto why = disagreement(all, "allreduce", "rank 0 of 4");
      for (const descriptor& d : all) fuzz::require(why || d.count == all[0].count, "counts differ");
      if (why) fuzz::require(why->rank() >= 0 && why->rank() < static_cast<int>(all.size()), "a rank that is none");
      return;
    }
    default: {
      std::vector<host_place> places;
      while (!in.ended() && places.size() != 32) places.push_back(in.take<host_place>());
      fuzz::accepts([&] {
        check_places(places, 0);
        const host_map map(places);
        const int ranks = std::accumulate(map.ranks.begin(), map.ranks.end(), 0);
        fuzz::require(ranks == static_cast<int>(places.size()), "ranks on no host");
        std::set<std::pair<int, int>> taken;
        for (std::size_t r = 0; r != places.size(); ++r) taken.emplace(map.host_of[r], map.local_of[r]);
        fuzz::require(taken.size() == places.size(), "two ranks in one place");
        fuzz::require(places.empty() || map.lanes >= 1, "a host without ranks");
      });
    }
  }
}
