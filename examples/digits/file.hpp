// digits/file.hpp: whole files in memory, and errors that say where a file is wrong.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

namespace digits {

/// Throws for the last failed system call, with its reason.
[[noreturn]] inline void fail_system(const std::string& path, const std::string& refused) {
  throw std::runtime_error(path + ": " + refused + ": " + std::strerror(errno));
}

/// Throws for a problem inside a file, and names the place: `position` is a line, a byte offset, or both.
[[noreturn]] inline void fail_at(const std::string& path, const std::string& position, const std::string& what) {
  throw std::runtime_error(path + ": " + position + ": " + what);
}

inline std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_system(path, "cannot be opened");
  std::string text;
  char piece[1 << 16];
  while (file.read(piece, sizeof piece), file.gcount() > 0) {
    text.append(piece, static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad()) fail_system(path, "cannot be read");
  return text;
}

inline std::string hex(std::uint32_t value) {
  char text[11];
  std::snprintf(text, sizeof text, "0x%08x", static_cast<unsigned>(value));
  return text;
}

}  // namespace digits
