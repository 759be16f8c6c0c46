// hvd/timeline/text.hpp: events as lines of Chrome's trace format.
//
// "Trace Event Format" (Google, 2016), in the array form that chrome://tracing, ui.perfetto.dev and other viewers read.
#pragma once

#include <hvd/detail/text_hash.hpp>
#include <hvd/dtype.hpp>
#include <hvd/error.hpp>
#include <hvd/timeline/json_string.hpp>
#include <hvd/timeline/trace_ring.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The tensors of a timeline: each name in a process set has a number here, and a "process" number, which is the same
/// on all ranks.
class timeline_names {
 public:
  static constexpr std::uint32_t most = 65'536, unknown = UINT32_MAX;

  /// The number of a name: 0, 1, 2 and so on. `unknown` once there are `most`, to limit memory.
  std::uint32_t add(std::string_view name, int set = 0) {
    const std::lock_guard hold(mutex_);
    auto& known_names = numbers_[set];
    const auto known = known_names.find(name);
    if (known != known_names.end()) return known->second;
    if (names_.size() == most) return unknown;
    // A hash, so that ranks agree without messages, in whatever order they see names. If two names have one hash (in
    // 1,000 names with a chance of 1 in 4,300), the later one gets the next number; on other ranks that may be the
    // other name.
    const std::uint64_t hash = text_hash(name) + static_cast<std::uint64_t>(set);
    auto process = static_cast<std::uint32_t>(hash % INT32_MAX) + 1;  // 0 is for what belongs to no tensor
    while (!processes_.insert(process).second) process = process % INT32_MAX + 1;
    const auto number = static_cast<std::uint32_t>(names_.size());
    const auto added = known_names.emplace(name, number).first;
    names_.push_back({&added->first, set, process});
    return number;
  }

  struct entry {
    const std::string* name;  // lives as long as the timeline_names
    int set;
    std::uint32_t process;
  };
  /// None for a number that add() has not returned.
  [[nodiscard]] std::optional<entry> find(std::uint32_t number) const {
    const std::lock_guard hold(mutex_);
    if (number >= names_.size()) return std::nullopt;
    return names_[number];
  }

 private:
  mutable std::mutex mutex_;
  std::map<int, std::map<std::string, std::uint32_t, std::less<>>> numbers_;  // by process set
  std::set<std::uint32_t> processes_;
  std::vector<entry> names_;
};

/// The name that the system gives this host; empty if it has none.
inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

/// Makes lines, each of which begins with ",\n". Counts the open activities of each tensor, so that a dropped event
/// does not misplace all later ones.
class timeline_text {
 public:
  /// `origin`: this host's steady clock, in nanoseconds, at the time 0 of the file. The first lines have the rank, the
  /// number of ranks and the host.
  timeline_text(const timeline_names& names, int rank, int size, std::string_view host, std::int64_t process,
                std::int64_t origin)
      : names_(names), rank_(std::to_string(rank)), origin_(origin), own_(place("0")) {
    name_row(own_);
    describe("hvd_rank", own_);
    for (const auto& [what, number] :
         {std::pair(",\"args\":{\"rank\":", std::int64_t{rank}), std::pair(",\"size\":", std::int64_t{size}),
          std::pair(",\"process\":", process)}) {
      (lines_ += what) += std::to_string(number);
    }
    lines_ += ",\"host\":";
    append_json_string(lines_, host);
    lines_ += "}}";
  }

  /// False if the event cannot be shown: an end without a beginning, an unknown tensor.
  bool add(const trace_event& e) {
    if (e.kind == trace_kind::cycle) {
      mark("CYCLE_START", e.time);
      return true;
    }
    if (e.kind == trace_kind::step) {
      mark("STEP", e.time, joined({"\"samples\":", e.amount}), 't');
      return true;
    }
    if (e.kind == trace_kind::wait) return add_wait(e);
    row* const found = row_of(e.tensor);
    if (found == nullptr) return false;
    row& at = *found;
    switch (e.kind) {
      case trace_kind::begin:
        open("B", at.place);
        lines_ += ",\"name\":";
        append_json_string(lines_, e.activity != nullptr ? e.activity : "");
        close(e.time);
        ++at.depth;
        return true;
      case trace_kind::end:
      case trace_kind::result:
        if (at.depth == 0) return false;
        // The end of the outermost activity: the ends of those that are still open were dropped.
        if (e.kind == trace_kind::result) {
          while (at.depth > 1) end(at, e.time);
        }
        end(at, e.time, e.kind == trace_kind::result ? &e : nullptr);
        return true;
      default:  // a tick
        open("X", at.place);
        ((lines_ += ",\"name\":\"") += std::to_string(e.rank)) += "\",\"dur\":0";
        close(e.time);
        return true;
    }
  }

  /// Adds the numbers of events that were dropped since the last time, and in total.
  void add_dropped(std::uint64_t events, std::uint64_t total, std::int64_t time) {
    mark("DROPPED", time, joined({"\"events\":", events, ",\"total\":", total}));
  }

  /// Adds an event with a text: the members of a process set, as JSON; the watch's report; the ranks of a round.
  void add(const trace_event& e, std::string_view text) {
    if (e.kind == trace_kind::members) {
      describe("hvd_process_set", own_);
      ((lines_ += ",\"args\":{") += text) += "}}";
      return;
    }
    std::string args = "\"text\":";
    append_json_string(args, text);
    mark(e.kind == trace_kind::stall ? "STALL" : "ROUND", e.time, args);
  }

  /// Ends open activities, marked as unfinished, at the end of a timeline.
  void end_all(std::int64_t time) {
    for (row& at : rows_) {
      while (at.depth != 0) end(at, time, nullptr, true);
    }
  }

  std::string& lines() noexcept { return lines_; }

 private:
  struct row {
    std::string place;   // ,"pid":...,"tid":...; empty until the first event
    unsigned depth = 0;  // how many activities are open
  };

  row* row_of(std::uint32_t tensor) {
    if (tensor < rows_.size() && !rows_[tensor].place.empty()) return &rows_[tensor];
    const std::optional<timeline_names::entry> e = names_.find(tensor);
    if (!e) return nullptr;
    if (rows_.size() <= tensor) rows_.resize(std::size_t{tensor} + 1);
    row& at = rows_[tensor];
    at.place = place(std::to_string(e->process));
    describe("process_name", at.place);
    lines_ += ",\"args\":{\"name\":";
    append_json_string(lines_, shown_name(*e));
    lines_ += "}}";
    describe("process_sort_index", at.place);
    ((lines_ += ",\"args\":{\"sort_index\":") += std::to_string(tensor + 1)) += "}}";
    name_row(at.place);
    return &at;
  }

  static std::string shown_name(const timeline_names::entry& e) {
    return e.set == 0 ? *e.name : joined({"set ", e.set, ": ", *e.name});
  }

  bool add_wait(const trace_event& e) {
    const std::optional<timeline_names::entry> tensor = names_.find(e.tensor);
    if (!tensor) return false;
    open("X", own_);
    lines_ += ",\"name\":\"WAIT\",\"args\":{\"tensor\":";
    append_json_string(lines_, shown_name(*tensor));
    lines_ += "},\"dur\":";
    append_microseconds(lines_, static_cast<std::int64_t>(e.amount));
    close(e.time);
    return true;
  }

  [[nodiscard]] std::string place(std::string_view process) const {
    std::string p = ",\"pid\":";
    ((p += process) += ",\"tid\":") += rank_;
    return p;
  }
  void describe(std::string_view what, std::string_view where) {
    open("M", where);
    ((lines_ += ",\"name\":\"") += what) += '"';
  }
  void name_row(std::string_view where) {
    describe("thread_name", where);
    ((lines_ += ",\"args\":{\"name\":\"rank ") += rank_) += "\"}}";
  }

  void end(row& at, std::int64_t time, const trace_event* result = nullptr, bool unfinished = false) {
    --at.depth;
    open("E", at.place);
    if (result != nullptr) {
      ((lines_ += ",\"args\":{\"dtype\":\"") += name(static_cast<dtype>(result->type))) += "\",\"shape\":\"[";
      const std::size_t kept = std::min<std::size_t>(result->dims, trace_event::most_dims);
      for (std::size_t i = 0; i != kept; ++i) {
        if (i != 0) lines_ += ", ";
        append_number(lines_, result->shape[i]);
      }
      lines_ += kept < result->dims ? ", ...]\"}" : "]\"}";
    } else if (unfinished) {
      lines_ += ",\"args\":{\"unfinished\":true}";
    }
    close(time);
  }

  // An event of this rank without a tensor, shown across all rows ('g') or in the rank's row ('t').
  void mark(std::string_view what, std::int64_t time, std::string_view args = {}, char scope = 'g') {
    open("i", own_);
    (((lines_ += ",\"name\":\"") += what) += "\",\"s\":\"") += scope;
    lines_ += '"';
    if (!args.empty()) ((lines_ += ",\"args\":{") += args) += '}';
    close(time);
  }

  void open(std::string_view phase, std::string_view where) {
    (((lines_ += ",\n{\"ph\":\"") += phase) += '"') += where;
  }
  // The time and the end of the event.
  void close(std::int64_t time) {
    lines_ += ",\"ts\":";
    append_microseconds(lines_, time - origin_);
    lines_ += '}';
  }

  const timeline_names& names_;
  std::string rank_;
  std::int64_t origin_;
  std::vector<row> rows_;
  std::string own_;  // place of what belongs to no tensor
  std::string lines_;
};

}  // namespace hvd::inline HVD_ABI::detail
