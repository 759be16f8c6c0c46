// digits/random.hpp: random numbers that are the same with every standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace digits {

// The standard fixes what mt19937_64 yields, but not what its distributions and std::shuffle make of it.

/// A number in [-limit, limit).
inline float uniform(std::mt19937_64& engine, float limit) {
  const float unit = static_cast<float>(engine() >> 40) * 0x1p-24f;
  return (2 * unit - 1) * limit;
}

/// 0 ... n-1 in an order that depends on the seed alone, and so is the same on every rank without a message.
inline std::vector<std::size_t> shuffled(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t j = engine() % (i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  return order;
}

}  // namespace digits
