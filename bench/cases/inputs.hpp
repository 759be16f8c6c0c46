// bench/cases/inputs.hpp: buffers whose exact results are known, and buffers that are merely fresh.
#pragma once

#include <bench/job.hpp>

#include <cstddef>
#include <cstdint>

namespace hvd::bench {

/// Writes elements `first` to `first + count` of the input of `rank` of `size`.
void fill_exact(dtype type, redop op, int rank, int size, std::size_t first, std::size_t count, void* to);

/// How many of `count` elements differ from the input of `rank`.
std::uint64_t wrong_copies(dtype type, redop op, int rank, int size, std::size_t first, std::size_t count,
                           const void* got);

/// How many of `count` elements differ from the reduction of all ranks' inputs.
std::uint64_t wrong_results(dtype type, redop op, int size, std::size_t first, std::size_t count, const void* got);

/// Whether op is defined for the type, as in hvd: no sum of bool, no order of complex numbers.
bool defined(dtype type, redop op);
/// Whether the reduction of `size` ranks is exact in the type, so that wrong elements can be counted.
bool verifiable(dtype type, redop op, int size);

/// Rewrites a buffer as a training step would, with plain stores through the cache. `round` alternates between values
/// and the same values times a power of two; none is zero, and reductions stay in range.
void rewrite(dtype type, redop op, int rank, std::uint64_t round, void* to, std::size_t bytes);

}  // namespace hvd::bench
