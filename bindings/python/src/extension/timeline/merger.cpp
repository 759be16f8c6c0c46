// merger.cpp: converts lines of one file to lines of the merged one.

#include "merger.hpp"

#include <hvd/timeline/json_string.hpp>

#include <algorithm>
#include <array>
#include <utility>

namespace hvd_timeline {
namespace {

bool is_ascii(std::string_view text) noexcept {
  unsigned char all = 0;
  for (const char c : text) all |= static_cast<unsigned char>(c);
  return all < 0x80;
}

// JSON is UTF-8; invalid bytes, in a damaged file, become U+FFFD.
void append_utf8(std::string& to, std::string_view text) {
  if (is_ascii(text)) {
    to += text;
    return;
  }
  while (!text.empty()) {
    const std::size_t length = hvd::detail::utf8_length(text);
    if (length == 0) {
      to += "\xef\xbf\xbd";
    } else {
      to += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
}

}  // namespace

void merger::add(const line_event& e, std::string_view line, std::string& to) {
  // The merged file has its own beginning.
  if (e.phase == 'M' && e.process == 0 && (!e.job.empty() || e.name == "process_sort_index")) return;
  ++events;
  if (e.phase != 'M' || e.name == "hvd_rank") ranks.insert(e.rank);
  const std::uint32_t process = process_of(e);
  to += ",\n";
  std::array<std::pair<std::string_view, std::string>, 2> changes;
  std::size_t count = 0;
  if (process != e.process) changes[count++] = {e.process_text, std::to_string(process)};
  if (e.has_time && shift_ != 0) {
    changes[count].first = e.time_text;
    hvd::detail::append_microseconds(changes[count++].second, e.time + shift_);
  }
  if (count == 2 && changes[1].first.data() < changes[0].first.data()) std::swap(changes[0], changes[1]);
  std::string_view rest = line;
  for (std::size_t i = 0; i != count; ++i) {
    const auto before = static_cast<std::size_t>(changes[i].first.data() - rest.data());
    append_utf8(to, rest.substr(0, before));
    to += changes[i].second;
    rest.remove_prefix(before + changes[i].first.size());
  }
  append_utf8(to, rest);
}

std::uint32_t merger::process_of(const line_event& e) {
  if (e.process == 0) return 0;
  const std::uint64_t place = std::uint64_t{e.process} << 32 | e.rank;
  if (e.phase == 'M' && e.name == "process_name") {
    const std::uint32_t process = process_named(e.label, e.process);
    if (process == e.process) {
      moved_.erase(place);
    } else {
      moved_[place] = process;
    }
    return process;
  }
  if (moved_.empty()) return e.process;
  const auto moved = moved_.find(place);
  return moved == moved_.end() ? e.process : moved->second;
}

// The number of a tensor in the merged file: its own, unless another tensor already has it.
std::uint32_t merger::process_named(std::string_view name, std::uint32_t wanted) {
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) return known->second;
  constexpr std::uint32_t most = INT32_MAX;  // viewers read them as int32
  std::uint32_t process = wanted;
  while (!used_.insert(process).second) process = process % most + 1;
  by_name_.emplace(name, process);
  return process;
}

}  // namespace hvd_timeline
