// lines.hpp: finds the events in a part of a file, which may end anywhere and may be damaged.
#pragma once

#include "line.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hvd_timeline {

struct lines_read {
  std::size_t consumed =
      0;  ///< bytes up to the end of the last event, where the writer will put a comma or has done so
  std::uint64_t damaged = 0;
  bool closed = false;  ///< the array ends here
};

/// Calls visit(event, its line) for each event in `size` bytes, followed by `line_padding` readable bytes. `first`: the
/// file begins here; `last`: the file currently ends here. A line that is not an event is damaged, unless it is the
/// last one, which may be half written.
template <class Visit>
lines_read read_lines(const char* const begin, std::size_t size, bool first, bool last, decoded_texts& texts,
                      const Visit& visit) {
  lines_read done;
  const char* const end = begin + size;
  const auto* const final_feed = static_cast<const char*>(size == 0 ? nullptr : ::memrchr(begin, '\n', size));
  if (final_feed == nullptr) return done;
  line_event e;
  const auto consume = [&](const char* to) { done.consumed = static_cast<std::size_t>(to - begin); };
  for (const char* p = begin; p <= final_feed;) {
    if (const char* q = p; *p == '{' && read_own_line(q, final_feed, e)) {
      visit(e, std::string_view(p, static_cast<std::size_t>(q - p)));
      consume(q);
      p = q + (*q == ',' ? 2 : 1);
      continue;
    }
    const auto* const feed =
        static_cast<const char*>(std::memchr(p, '\n', static_cast<std::size_t>(final_feed + 1 - p)));
    const char* stop = feed;
    if (stop != p && stop[-1] == '\r') --stop;
    if (stop != p && stop[-1] == ',') --stop;
    const std::string_view line(p, static_cast<std::size_t>(stop - p));
    const bool ends_the_file = last && feed + 1 == end;
    if (!line.empty() && line[0] == '{' && read_json_line(line, e, texts)) {
      visit(e, line);
      consume(stop);
      e = {};
    } else if (line == "]" && ends_the_file) {
      done.closed = true;
      return done;
    } else if (!line.empty() && !(line == "[" && first && p == begin)) {
      if (ends_the_file) return done;
      ++done.damaged;
      consume(feed);
    }
    p = feed + 1;
  }
  return done;
}

}  // namespace hvd_timeline
