// hvd/engine/submission_table.hpp: this rank's submissions to a driver that are not done yet.
#pragma once

#include <hvd/engine/erased_device.hpp>
#include <hvd/engine/negotiation.hpp>
#include <hvd/engine/observer.hpp>
#include <hvd/engine/watch.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <cstddef>
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
  /// is held.
  std::optional<error> add(const std::shared_ptr<submission>& s, observer& shown) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return stopped_;
    std::weak_ptr<completion>& newest = newest_[s->what.name];
    if (const auto before = newest.lock()) {
      if (before->held()) {
        fail(error_kind::invalid_argument,
             {s->end->label(), ": the previous operation of this name was not waited "
                               "for; wait for it first, or give each tensor its own name"});
      }
      s->behind = !before->queued();
    }
    newest = s->end;
    s->place = all_.size();
    all_.push_back(s);
    if (!s->behind) shown.submitted(*s);
    fresh_.push_back(s);
    if (newest_.size() > most_names_) forget_names();
    return std::nullopt;
  }
  /// The same for a join.
  std::optional<error> join(const std::shared_ptr<completion>& end) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return stopped_;
    if (const auto before = newest_join_.lock(); before && before->held())
      fail(error_kind::invalid_argument, {end->label(), ": the previous join was not waited for; wait for it first"});
    newest_join_ = end;
    joins_.push_back(end);
    return std::nullopt;
  }

  [[nodiscard]] bool any() {
    const std::lock_guard lock(mutex_);
    return !stopped_ && (!all_.empty() || !joins_.empty());
  }
  /// True if `take_fresh` would add something to `n`.
  [[nodiscard]] bool has_fresh(const negotiation& n) {
    const std::lock_guard lock(mutex_);
    return !fresh_.empty() || (!joins_.empty() && !n.joined());
  }
  /// `device` may be null.
  void take_fresh(negotiation& n, erased_device* device) {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    for (auto& s : fresh_) {
      if (device != nullptr && lies_on_device(s->what)) s->sign.place = device->place_of(s->what);
      n.add(std::move(s));
    }
    fresh_.clear();
    if (!joins_.empty() && !n.joined()) n.join();
  }

  void remove(const submission& s) {
    const std::lock_guard lock(mutex_);
    if (s.place >= all_.size() || all_[s.place].get() != &s) return;
    std::swap(all_[s.place], all_.back());
    all_[s.place]->place = s.place;
    all_.pop_back();
  }
  /// Called when all ranks have joined.
  std::shared_ptr<completion> end_join(negotiation& n) {
    const std::lock_guard lock(mutex_);
    n.rejoin();
    std::shared_ptr<completion> end = std::move(joins_.front());
    joins_.erase(joins_.begin());
    return end;
  }

  /// For the watch.
  [[nodiscard]] std::vector<pending_operation> snapshot() {
    const std::lock_guard lock(mutex_);
    std::vector<pending_operation> all;
    for (const auto& s : all_) all.push_back({s->what.name, hvd::name(s->what.kind), 0, s->since});
    return all;
  }

  /// From now on nothing is added.
  void refuse(const error& why) {
    const std::lock_guard lock(mutex_);
    if (!stopped_) stopped_ = why;
  }
  /// The operations whose work is queued on a device, and the error with which such operations have ended, if any have.
  struct on_device {
    std::vector<std::shared_ptr<completion>> all{};
    std::optional<error> failed{};
  };
  [[nodiscard]] on_device queued() {
    const std::lock_guard lock(mutex_);
    on_device found{.failed = failed_};
    for (const auto& s : all_) {
      if (s->end->queued()) found.all.push_back(s->end);
    }
    return found;
  }

  struct rest {
    std::vector<std::shared_ptr<submission>> all{};
    std::vector<std::shared_ptr<completion>> joins{};
  };
  /// From now on nothing is added, because of `why` or an earlier error; returns the remaining submissions.
  rest stop(const error& why) {
    const std::lock_guard lock(mutex_);
    if (!stopped_) stopped_ = why;
    for (const auto& s : all_) {
      if (s->end->queued()) failed_ = why;
    }
    fresh_.clear();
    newest_.clear();
    return {std::exchange(all_, {}), std::exchange(joins_, {})};
  }

 private:
  /// Removes free names, because many names are used only once. The number of names stays below twice the largest
  /// number that was held at a time.
  void forget_names() {
    std::erase_if(newest_, [](const auto& named) {
      const auto end = named.second.lock();
      return end == nullptr || !end->held();
    });
    most_names_ = std::max<std::size_t>(64, 2 * newest_.size());
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<submission>> all_;
  std::vector<std::shared_ptr<submission>> fresh_;  // those that the thread that drives has not taken
  // The newest submission of each name, whether it has ended or not.
  std::unordered_map<std::string, std::weak_ptr<completion>> newest_;
  std::size_t most_names_ = 64;  // until the next look for those that are free
  // A deque takes memory even when it is empty, and `stop` must work when no memory is left.
  std::vector<std::shared_ptr<completion>> joins_;
  std::weak_ptr<completion> newest_join_;
  std::optional<error> stopped_;
  std::optional<error> failed_;  // with which work on a device has ended
};

}  // namespace hvd::inline HVD_ABI::detail
