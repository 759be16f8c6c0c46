// hvd/cuda/copy.cuh: the kernels that pack tensors into one buffer and unpack them, with scaling and conversion.
//
// The bodies are plain functions of a block's and a thread's number, so a CPU runs them too: in tests, and in place of
// a GPU. One launch copies up to copy_parameters::most parts; the grid has as many blocks as the bytes need, so that
// large parts get more blocks than small ones (Horovod's kernels give each tensor eight). Results have the bits of the
// host's own reduction::prepare and reduction::finish and of hvd/fusion/convert.hpp; only a NaN that arises here, such
// as zero times infinity, has the hardware's bits.
//
// Needs no CUDA header. Compiled by nvcc with HVD_CUDA_COPY_CU, as hvd/cuda/copy.cu does, it defines the kernels.
#pragma once

#include <hvd/cuda/copy_element.cuh>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace hvd::inline HVD_ABI::detail {

/// A run of elements to copy. `in` and `out` are multiples of their elements' size; they are the same or do not
/// overlap.
struct copy_part {
  const std::byte* in;
  std::byte* out;
  std::uint64_t count;  ///< elements
};

/// The one parameter of every kernel, by value: no descriptors to upload first. CUDA 12.1 is the first with parameters
/// of more than 4 KiB.
struct copy_parameters {
  /// Parts. A launch takes 2.7 us of the host and 0.2 us for each KiB of parameters (an H100): with 290 parts in 8 KiB, a
  /// model's gradients need one launch, which costs half of one with CUDA's largest parameters.
  static constexpr std::uint32_t most = 290;

  double factor;
  std::uint32_t divisor;
  std::uint32_t parts;
  /// A word in the memory of the GPU; null: as if it were 0. Its bits are set in every word that is read: if all are, all
  /// results are NaN, or integers without a meaning.
  const std::uint32_t* poison;
  copy_part part[most];
  /// The first of the grid's blocks that copy each part. An array of its own, because the search reads only these, and
  /// they stay in a multiprocessor's cache for constants.
  std::uint32_t first_tile[most];
};
static_assert(sizeof(copy_parameters) <= 8192);

/// A block's share and its threads: four accesses of 16 bytes for each thread, all of them in flight at once. The
/// registers leave room for five such blocks on a multiprocessor, with 80 KiB in flight, where 4.8 TB/s on 132 of them
/// at some 700 ns take 25 KiB: enough remains in flight while some blocks are only starting. Larger shares would leave
/// more of the multiprocessors idle at the end. (Computed for an H200, not measured.)
inline constexpr unsigned copy_tile_bytes = 16384, copy_threads = 256;

/// The elements of a tile: it has copy_tile_bytes on the side where they are wider.
template <class From, class To>
inline constexpr unsigned copy_tile_elements =
    copy_tile_bytes / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));

// ---- tiles ------------------------------------------------------------------------------------------------

/// Tile `tile` of a part in accesses of N elements, which both sides allow: `a` is the address of `in` in elements.
template <class From, class To, unsigned N, class Scale>
HVD_HOST_DEVICE void copy_tile_by(const copy_part& part, std::uint64_t tile, unsigned thread, unsigned threads,
                                  const Scale& scale, std::uintptr_t a) {
  constexpr unsigned elements = copy_tile_elements<From, To>;
  constexpr bool is_float = copied_mantissa<From> != 0;
  constexpr unsigned flight = is_float || std::is_same_v<From, std::byte> ? 4 : 1;
  const auto least = [](std::uint64_t x, std::uint64_t y) { return x < y ? x : y; };
  // Elements before the first whole vector, which belong to the first tile; all tiles start with a whole one.
  const auto head = static_cast<unsigned>(0 - a) & (N - 1);
  const std::uint64_t begin = least(part.count, head + tile * elements);
  const auto length = static_cast<unsigned>(least(part.count - begin, elements));
  const std::byte* const in = part.in + begin * sizeof(From);
  std::byte* const out = part.out + begin * sizeof(To);

  const unsigned vectors = length / N;
  HVD_ROLLED
  for (unsigned i = thread; i < vectors; i += flight * threads) {
    copied_words<N * sizeof(From)> loaded[flight];
    const std::byte* const from = in + std::size_t{i} * (N * sizeof(From));
    std::byte* const to = out + std::size_t{i} * (N * sizeof(To));
    HVD_UNROLLED
    for (unsigned u = 0; u != flight; ++u) {
      if (i + u * threads >= vectors) continue;
      loaded[u] = copy_load<copied_words<N * sizeof(From)>>(from + std::size_t{u} * threads * (N * sizeof(From)));
    }
    HVD_UNROLLED
    for (unsigned u = 0; u != flight; ++u) {
      if (i + u * threads >= vectors) continue;
      copy_store(to + std::size_t{u} * threads * (N * sizeof(To)), copied<From, To, N>(loaded[u], scale));
    }
  }
  if constexpr (N > 1) {
    // The elements before and after the whole vectors, less than two vectors, one element for each thread.
    const unsigned before = tile == 0 ? static_cast<unsigned>(begin) : 0, behind = length % N;
    HVD_ROLLED
    for (unsigned i = thread; i < before + behind; i += threads) {
      const std::ptrdiff_t at = i < before ? static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(before)
                                           : static_cast<std::ptrdiff_t>(vectors * N + i - before);
      const auto loaded = copy_load<copied_words<sizeof(From)>>(in + at * static_cast<std::ptrdiff_t>(sizeof(From)));
      copy_store(out + at * static_cast<std::ptrdiff_t>(sizeof(To)), copied<From, To, 1>(loaded, scale));
    }
  }
}

/// Tile `tile` of a part, in the widest accesses, of at most N elements, that both sides allow.
template <class From, class To, unsigned N, class Scale>
HVD_HOST_DEVICE void copy_tile(const copy_part& part, std::uint64_t tile, unsigned thread, unsigned threads,
                               const Scale& scale) {
  const std::uintptr_t a = reinterpret_cast<std::uintptr_t>(part.in) / sizeof(From);
  const std::uintptr_t b = reinterpret_cast<std::uintptr_t>(part.out) / sizeof(To);
  if constexpr (N > 1) {
    constexpr unsigned next = std::is_same_v<From, std::byte> || N == 2 ? N / 2 : N / 4;
    if (((a ^ b) & (N - 1)) != 0) return copy_tile<From, To, next>(part, tile, thread, threads, scale);
  }
  copy_tile_by<From, To, N>(part, tile, thread, threads, scale, a);
}

/// The work of one thread of a kernel. Bytes are copied unchanged; everything else is scaled and converted.
template <class From, class To>
HVD_HOST_DEVICE void copy_block(const copy_parameters& p, unsigned block, unsigned thread, unsigned threads) {
  std::uint32_t low = 0, high = p.parts;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (p.first_tile[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  constexpr unsigned widest = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  copy_tile<From, To, widest>(p.part[low], block - p.first_tile[low], thread, threads,
                              copy_scale_of<From, To>(p.factor, p.divisor, p.poison == nullptr ? 0 : *p.poison));
}

// ---- the kernels ------------------------------------------------------------------------------------------

// clang-format off
#define HVD_COPY_KERNELS(kernel)                      \
  kernel(bytes, std::byte, std::byte)                 \
  kernel(int8_int8, std::int8_t, std::int8_t)         \
  kernel(uint8_uint8, std::uint8_t, std::uint8_t)     \
  kernel(int16_int16, std::int16_t, std::int16_t)     \
  kernel(uint16_uint16, std::uint16_t, std::uint16_t) \
  kernel(int32_int32, std::int32_t, std::int32_t)     \
  kernel(uint32_uint32, std::uint32_t, std::uint32_t) \
  kernel(int64_int64, std::int64_t, std::int64_t)     \
  kernel(uint64_uint64, std::uint64_t, std::uint64_t) \
  kernel(float16_float16, half, half)                 \
  kernel(bfloat16_bfloat16, bfloat16, bfloat16)       \
  kernel(float32_float32, float, float)               \
  kernel(float64_float64, double, double)             \
  kernel(float32_float16, float, half)                \
  kernel(float16_float32, half, float)                \
  kernel(float32_bfloat16, float, bfloat16)           \
  kernel(bfloat16_float32, bfloat16, float)           \
  kernel(float64_float32, double, float)              \
  kernel(float32_float64, float, double)
// clang-format on

struct copy_kernel {
  std::string_view name;
  std::uint32_t from_bytes, to_bytes;
  std::uint32_t tile_elements;
};
#define HVD_COPY_NAME(name, from, to) {"hvd_copy_" #name, sizeof(from), sizeof(to), copy_tile_elements<from, to>},
inline constexpr copy_kernel copy_kernels[] = {HVD_COPY_KERNELS(HVD_COPY_NAME)};
#undef HVD_COPY_NAME

/// A kernel on a CPU: the work of one thread.
using host_copy_kernel = void (*)(const copy_parameters&, unsigned block, unsigned thread, unsigned threads);
/// In the order of copy_kernels. (A template, so that it is compiled only in files that use it.)
template <class = void>
host_copy_kernel find_host_copy_kernel(std::size_t place) {
#define HVD_COPY_FUNCTION(name, from, to) &copy_block<from, to>,
  static constexpr host_copy_kernel all[] = {HVD_COPY_KERNELS(HVD_COPY_FUNCTION)};
#undef HVD_COPY_FUNCTION
  return all[place];
}

}  // namespace hvd::inline HVD_ABI::detail

#if defined(HVD_CUDA_COPY_CU)
#define HVD_COPY_KERNEL(name, from, to)                                                                                \
  extern "C" __global__ void __launch_bounds__(hvd::detail::copy_threads)                                              \
      hvd_copy_##name(const __grid_constant__ hvd::detail::copy_parameters p) {                                        \
    using namespace hvd;                                                                                               \
    detail::copy_block<from, to>(p, blockIdx.x, threadIdx.x, detail::copy_threads);                                    \
  }
HVD_COPY_KERNELS(HVD_COPY_KERNEL)
#undef HVD_COPY_KERNEL
#endif

#undef HVD_COPY_KERNELS
#undef HVD_INSTRUCTION
#undef HVD_ROLLED
#undef HVD_UNROLLED
#undef HVD_HOST_DEVICE
