// views.hpp: parts of an index as plain data, copied while its mutex is held. No Python object is created meanwhile,
// because that may run Python code, which may give the GIL to a thread that waits for the mutex.
#pragma once

#include "index.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_timeline {

struct file_view {
  std::uint64_t bytes = 0, size = 0, rest = 0, damaged = 0;
  bool closed = false;
};

struct state_view {
  totals sums;
  std::vector<file_view> files;
  std::vector<rank_facts> ranks;  ///< by number
  std::deque<report> reports;
};

inline state_view view_state(const index& of) {
  state_view view{.sums = of.sums(), .files = {}, .ranks = {}, .reports = of.reports()};
  for (const index::indexed_file& f : of.files()) {
    view.files.push_back({.bytes = f.file.consumed,
                          .size = f.file.size,
                          .rest = f.file.rest(),
                          .damaged = f.file.damaged,
                          .closed = f.file.closed});
  }
  for (const rank_state& r : of.ranks()) view.ranks.push_back(r);
  std::sort(view.ranks.begin(), view.ranks.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
  return view;
}

struct tensor_view {
  tensor_state tensor;
  std::string kind;
  std::int64_t recently_exposed = 0;
  std::int64_t slowest = -1;  ///< the rank that spent most on it: in waits for it or, without any, in the operation
};

namespace detail {

inline std::string lower(std::string_view of) {
  std::string text(of);
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

inline std::string kind_of(const index& of, const tensor_state& t) {
  return t.kind == activity_names::most ? std::string() : of.activities()[t.kind].kind;
}

// The slowest rank of each of some tensors, at the tensor's place in the index.
inline std::vector<std::int64_t> slowest_ranks(const index& of, const std::vector<std::uint32_t>& tensors) {
  std::vector<std::int64_t> slowest(of.tensors().size(), -1), most(of.tensors().size(), -1);
  std::vector<bool> asked(of.tensors().size());
  for (const std::uint32_t t : tensors) asked[t] = true;
  for (const row& r : of.rows()) {
    if (!asked[r.tensor]) continue;
    const std::int64_t spent = of.tensors()[r.tensor].exposed != 0 ? r.exposed : r.run;
    if (spent <= most[r.tensor]) continue;
    most[r.tensor] = spent;
    slowest[r.tensor] = of.ranks()[r.rank].rank;
  }
  return slowest;
}

}  // namespace detail

/// Sorting weight of a tensor at a time.
using tensor_weight = double (*)(const tensor_state& tensor, std::int64_t now);

/// The `most` tensors of greatest weight whose names contain a text, ignoring case.
inline std::vector<tensor_view> view_tensors(const index& of, std::string_view text, std::size_t most,
                                             tensor_weight weight) {
  const std::string part = detail::lower(text);
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i != of.tensors().size(); ++i) {
    if (part.empty() || detail::lower(of.tensors()[i].name).find(part) != std::string::npos) found.push_back(i);
  }
  const std::int64_t now = of.sums().last == never ? 0 : of.sums().last;
  std::stable_sort(found.begin(), found.end(), [&](std::uint32_t a, std::uint32_t b) {
    return weight(of.tensors()[a], now) > weight(of.tensors()[b], now);
  });
  if (found.size() > most) found.resize(most);
  const std::vector<std::int64_t> slowest = detail::slowest_ranks(of, found);
  std::vector<tensor_view> views;
  for (const std::uint32_t i : found) {
    const tensor_state& t = of.tensors()[i];
    views.push_back({.tensor = t,
                     .kind = detail::kind_of(of, t),
                     .recently_exposed = t.recently_exposed(now),
                     .slowest = slowest[i]});
  }
  return views;
}

/// A tensor on a rank.
struct row_view {
  std::string tensor, kind, activity;
  std::uint32_t process = 0, rank = 0, done = 0;
  int set = 0;
  bool open = false, negotiates = false;
  std::int64_t submitted = never;
};

/// The rows of all tensors on which some rank has an open activity. Includes ranks without one that know the tensor,
/// because people look for those.
inline std::vector<row_view> view_open(const index& of) {
  std::vector<bool> open(of.tensors().size());
  for (const row& r : of.rows()) {
    if (r.depth != 0) open[r.tensor] = true;
  }
  std::vector<row_view> views;
  for (const row& r : of.rows()) {
    if (!open[r.tensor]) continue;
    const tensor_state& t = of.tensors()[r.tensor];
    row_view& view = views.emplace_back();
    view.tensor = t.name;
    view.process = t.process;
    view.set = t.set;
    view.rank = of.ranks()[r.rank].rank;
    view.done = r.done;
    view.open = r.depth != 0;
    if (view.open) {
      const activity& outer = of.activities()[r.names[0]];
      view.kind = outer.kind;
      view.activity = of.activities()[r.names[std::min<std::size_t>(r.depth, row::deepest) - 1]].name;
      view.negotiates = outer.what == activity_class::negotiate;
      view.submitted = r.submitted;
    } else {
      view.kind = detail::kind_of(of, t);
    }
  }
  return views;
}

}  // namespace hvd_timeline
