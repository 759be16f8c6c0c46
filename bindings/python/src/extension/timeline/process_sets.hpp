// process_sets.hpp: which ranks are in the process sets of a job, but the one of all ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hvd_timeline {

struct process_set {
  std::vector<std::uint32_t> ranks{};  ///< in order; empty where the file does not say
  std::uint32_t start = 0;             ///< how often the rank that says so had started
  std::vector<std::uint32_t> users{};  ///< the ranks that have a tensor of it, in order
};

/// By their numbers. What is more than a job can have is forgotten.
class process_sets {
 public:
  /// A rank says which ranks a set has, in its start of this number. Files are read one after the other, so what an
  /// earlier start says may come later.
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

  /// Null if nothing is known of it.
  [[nodiscard]] const process_set* find(int set) const {
    const auto found = sets_.find(set);
    return found == sets_.end() ? nullptr : &found->second;
  }

  /// How many ranks it has; where nothing tells, those that have used it until now, and at least two.
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
