// hvd/engine/negotiation.hpp: one rank's part in the agreement on the operations to run; without transports and
// threads.
#pragma once

#include <hvd/engine/command.hpp>
#include <hvd/engine/signature_cache.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// A request on its way.
struct submission {
  explicit submission(request r) : what(std::move(r)), sign(signature_of(what)) {}
  explicit submission(command c) : submission(request_of(c)) { ask.emplace(std::move(c)); }

  request what;
  signature sign;
  std::optional<command> ask{};  ///< a command of the engine, of which `what` is the form that ranks compare
  std::shared_ptr<completion> end = std::make_shared<completion>();
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  std::size_t place = 0;    ///< in the submission_table
  bool behind = false;      ///< submitted while another one of its name was in flight
  bool shown = false;       ///< in the timeline
  std::uint32_t track = 0;  ///< its number there
  int id = -1;              ///< in the signature cache; -1: other ranks do not know this signature yet
};

/// The reason why an operation cannot run; the same on all ranks.
struct refusal {
  std::string name;
  error why;
};

/// The outcome of a round; the same on all ranks.
struct decision {
  std::vector<std::uint32_t> ready{};  ///< submitted by all ranks that have not joined
  std::vector<refusal> refused{};
  bool talk = false;  ///< announcements are to be merged
};

/// Announcements of ranks, merged on the way up the tree.
struct announcements {
  std::uint32_t joined = 0;     ///< ranks that have joined
  std::uint64_t last_join = 0;  ///< round of the last of them, and its rank in the lower bits
  std::vector<announcement> all{};

  [[nodiscard]] std::string text() const {
    std::string to;
    put(to, joined);
    put(to, last_join);
    put(to, static_cast<std::uint32_t>(all.size()));
    for (const announcement& a : all) put(to, a);
    return to;
  }
  static announcements from(std::string_view text) {
    announcements g;
    g.joined = detail::take<std::uint32_t>(text);
    g.last_join = detail::take<std::uint64_t>(text);
    for (auto n = detail::take<std::uint32_t>(text); n != 0; --n) g.all.push_back(take_announcement(text));
    return g;
  }
  /// Adds the announcements of other ranks.
  void add(announcements&& other) {
    joined += other.joined;
    last_join = std::max(last_join, other.last_join);
    all.reserve(all.size() + other.all.size());  // no reallocation below: `known` refers to the names
    std::unordered_map<std::string_view, std::vector<std::size_t>> known;
    for (std::size_t i = 0; i != all.size(); ++i) known[all[i].name].push_back(i);
    for (announcement& a : other.all) {
      const auto same = known.find(a.name);
      std::size_t* found = nullptr;
      if (same != known.end()) {
        for (std::size_t& i : same->second) {
          if (all[i].what == a.what) found = &i;
        }
      }
      if (found == nullptr) {
        all.push_back(std::move(a));
      } else {
        announcement& mine = all[*found];
        mine.ranks += a.ranks;
        mine.what.meet(a.what.place);
        if (a.rank < mine.rank) mine.rank = a.rank, mine.priority = a.priority;
      }
    }
  }
};

inline std::string merge_announcements(const std::string& a, const std::string& b) {
  announcements both = announcements::from(a);
  both.add(announcements::from(b));
  return both.text();
}

/// The words of a round are combined by `or`: flags, negated flags, a bit for each number that a rank has submitted,
/// and a bit for each that it has not (none if it has joined).
class negotiation {
 public:
  negotiation(std::size_t capacity, int rank, int size)
      : rank_(rank), size_(size), known_(std::max<std::size_t>(capacity, 1)) {}

  [[nodiscard]] const signature_cache& known() const noexcept { return known_; }
  void use(std::uint32_t id) noexcept { known_.use(id); }
  /// True if every rank's tensors of an operation lie alike in registered memory, or in none; the same on all ranks.
  /// The zeros of a joined rank lie in none.
  [[nodiscard]] bool alike(std::uint32_t id) const noexcept {
    const std::uint64_t place = known_[id].what.place;
    return someone_joined_ ? place == 0 : place != signature::places_differ;
  }
  /// True if nothing is submitted, and this rank has not joined.
  [[nodiscard]] bool idle() const noexcept { return pending_.empty() && !joined(); }
  /// True if the other ranks do not know everything yet.
  [[nodiscard]] bool has_news() const noexcept { return news_; }
  [[nodiscard]] bool joined() const noexcept { return joined_ != 0; }

  /// Other ranks see only the oldest submission of a name; the next one follows when that has been taken. So a rank's
  /// n-th submission runs with the n-th of the others.
  void add(std::shared_ptr<submission> s) {
    const auto [place, first] = pending_.try_emplace(s->what.name, s);
    if (!first) {
      behind_[s->what.name].push_back(std::move(s));
      return;
    }
    s->id = known_.find(s->what.name, s->sign);
    // A place that the others do not know is announced, and all ranks note that places differ.
    if (s->id >= 0 && !known_[static_cast<std::size_t>(s->id)].what.covers(s->sign.place)) s->id = -1;
    if (s->id >= 0) by_id_[static_cast<std::uint32_t>(s->id)] = s.get();
    news_ = true;
  }
  void join() noexcept {
    joined_ = (rounds_ + 1) << rank_bits | static_cast<std::uint32_t>(rank_);
    news_ = true;
  }
  /// All have joined: this rank takes part again.
  void rejoin() noexcept { joined_ = 0; }
  /// This rank's submission with a number; null if there is none. `take`, by number or by name, also removes it.
  [[nodiscard]] submission* find(std::uint32_t id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : found->second;
  }
  std::shared_ptr<submission> take(std::uint32_t id) {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : take(found->second->what.name);
  }
  std::shared_ptr<submission> take(const std::string& name) {
    const auto found = pending_.find(name);
    if (found == pending_.end()) return nullptr;
    std::shared_ptr<submission> s = std::move(found->second);
    pending_.erase(found);
    if (s->id >= 0) by_id_.erase(static_cast<std::uint32_t>(s->id));
    std::erase(unknown_, s.get());
    if (!behind_.empty()) follow(s->what.name);
    return s;
  }

  /// This rank's words for the round that begins.
  std::vector<std::uint64_t> words() {
    const std::size_t width = (known_.size() + 63) / 64;
    std::vector<std::uint64_t> all(2 + 2 * width, 0);
    std::uint64_t* const submitted = all.data() + 2;
    for (const auto& [id, s] : by_id_) submitted[id / 64] |= std::uint64_t{1} << id % 64;
    for (std::size_t w = 0; w != width; ++w) submitted[width + w] = joined() ? 0 : ~submitted[w];
    unknown_.clear();
    if (by_id_.size() != pending_.size()) {
      for (const auto& [name, s] : pending_) {
        if (s->id < 0) unknown_.push_back(s.get());
      }
      // In the order of submission, not of the map: numbers are given in this order.
      std::sort(unknown_.begin(), unknown_.end(), [](auto* a, auto* b) {
        return a->since != b->since ? a->since < b->since : a->what.name < b->what.name;
      });
    }
    const bool more = !unknown_.empty() || (joined() && !behind_.empty());
    all[0] = (more ? flag_unknown : 0) | (joined() ? flag_joined : 0);
    all[1] = joined() ? 0 : flag_joined;
    news_ = false;
    return all;
  }

  /// The decisions that follow from the words of all ranks.
  decision decide(const std::vector<std::uint64_t>& all) {
    ++rounds_;
    decision d;
    const std::size_t width = (all.size() - 2) / 2;
    wanted_.words().assign(all.begin() + 2, all.begin() + 2 + static_cast<std::ptrdiff_t>(width));
    someone_joined_ = (all[0] & flag_joined) != 0;
    everyone_joined_ = (all[1] & flag_joined) == 0;
    if (everyone_joined_ && (all[0] & flag_unknown) != 0) {
      // Submissions from before a rank joined first get a number, and run; then the join ends.
      everyone_joined_ = false;
      news_ = true;
    }
    // A name with different signatures does not run, even if only a joined rank has a different signature.
    std::vector<std::uint64_t> may_run(width, ~std::uint64_t{0});
    disputed_.clear();
    known_.each_ambiguous([&](const std::string& name, const std::vector<std::uint32_t>& ids) {
      const auto told = [&](std::uint32_t id) { return id / 64 < width && wanted_.has(id); };
      if (std::count_if(ids.begin(), ids.end(), told) < 2) return;
      disputed_.push_back(name);
      for (const std::uint32_t id : ids) {
        if (told(id)) may_run[id / 64] &= ~(std::uint64_t{1} << id % 64);
      }
    });
    for (std::size_t w = 0; w != width; ++w) {
      std::uint64_t ready = may_run[w] & all[2 + w] & ~all[2 + width + w];
      for (; ready != 0; ready &= ready - 1) {
        const auto id = static_cast<std::uint32_t>(w * 64 + static_cast<std::size_t>(std::countr_zero(ready)));
        if (id >= known_.size()) {
          fail(error_kind::mismatch, {"the engine of another rank is ready for operation ", id, " of ", known_.size()});
        }
        if (const auto why = impossible(id)) {
          d.refused.push_back({known_[id].name, *why});
        } else {
          d.ready.push_back(id);
        }
      }
    }
    d.talk = (all[0] & flag_unknown) != 0 || !disputed_.empty() || everyone_joined_;
    return d;
  }

  /// This rank's announcements: new signatures, and its submissions under disputed names.
  [[nodiscard]] std::string announce() const {
    announcements mine;
    if (joined()) mine.joined = 1, mine.last_join = joined_;
    const auto tell = [&](const submission& s) {
      // A rank that has joined counts in `joined` already.
      mine.all.push_back({s.what.name, s.sign, s.what.priority, rank_, joined() ? 0U : 1U});
    };
    for (const submission* s : unknown_) tell(*s);
    for (const std::string& name : disputed_) {
      const auto found = pending_.find(name);
      if (found != pending_.end() && found->second->id >= 0) tell(*found->second);
    }
    return mine.text();
  }

  /// Processes the announcements of all ranks. Returns the operations that can never run, because ranks submitted
  /// different ones.
  std::vector<refusal> learn(const std::string& text) {
    const announcements all = announcements::from(text);
    std::vector<refusal> refused;
    std::unordered_map<std::string_view, std::vector<const announcement*>> names;
    for (const announcement& a : all.all) names[a.name].push_back(&a);
    for (const announcement& a : all.all) {
      auto& variants = names[a.name];
      if (variants.empty()) continue;  // done with its first variant
      std::size_t ranks = all.joined;
      for (const announcement* v : variants) ranks += v->ranks;
      if (variants.size() > 1 && ranks >= static_cast<std::size_t>(size_)) {
        refused.push_back({a.name, disagreement(variants)});
      } else {
        for (const announcement* v : variants) remember(*v);
      }
      variants.clear();
    }
    last_joined_ = everyone_joined_ ? static_cast<int>(all.last_join & ((1U << rank_bits) - 1)) : -1;
    if (last_joined_ >= size_) {
      fail(error_kind::mismatch,
           {"the engine of another rank reports that rank ", last_joined_, " of ", size_, " joined"});
    }
    return refused;
  }
  /// After `learn`: the rank that joined last, if all have joined now; else -1.
  [[nodiscard]] int last_joined() const noexcept { return last_joined_; }

 private:
  static constexpr std::uint64_t flag_unknown = 1, flag_joined = 2;
  static constexpr int rank_bits = 24;  // the lower bits of `joined_`; the others count rounds

  /// Called when the oldest submission of a name has been taken.
  void follow(const std::string& name) {
    const auto found = behind_.find(name);
    if (found == behind_.end()) return;
    std::shared_ptr<submission> next = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) behind_.erase(found);
    add(std::move(next));
  }

  void remember(const announcement& a) {
    int id = known_.find(a.name, a.what);
    if (id >= 0) {
      known_.meet(static_cast<std::size_t>(id), a.what.place);
    } else {
      int evicted = -1;
      id = static_cast<int>(known_.add(a, wanted_, evicted));
      // Marked as wanted, so that the next new one does not evict it before it has run.
      const auto place = static_cast<std::size_t>(id);
      if (place / 64 >= wanted_.words().size()) wanted_.words().resize(place / 64 + 1);
      wanted_.set(place);
      if (evicted >= 0) {
        // This rank may have submitted it after it sent its words.
        if (const auto found = by_id_.find(static_cast<std::uint32_t>(evicted)); found != by_id_.end()) {
          found->second->id = -1;
          by_id_.erase(found);
          news_ = true;
        }
      }
    }
    const auto found = pending_.find(a.name);
    if (found == pending_.end() || found->second->id >= 0 || found->second->sign != a.what) return;
    // Submitted after this rank has sent its words, and so not taken in yet.
    if (!known_[static_cast<std::size_t>(id)].what.covers(found->second->sign.place)) return;
    found->second->id = id;
    by_id_[static_cast<std::uint32_t>(id)] = found->second.get();
    news_ = true;
  }

  /// While a rank has joined: an error for an operation that its zeros would spoil.
  [[nodiscard]] std::optional<error> impossible(std::uint32_t id) const {
    if (!someone_joined_) return std::nullopt;
    const signature& s = known_[id].what;
    if (s.kind == operation::barrier) return std::nullopt;
    const bool zeros_do = s.op == reduce_op::sum || s.op == reduce_op::average || s.op == reduce_op::adasum;
    if (s.kind == operation::allreduce && zeros_do) return std::nullopt;
    const std::string_view with = has_op(s.kind) ? hvd::name(s.op) : std::string_view();
    return error(
        error_kind::unsupported,
        detail::joined({hvd::name(s.kind), " \"", known_[id].name, "\"", with.empty() ? "" : " with ", with,
                        " cannot run after a rank has joined, because that rank would have to give data; "
                        "allowed then: allreduce with sum, average or adasum, to which it gives zeros, and barrier"}));
  }

  [[nodiscard]] error disagreement(std::vector<const announcement*> variants) const {
    std::sort(variants.begin(), variants.end(), [](auto* a, auto* b) { return a->rank < b->rank; });
    const announcement &a = *variants[0], &b = *variants[1];
    return {error_kind::mismatch, detail::joined({hvd::name(a.what.kind), " \"", a.name, "\": ranks do not agree: ",
                                                  difference(a, b), "; all ranks must submit the same"})};
  }

  int rank_;
  int size_;
  signature_cache known_;
  std::unordered_map<std::string, std::shared_ptr<submission>> pending_;  // the oldest one of each name
  std::unordered_map<std::string, std::deque<std::shared_ptr<submission>>> behind_;
  std::unordered_map<std::uint32_t, submission*> by_id_;
  std::vector<submission*> unknown_;   // of this round
  std::vector<std::string> disputed_;  // of this round: names that ranks use with different signatures
  bits wanted_;                        // of this round: submitted by any rank
  std::uint64_t rounds_ = 0;
  std::uint64_t joined_ = 0;  // round and rank of the join; 0 if this rank has not joined
  int last_joined_ = -1;
  bool news_ = false;
  bool someone_joined_ = false;
  bool everyone_joined_ = false;
};

}  // namespace hvd::inline HVD_ABI::detail
