// hvd/engine/tuner.hpp: the search of the autotuner: the next setting to try, and the one to keep.
//
// It does not depend on ranks or a clock: the engine measures, and passes in scores. Equal scores give equal proposals,
// so ranks that record the same scores stay together.
#pragma once

#include <hvd/error.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// One number to be tuned.
struct tunable {
  std::string name;                  ///< a column of the log
  std::vector<std::int64_t> values;  ///< its possible values, neighbours side by side; none twice
  std::size_t standard = 0;          ///< the default: its index in `values`
  bool fixed = false;                ///< the user chose `values[standard]`: it is reported and not searched
};

/// Counts of samples. A sample is one score of one setting, measured by the engine over several steps.
struct tuner_options {
  int warmup = 3;      ///< with the standard setting, before the search; their scores are not used
  int budget = 120;    ///< all others
  int candidates = 8;  ///< settings from the whole box that the search begins with, the standard one among them
  int pairs = 12;      ///< at the end, of the best that was found and the standard setting

  friend constexpr bool operator==(const tuner_options&, const tuner_options&) = default;
};

/// Finds a setting with a high score among all combinations of the tunables' values, from scores with noise.
///
/// Three parts. (1) Sequential halving (Z. Karnin, T. Koren and O. Somekh, "Almost optimal exploration in multi-armed
/// bandits", 2013; as a search of settings: K. Jamieson and A. Talwalkar, 2016) over the standard setting and points of
/// Halton's sequence (1960), which fill the box evenly: all are sampled in turn, the better half by median goes on and
/// gets twice the samples. (2) Two sweeps over the tunables: for each one the same halving over all its values, while
/// the others stay at the best so far. (3) That setting against the standard one in pairs of samples, whose order
/// alternates so that a machine that becomes slower favours none. It is kept if it wins so many pairs that chance would
/// do it in at most one case of 40 (the sign test), else the standard setting is.
///
/// Alternatives, on synthetic landscapes (smooth, with a ridge, with cliffs, rugged, nearly flat; 192 to 2880 settings;
/// little and much noise): halving alone and climbing to neighbours end lower at every budget; sweeps alone come close
/// and miss a ridge now and then. tests/engine/tuner.cpp has such landscapes.
///
/// Scores for record() must come from samples of equal length. Cost: negligible compared to the engine's step.
class tuner {
 public:
  /// Errors: invalid_argument, which names the tunable, for one without values, with a value twice, with a standard
  /// beyond its values, or with a name that is empty, not unique or not usable as a column of a table; and for a
  /// negative warmup, fewer than 2 candidates, fewer than 6 pairs, or a budget of no more than twice the pairs.
  explicit tuner(std::vector<tunable> what, tuner_options opts = {});

  /// The setting to measure next, a value for each tunable; when finished, the one that is kept.
  [[nodiscard]] const std::vector<std::int64_t>& propose() const noexcept { return proposal_; }

  /// Records the score of the setting that propose() returned; higher is better. Errors: invalid_argument if it is not
  /// finite, or if the search has finished.
  void record(double score);

  [[nodiscard]] bool finished() const noexcept { return phase_ == phase::done; }

  /// The setting to use if the search ended now: the standard one until another has been shown to be better.
  [[nodiscard]] const std::vector<std::int64_t>& best() const noexcept { return best_; }

  /// For example "fusion_threshold,cycle_time_us,score", and a line feed.
  [[nodiscard]] std::string csv_header() const {
    std::string line;
    for (const tunable& t : tunables_) line += detail::joined({t.name, ","});
    return line + "score\n";
  }

  /// The sample that was recorded last as a line for the log. When finished, a second line follows: the setting that
  /// is kept, with the median of its scores in the last comparison. Empty before the first sample.
  [[nodiscard]] const std::string& csv_row() const noexcept { return row_; }

  /// When finished: how the search ended, as a sentence for the user.
  [[nodiscard]] std::string verdict() const;

 private:
  using point = std::vector<std::size_t>;  // an index in `values` for each tunable
  struct arm {
    point at;
    std::vector<double> scores;
  };
  enum class phase : unsigned char { warmup, race, duel, done };
  static constexpr std::size_t sweeps = 2;
  static constexpr double first_share = 0.3;  // of the search, for the candidates; larger and smaller ones did as well

  void check() const;
  [[nodiscard]] std::vector<std::int64_t> setting(const point& at) const {
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i != at.size(); ++i) values.push_back(tunables_[i].values[at[i]]);
    return values;
  }
  [[nodiscard]] std::vector<arm> candidates() const;
  [[nodiscard]] std::string row(const std::vector<std::int64_t>& values, double score) const {
    std::string line;
    for (const std::int64_t v : values) line += detail::joined({v, ","});
    return line + detail::joined({score, "\n"});
  }

  static double median(std::vector<double> scores) {
    std::sort(scores.begin(), scores.end());
    const std::size_t half = scores.size() / 2;
    return scores.size() % 2 == 1 ? scores[half] : (scores[half - 1] + scores[half]) / 2;
  }
  /// Sorts arms, the best first, equal ones in their order. Removes those without a score.
  void rank_arms() {
    std::erase_if(arms_, [](const arm& a) { return a.scores.empty(); });
    std::stable_sort(arms_.begin(), arms_.end(),
                     [](const arm& a, const arm& b) { return median(a.scores) > median(b.scores); });
  }
  void take_first() {
    incumbent_ = arms_[0].at;
    score_ = median(arms_[0].scores);
  }
  void begin_race(std::vector<arm> arms, double share);
  void next_race();
  void end_of_pass();
  void begin_duel();
  void end_duel();
  void propose_next();

  std::vector<tunable> tunables_;
  tuner_options options_;
  std::vector<std::size_t> searched_;  // indices of tunables
  point standard_, incumbent_;
  std::vector<std::int64_t> proposal_, best_;
  std::string row_;
  phase phase_ = phase::warmup;
  int warmed_ = 0, used_ = 0;
  std::size_t races_ = 0;  // that have begun; the first is that of the candidates
  std::vector<arm> arms_;  // of a race; of the duel: the incumbent, the standard
  std::size_t turn_ = 0;   // of a race: the arm; of the duel: the sample
  int passes_ = 0, samples_each_round_ = 0;
  int won_ = 0;
  double score_ = 0;  // median: of the incumbent in its last race; at the end, of the setting that is kept
};

inline tuner::tuner(std::vector<tunable> what, tuner_options opts) : tunables_(std::move(what)), options_(opts) {
  check();
  for (std::size_t i = 0; i != tunables_.size(); ++i) {
    standard_.push_back(tunables_[i].standard);
    if (!tunables_[i].fixed && tunables_[i].values.size() > 1) searched_.push_back(i);
  }
  incumbent_ = standard_;
  proposal_ = best_ = setting(standard_);
  if (searched_.empty()) {
    phase_ = phase::done;
  } else if (options_.warmup == 0) {
    next_race();
    propose_next();
  }
}

inline void tuner::check() const {
  const auto refuse = [](const tunable& t, detail::piece why) {
    detail::fail(error::invalid_argument, {"the tunable \"", t.name, "\" ", why});
  };
  for (std::size_t i = 0; i != tunables_.size(); ++i) {
    const tunable& t = tunables_[i];
    if (t.name.empty() || t.name.find_first_of(",\"\n") != std::string::npos) {
      refuse(t, "needs a name that can be a column of a table: not empty, without comma, quote and line feed");
    }
    if (t.values.empty()) refuse(t, "has no values");
    if (t.standard >= t.values.size()) refuse(t, "has a standard that is not one of its values");
    std::vector<std::int64_t> sorted = t.values;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) refuse(t, "has a value twice");
    for (std::size_t j = 0; j != i; ++j) {
      if (tunables_[j].name == t.name) refuse(t, "is listed twice");
    }
  }
  const auto& [warmup, budget, candidates, pairs] = options_;
  if (warmup < 0 || candidates < 2 || pairs < 6 || budget <= 2 * static_cast<std::int64_t>(pairs)) {
    detail::fail(error::invalid_argument,
                 {"the autotuner cannot work with ", warmup, " samples to warm up, ", candidates, " candidates, ",
                  pairs, " pairs and a budget of ", budget,
                  "; allowed: 0 or more, 2 or more, 6 or more, and more than twice the pairs"});
  }
}

inline std::vector<tuner::arm> tuner::candidates() const {
  std::vector<arm> found{{standard_, {}}};
  std::size_t settings = 1, wanted = static_cast<std::size_t>(options_.candidates);
  for (const std::size_t i : searched_) settings = std::min(settings * tunables_[i].values.size(), wanted);
  wanted = std::min(wanted, settings);
  // In integers, so that ranks on different machines have the same points. The first n points of the sequence need not
  // cover a box of n settings, hence the limit.
  for (std::uint64_t n = 1; found.size() < wanted && n != 1000; ++n) {
    point at = standard_;
    std::uint64_t base = 1;
    for (const std::size_t i : searched_) {
      bool prime = false;
      while (!prime) {
        ++base;
        prime = true;
        for (std::uint64_t d = 2; d * d <= base; ++d) prime = prime && base % d != 0;
      }
      std::uint64_t mirrored = 0, scale = 1;  // the digits of n in this base, reversed, as a fraction
      for (std::uint64_t rest = n; rest != 0; rest /= base, scale *= base) mirrored = mirrored * base + rest % base;
      at[i] = mirrored * tunables_[i].values.size() / scale;
    }
    if (std::none_of(found.begin(), found.end(), [&](const arm& a) { return a.at == at; })) found.push_back({at, {}});
  }
  return found;
}

inline void tuner::begin_race(std::vector<arm> arms, double share) {
  arms_ = std::move(arms);
  turn_ = 0;
  const int rounds = std::max(1, static_cast<int>(std::bit_width(arms_.size() - 1)));
  samples_each_round_ = static_cast<int>(share * (options_.budget - 2 * options_.pairs)) / rounds;
  passes_ = std::max(1, samples_each_round_ / static_cast<int>(arms_.size()));
}

inline void tuner::next_race() {
  const std::size_t number = races_++;
  if (number > sweeps * searched_.size()) return begin_duel();
  phase_ = phase::race;
  if (number == 0) return begin_race(candidates(), first_share);
  const std::size_t which = searched_[(number - 1) % searched_.size()], values = tunables_[which].values.size();
  std::size_t all = 0;
  for (const std::size_t i : searched_) all += tunables_[i].values.size();
  std::vector<arm> line{{incumbent_, {}}};
  for (std::size_t v = 0; v != values; ++v) {
    if (v == incumbent_[which]) continue;
    line.push_back({incumbent_, {}});
    line.back().at[which] = v;
  }
  begin_race(std::move(line), (1 - first_share) / sweeps * static_cast<double>(values) / static_cast<double>(all));
}

inline void tuner::end_of_pass() {
  turn_ = 0;
  if (--passes_ > 0) return;
  rank_arms();
  arms_.resize((arms_.size() + 1) / 2);
  passes_ = std::max(1, samples_each_round_ / static_cast<int>(arms_.size()));
  if (arms_.size() > 1) return;
  take_first();
  next_race();
}

inline void tuner::begin_duel() {
  arms_ = {{incumbent_, {}}, {standard_, {}}};
  turn_ = 0;
  phase_ = incumbent_ == standard_ ? phase::done : phase::duel;
}

inline void tuner::end_duel() {
  phase_ = phase::done;
  const int pairs = options_.pairs;
  for (std::size_t i = 0; i != arms_[0].scores.size(); ++i) won_ += arms_[0].scores[i] > arms_[1].scores[i];
  // The chance of at least so many heads in as many tosses of a coin.
  double ways = 1, chance = 0;
  for (int k = pairs; k >= won_; --k) {
    chance += std::ldexp(ways, -pairs);
    ways = ways * k / (pairs - k + 1);
  }
  const bool better = chance <= 1.0 / 40;
  if (better) best_ = setting(incumbent_);
  score_ = median(arms_[better ? 0 : 1].scores);
}

inline void tuner::record(double score) {
  if (finished()) detail::fail(error::invalid_argument, {"the autotuner has finished and takes no more scores"});
  if (!std::isfinite(score)) {
    detail::fail(error::invalid_argument,
                 {"the autotuner was given a score of ", score, "; it must be a finite number"});
  }
  row_ = row(proposal_, score);
  if (phase_ == phase::warmup) {
    if (++warmed_ == options_.warmup) next_race();
  } else if (phase_ == phase::race) {
    ++used_;
    arms_[turn_++].scores.push_back(score);
    if (turn_ == arms_.size()) end_of_pass();
    if (phase_ == phase::race && used_ == options_.budget - 2 * options_.pairs) {
      rank_arms();
      if (!arms_.empty()) take_first();
      begin_duel();
    }
  } else {
    // Pairs in the order ab ba ab ...
    arms_[((turn_ + 1) / 2) % 2].scores.push_back(score);
    if (++turn_ == 2 * static_cast<std::size_t>(options_.pairs)) end_duel();
  }
  propose_next();
}

inline void tuner::propose_next() {
  if (phase_ == phase::race) {
    proposal_ = setting(arms_[turn_].at);
  } else if (phase_ == phase::duel) {
    proposal_ = setting(arms_[((turn_ + 1) / 2) % 2].at);
  } else if (phase_ == phase::done) {
    proposal_ = best_;
    row_ += row(best_, score_);
  }
}

inline std::string tuner::verdict() const {
  if (!finished()) return "the autotuner is still searching";
  if (searched_.empty()) return "the autotuner has nothing to search: all is fixed";
  if (incumbent_ == standard_) return "the autotuner found nothing better than the defaults";
  const std::vector<std::int64_t> found = setting(incumbent_);
  std::string values;
  for (const std::size_t i : searched_) {
    values += detail::joined({values.empty() ? "" : ", ", tunables_[i].name, "=", found[i]});
  }
  return detail::joined({"the autotuner ", best_ == found ? "keeps " : "keeps the defaults and not ", values,
                         ", which won ", won_, " of ", options_.pairs, " pairs, with a median score of ",
                         median(arms_[0].scores), " against ", median(arms_[1].scores)});
}

}  // namespace hvd::inline HVD_ABI
