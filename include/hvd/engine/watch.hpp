// hvd/engine/watch.hpp: names the ranks that operations wait for, on a thread that itself waits for no rank.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/deadline.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/engine/signature.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/shared_memory/layout.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The activity of the thread that drives the operations of a process set.
enum class driver_phase : std::uint8_t { idle, waiting, negotiating, running };

/// An operation that this rank has in flight.
struct pending_operation {
  std::string name{};
  std::string_view kind{};
  int set = 0;
  std::chrono::steady_clock::time_point since{};
};
struct driver_state {
  driver_phase phase = driver_phase::idle;
  int waiting_for = -1;  ///< a rank of the whole group; from `driver::state`, of the process set
};

/// The functions of an engine that a watch uses; called by the watch's thread.
struct watched {
  std::function<std::vector<pending_operation>()> list{};
  std::function<driver_state(int set)> state{};
  std::function<std::vector<int>(int set)> ranks{};
  std::function<int(int set)> blame{};  ///< the rank (of all) that holds up the thread that drives a set, or -1
  std::function<void(const error&)> give_up{};
  std::function<void(const std::string&)> told{};  ///< receives the watch's reports
};

/// Checks about every second. If an operation has been in flight for longer than `stall_warning`, it asks the watches
/// of other ranks about it, over a separate transport. A rank whose program or engine is stuck still answers; a rank
/// whose process is stopped does not, and is reported for that. The lowest rank that has submitted a stalled operation
/// reports it. So a rank first asks the ranks below it, twice as many each time, and asks the ranks above it only if
/// none below has submitted it. While nothing stalls, no message is sent.
///
/// No `send` waits for its receiver, with any number of ranks: a message fits into one slot of a channel, and no
/// channel holds more than two. One is a question: a rank that has not answered is not asked again, about anything. The
/// other is an answer: its receiver asks again only after it has received it. MPI has to buffer only these two short
/// messages.
class stall_watch {
 public:
  using clock = std::chrono::steady_clock;

  stall_watch(std::unique_ptr<erased_transport> comm, const engine_options& opts, watched what)
      : owned_(std::move(comm)), opts_(opts), what_(std::move(what)), owing_(static_cast<std::size_t>(comm_.size())) {
    check_limit("engine_options::stall_warning", opts_.stall_warning);
    check_limit("engine_options::stall_shutdown", opts_.stall_shutdown);
    thread_ = std::thread([this] { serve(); });
  }
  stall_watch(const stall_watch&) = delete;
  stall_watch& operator=(const stall_watch&) = delete;
  ~stall_watch() {
    stop_.store(1);
    futex_wake_all(stop_);
    thread_.join();
  }

 private:
  static constexpr std::size_t most_activities = 8;  // in a report; with more, it only counts the ranks

  /// A question about some operations; with its other fields filled in, it is the answer.
  struct message {
    enum : std::uint32_t { question, answer };
    static constexpr std::size_t most = 16;
    struct entry {
      std::uint64_t name = 0;  ///< its hash, so that questions are short; the rank that asks has the text
      std::int32_t set = 0;
      std::int32_t waiting_for = -1;
      std::uint32_t submitted = 0;
      std::uint32_t phase = 0;
    };
    std::uint32_t kind = question;
    std::uint32_t number = 0;  ///< of the question
    std::uint64_t entries = 0;
    entry all[most]{};
  };
  static_assert(sizeof(message) <= least_slot_bytes && slots_per_channel >= 2);
  static_assert(std::has_unique_object_representations_v<message>, "hvd: it is sent as it lies in memory");

  void serve() noexcept {
    const auto period = std::clamp<std::chrono::duration<double>>(opts_.stall_warning / 4, std::chrono::milliseconds(5),
                                                                  std::chrono::seconds(1));
    while (stop_.load() == 0) {
      futex_wait(stop_, 0, std::chrono::duration_cast<std::chrono::nanoseconds>(period));
      if (stop_.load() != 0) return;
      try {
        std::vector<pending_operation> mine = what_.list();
        take_all(mine);
        look(std::move(mine), period);
      } catch (const error&) {
        return;  // a rank is gone; the ranks that wait for it report that
      } catch (const std::exception& e) {
        std::fprintf(stderr, "hvd: the watch of rank %d of %d ends: %s\n", comm_.rank(), comm_.size(), e.what());
        return;
      }
    }
  }

  void look(std::vector<pending_operation> mine, std::chrono::duration<double> period) {
    std::sort(mine.begin(), mine.end(),
              [](const pending_operation& a, const pending_operation& b) { return a.since < b.since; });
    const auto now = clock::now();
    if (mine.empty() || now - mine.front().since < opts_.stall_warning) {
      suspect_ = -1;
      asked_.clear();
      return;
    }
    const double age = std::chrono::duration<double>(now - mine.front().since).count();
    if (opts_.stall_shutdown.count() > 0 && age > opts_.stall_shutdown.count()) {
      const int held_up_by = what_.blame(mine.front().set);
      const int suspect = held_up_by >= 0 ? held_up_by : asked_.empty() ? suspect_ : find_suspect();
      const std::string because = suspect < 0 ? std::string() : joined({"; it waits for rank ", suspect});
      what_.give_up(
          error(error_kind::timeout,
                joined({"rank ", comm_.rank(), " of ", comm_.size(), " gives up: an operation has been in flight for ",
                        tenths(age), " s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)", because}),
                suspect));
      stop_.store(1);
    } else if (asked_.empty() && now >= next_) {
      std::set<std::pair<int, std::uint64_t>> seen;  // of one name the oldest: the others wait for it
      std::erase_if(mine, [&](const pending_operation& f) {
        return now - f.since < opts_.stall_warning || !seen.emplace(f.set, text_hash(f.name)).second;
      });
      mine.resize(std::min(mine.size(), message::most));
      asked_ = std::move(mine);
      replies_.clear();
      ++number_;
      asked_ranks_ = 0;
      ask_more();
    } else if (!asked_.empty() && (all_replied() || now - asked_at_ > 3 * period + std::chrono::milliseconds(200))) {
      const bool report_due = !reported_below();
      if (report_due && asked_ranks_ != comm_.size()) return ask_more();
      if (report_due) tell(report(age));
      suspect_ = find_suspect();
      asked_.clear();
      next_ = deadline_after(opts_.stall_warning);
    }
  }
  static double tenths(double seconds) noexcept {
    return static_cast<double>(static_cast<long long>(seconds * 10)) / 10;
  }
  void tell(const std::string& text) {
    what_.told(text);
    if (opts_.report) return opts_.report(text);
    std::fprintf(stderr, "hvd: %s\n", text.c_str());
  }

  // ---- questions and answers ----------------------------------------------------------------------------------

  /// Asks the next ranks: those below this one in parts that grow, then all others.
  void ask_more() {
    const int me = comm_.rank();
    const int end = asked_ranks_ < me ? std::min(2 * asked_ranks_ + 1, me) : comm_.size();
    message m;
    m.number = number_;
    for (const pending_operation& f : asked_) {
      m.all[m.entries].name = text_hash(f.name);
      m.all[m.entries++].set = f.set;
    }
    for (; asked_ranks_ != end; ++asked_ranks_) {
      if (asked_ranks_ == me || owing_[static_cast<std::size_t>(asked_ranks_)]) continue;
      owing_[static_cast<std::size_t>(asked_ranks_)] = true;
      send(m, asked_ranks_);
    }
    asked_at_ = clock::now();
  }
  /// For the operation that has been in flight longest: the first rank of its process set that has not answered, or
  /// else the first that has not submitted it; -1 if there is none.
  [[nodiscard]] int find_suspect() const {
    int late = -1;
    for (const int r : what_.ranks(asked_.front().set)) {
      if (r == comm_.rank()) continue;
      if (owing_[static_cast<std::size_t>(r)]) return r;
      const auto found = replies_.find(r);
      if (late < 0 && found != replies_.end() && found->second.all[0].submitted == 0) late = r;
    }
    return late;
  }
  [[nodiscard]] bool all_replied() const {
    return replies_.size() + (comm_.rank() < asked_ranks_ ? 1 : 0) == static_cast<std::size_t>(asked_ranks_);
  }
  /// True if a lower rank reports each of the operations.
  [[nodiscard]] bool reported_below() const {
    for (std::size_t i = 0; i != asked_.size(); ++i) {
      const auto has = [&](const auto& reply) {
        return reply.first < comm_.rank() && reply.second.all[i].submitted != 0;
      };
      if (std::none_of(replies_.begin(), replies_.end(), has)) return false;
    }
    return true;
  }

  void take_all(const std::vector<pending_operation>& mine) {
    std::vector<std::pair<int, std::uint64_t>> submitted;
    for (int q = 0; q != comm_.size(); ++q) {
      while (q != comm_.rank() && comm_.arrived(q)) {
        message m;
        comm_.recv(reinterpret_cast<std::byte*>(&m), sizeof m, q);
        m.entries = std::min<std::uint64_t>(m.entries, message::most);
        if (m.kind == message::answer) {
          owing_[static_cast<std::size_t>(q)] = false;
          if (m.number == number_ && m.entries == asked_.size()) replies_[q] = m;
          continue;
        }
        if (submitted.empty()) {
          for (const pending_operation& f : mine) submitted.emplace_back(f.set, text_hash(f.name));
          std::sort(submitted.begin(), submitted.end());
        }
        reply(m, q, submitted);
      }
    }
  }
  void reply(message m, int to, const std::vector<std::pair<int, std::uint64_t>>& submitted) {
    m.kind = message::answer;
    for (std::size_t i = 0; i != m.entries; ++i) {
      auto& e = m.all[i];
      const driver_state s = what_.state(e.set);
      e.submitted =
          std::binary_search(submitted.begin(), submitted.end(), std::pair<int, std::uint64_t>(e.set, e.name));
      e.phase = static_cast<std::uint32_t>(s.phase);
      e.waiting_for = s.waiting_for;
    }
    send(m, to);
  }
  void send(const message& m, int to) { comm_.send(reinterpret_cast<const std::byte*>(&m), sizeof m, to); }

  // ---- the report ---------------------------------------------------------------------------------------------

  [[nodiscard]] std::string report(double age) const {
    std::string text;
    for (std::size_t i = 0; i != asked_.size(); ++i) {
      std::vector<int> with, without, silent;
      std::map<std::string, std::vector<int>> doing, phases;
      std::vector<int> members = what_.ranks(asked_[i].set);  // in the order of the set
      std::sort(members.begin(), members.end());
      for (const int r : members) {
        const auto found = replies_.find(r);
        if (r != comm_.rank() && found == replies_.end()) {
          silent.push_back(r);
          continue;
        }
        const bool mine = r == comm_.rank();
        (mine || found->second.all[i].submitted != 0 ? with : without).push_back(r);
        const driver_state s = mine ? what_.state(asked_[i].set) : state_of(found->second.all[i]);
        doing[sentence_of(s, true)].push_back(r);
        phases[sentence_of(s, false)].push_back(r);
      }
      if (with.empty() || with.front() != comm_.rank()) continue;  // that rank reports it
      const double seconds = std::chrono::duration<double>(clock::now() - asked_[i].since).count();
      if (text.empty()) {
        text =
            joined({"rank ", comm_.rank(), " of ", comm_.size(), ": in flight for ", tenths(age),
                    " s and not done (one or more tensors were submitted by some ranks, but not by all, or a rank is "
                    "stuck):"});
      }
      text += joined({"\n  ", asked_[i].kind, " \"", asked_[i].name, "\"",
                      asked_[i].set == 0 ? "" : joined({" of process set ", asked_[i].set}), ", ", tenths(seconds),
                      " s: submitted by ", ranks_text(with)});
      if (!without.empty()) text += joined({"; not submitted by ", ranks_text(without)});
      if (!silent.empty()) text += joined({"; no answer from ", ranks_text(silent), " (stopped, or lost?)"});
      // With many ranks, each may wait for another rank; a count for each activity is then enough.
      const bool few = doing.size() <= most_activities;
      for (const auto& [what, ranks] : few ? doing : phases) {
        if (!what.empty()) text += joined({"; ", few ? ranks_text(ranks) : joined({ranks.size(), " ranks"}), what});
      }
    }
    return text;
  }
  static driver_state state_of(const message::entry& e) noexcept {
    return {static_cast<driver_phase>(e.phase), e.waiting_for};
  }
  static std::string sentence_of(const driver_state& s, bool precise) {
    const std::string whom = s.waiting_for < 0 ? std::string()
                             : precise         ? joined({", waiting for rank ", s.waiting_for})
                                               : std::string(", waiting for others");
    switch (s.phase) {
      case driver_phase::idle: return {};
      case driver_phase::waiting: return joined({": waiting for others to submit", whom});
      case driver_phase::negotiating: return joined({": negotiating", whom});
      case driver_phase::running: return joined({": in a collective", whom});
    }
    return {};
  }
  /// "rank 3", "ranks 0-2, 5".
  static std::string ranks_text(std::vector<int> ranks) {
    std::sort(ranks.begin(), ranks.end());
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i != ranks.size();) {
      std::size_t last = i;
      while (last + 1 != ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
      text += joined({i == 0 ? "" : ", ", ranks[i]});
      if (last != i) text += joined({last == i + 1 ? ", " : "-", ranks[last]});
      i = last + 1;
    }
    return text;
  }

  const std::unique_ptr<erased_transport> owned_;
  erased_transport& comm_ = *owned_;
  const engine_options& opts_;
  watched what_;
  std::vector<pending_operation> asked_;  // the operations of the current question
  clock::time_point asked_at_{}, next_{};
  std::uint32_t number_ = 0;  // of the question
  int asked_ranks_ = 0;       // ranks below this number have been asked
  int suspect_ = -1;          // the rank that holds up the operation that has been in flight longest, or -1
  std::map<int, message> replies_;
  std::vector<bool> owing_;  // ranks that have been asked and have not answered
  std::atomic<std::uint32_t> stop_{0};
  std::thread thread_;
};

}  // namespace hvd::inline HVD_ABI::detail
