// process_sets.hpp: the ranks of a job's process sets, except the one of all ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hvd_timeline {

struct process_set {
  std::vector<std::uint32_t> ranks{};  ///< in order; empty if the file does not list them
  std::uint32_t start = 0;             ///< number of starts of the rank that recorded it
  std::vector<std::uint32_t> users{};  ///< ranks that have a tensor of it, in order
};

/// Process sets by number. Sets beyond the most that a job can have are dropped.
class process_sets {
 public:
  /// A rank recorded the ranks of a set in its start of this number. Files are read one after the other, so records of
  /// an earlier start may arrive later.
  void tell(int set, std::vector<std::uint32_t> ranks, std::uint32_t start) {
    process_set* const known = find_or_add(set);
    if (known == nullptr || start < known->start) return;
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    const std::size_t members = members_ - known->ranks.size() + ranks.size();
    if (members > most_members) return;
    members_ = members;
    known->start = start;
    known->ranks = std::move(ranks);
  }

  /// A rank has a tensor of a set.
  void use(int set, std::uint32_t rank) {
    process_set* const known = set == 0 ? nullptr : find_or_add(set);
    if (known == nullptr) return;
    std::vector<std::uint32_t>& users = known->users;
    const auto place = std::lower_bound(users.begin(), users.end(), rank);
    if (place == users.end() || *place != rank) users.insert(place, rank);
  }

  /// Null if nothing is known about it.
  [[nodiscard]] const process_set* find(int set) const {
    const auto found = sets_.find(set);
    return found == sets_.end() ? nullptr : &found->second;
  }

  /// Its number of ranks. If not recorded, the number of ranks that have used it, and at least two.
  [[nodiscard]] std::size_t size(int set) const {
    const process_set* const known = find(set);
    if (known == nullptr) return 2;
    return known->ranks.empty() ? std::max<std::size_t>(known->users.size(), 2) : known->ranks.size();
  }

 private:
  static constexpr std::size_t most_sets = std::size_t{1} << 16, most_members = std::size_t{1} << 22;

  process_set* find_or_add(int set) {
    const auto known = sets_.find(set);
    if (known != sets_.end()) return &known->second;
    return sets_.size() == most_sets ? nullptr : &sets_[set];
  }

  std::unordered_map<int, process_set> sets_;
  std::size_t members_ = 0;  // of all sets
};

}  // namespace hvd_timeline
