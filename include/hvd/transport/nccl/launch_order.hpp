// hvd/transport/nccl/launch_order.hpp: the order in which the groups of a GPU start their collectives.
//
// NCCL needs one order on all ranks for all communicators of a GPU: kernels of two communicators that start in
// different orders on two GPUs can wait for each other for ever, if they do not fit side by side. But groups agree
// independently. So the ranks of a group agree on a number for each launch, and a rank launches in the order of the
// numbers. This is Skeen's total order for messages to overlapping groups (K. Birman, T. Joseph, "Reliable
// communication in the presence of failures", 1987): each rank proposes a number above all that it has seen, and the
// largest counts. A launch waits while another group of the rank has a smaller number, or may still get one. A group
// that waits has proposed a larger number than the one it waits for, on all ranks, so no circle of groups can wait.
#pragma once

#include <hvd/version.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// The launches of all groups of this process on one GPU. Any thread.
class launch_order {
 public:
  /// The order of GPU `ordinal`. Never destroyed: groups may end while the process ends.
  static launch_order& of(int ordinal) {
    static std::mutex mutex;
    static auto& all = *new std::map<int, launch_order>;
    const std::lock_guard lock(mutex);
    return all[ordinal];
  }

  /// This rank's proposal for the next launch of a group, whose id is the same on all of its ranks.
  [[nodiscard]] std::uint64_t propose(std::uint64_t group) {
    const std::lock_guard lock(mutex_);
    return groups_[group].proposed = ++last_;
  }
  /// The number on which the group has agreed.
  void decide(std::uint64_t group, std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    last_ = std::max(last_, number);
    groups_[group].proposed = 0;
    groups_[group].decided.push_back(number);
  }
  /// True if no other group can have an earlier launch.
  [[nodiscard]] bool turn(std::uint64_t group, std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    return std::none_of(groups_.begin(), groups_.end(), [&](const auto& other) {
      const launches& l = other.second;
      const std::uint64_t least = l.decided.empty() ? l.proposed : l.decided.front();
      return other.first != group && least != 0 && std::pair(least, other.first) < std::pair(number, group);
    });
  }
  /// The launch is on its stream, or has failed.
  void leave(std::uint64_t group, std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = groups_.find(group);
    if (found != groups_.end()) std::erase(found->second.decided, number);
  }
  /// The group launches nothing more.
  void forget(std::uint64_t group) {
    const std::lock_guard lock(mutex_);
    groups_.erase(group);
  }

 private:
  struct launches {
    std::uint64_t proposed = 0;           ///< and not decided; 0: none
    std::deque<std::uint64_t> decided{};  ///< and not launched, in their order
  };
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, launches> groups_;
};

}  // namespace hvd::inline HVD_ABI::detail
