// hvd/detail/text_hash.hpp: a number for a text, by which ranks tell whether they have the same one.
#pragma once

#include <hvd/version.hpp>

#include <cstdint>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// The same on all hosts and in all versions.
inline std::uint64_t text_hash(std::string_view text) noexcept {
  std::uint64_t h = 14695981039346656037ULL;  // FNV-1a
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return h;
}

}  // namespace hvd::inline HVD_ABI::detail
