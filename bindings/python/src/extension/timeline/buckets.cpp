// buckets.cpp: groups the index's cells.

#include "buckets.hpp"

#include <algorithm>

namespace hvd_timeline {
namespace {

// Current activities have no end yet, and count up to the last event.
void add_open(const open_span& span, std::int64_t cell::*member, std::int64_t last, buckets& to,
              std::vector<cell>& cells) {
  if (span.open == 0) return;
  for (std::size_t i = 0; i != cells.size(); ++i) {
    const std::int64_t begin = to.from + static_cast<std::int64_t>(i) * to.width;
    const std::int64_t part = std::min(begin + to.width, last) - std::max({begin, span.since, span.counted});
    if (part > 0) cells[i].*member += part;
  }
}

}  // namespace

buckets sum_buckets(const index& of, std::int64_t begin, std::int64_t end, std::size_t most) {
  constexpr std::int64_t second = rank_cells::second;
  begin = std::max<std::int64_t>(begin, 0);
  end = std::max(end, begin + 1);
  const std::int64_t newest = of.sums().last == never ? 0 : of.sums().last / second;
  const bool recent =
      of.width() > second && begin / second > newest - static_cast<std::int64_t>(rank_cells::recent_seconds);
  const std::int64_t step = recent ? second : of.width();
  const std::int64_t group = std::max<std::int64_t>(1, ((end - begin) / step + static_cast<std::int64_t>(most) - 1) /
                                                           static_cast<std::int64_t>(most));
  buckets found{.width = step * group};
  // Spans of one width always begin at the same times, so that charts do not flicker.
  found.from = begin / found.width * found.width;
  const auto count = static_cast<std::size_t>((end - found.from + found.width - 1) / found.width);
  found.count = count;
  std::vector<const rank_state*> ranks;
  for (const rank_state& rank : of.ranks()) ranks.push_back(&rank);
  std::sort(ranks.begin(), ranks.end(), [](const rank_state* a, const rank_state* b) { return a->rank < b->rank; });
  for (const rank_state* const rank : ranks) {
    found.ranks.push_back(rank->rank);
    std::vector<cell>& cells = found.cells.emplace_back(count);
    const std::int64_t first = found.from / step;
    for (std::int64_t i = 0; i != static_cast<std::int64_t>(count) * group; ++i) {
      const std::vector<cell>& all = rank->cells.all();
      const cell* const c = recent ? rank->cells.recent(first + i)
                            : static_cast<std::size_t>(first + i) < all.size()
                                ? &all[static_cast<std::size_t>(first + i)]
                                : nullptr;
      if (c != nullptr) cells[static_cast<std::size_t>(i / group)] += *c;
    }
    add_open(rank->running, &cell::busy, of.sums().last, found, cells);
    add_open(rank->negotiating, &cell::negotiating, of.sums().last, found, cells);
    add_open(rank->global_running, &cell::global_busy, of.sums().last, found, cells);
    add_open(rank->global_negotiating, &cell::global_negotiating, of.sums().last, found, cells);
  }
  return found;
}

}  // namespace hvd_timeline
