// hvd/engine/submission_table.hpp: what this rank has submitted to a driver and what is not done yet.
#pragma once

#include <hvd/engine/negotiation.hpp>
#include <hvd/engine/observer.hpp>
#include <hvd/engine/watch.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Shared by the threads that submit, the one that drives, and the watch.
class submission_table {
 public:
  /// Adds a submission; returns the error that has stopped the driver, if one has. Errors: invalid_argument if its name
  /// is in flight.
  std::optional<error> add(const std::shared_ptr<submission>& s, observer& shown) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return stopped_;
    const auto [first, last] = all_.equal_range(s->what.name);
    // What is queued on a device ends by itself, and needs its name no longer.
    if (std::any_of(first, last, [](const auto& held) { return !held.second->end->queued(); })) {
      fail(error_kind::invalid_argument, {s->end->label(), ": this name is in flight already; wait for it first, "
                                                           "or give each tensor its own name"});
    }
    all_.emplace(s->what.name, s);
    shown.submitted(*s);
    fresh_.push_back(s);
    return std::nullopt;
  }
  /// The same for a join.
  std::optional<error> join(const std::shared_ptr<completion>& end) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return stopped_;
    if (joining_)
      fail(error_kind::invalid_argument, {end->label(), ": a join is in flight already; wait for it first"});
    joining_ = end;
    return std::nullopt;
  }

  [[nodiscard]] bool any() {
    const std::lock_guard lock(mutex_);
    return !stopped_ && (!all_.empty() || joining_ != nullptr);
  }
  /// Whether there is something that `take_fresh` would give to `n`.
  [[nodiscard]] bool has_fresh(const negotiation& n) {
    const std::lock_guard lock(mutex_);
    return !fresh_.empty() || (joining_ != nullptr && !n.joined());
  }
  void take_fresh(negotiation& n) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    for (auto& s : fresh_) n.add(std::move(s));
    fresh_.clear();
    if (joining_ != nullptr && !n.joined()) n.join();
  }

  void remove(const submission& s) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = all_.equal_range(s.what.name);
    const auto found = std::find_if(first, last, [&](const auto& held) { return held.second.get() == &s; });
    if (found != last) all_.erase(found);
  }
  /// All have joined.
  std::shared_ptr<completion> end_join(negotiation& n) {
    const std::lock_guard lock(mutex_);
    n.rejoin();
    return std::exchange(joining_, nullptr);
  }

  /// For the watch.
  [[nodiscard]] std::vector<pending_operation> snapshot() {
    const std::lock_guard lock(mutex_);
    std::vector<pending_operation> all;
    for (const auto& [name, s] : all_) all.push_back({name, hvd::name(s->what.kind), 0, s->since});
    return all;
  }

  struct rest {
    std::unordered_multimap<std::string, std::shared_ptr<submission>> all{};
    std::shared_ptr<completion> join{};
  };
  /// From now on nothing is added, because of `why` or what has stopped it before; returns what is left.
  rest stop(const error& why) {
    const std::lock_guard lock(mutex_);
    if (!stopped_) stopped_ = why;
    fresh_.clear();
    return {std::exchange(all_, {}), std::exchange(joining_, nullptr)};
  }

 private:
  std::mutex mutex_;
  std::unordered_multimap<std::string, std::shared_ptr<submission>> all_;
  std::vector<std::shared_ptr<submission>> fresh_;  // those that the thread that drives has not taken
  std::shared_ptr<completion> joining_;
  std::optional<error> stopped_;
};

}  // namespace hvd::inline HVD_ABI::detail
