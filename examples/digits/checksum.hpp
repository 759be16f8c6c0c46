// digits/checksum.hpp: CRC-32 for what lies on disk, a 64-bit hash to compare weights between ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace digits {

/// The CRC-32 of zlib and gzip (reflected polynomial 0xedb88320): finds every burst of up to 32 wrong bits.
inline std::uint32_t crc32(std::span<const std::byte> bytes) {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> entries{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      entries[i] = i;
      for (int bit = 0; bit < 8; ++bit) {
        entries[i] = (entries[i] >> 1) ^ ((entries[i] & 1) != 0 ? 0xedb88320u : 0u);
      }
    }
    return entries;
  }();
  std::uint32_t crc = 0xffffffffu;
  for (const std::byte b : bytes) {
    crc = (crc >> 8) ^ table[(crc ^ std::to_integer<std::uint32_t>(b)) & 0xffu];
  }
  return ~crc;
}

/// FNV-1a over the bytes: equal bits give equal hashes, so unequal hashes prove unequal bits.
inline std::uint64_t hash64(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte b : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace digits
