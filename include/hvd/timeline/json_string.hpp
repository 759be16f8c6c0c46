// hvd/timeline/json_string.hpp: texts, numbers and times as strict JSON.
#pragma once

#include <hvd/version.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// The number of bytes of the text's first character; 0 if that is not well-formed UTF-8 (RFC 3629).
inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto length = [&]() -> std::size_t {
    if (byte(0) < 0x80) return 1;
    if (byte(0) >= 0xc2 && byte(0) <= 0xdf) return 2;
    if (byte(0) >= 0xe0 && byte(0) <= 0xef) return 3;
    return byte(0) >= 0xf0 && byte(0) <= 0xf4 ? 4 : 0;
  }();
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (length < 3) return length;
  const unsigned front = byte(0) << 8 | byte(1);
  if (length == 3) return front >= 0xe0a0 && (front < 0xeda0 || front >= 0xee80) ? 3 : 0;  // overlong, surrogates
  return front >= 0xf090 && front < 0xf490 ? 4 : 0;                                        // overlong, above U+10FFFF
}

/// Appends the text in quotes. Each byte that is not part of well-formed UTF-8 becomes U+FFFD.
inline void append_json_string(std::string& to, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  to += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const auto c = static_cast<unsigned char>(text.front());
    if (length == 0) {
      to += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      (to += '\\') += text.front();
    } else if (c < 0x20) {
      ((to += "\\u00") += digits[c >> 4]) += digits[c & 15];
    } else {
      to.append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  to += '"';
}

inline void append_number(std::string& to, std::uint64_t number) {
  char digits[20];
  to.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

/// Appends a time in microseconds, with three decimals.
inline void append_microseconds(std::string& to, std::int64_t nanoseconds) {
  if (nanoseconds < 0) to += '-';
  const auto size = static_cast<std::uint64_t>(nanoseconds < 0 ? -nanoseconds : nanoseconds);
  append_number(to, size / 1000);
  const auto rest = static_cast<unsigned>(size % 1000);
  const char decimals[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                           static_cast<char>('0' + rest % 10)};
  to.append(decimals, sizeof decimals);
}

}  // namespace hvd::inline HVD_ABI::detail
