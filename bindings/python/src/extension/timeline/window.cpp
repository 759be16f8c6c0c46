// window.cpp: activities in a time span, from the blocks of the files that it crosses.

#include "window.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace hvd_timeline {
namespace {

// Numbers texts in order of appearance.
class text_table {
 public:
  std::uint32_t number(std::string_view text) {
    const auto known = numbers_.find(text);
    if (known != numbers_.end()) return known->second;
    const auto number = static_cast<std::uint32_t>(texts.size());
    texts.emplace_back(text);
    numbers_.emplace(texts.back(), number);
    return number;
  }
  std::vector<std::string> texts;

 private:
  std::map<std::string, std::uint32_t, std::less<>> numbers_;
};

// A part of one file to read again.
struct extent {
  std::size_t file = 0;
  std::uint64_t offset = 0, bytes = 0;
  std::int64_t shift = 0;
};

class collector {
 public:
  collector(const index& of, std::int64_t begin, std::int64_t end, std::int64_t rank)
      : of_(of), begin_(begin), end_(end), rank_(rank) {}

  window collect(std::uint64_t most_bytes) {
    window found;
    if (!plan(most_bytes)) return found;
    for (const auto& [part, file] : parts_) scan(part, file);
    {
      const std::lock_guard hold(of_.mutex());
      resolve();
      add_kept();
    }
    order();
    found.complete = true;
    found.slices = std::move(slices_);
    found.marks = std::move(marks_);
    found.tensors = std::move(tensors_.texts);
    found.names = std::move(names_.texts);
    found.details = std::move(details_.texts);
    return found;
  }

 private:
  static constexpr std::size_t scanned_at_once = std::size_t{1} << 20;

  struct open_activity {
    std::uint16_t name = 0;
    std::int64_t begin = 0;
  };
  struct scanned_row {
    std::vector<open_activity> open;
    std::uint32_t tensor = 0;
    std::uint32_t number = 0;
  };

  [[nodiscard]] bool wanted(std::uint32_t rank) const noexcept { return rank_ < 0 || rank == rank_; }

  // Activities not kept as long ones are shorter than `long_from`, so both of their events are in blocks within that
  // distance. All blocks between are also read, in order to pair the right events.
  bool plan(std::uint64_t most_bytes) {
    const std::lock_guard hold(of_.mutex());
    long_from_ = of_.long_from();
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i != of_.files().size(); ++i) {
      const growing_file& file = of_.files()[i].file;
      const auto near = [&](const block& b) { return b.last >= begin_ - long_from_ && b.first <= end_ + long_from_; };
      const auto first = std::find_if(file.blocks.begin(), file.blocks.end(), near);
      if (first == file.blocks.end()) continue;
      const auto last = std::find_if(file.blocks.rbegin(), file.blocks.rend(), near);
      const extent part{
          .file = i, .offset = first->offset, .bytes = last->offset + last->bytes - first->offset, .shift = file.shift};
      bytes += part.bytes;
      parts_.emplace_back(part, file.file.duplicate());
    }
    return bytes <= most_bytes;
  }

  void scan(const extent& part, const descriptor& file) {
    std::vector<char> buffer(scanned_at_once + line_padding);
    decoded_texts texts;
    for (std::uint64_t done = 0; done < part.bytes;) {
      const auto most =
          static_cast<std::size_t>(std::min<std::uint64_t>(part.bytes - done, buffer.size() - line_padding));
      const std::size_t have = file.read(buffer.data(), most, part.offset + done);
      std::fill_n(buffer.data() + have, line_padding, '\0');
      const bool all = done + have >= part.bytes;
      // The last event of a block is followed by a line feed, or by a comma and a line feed.
      if (all) buffer[have] = '\n';
      const lines_read read = read_lines(buffer.data(), have + all, part.offset + done == 0, false, texts,
                                         [&](const line_event& e, std::string_view) { take(part, e); });
      if (read.consumed == 0) {
        if (all || have < most || buffer.size() > growing_file::longest_line) return;
        buffer.resize(2 * buffer.size());
        continue;
      }
      done += read.consumed;
    }
  }

  void take(const extent& part, const line_event& e) {
    if (!e.has_time || !wanted(e.rank)) return;
    const std::int64_t time = e.time + part.shift;
    switch (e.phase) {
      case 'B': row_of(part, e).open.push_back({name(e.name), time}); return;
      case 'E': {
        scanned_row& r = row_of(part, e);
        if (r.open.empty()) return;
        const open_activity ended = r.open.back();
        r.open.pop_back();
        add({.tensor = r.number,
             .begin = ended.begin,
             .end = time,
             .name = ended.name,
             .detail = detail(e),
             .depth = static_cast<std::uint8_t>(std::min<std::size_t>(r.open.size(), UINT8_MAX)),
             .state = e.unfinished ? slice_state::unfinished : slice_state::finished});
        return;
      }
      case 'X':
        if (e.process == 0 && e.name == "WAIT") {
          add({.tensor = wait_of(e),
               .begin = time,
               .end = time + std::max<std::int64_t>(e.duration, 0),
               .name = name("WAIT")});
        }
        return;
      case 'i':
        if (e.process == 0 && time >= begin_ && time < end_) {
          marks_.push_back({time, e.rank, std::string(e.name), std::string(e.label), e.samples + e.events});
        }
        return;
      default: return;
    }
  }

  // Until `resolve`, a slice has the number of its row.
  void add(const slice& s) {
    if (s.end - s.begin < long_from_ && overlaps(s.begin, s.end)) slices_.push_back(s);
  }
  [[nodiscard]] bool overlaps(std::int64_t begin, std::int64_t end) const noexcept {
    return begin < end_ && (end > begin_ || (end == begin && begin >= begin_));
  }

  struct place {
    std::size_t file;
    std::uint32_t process, rank;
    std::string wait;  // the tensor that a program waited for
  };

  scanned_row& row_of(const extent& part, const line_event& e) {
    const std::uint64_t key = std::uint64_t{e.process} << 32 | e.rank;
    const auto [at, added] = rows_[part.file].try_emplace(key);
    if (added) {
      at->second.number = static_cast<std::uint32_t>(places_.size());
      places_.push_back({part.file, e.process, e.rank, {}});
    }
    return at->second;
  }
  std::uint32_t wait_of(const line_event& e) {
    const auto [at, added] =
        waits_.try_emplace({e.rank, std::string(e.label)}, static_cast<std::uint32_t>(places_.size()));
    if (added) places_.push_back({0, 0, e.rank, std::string(e.label)});
    return at->second;
  }
  std::uint16_t name(std::string_view text) { return small(names_, text); }
  std::uint16_t detail(const line_event& e) {
    if (e.dtype.empty()) return small(details_, {});
    text_.assign(e.dtype) += ' ';
    return small(details_, text_ += e.shape);
  }
  static std::uint16_t small(text_table& table, std::string_view text) {
    return static_cast<std::uint16_t>(std::min<std::uint32_t>(table.number(text), UINT16_MAX));
  }

  // Converts rows to tensors and ranks.
  void resolve() {
    std::vector<std::uint32_t> tensors;
    for (const place& p : places_) {
      std::string_view tensor = p.wait;
      if (p.process != 0 || p.wait.empty()) {
        const std::uint32_t row = of_.files()[p.file].rows.find(p.process, p.rank);
        tensor = row == row_table::none ? std::string_view() : of_.tensors()[of_.rows()[row].tensor].name;
      }
      tensors.push_back(tensors_.number(tensor));
    }
    for (slice& s : slices_) {
      s.rank = places_[s.tensor].rank;
      s.tensor = tensors[s.tensor];
    }
  }

  // Kept by the index: long activities, and those that have not ended.
  void add_kept() {
    const std::uint16_t nothing = small(details_, {});
    for (const long_slice& s : of_.long_slices()) {
      if (!wanted(s.rank) || !overlaps(s.begin, s.end) || s.end - s.begin < long_from_) continue;
      const tensor_state& t = of_.tensors()[s.tensor];
      const activity& a = of_.activities()[s.name];
      const bool operation = s.depth == 0 && a.what == activity_class::run && a.name != "WAIT";
      slices_.push_back({.tensor = tensors_.number(t.name),
                         .rank = s.rank,
                         .begin = s.begin,
                         .end = s.end,
                         .name = name(a.name),
                         .detail = operation ? small(details_, t.detail) : nothing,
                         .depth = s.depth,
                         .state = s.unfinished ? slice_state::unfinished : slice_state::finished});
    }
    const std::int64_t last = of_.sums().last;
    for (const row& r : of_.rows()) {
      const std::uint32_t rank = of_.ranks()[r.rank].rank;
      if (r.depth == 0 || !wanted(rank)) continue;
      for (std::uint32_t depth = 0; depth != std::min<std::uint32_t>(r.depth, row::deepest); ++depth) {
        const std::int64_t begin = r.begins[depth], end = std::max(begin, last);
        if (begin >= end_ || end < begin_) continue;
        slices_.push_back({.tensor = tensors_.number(of_.tensors()[r.tensor].name),
                           .rank = rank,
                           .begin = begin,
                           .end = end,
                           .name = name(of_.activities()[r.names[depth]].name),
                           .detail = nothing,
                           .depth = static_cast<std::uint8_t>(depth),
                           .state = slice_state::open});
      }
    }
  }

  // A row first read in the middle of an operation has counted too few outer activities, so depths are counted again.
  void order() {
    const std::uint16_t wait = name("WAIT");
    const auto key = [&](const slice& s) {
      return std::tuple(s.rank, s.tensor, s.name == wait, s.begin, -s.end, s.depth);
    };
    std::sort(slices_.begin(), slices_.end(), [&](const slice& a, const slice& b) { return key(a) < key(b); });
    std::vector<std::int64_t> ends;
    for (std::size_t i = 0; i != slices_.size(); ++i) {
      slice& s = slices_[i];
      if (i == 0 || slices_[i - 1].rank != s.rank || slices_[i - 1].tensor != s.tensor || s.name == wait) ends.clear();
      // An activity without duration at the end of another one is inside it if it was inside when read.
      const bool at_the_end = s.begin == s.end && s.depth != 0;
      while (!ends.empty() && (ends.back() < s.end || (ends.back() <= s.begin && !at_the_end))) ends.pop_back();
      s.depth = static_cast<std::uint8_t>(std::min<std::size_t>(ends.size(), UINT8_MAX));
      ends.push_back(s.end);
    }
    std::sort(marks_.begin(), marks_.end(), [](const instant_mark& a, const instant_mark& b) {
      return std::tie(a.time, a.rank) < std::tie(b.time, b.rank);
    });
  }

  const index& of_;
  const std::int64_t begin_, end_, rank_;
  std::int64_t long_from_ = 0;
  std::vector<std::pair<extent, descriptor>> parts_;
  std::unordered_map<std::size_t, std::unordered_map<std::uint64_t, scanned_row>> rows_;
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> waits_;
  std::vector<place> places_;
  std::vector<slice> slices_;
  std::vector<instant_mark> marks_;
  text_table tensors_, names_, details_;
  std::string text_;
};

}  // namespace

window read_window(const index& of, std::int64_t begin, std::int64_t end, std::int64_t rank, std::uint64_t most_bytes) {
  return collector(of, begin, end, rank).collect(most_bytes);
}

}  // namespace hvd_timeline
