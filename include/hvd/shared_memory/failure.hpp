// hvd/shared_memory/failure.hpp: how a group with common memory ends: lost ranks, errors of one that all ranks learn.
#pragma once

#include <hvd/error.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_memory/abort.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/shared_memory/lost_ranks.hpp>
#include <hvd/shared_memory/memory.hpp>
#include <hvd/shared_memory/wait_board.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// The life of a group: who is alive, who waits for whom, and the error with which all ranks end.
class peer_failure : public peer_windows {
 public:
  /// Checks that the process or thread behind a rank still exists; called only while waiting.
  struct liveness {
    bool (*alive)(void* context, int peer) = nullptr;
    /// The rank to blame if `peer` is lost: it may have left because another rank was killed.
    int (*blame)(void* context, int peer) = nullptr;
    void* context = nullptr;
  };

  peer_failure(group_header& header, int size, const geometry& shape, int rank, std::string label,
               const failure_policy& failure, liveness live)
      : peer_windows(header, size, shape, rank, std::move(label)), failure_(failure), live_(live) {}

  /// These apply to waits that begin from now on; see failure_policy::timeout and hvd::interruption.
  void set_timeout(failure_policy::seconds timeout) noexcept { failure_.timeout = timeout; }
  [[nodiscard]] failure_policy::seconds timeout() const noexcept { return failure_.timeout; }
  void set_interruption(const interruption& by) noexcept { interruption_ = by; }
  /// For a group split off a named one, whose abort word this is: a second claim of a rank there ends this group, too.
  void look_for_claims(const word& abort_word) noexcept { claims_ = &abort_word; }

  /// The board that shows the rank for which this rank waits.
  [[nodiscard]] wait_board& waits() noexcept { return *waits_; }
  /// From now on this group's waits appear on the board of `other`, a group of the same ranks in the same order. So the
  /// board has the waits of a thread in either group. `other` must live longer.
  void show_waits_with(peer_failure& other) noexcept { waits_ = other.waits_; }

  /// Between `enter` and `leave` an exception ends the group: peers may be waiting for data that never comes.
  class scope {
   public:
    scope(peer_failure& m, std::string_view operation) : m_(m) { m.enter(operation); }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (!left_ && !m_.failed_) m_.set_abort(error_kind::aborted, m_.rank_);
    }
    void leave() noexcept { left_ = true; }

   private:
    peer_failure& m_;
    bool left_ = false;
  };

  /// Sets the operation's name for messages; throws if the group has failed or this process may not use it.
  void enter(std::string_view operation) {
    operation_ = operation;
    if (orphaned_) [[unlikely]] {
      fail(error_kind::invalid_argument,
           {operation, " on ", label_,
            ": this process was forked from the one that joined the group; only that one may use it"});
    }
    // A process of another launch has claimed one of these ranks: stop before data of both launches mix.
    if (second_claim(*claims_) != 0) [[unlikely]]
      give_up(error_kind::mismatch, -1, phase::join);
    if (failed_) [[unlikely]] {
      fail(failed_->kind(),
           {operation, " on ", label_, ": the group failed before and cannot be used: ", sentence(*failed_)},
           failed_->rank());
    }
  }
  /// In a forked child: refuses all further use.
  void orphan() noexcept { orphaned_ = true; }
  [[nodiscard]] bool orphaned() const noexcept { return orphaned_; }
  [[nodiscard]] bool failed() const noexcept { return failed_.has_value(); }
  [[nodiscard]] std::string_view operation_name() const noexcept { return operation_; }

  /// Ends the group for all ranks and throws. If another rank was first, its reason is reported.
  [[noreturn]] void give_up(error_kind kind, int culprit, phase what, int waited_for = -1) {
    set_abort(kind, culprit, what);
    fail_with(header_.abort.value.load(std::memory_order_acquire), waited_for < 0 ? culprit : waited_for, what);
  }
  void set_abort(error_kind kind, int culprit, phase what = phase::answer) noexcept {
    std::uint64_t none = 0;
    header_.abort.value.compare_exchange_strong(none, abort_reason(kind, culprit, rank_, what));
  }
  /// Ends the group, for this rank at once and for others when they wait, because another one takes its place.
  void retire() {
    set_abort(error_kind::aborted, rank_);
    inform();
    if (!failed_) failed_.emplace(error_kind::aborted, "another group has taken its place (without_lost)", rank_);
  }
  /// Records that this rank knows of the failure, and may end because of it: see shm_group::blame.
  void inform() noexcept { mine().self.informed.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool aborted() const noexcept { return header_.abort.value.load(std::memory_order_acquire) != 0; }
  /// Reports a lost rank to hvdrun. A rank's window may be read once the rank is ready.
  void report_lost(int culprit, phase what) const noexcept {
    if (culprit < 0 || !header_.ready.has(culprit)) return;
    lost_ranks::file().add(of(culprit).self.job_rank.load(std::memory_order_relaxed), name(what));
  }
  /// Throws if a rank has failed.
  void check_abort(int waited_for, phase what) {
    if (const auto reason = header_.abort.value.load(std::memory_order_acquire); reason != 0)
      fail_with(reason, waited_for, what);
  }

  /// Throws the error that a wait would throw, if a rank is lost or has failed. Does not wait.
  void check_all() {
    for (int q = 0; q != size_; ++q) check_alive(q, [] { return false; });
  }
  /// The same for one rank, unless the awaited data is `there()`: the rank may have sent it and left.
  template <class There>
  void check_alive(int peer, const There& there) {
    enter("check");
    const bool lost = peer != rank_ && gone(peer);  // read first: stores from before it left are then visible
    if ((!lost && !aborted()) || there()) return;
    if (lost) set_abort(error_kind::peer_lost, blamed(peer));
    check_abort(-1, phase::answer);
  }

 protected:
  using clock = std::chrono::steady_clock;

  ~peer_failure() = default;

  [[nodiscard]] int blamed(int lost) const { return live_.blame != nullptr ? live_.blame(live_.context, lost) : lost; }
  [[nodiscard]] std::optional<error_kind> look(int peer, clock::duration waited) {
    if (aborted() || second_claim(*claims_) != 0) return error_kind::aborted;
    if (gone(peer)) return error_kind::peer_lost;
    if (failure_.timeout.count() > 0 && waited > failure_.timeout) return error_kind::timeout;
    return std::nullopt;
  }

  failure_policy failure_;
  interruption interruption_;
  wait_board own_waits_{window(0), geometry_.window_bytes, rank_, size_};
  wait_board* waits_ = &own_waits_;

 private:
  [[nodiscard]] bool gone(int peer) const {
    if (of(peer).self.state.load(std::memory_order_acquire) == presence::left) return true;
    return live_.alive != nullptr && !live_.alive(live_.context, peer);
  }

  [[noreturn]] void fail_with(std::uint64_t reason, int waited_for, phase what) {
    waits_->end();
    inform();
    // After a second claim ranks end one after the other: the claim is the reason, not the rank that ended first.
    if (const std::uint64_t why = second_claim(*claims_); why != 0) reason = why;
    const bool elsewhere = claimed_twice(reason) && claims_ != &header_.abort.value;
    const abort_reader reader{operation_, label_, rank_, size_, waited_for, what, failure_.timeout.count()};
    if (abort_kind(reason) == error_kind::peer_lost) report_lost(abort_culprit(reason, size_), what);
    failed_.emplace(abort_kind(reason), abort_sentence(reason, reader), elsewhere ? -1 : abort_culprit(reason, size_));
    throw *failed_;
  }

  liveness live_;
  const word* claims_ = &header_.abort.value;
  bool orphaned_ = false;
  std::string_view operation_ = "join";
  std::optional<error> failed_;
};

}  // namespace hvd::inline HVD_ABI::detail
