// index.cpp: adds up events.

#include "index.hpp"

#include <hvd/dtype.hpp>

#include <algorithm>
#include <charconv>

namespace hvd_timeline {

double tensor_bytes(std::string_view dtype, std::string_view shape) noexcept {
  double bytes = 0;
  for (int i = 0; i <= static_cast<int>(hvd::dtype::user); ++i) {
    const auto type = static_cast<hvd::dtype>(i);
    if (dtype == hvd::name(type)) bytes = static_cast<double>(hvd::size_of(type));
  }
  const char* p = shape.data();
  for (const char* const last = p + shape.size(); p != last;) {
    if (*p < '0' || *p > '9') {
      ++p;
      continue;
    }
    std::uint64_t length = 0;
    p = std::from_chars(p, last, length).ptr;
    bytes = std::min(bytes * static_cast<double>(length), 1e18);
  }
  return bytes;
}

std::size_t index::add_file(int fd, std::int64_t shift_ns) {
  const std::lock_guard hold(mutex_);
  files_.emplace_back(fd, shift_ns);
  return files_.size() - 1;
}

std::uint64_t index::read(std::uint64_t most) {
  const std::lock_guard one_reader(reading_);
  std::size_t count = 0;
  {
    const std::lock_guard hold(mutex_);
    count = files_.size();
  }
  std::uint64_t left = 0;
  for (std::size_t i = 0; i != count; ++i) {
    indexed_file& from = files_[i];
    for (bool more = true; more;) {
      const std::size_t fetched = most == 0 ? 0 : from.file.fetch();
      const std::lock_guard hold(mutex_);
      if (most == 0) {
        const std::uint64_t size = from.file.file.size();
        constexpr std::uint64_t end_of_array = 3;
        left += size > from.file.consumed + end_of_array ? size - from.file.consumed : 0;
        break;
      }
      more = from.file.take([&](const line_event& e, std::string_view) { take(from, e); });
      most -= std::min<std::uint64_t>(most, fetched);
    }
  }
  return left;
}

void index::take(indexed_file& from, const line_event& e) {
  ++totals_.events;
  if (!e.has_time) {
    if (e.phase == 'M') metadata(from, e);
    return;
  }
  const std::int64_t time = e.time + from.file.shift;
  const std::int64_t last = e.phase == 'X' ? time + std::max<std::int64_t>(e.duration, 0) : time;
  block& in = from.file.blocks.back();
  in.first = std::min(in.first, time);
  in.last = std::max(in.last, last);
  if (totals_.first == never || time < totals_.first) totals_.first = time;
  totals_.last = std::max(totals_.last, last);
  if (time >= room_ || last >= room_) make_room(last);
  switch (e.phase) {
    case 'B': return begin(from, e, time);
    case 'E': return end(from, e, time);
    case 'X':
      if (e.process == 0 && e.name == "WAIT") wait(from, e, time);
      return;
    case 'i':
      if (e.process == 0) instant(e, time);
      return;
    default: return;
  }
}

void index::begin(indexed_file& from, const line_event& e, std::int64_t time) {
  row* const found = row_of(from, e);
  if (found == nullptr) {
    ++totals_.unplaced;
    return;
  }
  row& r = *found;
  rank_state& rank = ranks_[r.rank];
  rank.last = std::max(rank.last, time);
  const std::uint16_t name = activities_.number(e.name);
  const activity_class what = activities_[name].what;
  if (r.depth == 0) {
    if (r.submitted == never) r.submitted = time;
    open(r, rank, what == activity_class::negotiate ? negotiation : run, time);
  } else if (what == activity_class::queue) {
    close(r, rank, run, time);
  }
  if (r.depth < row::deepest) {
    r.names[r.depth] = name;
    r.begins[r.depth] = time;
  }
  ++r.depth;
  count_event(rank, time);
}

void index::end(indexed_file& from, const line_event& e, std::int64_t time) {
  row* const found = row_of(from, e);
  if (found == nullptr || found->depth == 0) {
    ++totals_.unplaced;
    return;
  }
  row& r = *found;
  rank_state& rank = ranks_[r.rank];
  rank.last = std::max(rank.last, time);
  count_event(rank, time);
  end_activity(r, rank, time, e.unfinished);
  if (r.depth != 0) return;
  const std::uint16_t name = r.names[0];
  if (activities_[name].what != activity_class::negotiate) {
    if (!e.unfinished) finish(r, rank, name, e, time);
    r.submitted = never;
  } else if (e.unfinished) {
    r.submitted = never;
  } else {
    const std::int64_t duration = std::max<std::int64_t>(time - r.begins[0], 0);
    ++totals_.negotiations;
    tensors_[r.tensor].negotiate += duration;
    const auto [all, recent] = cells(rank, time);
    for (cell* const c : {&all, &recent}) {
      ++c->negotiations;
      c->global_negotiations += tensors_[r.tensor].set == 0;
      c->negotiate += duration;
    }
  }
}

// Ends the innermost activity of a row.
void index::end_activity(row& r, rank_state& rank, std::int64_t time, bool unfinished) {
  --r.depth;
  if (r.depth >= row::deepest) return;
  const std::uint16_t name = r.names[r.depth];
  const activity_class what = activities_[name].what;
  if (r.depth == 0) {
    close(r, rank, what == activity_class::negotiate ? negotiation : run, time);
  } else if (what == activity_class::queue) {
    open(r, rank, run, time);
  }
  if (time - r.begins[r.depth] >= long_from_) {
    keep_long({.tensor = r.tensor,
               .rank = rank.rank,
               .name = name,
               .depth = static_cast<std::uint8_t>(r.depth),
               .unfinished = unfinished,
               .begin = r.begins[r.depth],
               .end = time});
  }
}

// Drops a row's open activities, which will not end any more.
void index::abandon(row& r, rank_state& rank) {
  while (r.depth != 0) end_activity(r, rank, rank.last, true);
  r.submitted = never;
}

void index::finish(row& r, rank_state& rank, std::uint16_t name, const line_event& e, std::int64_t time) {
  tensor_state& t = tensors_[r.tensor];
  const double bytes = tensor_bytes(e.dtype, e.shape);
  const std::int64_t total = std::max<std::int64_t>(time - r.submitted, 0);
  const std::int64_t ran = std::max<std::int64_t>(time - r.begins[0], 0);
  ++totals_.operations;
  ++rank.operations;
  ++r.done;
  r.run += ran;
  ++t.operations;
  t.kind = name;
  t.bytes += bytes;
  t.run += ran;
  if (t.first == never) t.first = r.submitted;
  t.last = std::max(t.last, time);
  if (!e.dtype.empty() && (t.detail.size() != e.dtype.size() + 1 + e.shape.size() || !t.detail.starts_with(e.dtype) ||
                           !t.detail.ends_with(e.shape))) {
    ((t.detail = e.dtype) += ' ') += e.shape;
  }
  bus_class bus = activities_[name].bus;
  if (t.blocks && bus == bus_class::exchanged) bus = bus_class::gathered;
  const double ranks =
      t.set != 0 ? static_cast<double>(sets_.size(t.set)) : static_cast<double>(rank.size > 0 ? rank.size : size_);
  const double bus_bytes = bytes * bus_factor(bus, ranks);
  const auto [all, recent] = cells(rank, time);
  for (cell* const c : {&all, &recent}) {
    ++c->operations;
    c->global_operations += t.set == 0;
    c->total += total;
    c->bytes += bytes;
    c->bus_bytes += bus_bytes;
  }
}

void index::wait(indexed_file& from, const line_event& e, std::int64_t time) {
  const std::uint32_t number = rank_index(e.rank);
  if (number == UINT32_MAX) {
    ++totals_.unplaced;
    return;
  }
  rank_state& rank = ranks_[number];
  const std::int64_t duration = std::max<std::int64_t>(e.duration, 0), end = time + duration;
  rank.last = std::max(rank.last, end);
  ++totals_.waits;
  count_event(rank, end);
  add_span(rank, &cell::wait, time, end);
  const std::uint32_t tensor = tensor_named(e.label, 0);
  if (tensor == UINT32_MAX) return;
  tensor_state& t = tensors_[tensor];
  t.add_exposed(end, duration);
  const std::uint32_t found = from.rows.find(t.process, e.rank);
  if (found != row_table::none) rows_[found].exposed += duration;
  if (duration >= long_from_) {
    keep_long({.tensor = tensor, .rank = e.rank, .name = activities_.number("WAIT"), .begin = time, .end = end});
  }
}

void index::instant(const line_event& e, std::int64_t time) {
  const std::uint32_t number = rank_index(e.rank);
  if (number == UINT32_MAX) {
    ++totals_.unplaced;
    return;
  }
  rank_state& rank = ranks_[number];
  count_event(rank, time);
  const auto [all, recent] = cells(rank, time);
  if (e.name == "STEP") {
    rank.last = std::max(rank.last, time);
    if (rank.first_step == never || time < rank.first_step) rank.first_step = time;
    const auto samples = static_cast<std::uint64_t>(std::max<std::int64_t>(e.samples, 0));
    ++totals_.steps;
    ++rank.steps;
    totals_.samples += samples;
    for (cell* const c : {&all, &recent}) {
      ++c->steps;
      c->samples += samples;
    }
  } else if (e.name == "DROPPED") {
    const auto events = static_cast<std::uint64_t>(std::max<std::int64_t>(e.events, 0));
    totals_.dropped += events;
    all.dropped += events;
    recent.dropped += events;
  } else if (e.name == "STALL" || e.name == "ROUND") {
    reports_.push_back({time, e.rank, e.name == "ROUND", std::string(e.label)});
    if (reports_.size() > most_reports) reports_.pop_front();
  }
}

void index::metadata(indexed_file& from, const line_event& e) {
  if (e.name == "hvd_process_set" && e.process == 0) {
    const std::uint32_t number = rank_index(e.rank);
    if (number != UINT32_MAX) sets_.tell(static_cast<int>(e.set), e.ranks, ranks_[number].starts);
  } else if (e.name == "hvd_rank" && e.process == 0) {
    const std::uint32_t number = rank_index(e.rank);
    if (number == UINT32_MAX) return;
    rank_state& rank = ranks_[number];
    // Another process now has this rank, so open activities of the previous one will not end.
    if (rank.starts != 0) {
      for (row& r : rows_) {
        if (r.rank == number) abandon(r, rank);
      }
    }
    ++rank.starts;
    rank.host = e.host;
    rank.size = e.size;
    size_ = std::max(size_, e.size);
    rank.process = e.pid;
  } else if (e.name == "process_name" && e.process != 0) {
    const std::uint32_t tensor = tensor_named(e.label, e.process);
    if (tensor == UINT32_MAX) return;
    from.tensors.insert_or_assign(e.process, tensor);
    row* const r = row_of(from, e);
    if (r == nullptr || r->tensor == tensor) return;
    abandon(*r, ranks_[r->rank]);
    r->tensor = tensor;
    sets_.use(tensors_[tensor].set, e.rank);
  }
}

row* index::row_of(indexed_file& from, const line_event& e) {
  const std::uint32_t known = from.rows.find(e.process, e.rank);
  if (known != row_table::none) return &rows_[known];
  const std::uint32_t rank = rank_index(e.rank);
  if (rank == UINT32_MAX || rows_.size() == most_rows) return nullptr;
  const auto named = from.tensors.find(e.process);
  const std::uint32_t tensor =
      named != from.tensors.end()
          ? named->second
          : tensor_named("(tensor " + std::to_string(e.process) + ", which has no name)", e.process);
  if (tensor == UINT32_MAX) return nullptr;
  from.rows.add(e.process, e.rank, static_cast<std::uint32_t>(rows_.size()));
  rows_.push_back({.tensor = tensor, .rank = rank});
  sets_.use(tensors_[tensor].set, e.rank);
  return &rows_.back();
}

// `process`: 0 if unknown.
std::uint32_t index::tensor_named(std::string_view name, std::uint32_t process) {
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) {
    if (tensors_[known->second].process == 0) tensors_[known->second].process = process;
    return known->second;
  }
  if (tensors_.size() == most_tensors) return UINT32_MAX;
  tensor_state t{.name = std::string(name), .process = process};
  if (name.starts_with("set ")) {
    int set = 0;
    const auto [next, wrong] = std::from_chars(name.data() + 4, name.data() + name.size(), set);
    if (wrong == std::errc() && std::string_view(next, name.data() + name.size()).starts_with(": ")) t.set = set;
  }
  t.blocks = name.find(" of ") != std::string_view::npos && name.ends_with("]");
  by_name_.emplace(t.name, static_cast<std::uint32_t>(tensors_.size()));
  tensors_.push_back(std::move(t));
  return static_cast<std::uint32_t>(tensors_.size() - 1);
}

std::uint32_t index::rank_index(std::uint32_t rank) {
  if (rank < rank_indices_.size() && rank_indices_[rank] != UINT32_MAX) return rank_indices_[rank];
  if (rank >= most_ranks) return UINT32_MAX;
  if (rank >= rank_indices_.size()) rank_indices_.resize(rank + 1, UINT32_MAX);
  rank_indices_[rank] = static_cast<std::uint32_t>(ranks_.size());
  ranks_.emplace_back().rank = rank;
  size_ = std::max<std::int64_t>(size_, std::int64_t{rank} + 1);
  return rank_indices_[rank];
}

rank_cells::pair index::cells(rank_state& rank, std::int64_t time) {
  if (rank.first == never || time < rank.first) rank.first = time;
  return rank.cells.at(time, width_);
}

void index::count_event(rank_state& rank, std::int64_t time) {
  const auto [all, recent] = cells(rank, time);
  ++all.events;
  ++recent.events;
}

// Widens cells until there is one for a time.
void index::make_room(std::int64_t time) {
  const auto most = static_cast<std::int64_t>(
      std::clamp<std::size_t>(most_cells / std::max<std::size_t>(ranks_.size(), 1), 256, most_cells_of_a_rank));
  while (time / width_ >= most) {
    width_ *= 2;
    for (rank_state& rank : ranks_) rank.cells.halve();
  }
  room_ = width_ * most;
}

void index::add_span(rank_state& rank, std::int64_t cell::*member, std::int64_t begin, std::int64_t end) {
  rank.cells.add_span(member, begin, end, width_);
}

void index::open(const row& r, rank_state& rank, const measure& what, std::int64_t time) {
  const auto begin = [&](open_span& span) { span.since = span.open++ == 0 ? time : span.since; };
  begin(rank.*what.any);
  if (tensors_[r.tensor].set == 0) begin(rank.*what.global);
}

void index::close(const row& r, rank_state& rank, const measure& what, std::int64_t time) {
  close(rank, rank.*what.any, what.any_time, time);
  if (tensors_[r.tensor].set == 0) close(rank, rank.*what.global, what.global_time, time);
}

void index::close(rank_state& rank, open_span& span, std::int64_t cell::*member, std::int64_t time) {
  if (span.open == 0 || --span.open != 0) return;
  add_span(rank, member, std::max(span.since, span.counted), time);
  span.counted = std::max(span.counted, time);
}

void index::keep_long(const long_slice& slice) {
  while (long_slices_.size() == most_long_slices) {
    long_from_ *= 2;
    std::erase_if(long_slices_, [&](const long_slice& s) { return s.end - s.begin < long_from_; });
  }
  if (slice.end - slice.begin >= long_from_) long_slices_.push_back(slice);
}

}  // namespace hvd_timeline
