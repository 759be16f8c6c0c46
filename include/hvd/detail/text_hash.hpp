// hvd/detail/text_hash.hpp: a hash by which ranks compare texts, and its hexadecimal digits.
#pragma once

#include <hvd/version.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// The same on all hosts and in all versions. `h`: the hash of the text before, if it goes on.
inline std::uint64_t text_hash(std::string_view text, std::uint64_t h = 14695981039346656037ULL) noexcept {  // FNV-1a
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return h;
}

/// 16 hexadecimal digits.
inline std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

}  // namespace hvd::inline HVD_ABI::detail
