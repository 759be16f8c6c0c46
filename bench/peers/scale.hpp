// bench/peers/scale.hpp: the average for libraries that only have the sum.
#pragma once

#include <bench/job.hpp>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace hvd::bench {

/// Divides `count` elements by the number of ranks; integers are truncated toward zero, as hvd does it.
inline void divide(dtype type, void* data, std::size_t count, int ranks) {
  const auto all = [=]<class T>(T* elements, auto divisor) {
    for (std::size_t i = 0; i != count; ++i) elements[i] = static_cast<T>(elements[i] / divisor);
  };
  const auto as = [=]<class T>(T*) { all(static_cast<T*>(data), static_cast<T>(ranks)); };
  switch (type) {
    // In int: the number of ranks may be beyond the smaller types.
    case dtype::int8: return all(static_cast<std::int8_t*>(data), ranks);
    case dtype::uint8: return all(static_cast<std::uint8_t*>(data), ranks);
    case dtype::int16: return all(static_cast<std::int16_t*>(data), ranks);
    case dtype::uint16: return all(static_cast<std::uint16_t*>(data), ranks);
    case dtype::int32: return as(static_cast<std::int32_t*>(nullptr));
    case dtype::uint32: return as(static_cast<std::uint32_t*>(nullptr));
    case dtype::int64: return as(static_cast<std::int64_t*>(nullptr));
    case dtype::uint64: return as(static_cast<std::uint64_t*>(nullptr));
    case dtype::float32: return as(static_cast<float*>(nullptr));
    case dtype::float64: return as(static_cast<double*>(nullptr));
    case dtype::complex64: return all(static_cast<std::complex<float>*>(data), static_cast<float>(ranks));
    case dtype::complex128: return all(static_cast<std::complex<double>*>(data), static_cast<double>(ranks));
    default: throw std::runtime_error("no average of this type");
  }
}

/// Makes the average of the sum that a call has given, on ranks that have it.
inline void finish_average(const call& c, int rank, int ranks) {
  const bool gets = facts(c.kind).root != root_role::gets || rank == c.root;
  if (reduces(c.kind) && gets) divide(c.type, c.out, c.count, ranks);
}

}  // namespace hvd::bench
