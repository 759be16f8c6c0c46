// hvd/engine/driver.hpp: the operations of one process set, from submission to their end.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/engine/agreement.hpp>
#include <hvd/engine/autotune.hpp>
#include <hvd/engine/by_host.hpp>
#include <hvd/engine/cause.hpp>
#include <hvd/engine/erased_device.hpp>
#include <hvd/engine/execute.hpp>
#include <hvd/engine/metrics.hpp>
#include <hvd/engine/negotiation.hpp>
#include <hvd/engine/observer.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/engine/pending.hpp>
#include <hvd/engine/progress.hpp>
#include <hvd/engine/submission_table.hpp>
#include <hvd/engine/watch.hpp>
#include <hvd/erased_transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// Any thread may submit. One at a time drives: it takes submissions, agrees with other ranks, runs operations that are
/// ready, and ends those that the device has completed.
class driver final : public waiting_room {
 public:
  using clock = std::chrono::steady_clock;

  /// `control` carries the agreement, `data` the operations on the host, and `device`, or null, the operations on the
  /// device; all have the ranks of the process set.
  driver(std::unique_ptr<erased_transport> control, std::unique_ptr<erased_transport> data,
         std::unique_ptr<erased_device> device, const engine_options& opts, Timeline& timeline,
         const driver_members& members, std::shared_ptr<cause_board> board,
         std::shared_ptr<operation_counters> counters = std::make_shared<operation_counters>())
      : opts_(opts), rank_(control->rank()), size_(control->size()), control_(std::move(control)),
        data_(std::move(data)), agreement_(*control_), cause_(*control_, *data_, agreement_, members, std::move(board)),
        negotiation_(opts.cache_capacity, rank_, size_), execute_(*data_, opts.fusion_threshold),
        pending_(*control_, std::move(device), [this](submission& s, const error* why) { end_of_batch(s, why); }),
        observer_(timeline, rank_, members.set, std::move(counters)),
        cycle_time_(std::chrono::duration_cast<std::chrono::microseconds>(opts.cycle_time)) {
    if (opts.autotune && members.set == 0) tuner_.emplace(*data_, opts);
  }
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;
  ~driver() override { close(); }

  /// Starts the driver's thread. `manage` answers commands, in the same order on all ranks, while no batch is pending.
  void start(std::function<int(const command&)> manage) {
    manage_ = std::move(manage);
    if (!opts_.thread) return;
    progress_.start([this] { return has_work(); }, [this] { drive(nullptr, clock::time_point::max()); });
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] erased_transport& data() noexcept { return *data_; }
  /// The engine's device; null in an engine without one.
  [[nodiscard]] erased_device* device() noexcept { return pending_.device(); }
  [[nodiscard]] largest_number largest() {
    return [this](std::uint64_t number) { return agreement_.largest(number); };
  }
  /// Memory that lives as long as the driver. Collective; called by the thread that drives.
  std::byte* add_bucket(std::size_t bytes, memory_kind memory) {
    if (memory == memory_kind::device) {
      if (const std::optional<error> problem = pending_.connect(*data_)) throw error(*problem);
      return device_buckets_.emplace_back(device()->bucket(bytes, largest())).get();
    }
    return buckets_.emplace_back(data_->bucket(bytes)).data();
  }

  /// Takes a request whose arguments have been checked, or a command. Errors: invalid_argument if its name is
  /// held. If `wake` is false, no thread is woken, because the caller waits at once.
  template <class Request>
  std::shared_ptr<completion> submit(Request r, bool wake) {
    const auto what = std::make_shared<submission>(std::move(r));
    what->end->describe(what->what.kind, hvd::name(what->what.kind), what->what.name, rank_, size_);
    const std::optional<error> too_late = in_flight_.add(what, observer_);
    if (too_late) complete(*what, cause_.told(*what->end, *too_late));
    if (wake || progress_.taken()) stir();
    return what->end;
  }

  /// See Engine::join.
  std::shared_ptr<completion> join() {
    auto end = std::make_shared<completion>();
    end->describe(operation::barrier, "join", {}, rank_, size_);
    if (const std::optional<error> too_late = in_flight_.join(end)) {
      end->finish(cause_.told(*end, *too_late));
      return end;
    }
    stir();
    return end;
  }

  void await(const completion& end, clock::time_point until, bool only_queued) override {
    refuse_fork(pid_, rank_, size_);
    if (progress_.mine()) {
      fail(error_kind::invalid_argument,
           {end.label(), " cannot be awaited in a callback: it makes no progress until the callback returns"});
    }
    const clock::time_point since = clock::now();
    for (int yields = 0; !end.reached(only_queued) && clock::now() < until;) {
      if (progress_.attempt([&] { drive(&end, until, only_queued); })) {
        if (has_work()) progress_.wake();
      } else if (!opts_.thread || yields < paces::other_driver_yields) {
        ++yields;  // the operation may be done in a moment, or the other thread may stop driving
        ::sched_yield();
      } else {
        end.sleep_until(std::min(until, clock::now() + std::chrono::seconds(1)), only_queued);
      }
    }
    observer_.waited(end, since, end.reached(only_queued));
  }

  /// Ends the driver: what is in flight or submitted later ends with an error, `after_loss` that of the lost rank.
  void close(bool after_loss = false) {
    const auto until = clock::now() + std::chrono::seconds(1);
    progress_.close();
    stir();
    // A collective under way gets 1 s to end by itself; then it is aborted, because its other ranks may never come.
    for (int i = 0; progress_.taken() && i != 1000; ++i) nap(paces::other_process.sleep);
    if (progress_.taken()) abandon();
    progress_.join();
    progress_.insist([&] {
      pending_.finish(until);
      const auto lost = after_loss || agreement_.under_way() ? cause_.look_around() : std::nullopt;
      if (agreement_.under_way()) {  // other ranks wait for this rank's message
        cause_.abandon();
        keep_messages(control_);
      }
      stop(after_loss && lost ? *lost : cause_.shut_down());
    });
  }

  /// Like `close`, if all ranks end the driver and no rank is lost.
  void retire() {
    cause_.retire();
    close();
  }

  /// The operations in flight, for the watch; those on the device, for `settle`. Any thread.
  [[nodiscard]] std::vector<pending_operation> snapshot() { return in_flight_.snapshot(); }
  [[nodiscard]] auto queued() { return in_flight_.queued(); }
  /// Any thread.
  void report(std::vector<operation_metrics>& to) const { observer_.report(to); }
  /// Ends everything in flight with this error, as soon as the thread that drives checks for it.
  void give_up(const error& why) {
    std::unique_lock lock(verdict_mutex_);
    if (!verdict_) verdict_ = why;
    lock.unlock();
    cause_.announce(why);
    condemned_.store(true);
    abandon();
    stir();
  }
  /// The rank of the whole group that holds up the driving thread, perhaps through others; or -1. Any thread.
  [[nodiscard]] int held_up_by() noexcept { return cause_.behind(state().waiting_for); }
  /// The state of the driving thread, and the rank of the process set for which it waits. Any thread.
  [[nodiscard]] driver_state state() noexcept {
    const int control = waited_for_.load(std::memory_order_relaxed);
    return {phase_.load(std::memory_order_relaxed), control >= 0 ? control : data_->waiting_for()};
  }

 private:
  // ---- driving ------------------------------------------------------------------------------------------------

  /// Called when there is something new: wakes the driving thread, or else the driver's own thread.
  void stir() noexcept {
    if (progress_.taken()) agreement_.ring();
    if (!progress_.taken()) progress_.wake();  // the thread that drove may just have stopped
  }
  [[nodiscard]] bool has_work() { return in_flight_.any() || !pending_.empty(); }
  void abandon() noexcept { cause_.abandon(), pending_.interrupt(); }  // ends the collective of the driving thread

  /// Makes progress until `end` is reached (null: until there is nothing to do), until `until`, or until the driver
  /// closes.
  void drive(const completion* end, clock::time_point until, bool only_queued = false) {
    try {
      while (!progress_.closing() && !(end != nullptr && end->reached(only_queued))) {
        if (condemned_.load()) throw verdict();
        in_flight_.take_fresh(negotiation_, device());
        poll_device(pending_.quiet);
        if (negotiation_.idle() && pending_.empty()) break;
        const auto now = clock::now();
        const bool news = negotiation_.has_news();
        if (agreement_.under_way() || (news && now >= next_round_) || agreement_.called()) {
          if (!take_round(until, end, only_queued)) break;
        } else {
          if (now >= until) break;
          if (pending_.spin()) continue;
          phase_.store(pending_.empty() ? driver_phase::waiting : driver_phase::running, std::memory_order_relaxed);
          agreement_.sleep(pending_.next_look(news ? std::min(until, next_round_) : until), [&] {
            return progress_.closing() || condemned_.load() || in_flight_.has_fresh(negotiation_);
          });
        }
      }
    } catch (const error& e) {
      const bool condemned = condemned_.load();
      if (condemned) cause_.abandon();
      const error why = condemned ? verdict() : cause_.settle(e);
      in_flight_.refuse(why);  // at once: ending the work of a device can take seconds
      if (!condemned) pending_.finish(clock::now() + pending_.last_chance);
      pending_.abort();
      stop(why);
    } catch (const std::exception&) {
      cause_.abandon();
      pending_.abort();
      stop(cause_.unexpected());
    }
    phase_.store(driver_phase::idle, std::memory_order_relaxed);
  }
  error verdict() {
    const std::lock_guard lock(verdict_mutex_);
    return *verdict_;
  }

  // ---- a round ------------------------------------------------------------------------------------------------

  /// Takes part in a round; false if `until` or `end` (null: none) came first.
  bool take_round(clock::time_point until, const completion* end, bool only_queued) {
    if (!agreement_.under_way()) agreement_.begin(negotiation_.words());
    phase_.store(driver_phase::negotiating, std::memory_order_relaxed);
    while (!agreement_.finish(pending_.next_look(std::min(until, clock::now() + std::chrono::milliseconds(100))),
                              end != nullptr ? paces::round : paces::round_by_itself, waited_for_)) {
      poll_device(pending_.quiet_in_round);
      if (end != nullptr && end->reached(only_queued)) return false;
      if (progress_.closing() || condemned_.load()) return true;
      if (clock::now() >= until) return false;
    }
    if (cycle_time_.count() > 0) next_round_ = clock::now() + cycle_time_;
    observer_.cycle();
    decision d = negotiation_.decide(agreement_.words());
    for (refusal& r : d.refused) refuse(std::move(r));
    const auto batches = plan(negotiation_.known(), std::move(d.ready), execute_.threshold(), opts_.groups_alone);
    for (const batch& b : batches) {
      for (const std::uint32_t id : b.ids) observer_.ready(negotiation_.find(id));
    }
    for (const batch& b : batches) run(b);
    if (d.talk) {
      phase_.store(driver_phase::negotiating, std::memory_order_relaxed);
      for (refusal& r : negotiation_.learn(agreement_.merge(negotiation_.announce(), &merge_announcements))) {
        refuse(std::move(r));
      }
      if (negotiation_.last_joined() >= 0) end_join();
    }
    return true;
  }

  /// Moved, because copies of an exception share its text, with a count that ThreadSanitizer does not see.
  void refuse(refusal r) {
    if (const auto s = negotiation_.take(r.name)) finish(*s, std::move(r.why));
  }
  void end_join() {
    const std::shared_ptr<completion> end = in_flight_.end_join(negotiation_);
    end->answer = negotiation_.last_joined();
    end->finish(std::nullopt);
  }

  void run(const batch& b) {
    phase_.store(driver_phase::running, std::memory_order_relaxed);
    std::vector<std::shared_ptr<submission>> mine;
    std::vector<work> works;
    for (const std::uint32_t id : b.ids) {
      negotiation_.use(id);
      auto s = negotiation_.take(id);
      const bool alike = negotiation_.alike(id);
      works.push_back({negotiation_.known()[id].what, s ? &s->what : nullptr, s ? s->end.get() : nullptr, alike});
      if (!s) continue;
      s->end->results.resize(works.back().what.types.size());
      mine.push_back(std::move(s));
    }
    const signature& first = works.front().what;
    if (first.memory == memory_kind::device) {
      if (device() == nullptr) {  // `validate` has refused it on every rank, unless a message was corrupted
        fail(error_kind::mismatch, {"another rank has submitted tensors on a device to an engine without one"});
      }
      if (const std::optional<error> problem = pending_.connect(*data_)) {
        for (const auto& s : mine) finish(*s, *problem);
        return;
      }
      start(works, std::move(mine));
    } else {
      observer_.enter(mine, data_->activity(first.kind));
      if (first.kind == operation::split) {
        await_device();
        for (const auto& s : mine) s->end->answer = manage_(*s->ask);
      } else {
        execute_(works);
      }
      for (const auto& s : mine) finish(*s, std::nullopt);
    }
    if (tuner_ && first.kind != operation::split) tuner_->count(b.ids, b.bytes, cycle_time_, execute_);
  }

  void finish(submission& s, std::optional<error> problem) {
    observer_.ended(s, problem.has_value());
    in_flight_.remove(s);
    complete(s, std::move(problem));
  }
  static void complete(submission& s, std::optional<error> problem) {
    const auto done = std::move(s.what.done);
    s.what.keep.reset();
    s.end->finish(std::move(problem));
    [&]() noexcept {
      if (done) done(handle(s.end));
    }();
  }

  // ---- the device -----------------------------------------------------------------------------------------------

  void start(const std::vector<work>& works, std::vector<std::shared_ptr<submission>> mine) {
    const signature& first = works.front().what;
    if (first.kind == operation::allreduce && first.op == reduce_op::adasum) return start_on_host(works, mine);
    const received_rows rows = execute_.exchange_rows(works);
    observer_.enter(mine, device()->activity(first.kind));
    pending_.start(works, rows, std::move(mine), largest());
  }
  /// Runs Adasum, because a device has no collective for it.
  void start_on_host(const std::vector<work>& works, const std::vector<std::shared_ptr<submission>>& mine) {
    await_device();
    observer_.enter(mine, data_->activity(operation::allreduce));
    if (device()->can.copies) run_by_host(*device(), execute_, works);
    for (const auto& s : mine) {
      std::optional<error> problem;
      if (!device()->can.copies) {
        problem.emplace(error_kind::unsupported, s->end->label() + ": this device does not support adasum");
      }
      finish(*s, std::move(problem));
    }
  }
  void end_of_batch(submission& s, const error* why) {
    finish(s, why != nullptr ? std::optional(cause_.failed(*s.end, *why)) : std::nullopt);
  }
  void poll_device(std::chrono::milliseconds longest) {
    pending_.poll(longest, [this] { return agreement_.called(); });
  }
  void await_device() {
    while (!pending_.empty()) {
      if (progress_.closing()) throw error(cause_.shut_down());
      if (condemned_.load()) throw verdict();
      poll_device(pending_.quiet);
      if (!pending_.spin()) nap(paces::gpu_end.sleep);
    }
  }

  // ---- the end --------------------------------------------------------------------------------------------------

  /// The end of the driver: everything in flight ends with `why`.
  void stop(const error& why) {
    const submission_table::rest left = in_flight_.stop(why);
    for (const auto& s : left.all) {
      observer_.count(*s, true);
      complete(*s, cause_.told(*s->end, why));
    }
    for (const auto& end : left.joins) end->finish(cause_.told(*end, why));
  }

  const engine_options opts_;
  const int rank_, size_;
  const pid_t pid_ = ::getpid();
  std::unique_ptr<erased_transport> control_;  // null once its messages are kept
  const std::unique_ptr<erased_transport> data_;
  agreement agreement_;
  driver_cause cause_;
  negotiation negotiation_;
  executor execute_;
  std::vector<shared_array<std::byte>> buckets_;
  std::vector<std::shared_ptr<std::byte>> device_buckets_;
  pending_batches pending_;
  observer observer_;
  std::chrono::microseconds cycle_time_;
  clock::time_point next_round_{};
  std::optional<autotuner> tuner_;  // of driver 0
  std::function<int(const command&)> manage_;

  submission_table in_flight_;
  std::mutex verdict_mutex_;
  std::optional<error> verdict_;
  std::atomic<bool> condemned_{false};
  std::atomic<int> waited_for_{-1};
  std::atomic<driver_phase> phase_{driver_phase::idle};
  progress progress_;
};

}  // namespace hvd::inline HVD_ABI::detail
