// hvd/engine/watch.hpp: names the ranks for which operations wait, from a thread that waits for nobody.
#pragma once

#include <hvd/detail/futex.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/engine/signature.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// What the thread that drives the operations of a process set does.
enum class lane_phase : std::uint8_t { idle, waiting, negotiating, running };

/// What this rank has in flight, and where it is.
struct pending_operation {
  std::string name{};
  std::string_view kind{};
  int set = 0;
  std::chrono::steady_clock::time_point since{};
};
struct lane_state {
  lane_phase phase = lane_phase::idle;
  int waiting_for = -1;  ///< a rank of the whole group
};

/// What a watch needs to see; asked by its thread.
struct watched {
  std::function<std::vector<pending_operation>()> list{};
  std::function<lane_state(int set)> state{};
  std::function<std::vector<int>(int set)> ranks{};
  std::function<void(const error&)> give_up{};
};

/// Looks about every second. When something has been in flight for longer than `stall_warning`, it asks the watches of
/// the other ranks about it, over a transport of its own, so that a rank whose program or whose engine is stuck still
/// answers; one whose process is stopped does not, and is named for that. The lowest rank that has submitted a stalled
/// operation reports it. While nothing stalls no message is sent.
template <Probing T>
class stall_watch {
 public:
  using clock = std::chrono::steady_clock;

  stall_watch(T comm, const engine_options& opts, watched what)
      : comm_(std::move(comm)), opts_(opts), what_(std::move(what)), thread_([this] { serve(); }) {}
  stall_watch(const stall_watch&) = delete;
  stall_watch& operator=(const stall_watch&) = delete;
  ~stall_watch() {
    stop_.store(1);
    futex_wake_all(stop_);
    thread_.join();
  }

 private:
  static constexpr std::size_t most_names = 16;  // in a question
  // Of a message: one for each rank fits into every channel, so that nobody waits for a rank that does not read.
  static constexpr std::size_t most_bytes = 2048, most_letters = 96;
  static constexpr char question = 'q', answer = 'a';

  /// What one rank has answered.
  struct reply {
    std::vector<bool> submitted{};
    std::vector<lane_state> states{};
  };

  void serve() noexcept {
    const auto period = std::clamp<std::chrono::duration<double>>(opts_.stall_warning / 4, std::chrono::milliseconds(5),
                                                                  std::chrono::seconds(1));
    while (stop_.load() == 0) {
      futex_wait(stop_, 0, std::chrono::duration_cast<std::chrono::nanoseconds>(period));
      if (stop_.load() != 0) return;
      try {
        for (int q = 0; q != comm_.size(); ++q) {
          while (q != comm_.rank() && comm_.arrived(q)) take(q);
        }
        look(period);
      } catch (const error&) {
        return;  // a rank is gone, as those who wait for it will say
      } catch (const std::exception& e) {
        std::fprintf(stderr, "hvd: the watch of rank %d of %d ends: %s\n", comm_.rank(), comm_.size(), e.what());
        return;
      }
    }
  }

  void look(std::chrono::duration<double> period) {
    std::vector<pending_operation> all = what_.list();
    std::sort(all.begin(), all.end(),
              [](const pending_operation& a, const pending_operation& b) { return a.since < b.since; });
    const auto now = clock::now();
    if (all.empty() || now - all.front().since < opts_.stall_warning) {
      asked_.clear();
      return;
    }
    const double age = std::chrono::duration<double>(now - all.front().since).count();
    if (opts_.stall_shutdown.count() > 0 && age > opts_.stall_shutdown.count()) {
      what_.give_up(error(error_kind::timeout, joined({"rank ", comm_.rank(), " of ", comm_.size(),
                                                       " gives up: an operation has been in flight for ", tenths(age),
                                                       " s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)"})));
      stop_.store(1);
    } else if (asked_.empty() && now >= next_) {
      while (all.size() > most_names) all.pop_back();
      std::erase_if(all, [&](const pending_operation& f) { return now - f.since < opts_.stall_warning; });
      asked_ = std::move(all);
      asked_at_ = now;
      replies_.clear();
      ask();
    } else if (!asked_.empty() && (replies_.size() + 1 == static_cast<std::size_t>(comm_.size()) ||
                                   now - asked_at_ > 3 * period + std::chrono::milliseconds(200))) {
      const std::string text = report(age);
      if (!text.empty()) tell(text);
      asked_.clear();
      next_ = now + std::chrono::duration_cast<clock::duration>(opts_.stall_warning);
    }
  }
  static double tenths(double seconds) noexcept {
    return static_cast<double>(static_cast<long long>(seconds * 10)) / 10;
  }
  void tell(const std::string& text) {
    if (opts_.report) return opts_.report(text);
    std::fprintf(stderr, "hvd: %s\n", text.c_str());
  }

  // ---- questions and answers ----------------------------------------------------------------------------------

  void ask() {
    std::string text;
    detail::put(text, question);
    detail::put(text, ++number_);
    detail::put(text, static_cast<std::uint32_t>(asked_.size()));
    for (const pending_operation& f : asked_) {
      detail::put(text, f.set);
      const std::string_view name = std::string_view(f.name).substr(0, most_letters);
      detail::put(text, static_cast<std::uint32_t>(name.size()));
      text += name;
    }
    owing_.resize(static_cast<std::size_t>(comm_.size()));
    for (int q = 0; q != comm_.size(); ++q) {
      // A rank that has not answered yet may be stopped, and what is sent to it would stay where it is.
      if (q == comm_.rank() || owing_[static_cast<std::size_t>(q)]) continue;
      owing_[static_cast<std::size_t>(q)] = true;
      send(text, q);
    }
  }
  void take(int from) {
    std::string text(most_bytes, '\0');
    comm_.recv(reinterpret_cast<std::byte*>(text.data()), text.size(), from);
    std::string_view rest = text;
    const auto kind = detail::take<char>(rest);
    const auto number = detail::take<std::uint32_t>(rest);
    const auto entries = std::min<std::uint32_t>(detail::take<std::uint32_t>(rest), most_names);
    if (kind == answer) {
      owing_[static_cast<std::size_t>(from)] = false;
      if (number != number_ || entries != asked_.size()) return;
      reply r;
      for (std::uint32_t i = 0; i != entries; ++i) {
        r.submitted.push_back(detail::take<char>(rest) != 0);
        r.states.push_back(detail::take<lane_state>(rest));
      }
      replies_[from] = std::move(r);
      return;
    }
    const std::vector<pending_operation> mine = what_.list();
    std::string back;
    detail::put(back, answer);
    detail::put(back, number);
    detail::put(back, entries);
    for (std::uint32_t i = 0; i != entries; ++i) {
      const int set = detail::take<int>(rest);
      const auto length = std::min<std::size_t>(detail::take<std::uint32_t>(rest), rest.size());
      const std::string_view name = rest.substr(0, length);
      rest.remove_prefix(length);
      const bool has = std::any_of(mine.begin(), mine.end(), [&](const pending_operation& f) {
        return f.set == set && std::string_view(f.name).substr(0, most_letters) == name;
      });
      detail::put(back, static_cast<char>(has));
      detail::put(back, what_.state(set));
    }
    send(back, from);
  }
  void send(std::string text, int to) {
    text.resize(most_bytes);
    comm_.send(reinterpret_cast<const std::byte*>(text.data()), text.size(), to);
  }
  // ---- the report ---------------------------------------------------------------------------------------------

  [[nodiscard]] std::string report(double age) const {
    std::string text;
    for (std::size_t i = 0; i != asked_.size(); ++i) {
      std::vector<int> with, without, silent;
      std::map<std::string, std::vector<int>> doing;
      for (const int r : what_.ranks(asked_[i].set)) {
        const auto found = replies_.find(r);
        if (r != comm_.rank() && found == replies_.end()) {
          silent.push_back(r);
          continue;
        }
        const bool mine = r == comm_.rank();
        (mine || found->second.submitted[i] ? with : without).push_back(r);
        doing[sentence_of(mine ? what_.state(asked_[i].set) : found->second.states[i])].push_back(r);
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
      for (const auto& [what, ranks] : doing) {
        if (!what.empty()) text += joined({"; ", ranks_text(ranks), what});
      }
    }
    return text;
  }
  static std::string sentence_of(const lane_state& s) {
    const std::string whom = s.waiting_for < 0 ? std::string() : joined({", waiting for rank ", s.waiting_for});
    switch (s.phase) {
      case lane_phase::idle: return {};
      case lane_phase::waiting: return joined({": waiting for others to submit", whom});
      case lane_phase::negotiating: return joined({": negotiating", whom});
      case lane_phase::running: return joined({": in a collective", whom});
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

  T comm_;
  const engine_options& opts_;
  watched what_;
  std::vector<pending_operation> asked_;  // what the question under way is about
  clock::time_point asked_at_{}, next_{};
  std::uint32_t number_ = 0;  // of the question
  std::map<int, reply> replies_;
  std::vector<bool> owing_;  // who has been asked and has not answered
  std::atomic<std::uint32_t> stop_{0};
  std::thread thread_;
};

}  // namespace hvd::inline HVD_ABI::detail
