// bench/report/report.cpp: nccl-tests' columns, ours at the right of them, and the JSON file.
#include <bench/report/report.hpp>

#include <bench/report/result_file.hpp>
#include <bench/report/settings.hpp>
#include <bench/sizes.hpp>

#include <hvd/version.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <set>

namespace hvd::bench {
namespace {

using json = nlohmann::ordered_json;

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

/// Seven characters, with as many digits behind the point as fit in them, as in nccl-tests: two, and three for what is
/// less than 10.
std::string number(double value) {
  return format("%.*f", value < 10 ? 3 : value < 10'000 ? 2 : value < 100'000 ? 1 : 0, value);
}

struct bandwidth {
  double algorithm, bus;
};
/// GB/s, where GB is 10^9 bytes.
bandwidth bandwidth_of(const row& r, double us, const options& o) {
  const double algorithm = us > 0 ? static_cast<double>(r.size) / us * 1e-3 : 0;
  return {algorithm, algorithm * bus_factor(o.kind, o.ranks)};
}

/// A note for rows with other sizes than asked for; empty without such rows.
std::string rounding_note(const options& o) {
  if (o.kind == collective::barrier || o.kind == collective::fused) return {};
  for (const dtype type : o.types) {
    for (const std::size_t size : sizes_of(o)) {
      const std::size_t real = size_of_message(o.kind, count_of(o.kind, size, o.ranks, type), o.ranks, type);
      if (real == size) continue;
      return format("sizes are rounded down to whole elements%s: %zu bytes of %s become %zu",
                    has_blocks(o.kind) ? ", as many for each rank" : "", size, std::string(type_name(type)).c_str(),
                    real);
    }
  }
  return {};
}

}  // namespace

timing summarise(std::vector<double> samples) {
  timing t;
  if (samples.empty()) return t;
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  t.iterations = n;
  t.median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
  t.p99 = samples[std::min(n - 1, static_cast<std::size_t>(std::ceil(static_cast<double>(n) * 0.99)) - 1)];
  t.least = samples.front();
  t.most = samples.back();
  t.mean = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(n);
  double squares = 0;
  for (const double s : samples) squares += (s - t.mean) * (s - t.mean);
  t.deviation = std::sqrt(squares / static_cast<double>(n));
  return t;
}

Report::Report(const options& o, machine m)
    : options_(o), machine_(std::move(m)), earlier_(o, machine_), results_(std::make_unique<json>(json::array())) {
  if (!o.json.empty()) check_result_file(o.json);
}

Report::~Report() = default;

void Report::head(const std::vector<library_line>& libraries, const std::vector<rank_line>& ranks) {
  libraries_ = libraries;
  ranks_ = ranks;
  // A launcher may have bound this process to one CPU, and other ranks to others.
  std::set<int> usable(machine_.cpus.begin(), machine_.cpus.end());
  for (const rank_line& r : ranks) {
    if (r.cpu >= 0) usable.insert(r.cpu);
  }
  machine_.cpus.assign(usable.begin(), usable.end());
  const options& o = options_;
  std::printf("# hvd-bench version %s\n", std::string(version).c_str());
  std::printf(
      "# %s: %d ranks minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %s iters: %s validation: %u unalign: %u\n",
      std::string(name(o.kind)).c_str(), o.ranks, o.min_bytes, o.max_bytes,
      o.step_factor > 1 ? o.step_factor : o.step_bytes, o.step_factor > 1 ? "factor" : "bytes",
      o.warmup ? std::to_string(*o.warmup).c_str() : "by size",
      o.iterations ? std::to_string(*o.iterations).c_str() : format("by size (at most %u)", most_iterations(o)).c_str(),
      o.checks, o.unalign);
  std::printf("# transport %s, algorithm %s, %s buffers, %s, %s; time: %s, median over iterations\n",
              o.transport.c_str(), o.algorithm.empty() ? "automatic" : o.algorithm.c_str(),
              std::string(name(o.memory)).c_str(), std::string(name(o.state)).c_str(),
              std::string(name(o.pace)).c_str(), std::string(averaging_names[static_cast<int>(o.over_ranks)]).c_str());
  print_where(o, machine_, libraries, ranks);
  if (const std::string note = rounding_note(o); !note.empty()) std::printf("# %s\n", note.c_str());
  if (const std::string& file = earlier_.file(); !file.empty()) {
    std::printf(
        "# earlier: hvd at the same size in %s (%s); speed: of hvd now, in %% of that; peers then: the best of them\n",
        file.c_str(), earlier_.date().c_str());
  } else if (o.names_earlier()) {
    std::printf("# %s has no row of this machine, these settings and these sizes to compare with\n", o.earlier.c_str());
  }
  const bool peers = std::any_of(libraries.begin(), libraries.end(),
                                 [](const auto& l) { return l.name != "hvd" && l.name != "limit"; });
  std::string names = format("  %8s  %8s", "p99", "p99 in"), units = format("  %8s  %8s", "(us)", "(us)");
  if (o.spread) {
    names += format("  %8s  %8s  %6s", "min", "max", "cv");
    units += format("  %8s  %8s  %6s", "(us)", "(us)", "(%)");
  }
  if (peers) {
    names += format("  %8s  %11s  %6s", "best", "peer", "ratio");
    units += format("  %8s  %11s  %6s", "(us)", "", "");
  }
  if (o.limit) {
    names += format("  %8s  %6s", "limit", "share");
    units += format("  %8s  %6s", "(us)", "(%)");
  }
  if (!earlier_.file().empty()) {
    names += format("  %8s  %6s  %10s  %11s", "earlier", "speed", "peers then", "best then");
    units += format("  %8s  %6s  %10s  %11s", "(us)", "(%)", "(us)", "");
  }
  if (o.steady) {
    names += format("  %6s", "line");
    units += format("  %6s", "(us)");
  }
  std::printf("#\n#%61s  %-33s  %-33s\n", "", "         out-of-place", "           in-place");
  std::printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s%s\n", "size", "count", "type",
              "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong", names.c_str());
  std::printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s%s\n", "(B)", "(elements)", "", "",
              "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", units.c_str());
  std::fflush(stdout);
}

void Report::print_half(const std::optional<timing>& t, const row& r) {
  if (!t) {
    std::printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
    return;
  }
  const bandwidth b = bandwidth_of(r, t->median, options_);
  std::printf("  %7s  %6.2f  %6.2f  %6s", number(t->median).c_str(), b.algorithm, b.bus,
              t->wrong ? format("%g", static_cast<double>(*t->wrong)).c_str() : "N/A");
  bandwidth_ += b.bus;
  ++averaged_;
}

void Report::print_extras(const row& r) {
  const measured& own = r.libraries.front();
  const auto show = [](const std::optional<timing>& t, double timing::*what) {
    return t ? number((*t).*what) : std::string("N/A");
  };
  std::printf("  %8s  %8s", show(own.out_of_place, &timing::p99).c_str(), show(own.in_place, &timing::p99).c_str());
  // Compares results that both sides have; out of place if there is a choice.
  const auto& compared = [&](const measured& m) -> const std::optional<timing>& {
    return own.out_of_place ? m.out_of_place : m.in_place;
  };
  if (options_.spread) {
    const auto& t = compared(own);
    std::printf("  %8s  %8s  %6s", show(t, &timing::least).c_str(), show(t, &timing::most).c_str(),
                t && t->mean > 0 ? format("%.1f", 100 * t->deviation / t->mean).c_str() : "N/A");
  }
  const timing* best = nullptr;
  const timing* limit = nullptr;
  std::string best_name = "none";
  bool peers = false;
  for (std::size_t l = 1; l < r.libraries.size(); ++l) {
    const auto& t = compared(r.libraries[l]);
    if (libraries_[l].name == "limit") {
      if (t) limit = &*t;
      continue;
    }
    peers = true;
    if (!t || (best != nullptr && best->median <= t->median)) continue;
    best = &*t;
    best_name = libraries_[l].name;
  }
  const auto& mine = compared(own);
  const bool divides = mine && mine->median > 0;  // a clock may tick too slowly for one rank alone
  if (peers) {
    std::printf("  %8s  %11s  %6s", best != nullptr ? number(best->median).c_str() : "N/A", best_name.c_str(),
                best != nullptr && divides ? format("%.2f", best->median / mine->median).c_str() : "N/A");
  }
  if (options_.limit) {
    std::printf("  %8s  %6s", limit != nullptr ? number(limit->median).c_str() : "N/A",
                limit != nullptr && divides ? format("%.0f", 100 * limit->median / mine->median).c_str() : "N/A");
  }
  if (!earlier_.file().empty()) {
    const earlier_times then =
        earlier_.find(r.size, std::string(type_name(r.type)), op_text(options_, r.op), root_number(options_, r.root));
    const bool both = divides && then.hvd > 0;
    if (both) speeds_.push_back(then.hvd / mine->median);
    std::printf("  %8s  %6s  %10s  %11s", then.hvd > 0 ? number(then.hvd).c_str() : "N/A",
                both ? format("%.0f", 100 * speeds_.back()).c_str() : "N/A",
                then.peers > 0 ? number(then.peers).c_str() : "N/A", then.best_peer.c_str());
  }
  if (options_.steady) std::printf("  %6s", r.line.highest ? number(*r.line.highest).c_str() : "N/A");
  if (options_.timestamps) std::printf("  %s", timestamp().c_str());
}

void Report::add(const row& r) {
  ++rows_;
  const measured& own = r.libraries.front();
  std::printf("%12zu  %12zu  %8s  %6s  %6d", r.size, r.count, std::string(type_name(r.type)).c_str(),
              op_text(options_, r.op).c_str(), root_number(options_, r.root));
  print_half(own.out_of_place, r);
  print_half(own.in_place, r);
  print_extras(r);
  std::printf("\n");
  if (r.line.changed()) {
    std::printf("# a cache line took between %s and %s us during this row, in the last of %u tries\n",
                number(*r.line.lowest).c_str(), number(*r.line.highest).c_str(), r.line.tries);
  }
  for (std::size_t l = 0; l != r.libraries.size(); ++l) {
    const measured& m = r.libraries[l];
    for (const auto* t : {&m.out_of_place, &m.in_place}) {
      if (*t && (*t)->wrong) checked_ = true;
      if (!*t || !(*t)->wrong || *(*t)->wrong == 0) continue;
      wrong_ += *(*t)->wrong;
      if (l == 0) continue;
      std::printf("# %s has %llu wrong elements\n", libraries_[l].name.c_str(),
                  static_cast<unsigned long long>(*(*t)->wrong));
    }
    // Reports only once why a library is missing.
    if (!m.error.empty() && m.error != libraries_[l].missing) {
      std::printf("# %s: %s\n", libraries_[l].name.c_str(), m.error.c_str());
      libraries_[l].missing = m.error;
    }
    json entry;
    entry["size"] = r.size;
    entry["count"] = r.count;
    entry["type"] = type_name(r.type);
    entry["redop"] = op_text(options_, r.op);
    entry["root"] = root_number(options_, r.root);
    entry["library"] = libraries_[l].name;
    entry["out_of_place"] = json_of(m.out_of_place, r);
    entry["in_place"] = json_of(m.in_place, r);
    entry["error"] = m.error.empty() ? json() : json(m.error);
    if (options_.steady) {
      const auto us = [](const std::optional<double>& cost) { return cost ? json(*cost) : json(); };
      entry["line"] = {{"lowest", us(r.line.lowest)},
                       {"highest", us(r.line.highest)},
                       {"changed", r.line.changed()},
                       {"tries", r.line.tries}};
    }
    results_->push_back(std::move(entry));
  }
  std::fflush(stdout);
}

json Report::json_of(const std::optional<timing>& t, const row& r) const {
  if (!t) return {};
  const bandwidth b = bandwidth_of(r, t->median, options_);
  return {{"time", t->median},
          {"p99", t->p99},
          {"min", t->least},
          {"max", t->most},
          {"mean", t->mean},
          {"alg_bw", b.algorithm},
          {"bus_bw", b.bus},
          {"nwrong", t->wrong ? json(*t->wrong) : json()},
          {"iterations", t->iterations},
          {"warmup", t->warmup}};
}

void Report::finish(const std::vector<library_line>& libraries, const std::string& interruption) {
  const bool whole = interruption.empty();
  if (!whole) std::printf("# Interrupted          : by %s, after %zu rows\n", interruption.c_str(), rows_);
  if (!speeds_.empty()) {
    double logs = 0;
    for (const double speed : speeds_) logs += std::log(speed);
    std::printf("# Against earlier      : %.0f %% of its speed (geometric mean, rows: %zu)\n",
                100 * std::exp(logs / static_cast<double>(speeds_.size())), speeds_.size());
  }
  std::printf("# Out of bounds values : %llu %s\n", static_cast<unsigned long long>(wrong_),
              wrong_ != 0 ? "FAILED"
              : checked_  ? "OK"
                          : "(nothing was checked)");
  std::printf("# Avg bus bandwidth    : %g\n#\n", average_bandwidth());
  std::fflush(stdout);
  if (options_.json.empty() || (!whole && rows_ == 0)) return;
  json all;
  all["config"] = settings_of(options_, machine_);
  add_where(all, machine_, libraries, ranks_);
  all["results"] = *results_;
  all["out_of_bounds"] = wrong_;
  all["average_bus_bandwidth"] = average_bandwidth();
  all["interrupted"] = whole ? json() : json(interruption);
  write_result_file(options_.json, all);
}

}  // namespace hvd::bench
