// hvd/engine/observer.hpp: what a driver shows of its work, as events of a timeline.
#pragma once

#include <hvd/engine/negotiation.hpp>
#include <hvd/timeline.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

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

/// The name of a collective over the transport T.
template <class T>
constexpr const char* activity_on(operation kind) noexcept {
  const auto on = [](const char* memory, const char* backend, const char* messages) {
    return PeerMemory<T> ? memory : Native<T, allreduce_call> ? backend : messages;
  };
  switch (kind) {
    case operation::allreduce: return on("SHM_ALLREDUCE", "MPI_ALLREDUCE", "P2P_ALLREDUCE");
    case operation::allgather: return on("SHM_ALLGATHER", "MPI_ALLGATHER", "P2P_ALLGATHER");
    case operation::broadcast: return on("SHM_BCAST", "MPI_BCAST", "P2P_BCAST");
    case operation::reduce_scatter: return on("SHM_REDUCESCATTER", "MPI_REDUCESCATTER", "P2P_REDUCESCATTER");
    case operation::alltoall: return on("SHM_ALLTOALL", "MPI_ALLTOALL", "P2P_ALLTOALL");
    default: return "RUN";
  }
}

/// Records the phases of submissions: NEGOTIATE_... until all ranks have submitted, then the operation; within it QUEUE
/// while other batches run, then the collective (`activity_on`). What was submitted before the timeline started is not
/// shown.
class observer {
 public:
  using submissions = std::span<const std::shared_ptr<submission>>;

  /// `prefix` is put before the names of a process set's tensors.
  observer(Timeline& timeline, int rank, std::string prefix)
      : timeline_(timeline), rank_(rank), prefix_(std::move(prefix)) {}

  /// Called by the submitting thread.
  void submitted(submission& s) {
    if (!timeline_.active()) return;
    s.shown = true;
    s.track = prefix_.empty() ? timeline_.tensor(s.what.name) : timeline_.tensor(prefix_ + s.what.name);
    timeline_.begin(s.track, activities_of(s.what.kind, s.what.op).negotiate);
    timeline_.tick(s.track, rank_);
  }
  void cycle() noexcept { timeline_.cycle(); }
  /// All ranks have submitted it.
  void ready(submission* s) noexcept {
    if (s == nullptr || !s->shown) return;
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
  void ended(const submission& s) noexcept {
    if (!s.shown) return;
    if (s.what.tensors.empty()) return timeline_.end(s.track, dtype::user, {});
    timeline_.end(s.track, s.what.tensors.front().type, s.what.tensors.front().shape);
  }

 private:
  Timeline& timeline_;
  int rank_;
  std::string prefix_;
};

}  // namespace hvd::inline HVD_ABI::detail
