// bins.cpp: shares of the columns of a time span, from its activities or from the cells that it crosses.

#include "window.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace hvd_timeline {
namespace {

// Shares of columns, from time spans.
class columns {
 public:
  columns(std::int64_t begin, std::int64_t end, std::size_t count)
      : begin_(static_cast<double>(begin)), width_(static_cast<double>(end - begin) / static_cast<double>(count)),
        count_(count) {}

  // Calls put(column, share of the span in the column, share of the column filled by the span).
  template <class Put>
  void spread(double begin, double end, const Put& put) const {
    const double from = (begin - begin_) / width_, to = (end - begin_) / width_;
    if (!(to > from) || to <= 0 || from >= static_cast<double>(count_)) return;
    const auto first = static_cast<std::size_t>(std::max(from, 0.0));
    for (std::size_t i = first; i < count_ && static_cast<double>(i) < to; ++i) {
      const double part = std::min(to, static_cast<double>(i) + 1) - std::max(from, static_cast<double>(i));
      put(i, part / (to - from), part);
    }
  }
  [[nodiscard]] std::optional<std::size_t> of(std::int64_t time) const {
    const double at = (static_cast<double>(time) - begin_) / width_;
    if (at < 0 || at >= static_cast<double>(count_)) return std::nullopt;
    return static_cast<std::size_t>(at);
  }

 private:
  double begin_, width_;
  std::size_t count_;
};

using span = std::pair<std::int64_t, std::int64_t>;

void add_union(std::vector<span>& spans, const columns& to, std::vector<double>& shares) {
  std::sort(spans.begin(), spans.end());
  std::int64_t covered = never;
  for (const auto& [begin, end] : spans) {
    const std::int64_t from = std::max(begin, covered);
    if (end <= from) continue;
    to.spread(static_cast<double>(from), static_cast<double>(end),
              [&](std::size_t i, double, double part) { shares[i] += part; });
    covered = end;
  }
}

struct rank_spans {
  std::vector<span> busy, negotiate, wait;
};

// Operations without their time in the queue. Slices are in a window's order.
void sort_out(const window& from, std::map<std::uint32_t, rank_spans>& to, const columns& places,
              std::map<std::uint32_t, bins::of_rank*>& rows) {
  std::vector<activity> names;
  for (const std::string& name : from.names) names.push_back(describe_activity(name));
  for (std::size_t i = 0; i != from.slices.size(); ++i) {
    const slice& s = from.slices[i];
    const auto row = rows.find(s.rank);
    if (row == rows.end()) continue;
    rank_spans& spans = to[s.rank];
    const activity& what = names[s.name];
    if (what.name == "WAIT") {
      spans.wait.emplace_back(s.begin, s.end);
    } else if (s.depth == 0 && what.what == activity_class::negotiate) {
      spans.negotiate.emplace_back(s.begin, s.end);
    } else if (s.depth == 0) {
      std::int64_t begin = s.begin;
      for (std::size_t k = i + 1; k != from.slices.size() && from.slices[k].depth != 0 && from.slices[k].rank == s.rank;
           ++k) {
        const slice& inner = from.slices[k];
        if (inner.depth != 1 || names[inner.name].what != activity_class::queue) continue;
        spans.busy.emplace_back(begin, inner.begin);
        begin = inner.end;
      }
      spans.busy.emplace_back(begin, s.end);
      if (const auto at = places.of(s.end); at && s.state == slice_state::finished) ++row->second->operations[*at];
    }
  }
}

void from_cells(const index& of, const columns& places, std::int64_t begin, std::int64_t end, std::size_t rank_number,
                bins::of_rank& to) {
  const rank_cells& cells = of.ranks()[rank_number].cells;
  const auto add = [&](const cell& c, std::int64_t from, std::int64_t width) {
    const auto share = [&](std::int64_t part) {
      return std::min(1.0, static_cast<double>(part) / static_cast<double>(width));
    };
    places.spread(static_cast<double>(from), static_cast<double>(from + width),
                  [&](std::size_t i, double part, double filled) {
                    to.busy[i] += filled * share(c.busy);
                    to.negotiate[i] += filled * share(c.negotiating);
                    to.wait[i] += filled * share(c.wait);
                    to.operations[i] += part * c.operations;
                    to.steps[i] += part * c.steps;
                  });
  };
  const std::int64_t width = of.width(), second = rank_cells::second;
  const std::int64_t newest = of.sums().last / second;
  if (width > second && begin / second > newest - static_cast<std::int64_t>(rank_cells::recent_seconds)) {
    for (std::int64_t i = begin / second; i <= std::min(newest, end / second); ++i) {
      if (const cell* const c = cells.recent(i)) add(*c, i * second, second);
    }
    return;
  }
  const auto first = static_cast<std::size_t>(std::max<std::int64_t>(begin, 0) / width);
  for (std::size_t i = first; i < cells.all().size() && static_cast<std::int64_t>(i) * width < end; ++i) {
    add(cells.all()[i], static_cast<std::int64_t>(i) * width, width);
  }
}

}  // namespace

bins read_bins(const index& of, std::int64_t begin, std::int64_t end, std::size_t count, std::int64_t rank,
               std::uint64_t most_bytes) {
  bins found;
  const columns places(begin, end, count);
  window exact = read_window(of, begin, end, rank, most_bytes);
  found.exact = exact.complete;
  std::vector<std::pair<std::uint32_t, std::size_t>> ranks;
  const std::lock_guard hold(of.mutex());
  for (std::size_t i = 0; i != of.ranks().size(); ++i) {
    if (rank < 0 || of.ranks()[i].rank == rank) ranks.emplace_back(of.ranks()[i].rank, i);
  }
  std::sort(ranks.begin(), ranks.end());
  const std::vector<double> zeros(count);
  found.rows.assign(ranks.size(), {zeros, zeros, zeros, zeros, zeros});
  std::map<std::uint32_t, bins::of_rank*> rows;
  for (std::size_t i = 0; i != ranks.size(); ++i) {
    found.ranks.push_back(ranks[i].first);
    rows[ranks[i].first] = &found.rows[i];
    if (!exact.complete) from_cells(of, places, begin, end, ranks[i].second, found.rows[i]);
  }
  if (!exact.complete) return found;
  std::map<std::uint32_t, rank_spans> spans;
  sort_out(exact, spans, places, rows);
  for (auto& [number, of_rank] : spans) {
    add_union(of_rank.busy, places, rows.at(number)->busy);
    add_union(of_rank.negotiate, places, rows.at(number)->negotiate);
    add_union(of_rank.wait, places, rows.at(number)->wait);
  }
  for (const instant_mark& m : exact.marks) {
    const auto row = rows.find(m.rank);
    const auto at = places.of(m.time);
    if (m.name == "STEP" && at && row != rows.end()) ++row->second->steps[*at];
  }
  return found;
}

}  // namespace hvd_timeline
