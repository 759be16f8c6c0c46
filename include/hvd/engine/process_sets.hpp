// hvd/engine/process_sets.hpp: the drivers of an engine, one for each process set, and the commands that change them.
#pragma once

#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/engine/cause.hpp>
#include <hvd/engine/clock.hpp>
#include <hvd/engine/command.hpp>
#include <hvd/engine/driver.hpp>
#include <hvd/engine/erased_device.hpp>
#include <hvd/engine/metrics.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/engine/validate.hpp>
#include <hvd/engine/watch.hpp>
#include <hvd/error.hpp>
#include <hvd/timeline.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The state that an engine's threads share. Process set 0 has all ranks. Ranks are ranks of the whole group.
class process_sets {
 public:
  using transport = std::unique_ptr<erased_transport>;
  using own_device = std::unique_ptr<erased_device>;

  explicit process_sets(const engine_options& opts)
      : timeline_kept(opts.records_in ? opts.records_in : std::make_shared<Timeline>()), opts_(opts),
        file_(opts.records_in ? "" : opts.timeline), marks_(opts.mark_cycles) {}

  const std::shared_ptr<Timeline> timeline_kept;
  Timeline& timeline = *timeline_kept;

  /// Begins over the group of `comm`, for the first time or after `shutdown`: makes set 0 and the watch. Collective.
  void begin(erased_transport& comm, own_device device) {
    comm.require_engine();
    if (device != nullptr && comm.simulated()) {
      fail(error_kind::unsupported, {"Engine on rank ", comm.rank(), " of ", comm.size(),
                                     ": a device needs ranks that run in real time, not simulated ones"});
    }
    const std::uint64_t new_job = opts_.launch.empty() ? random_word() : text_hash(opts_.launch);
    const job_clock clock = agree_on_clock(comm, clock_.job != 0 ? clock_.job : new_job);
    std::uint64_t round = round_.load();
    if (comm.size() > 1) round = agree_on_options(comm, opts_, device != nullptr, round);
    round_.store(++round);
    {
      const std::lock_guard lock(recording_);
      rank_ = comm.rank();
      size_ = comm.size();
      clock_ = clock;
      if (!file_.empty()) {  // under the new number of this rank
        timeline.stop();
        record(file_, marks_);
      }
    }
    causes_ = std::make_shared<cause_board>();
    last_set_ = 0;
    try {
      std::vector<int> ranks(static_cast<std::size_t>(size_));
      std::iota(ranks.begin(), ranks.end(), 0);
      transport control = comm.split(0, rank_);
      transport data = comm.split(0, rank_);
      std::shared_ptr<driver> made = make_driver(std::move(control), std::move(data), std::move(device), 0, ranks);
      {
        const std::lock_guard lock(mutex_);
        sets_[0] = std::move(ranks);
        drivers_[0] = std::move(made);
      }
      if (opts_.watch && opts_.thread && size_ > 1) start_watch(comm.split(0, rank_));
    } catch (const error& e) {
      fail_at_start(comm, e, *causes_);
    }
    if (round > 1 && rank_ == 0) {
      timeline.ranks_changed(joined({"round ", round, " begins with ", size_, size_ == 1 ? " rank" : " ranks"}));
    }
  }

  /// Errors: aborted after `shutdown`; invalid_argument for a set that is unknown, or that this rank is not in.
  [[nodiscard]] std::shared_ptr<driver> driver_of(int set) {
    const std::lock_guard lock(mutex_);
    const auto found = drivers_.find(set);
    if (found != drivers_.end()) return found->second;
    if (sets_.empty()) fail(error_kind::aborted, {"the engine was shut down"});
    if (sets_.find(set) == sets_.end()) no_such_set(set);
    fail(error_kind::invalid_argument, {"this rank is not in process set ", set});
  }
  /// Errors: invalid_argument if no set has this number.
  [[nodiscard]] std::vector<int> ranks(int set) {
    const std::lock_guard lock(mutex_);
    const auto found = sets_.find(set);
    if (found == sets_.end()) no_such_set(set);
    return found->second;
  }

  /// See Engine::add_process_set.
  int add(std::vector<int> ranks) {
    const std::lock_guard one(commanding_);
    return ask(add_process_set{std::move(ranks)});
  }
  /// See Engine::remove_process_set.
  void remove(int set) {
    {
      const std::lock_guard lock(mutex_);
      // After shutdown there are no sets: the command reports that.
      if (!sets_.empty() && (set == 0 || sets_.find(set) == sets_.end())) {
        fail(error_kind::invalid_argument,
             {"remove_process_set: there is no process set ", set, " that could be removed"});
      }
    }
    const std::lock_guard one(commanding_);
    ask(remove_process_set{set});
  }
  /// See Engine::alloc_bucket, and alloc_device_bucket.
  [[nodiscard]] std::shared_ptr<std::byte> bucket(std::size_t bytes, memory_kind memory) {
    const auto world = driver_of(0);
    const std::lock_guard one(commanding_);
    ask(alloc_bucket{bytes, memory});
    return {world, last_bucket_};
  }

  /// See Engine::settle.
  void settle() {
    for (const auto& d : all_drivers()) {
      const auto now = d->queued();
      for (const auto& end : now.all) {
        d->await(*end, std::chrono::steady_clock::time_point::max(), false);
        if (end->problem()) throw error(*end->problem());
      }
      if (now.failed) throw again(*now.failed);
    }
  }

  /// See Engine::start_timeline, and stop_timeline.
  void start_timeline(const std::string& path, bool mark_cycles) {
    const std::lock_guard recording(recording_);
    record(path, mark_cycles);
    file_ = path;
    marks_ = mark_cycles;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, ranks] : sets_) {
      if (id != 0) timeline.members(id, ranks);
    }
  }
  void stop_timeline() {
    const std::lock_guard lock(recording_);
    file_.clear();
    timeline.stop();
  }
  /// See Engine::mark_step.
  void mark_step(std::uint64_t samples) noexcept {
    steps_.fetch_add(1, std::memory_order_relaxed);
    samples_.fetch_add(samples, std::memory_order_relaxed);
    timeline.step(samples);
  }
  /// See Engine::metrics.
  [[nodiscard]] engine_metrics metrics() {
    engine_metrics m{.round = round_.load(std::memory_order_relaxed),
                     .steps = steps_.load(std::memory_order_relaxed),
                     .samples = samples_.load(std::memory_order_relaxed),
                     .stalls = stalls_.load(std::memory_order_relaxed),
                     .dropped = timeline.dropped()};
    for (const pending_operation& p : in_flight()) {
      ++m.in_flight;
      m.oldest = std::max<std::chrono::nanoseconds>(m.oldest, std::chrono::steady_clock::now() - p.since);
    }
    const std::lock_guard lock(mutex_);
    for (const auto& [id, d] : drivers_) d->report(m.operations);
    return m;
  }

  /// Ends the drivers, and the watch. See driver::close.
  void shutdown(bool after_loss = false) {
    std::map<int, std::shared_ptr<driver>> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(drivers_);
      sets_.clear();
    }
    for (const auto& [id, d] : all) d->close(after_loss);
    all.clear();
    watch_.reset();  // not under the lock, which its thread takes when it asks drivers
  }

 private:
  void start_watch(transport comm) {
    watched what;
    what.list = [this] { return in_flight(); };
    what.state = [this](int set) {
      const std::lock_guard lock(mutex_);
      const auto found = drivers_.find(set);
      driver_state s = found == drivers_.end() ? driver_state{} : found->second->state();
      if (s.waiting_for >= 0) s.waiting_for = sets_.at(set)[static_cast<std::size_t>(s.waiting_for)];
      return s;
    };
    what.blame = [this](int set) {
      std::shared_ptr<driver> d;
      {
        const std::lock_guard lock(mutex_);
        if (const auto found = drivers_.find(set); found != drivers_.end()) d = found->second;
      }
      return d ? d->held_up_by() : -1;
    };
    what.ranks = [this](int set) {
      const std::lock_guard lock(mutex_);
      const auto found = sets_.find(set);
      return found == sets_.end() ? std::vector<int>() : found->second;
    };
    what.give_up = [this](const error& why) {
      for (const auto& d : all_drivers()) d->give_up(why);  // without the lock: ending NCCL's work can take seconds
    };
    what.told = [this](const std::string& text) {
      stalls_.fetch_add(1, std::memory_order_relaxed);
      timeline.stall(text);
    };
    watch_ = std::make_unique<stall_watch>(std::move(comm), opts_, std::move(what));
  }

  std::vector<std::shared_ptr<driver>> all_drivers() {
    std::vector<std::shared_ptr<driver>> all;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, d] : drivers_) all.push_back(d);
    return all;
  }
  std::vector<pending_operation> in_flight() {
    std::vector<pending_operation> all;
    const std::lock_guard lock(mutex_);
    for (const auto& [id, d] : drivers_) {
      for (pending_operation& f : d->snapshot()) {
        f.set = id;
        all.push_back(std::move(f));
      }
    }
    return all;
  }

  std::shared_ptr<driver> make_driver(transport control, transport data, own_device device, int set,
                                      const std::vector<int>& ranks) {
    // An `alloc_bucket` pointer keeps the driver alive, also in a forked child, which must not destroy any of it. So
    // does a thread that waits while another one ends the engine. The driver's timeline lives as long.
    std::shared_ptr<driver> made(new driver(std::move(control), std::move(data), std::move(device), opts_, timeline,
                                            {set, ranks, size_}, causes_,
                                            set == 0 ? counters_ : std::make_shared<operation_counters>()),
                                 [owner = ::getpid(), kept = timeline_kept](const driver* d) {
                                   if (::getpid() == owner) delete d;
                                 });
    made->start(
        [this](const command& c) { return std::visit([this](const auto& what) { return this->run(what); }, c); });
    return made;
  }

  // ---- commands -----------------------------------------------------------------------------------------------

  /// Submits a command, which all ranks submit; one command at a time on this rank (`commanding_`). Returns the answer.
  int ask(command c) {
    const auto world = driver_of(0);
    const auto end = world->submit(std::move(c), false);
    handle(end, world).wait();
    return end->answer;
  }
  // By the thread that drives set 0, at the same point of the order on all ranks:
  int run(const add_process_set& what) {
    const std::vector<int>& ranks = what.ranks;
    const auto world = driver_of(0);
    const auto place = std::find(ranks.begin(), ranks.end(), world->rank());
    const bool member = place != ranks.end();
    const int id = ++last_set_;
    const int color = member ? 0 : 1, key = static_cast<int>(place - ranks.begin());
    transport control = world->data().split(color, key);
    transport data = world->data().split(color, key);
    own_device device;
    if (world->device() != nullptr) device = world->device()->split(color, key, world->largest());
    std::shared_ptr<driver> made;
    try {
      if (member) made = make_driver(std::move(control), std::move(data), std::move(device), id, ranks);
    } catch (const error& e) {  // its rank counts in the new group
      if (e.rank() < 0 || e.rank() >= static_cast<int>(ranks.size())) throw;
      const int culprit = ranks[static_cast<std::size_t>(e.rank())];
      fail(e.kind(), {"rank ", culprit, " is rank ", e.rank(), " of process set ", id, ": ", sentence(e)}, culprit);
    }
    const std::lock_guard lock(mutex_);
    if (sets_.empty()) return id;  // shut down meanwhile
    sets_[id] = ranks;
    timeline.members(id, ranks);
    if (member) drivers_[id] = std::move(made);
    return id;
  }
  int run(const remove_process_set& what) {
    std::shared_ptr<driver> gone;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = drivers_.find(what.id); found != drivers_.end()) {
        gone = std::move(found->second);
        drivers_.erase(found);
      }
      sets_.erase(what.id);
    }
    if (gone) gone->retire();
    return what.id;
  }
  int run(const alloc_bucket& what) {
    last_bucket_ = driver_of(0)->add_bucket(what.bytes, what.memory);
    return 0;
  }

  void record(const std::string& path, bool mark_cycles) {
    timeline.start(path, {.rank = rank_,
                          .size = size_,
                          .mark_cycles = mark_cycles,
                          .host = opts_.host,
                          .job = hex(clock_.job),
                          .clock_offset = std::chrono::nanoseconds(clock_.offset_ns),
                          .start_steady_ns = clock_.steady_ns,
                          .start_epoch_us = clock_.epoch_us});
  }

  const engine_options opts_;
  std::mutex recording_;  // guards these, which `begin` writes
  int rank_ = 0, size_ = 0;
  job_clock clock_;
  std::string file_;  // of the timeline, if it is to go on in the next round
  bool marks_;
  std::shared_ptr<cause_board> causes_;
  const std::shared_ptr<operation_counters> counters_ = std::make_shared<operation_counters>();  // of set 0
  std::mutex mutex_;  // guards drivers_ and sets_
  std::map<int, std::shared_ptr<driver>> drivers_;
  std::map<int, std::vector<int>> sets_;
  std::mutex commanding_;
  int last_set_ = 0;                  // used by the thread that drives set 0 alone
  std::byte* last_bucket_ = nullptr;  // written by the thread that drives, read by the one that waits
  std::atomic<std::uint64_t> round_{0}, steps_{0}, samples_{0}, stalls_{0};
  std::unique_ptr<stall_watch> watch_;
};

}  // namespace hvd::inline HVD_ABI::detail
