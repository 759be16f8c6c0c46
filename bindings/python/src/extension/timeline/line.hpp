// line.hpp: parses one line of a timeline as an event.
//
// Files of 1 GB are read in seconds. So lines with keys in the order of hvd's writer are compared with the writer's
// text, a few bytes at a time. All others are parsed as JSON (json_line.cpp), in any order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace hvd_timeline {

/// Ranks are below it. A line with a higher number is damaged.
constexpr std::uint32_t most_ranks = 1 << 16;

/// Texts lie in the line, or in its reader's `decoded`, until the next line.
struct line_event {
  char phase = 0;
  bool unfinished = false;
  bool has_time = false;
  std::uint32_t process = 0;                 ///< "pid", which identifies a tensor
  std::uint32_t rank = 0;                    ///< "tid"
  std::int64_t time = 0;                     ///< nanoseconds
  std::int64_t duration = 0;                 ///< nanoseconds
  std::string_view process_text, time_text;  ///< the numbers as written in the line
  std::string_view name;
  std::string_view dtype, shape;         ///< from the end of an operation
  std::string_view label;                ///< args: "name" of M, "tensor" of WAIT, "text" of STALL
  std::string_view host, job;            ///< args of hvd_rank and of the header
  std::int64_t size = 0, pid = 0;        ///< args of hvd_rank
  std::int64_t samples = 0, events = 0;  ///< args of STEP and DROPPED
  std::int64_t set = 0;                  ///< args of hvd_process_set, like `ranks`
  std::vector<std::uint32_t> ranks;
};

/// Storage for a line's decoded texts. A line has at most 8 that differ from their bytes in the file.
struct decoded_texts {
  std::array<std::string, 8> texts;
  std::size_t used = 0;
};

/// Reads any JSON object with the keys of an event. Returns false if the line is not one.
bool read_json_line(std::string_view line, line_event& to, decoded_texts& texts);

/// Readable bytes after the last line of a buffer.
constexpr std::size_t line_padding = 64;

namespace detail {

template <std::size_t N>
bool skip(const char*& p, const char (&text)[N]) noexcept {
  if (std::memcmp(p, text, N - 1) != 0) return false;
  p += N - 1;
  return true;
}

inline bool read_digits(const char*& p, std::uint64_t& to) noexcept {
  const char* const begin = p;
  std::uint64_t value = 0;
  for (unsigned digit; (digit = static_cast<unsigned>(*p) - '0') <= 9 && p - begin < 18; ++p)
    value = value * 10 + digit;
  to = value;
  return p != begin && (*begin != '0' || p == begin + 1);  // JSON has no leading zeros
}

// Microseconds with at most three decimals, the clock's full precision.
inline bool read_time(const char*& p, std::int64_t& to) noexcept {
  constexpr std::uint64_t most = 100'000'000'000'000;  // three years, so that sums of nanoseconds have room
  const bool negative = *p == '-';
  p += negative;
  std::uint64_t whole = 0;
  if (!read_digits(p, whole) || whole > most) return false;
  unsigned thousandths = 0;
  if (*p == '.') {
    const char* const point = p;
    unsigned unit = 100;
    for (unsigned digit; (digit = static_cast<unsigned>(*++p) - '0') <= 9; unit /= 10) thousandths += digit * unit;
    if (p - point < 2 || p - point > 4) return false;
  }
  const auto time = static_cast<std::int64_t>(whole * 1000 + thousandths);
  to = negative ? -time : time;
  return true;
}

// A text without escapes, after its first quote.
inline bool read_text(const char*& p, const char* last, std::string_view& to) noexcept {
  const char* const begin = p;
  while (p != last && *p != '"' && *p != '\\' && static_cast<unsigned char>(*p) >= 0x20) ++p;
  if (*p != '"') return false;
  to = {begin, static_cast<std::size_t>(p - begin)};
  ++p;
  return true;
}

}  // namespace detail

/// Reads frequent events as hvd's writer formats them. `p` is at the beginning of a line and `last` at a line feed in
/// the same buffer. If it returns true, `p` is after the "}" of the event, which is followed by a line feed, or by a
/// comma and a line feed.
inline bool read_own_line(const char*& p, const char* last, line_event& e) noexcept {
  using namespace detail;
  if (last - p < 32 || !skip(p, "{\"ph\":\"")) return false;
  e.phase = *p++;
  std::uint64_t process = 0, rank = 0;
  if (!skip(p, "\",\"pid\":")) return false;
  const char* const process_begin = p;
  if (!read_digits(p, process)) return false;
  e.process_text = {process_begin, static_cast<std::size_t>(p - process_begin)};
  if (!skip(p, ",\"tid\":") || !read_digits(p, rank)) return false;
  if (process > UINT32_MAX || rank > UINT32_MAX) return false;
  e.process = static_cast<std::uint32_t>(process);
  e.rank = static_cast<std::uint32_t>(rank);
  e.unfinished = false;
  e.dtype = {};
  switch (e.phase) {
    case 'B':
      if (!skip(p, ",\"name\":\"") || !read_text(p, last, e.name)) return false;
      break;
    case 'E':
      if (skip(p, ",\"args\":{\"")) {
        if (skip(p, "dtype\":\"")) {
          if (!read_text(p, last, e.dtype) || !skip(p, ",\"shape\":\"") || !read_text(p, last, e.shape) ||
              *p++ != '}') {
            return false;
          }
        } else if (skip(p, "unfinished\":true}")) {
          e.unfinished = true;
        } else {
          return false;
        }
      }
      break;
    case 'X':
      if (!skip(p, ",\"name\":\"") || !read_text(p, last, e.name)) return false;
      if (skip(p, ",\"dur\":0,\"ts\":")) {
        e.duration = 0;
        p -= 6;
        break;
      }
      if (!skip(p, ",\"args\":{\"tensor\":\"") || !read_text(p, last, e.label) || !skip(p, "},\"dur\":") ||
          !read_time(p, e.duration)) {
        return false;
      }
      break;
    default: return false;
  }
  if (!skip(p, ",\"ts\":")) return false;
  const char* const time_begin = p;
  if (!read_time(p, e.time) || *p != '}') return false;
  e.time_text = {time_begin, static_cast<std::size_t>(p++ - time_begin)};
  e.has_time = true;
  return *p == '\n' || (*p == ',' && p[1] == '\n');
}

}  // namespace hvd_timeline
