// hvd/engine/observer.hpp: records a driver's work as events of a timeline and in counters.
#pragma once

#include <hvd/engine/metrics.hpp>
#include <hvd/engine/negotiation.hpp>
#include <hvd/timeline.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Horovod's names of an operation: while ranks agree, and while it runs.
struct activity_names {
  const char* negotiate;
  const char* run;
};
constexpr activity_names activities_of(operation kind, reduce_op op) noexcept {
  switch (kind) {
    case operation::allreduce:
      if (op == reduce_op::adasum) return {"NEGOTIATE_ADASUM", "ADASUM"};
      return {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"};
    case operation::allgather: return {"NEGOTIATE_ALLGATHER", "ALLGATHER"};
    case operation::broadcast: return {"NEGOTIATE_BROADCAST", "BROADCAST"};
    case operation::reduce_scatter: return {"NEGOTIATE_REDUCESCATTER", "REDUCESCATTER"};
    case operation::alltoall: return {"NEGOTIATE_ALLTOALL", "ALLTOALL"};
    case operation::barrier: return {"NEGOTIATE_BARRIER", "BARRIER"};
    default: return {"NEGOTIATE_PROCESS_SET", "PROCESS_SET"};
  }
}

/// Records the phases of submissions: NEGOTIATE_... until all ranks have submitted, then the operation; within it QUEUE
/// while other batches run, then the collective (`activities_on`), and within it GPU, the time of a device's own clock,
/// up to the moment at which the engine has noticed the end. Submissions from before the timeline started are not
/// shown. Counters are always on.
class observer {
 public:
  using submissions = std::span<const std::shared_ptr<submission>>;

  /// Of the tensors of one process set.
  observer(Timeline& timeline, int rank, int set, std::shared_ptr<operation_counters> counters)
      : timeline_(timeline), rank_(rank), set_(set), counters_(std::move(counters)) {}

  /// Called by the submitting thread.
  void submitted(submission& s) {
    if (!timeline_.active()) return;
    s.shown = s.end->timed = true;
    s.track = timeline_.tensor(s.what.name, set_);
    timeline_.begin(s.track, activities_of(s.what.kind, s.what.op).negotiate);
    timeline_.tick(s.track, rank_);
  }
  void cycle() noexcept { timeline_.cycle(); }
  /// Called when all ranks have submitted it.
  void ready(submission* s) {
    if (s == nullptr) return;
    if (s->behind) submitted(*s);  // the one before has ended
    if (!s->shown) return;
    timeline_.end(s->track);
    timeline_.begin(s->track, activities_of(s->what.kind, s->what.op).run);
    timeline_.begin(s->track, "QUEUE");
  }
  /// Begins an activity within the operation of each submission, and ends the one before it.
  void enter(submissions all, const char* activity) noexcept {
    for (const auto& s : all) {
      if (!s->shown) continue;
      timeline_.end(s->track);
      timeline_.begin(s->track, activity);
    }
  }
  /// Counts an ended submission, without an event.
  void count(const submission& s, bool failed) noexcept {
    std::uint64_t bytes = 0;
    for (const tensor& t : s.what.tensors) {
      bytes += std::accumulate(t.shape.begin(), t.shape.end(), size_of(t.type), std::multiplies<>());
    }
    counters_->ended(s.what.kind, bytes, failed);
  }
  void ended(const submission& s, bool failed) noexcept {
    count(s, failed);
    if (!s.shown) return;
    if (const auto time = s.end->device_time; time.count() > 0) {
      const auto now = std::chrono::steady_clock::now();
      timeline_.begin(s.track, "GPU", now - time);
      timeline_.end(s.track, now);
    }
    if (s.what.tensors.empty()) return timeline_.end(s.track, dtype::user, {});
    timeline_.end(s.track, s.what.tensors.front().type, s.what.tensors.front().shape);
  }
  /// Called when a thread of the program has waited, from `since` until now.
  void waited(const completion& end, std::chrono::steady_clock::time_point since, bool to_the_end) {
    counters_->waited(end.kind, std::chrono::steady_clock::now() - since, to_the_end);
    if (timeline_.active() && !end.name.empty()) timeline_.waited(timeline_.tensor(end.name, set_), since);
  }
  void report(std::vector<operation_metrics>& to) const { counters_->report(to, set_); }

 private:
  Timeline& timeline_;
  int rank_, set_;
  const std::shared_ptr<operation_counters> counters_;
};

}  // namespace hvd::inline HVD_ABI::detail
