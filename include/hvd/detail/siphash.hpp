// hvd/detail/siphash.hpp: a code of 64 bits that proves that its writer knows a secret key.
#pragma once

#include <hvd/version.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

using secret_key = std::array<std::uint64_t, 2>;

/// SipHash-2-4. (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012.) Little-endian machines
/// only.
inline std::uint64_t siphash(const secret_key& key, std::span<const std::byte> bytes) noexcept {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t a = key[0] ^ 0x736f6d6570736575ULL, b = key[1] ^ 0x646f72616e646f6dULL;
  std::uint64_t c = key[0] ^ 0x6c7967656e657261ULL, d = key[1] ^ 0x7465646279746573ULL;
  const auto mix = [&](int rounds) {
    for (; rounds != 0; --rounds) {
      a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
      c += d, d = std::rotl(d, 16) ^ c;
      a += d, d = std::rotl(d, 21) ^ a;
      c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
    }
  };
  const auto take = [&](std::uint64_t eight) { d ^= eight, mix(2), a ^= eight; };
  std::uint64_t last = bytes.size() << 56;
  for (; bytes.size() >= sizeof last; bytes = bytes.subspan(sizeof last)) {
    std::uint64_t next = 0;
    std::memcpy(&next, bytes.data(), sizeof next);
    take(next);
  }
  for (std::size_t i = 0; i != bytes.size(); ++i) last |= static_cast<std::uint64_t>(bytes[i]) << 8 * i;
  take(last);
  c ^= 0xff, mix(4);
  return a ^ b ^ c ^ d;
}

/// A key from a text, which should have 128 bits that cannot be guessed.
inline secret_key key_of(std::string_view text) noexcept {
  const auto bytes = std::as_bytes(std::span(text));
  return {siphash({1, 2}, bytes), siphash({3, 4}, bytes)};
}

}  // namespace hvd::inline HVD_ABI::detail
