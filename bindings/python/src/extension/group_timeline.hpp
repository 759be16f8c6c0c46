// group_timeline.hpp: records groups' operations in the process's timeline, and counts them.
#pragma once

#include "collective.hpp"

#include <hvd/engine/clock.hpp>
#include <hvd/engine/metrics.hpp>
#include <hvd/timeline.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd_python {

/// Shows a collective during its lifetime. Collectives have no names: those with the same group, kind, dtype and length
/// share a row.
class timeline_entry {
 public:
  timeline_entry(const collective& c, std::string_view transport, int ranks, int set) : what_(c), ranks_(ranks) {
    hvd::Timeline& all = timeline();
    if (!all.active()) return;
    row_ = row_of(c, set);
    shown_ = true;
    all.begin(row_, activity(c.kind, ""));
    all.begin(row_, activity(c.kind, transport));
  }
  timeline_entry(const timeline_entry&) = delete;
  timeline_entry& operator=(const timeline_entry&) = delete;
  ~timeline_entry() {
    counters().ended(what_.kind, what_.input_bytes(ranks_), failed_);
    if (shown_) timeline().end(row_, what_.type, std::array{what_.count});
  }
  void succeeded() noexcept { failed_ = false; }

  /// The same for a collective that has ended, and has run on a device from `since` until now.
  static void ended(const collective& c, std::string_view transport, int ranks, int set, bool failed,
                    std::chrono::steady_clock::time_point since) {
    counters().ended(c.kind, c.input_bytes(ranks), failed);
    if (!timeline().active()) return;
    const std::uint32_t row = row_of(c, set);
    timeline().begin(row, activity(c.kind, ""), since);
    timeline().begin(row, activity(c.kind, transport), since);
    timeline().end(row, c.type, std::array{c.count});
  }
  static bool active() { return timeline().active(); }

  /// A thread of the program has waited for the collective, from `since` until now.
  static void waited(const collective& c, int set, std::chrono::steady_clock::time_point since) {
    counters().waited(c.kind, std::chrono::steady_clock::now() - since, true);
    if (timeline().active()) timeline().waited(row_of(c, set), since);
  }
  static void mark_step(std::uint64_t samples) { timeline().step(samples); }
  /// For all groups of the process, since it began. Never destroyed, like the timeline.
  static hvd::detail::operation_counters& counters() {
    static auto* const all = new hvd::detail::operation_counters;
    return *all;
  }

  /// For a group without all ranks: its number among process sets, and its ranks.
  static void describe(int set, const std::vector<int>& ranks) {
    {
      texts& t = known();
      const std::lock_guard lock(t.mutex);
      t.sets[set] = ranks;
    }
    timeline().members(set, ranks);
  }
  static void start(const std::string& path, int rank, int size, const hvd::detail::job_clock& clock) {
    timeline().start(path, {.rank = rank,
                            .size = size,
                            .job = hvd::detail::hex(clock.job),
                            .clock_offset = std::chrono::nanoseconds(clock.offset_ns),
                            .start_steady_ns = clock.steady_ns,
                            .start_epoch_us = clock.epoch_us});
    texts& t = known();
    const std::lock_guard lock(t.mutex);
    for (const auto& [set, ranks] : t.sets) timeline().members(set, ranks);
  }
  static void stop() noexcept { timeline().stop(); }
  /// For the engines of groups. Never destroyed: threads may still use it while the process ends. `stop` ends it.
  static const std::shared_ptr<hvd::Timeline>& shared() {
    static auto* const one = new std::shared_ptr<hvd::Timeline>(std::make_shared<hvd::Timeline>());
    return *one;
  }

 private:
  static hvd::Timeline& timeline() { return *shared(); }
  struct texts {
    std::mutex mutex;
    std::map<std::pair<int, std::string>, std::string> activities;
    std::map<std::pair<int, std::string>, std::uint32_t> rows;
    std::map<int, std::vector<int>> sets;
  };
  static texts& known() {
    static auto* const all = new texts;
    return *all;
  }

  static std::uint32_t row_of(const collective& c, int set) {
    const std::string name = hvd::detail::joined({hvd::name(c.kind), " of ", hvd::name(c.type), " [", c.count, "]"});
    texts& t = known();
    const std::lock_guard lock(t.mutex);
    const auto [at, fresh] = t.rows.try_emplace({set, name}, 0);
    if (fresh) at->second = timeline().tensor(name, set);
    return at->second;
  }
  /// Such as "SHM_ALLREDUCE". Lives forever, as the timeline requires.
  static const char* activity(hvd::operation kind, std::string_view transport) {
    texts& t = known();
    const std::lock_guard lock(t.mutex);
    std::string& text = t.activities[{static_cast<int>(kind), std::string(transport)}];
    if (text.empty()) {
      if (!transport.empty()) text = hvd::detail::joined({transport, "_"});
      for (const char c : hvd::name(kind)) {
        if (c != '_') text += static_cast<char>(c - 'a' + 'A');  // REDUCESCATTER, as in Horovod
      }
    }
    return text.c_str();
  }

  const collective& what_;
  const int ranks_;
  bool failed_ = true;
  std::uint32_t row_ = 0;
  bool shown_ = false;
};

}  // namespace hvd_python
