// hvd/topology/files.hpp: the small files below /proc and /sys.
#pragma once

#include <hvd/detail/descriptor.hpp>
#include <hvd/error.hpp>
#include <hvd/topology/cpu_list.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// A small file's text without the line's end; empty if it cannot be read.
inline std::string read_text(std::initializer_list<piece> path) {
  std::string text;
  const int fd = open_descriptor(joined(path).c_str(), O_RDONLY);
  if (fd < 0) return text;
  char part[4096];
  for (;;) {
    const ssize_t n = ::read(fd, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(part, static_cast<std::size_t>(n));
  }
  ::close(fd);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

inline std::vector<int> read_cpu_list(std::initializer_list<piece> path) {
  try {
    return parse_cpu_list(read_text(path));
  } catch (const error&) {
    return {};
  }
}

/// "48K" and the like in bytes; 0 for anything else.
inline std::size_t read_size(std::initializer_list<piece> path) {
  const std::string text = read_text(path);
  std::size_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || number > std::numeric_limits<std::size_t>::max() >> 30) return 0;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.empty()) return number;
  if (unit == "K") return number << 10;
  if (unit == "M") return number << 20;
  return unit == "G" ? number << 30 : 0;
}

/// Takes the first part of a text off, and the separator behind it.
inline std::string_view take_part(std::string_view& text, char separator) noexcept {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

/// A file's decimal number; `otherwise` if it has none.
inline int read_number(std::initializer_list<piece> path, int otherwise) {
  const std::string text = read_text(path);
  int number = otherwise;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc{} && end == text.data() + text.size() ? number : otherwise;
}

}  // namespace hvd::inline HVD_ABI::detail
