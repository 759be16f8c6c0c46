// merger.hpp: merges several timelines of a job into one, for viewers that open one file.
//
// Lines stay unchanged except for two numbers: the time, if the file has another time 0, and the "pid" of a tensor, if
// another tensor has the same one. Both happen: a "pid" is a hash of a name, and ranks that see names in different
// orders resolve a collision differently.
#pragma once

#include "lines.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

namespace hvd_timeline {

class merger {
 public:
  /// Begins the next file and shifts its times by `shift_ns`.
  void begin_file(std::int64_t shift_ns) {
    shift_ = shift_ns;
    moved_.clear();
    carry_.clear();
    first_ = true;
  }

  /// Converts the next part of the file to lines of the merged file, each beginning with ",\n". `last`: nothing follows
  /// it.
  std::string feed(std::string_view part, bool last) {
    carry_ += part;
    const std::size_t size = carry_.size();
    carry_.append(line_padding, '\0');
    std::string out;
    out.reserve(size + size / 16);
    const lines_read read = read_lines(carry_.data(), size, first_, last, texts_,
                                       [&](const line_event& e, std::string_view line) { add(e, line, out); });
    damaged += read.damaged;
    carry_.resize(size);
    if (read.consumed != 0) first_ = false;
    carry_.erase(0, read.consumed);
    if (carry_.size() > longest_line) {
      ++damaged;
      carry_.clear();
    }
    return out;
  }

  std::uint64_t events = 0, damaged = 0;
  std::set<std::uint32_t> ranks;

 private:
  static constexpr std::size_t longest_line = std::size_t{1} << 22;

  void add(const line_event& e, std::string_view line, std::string& to);
  std::uint32_t process_of(const line_event& e);
  std::uint32_t process_named(std::string_view name, std::uint32_t wanted);

  std::int64_t shift_ = 0;
  bool first_ = true;
  std::string carry_;
  decoded_texts texts_;
  std::unordered_map<std::uint64_t, std::uint32_t> moved_;  // of this file, by "pid" and "tid"
  std::map<std::string, std::uint32_t, std::less<>> by_name_;
  std::set<std::uint32_t> used_;
};

}  // namespace hvd_timeline
