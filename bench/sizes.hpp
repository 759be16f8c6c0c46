// bench/sizes.hpp: sizes as people write them.
#pragma once

#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace hvd::bench {

/// Bytes of "4096", "64K", "64k", "64KiB", "1M", "2G"; K is 1024. Nothing for anything else.
inline std::optional<std::size_t> parse_size(std::string_view text) noexcept {
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [at, code] = std::from_chars(text.data(), end, number);
  if (code != std::errc{}) return std::nullopt;
  const std::string_view unit(at, static_cast<std::size_t>(end - at));
  if (unit.empty() || unit == "B") return number;
  if (unit.size() != 1 && unit.substr(1) != "iB") return std::nullopt;
  const char letter = static_cast<char>(unit[0] & ~0x20);
  const int shift = letter == 'K' ? 10 : letter == 'M' ? 20 : letter == 'G' ? 30 : letter == 'T' ? 40 : 0;
  if (shift == 0 || number > std::numeric_limits<std::size_t>::max() >> shift) return std::nullopt;
  return number << shift;
}

/// "512", "64 KiB", "1.5 GiB".
inline std::string size_text(std::size_t bytes) {
  constexpr const char* units[] = {" bytes", " KiB", " MiB", " GiB", " TiB"};
  int unit = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 1024.0 && unit != 4; ++unit) value /= 1024.0;
  std::string text = std::to_string(value);
  const std::size_t dot = text.find('.');
  text.resize(value == static_cast<double>(static_cast<std::size_t>(value)) ? dot : dot + 2);
  return text + units[unit];
}

}  // namespace hvd::bench
