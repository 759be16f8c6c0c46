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
  /// Parts. A launch takes 2.7 us of the host and 0.2 us for each KiB of parameters (an H100): with 290 parts in 8 KiB,
  /// a model's gradients need one launch, which costs half of one with CUDA's largest parameters.
  static constexpr std::uint32_t most = 290;

  double factor;
  std::uint32_t divisor;
  std::uint32_t parts;
  copy_type from, to;
  /// A word in the memory of the GPU; null: as if it were 0. Its bits are set in every word that is read: if all are,
  /// all results are NaN, or integers without a meaning.
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
HVD_HOST_DEVICE constexpr unsigned copy_tile_elements(copy_type from, copy_type to) {
  return copy_tile_bytes >> (from.shift > to.shift ? from.shift : to.shift);
}
/// How many accesses of each thread are in flight at once.
inline constexpr unsigned copy_flight = 4;

// ---- tiles ------------------------------------------------------------------------------------------------

/// The elements of one block, and which of them are in whole vectors that both sides allow. The rest, fewer than two
/// vectors or all of them, take an access each.
struct copy_tile {
  std::uint64_t begin;  ///< the first element
  unsigned count;       ///< elements
  unsigned before;      ///< elements before the first vector
  unsigned vectors;

  /// Tile `tile` of a part, with vectors of 2^shift elements; of none if that is 0.
  HVD_HOST_DEVICE copy_tile(const copy_part& part, std::uint64_t tile, unsigned shift, copy_type from, copy_type to) {
    const auto least = [](std::uint64_t x, std::uint64_t y) { return x < y ? x : y; };
    // The addresses in elements, as far as they matter.
    const unsigned a = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(part.in)) >> from.shift;
    const unsigned b = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(part.out)) >> to.shift;
    const unsigned mask = (1U << shift) - 1, elements = copy_tile_elements(from, to);
    const bool wide = shift != 0 && ((a ^ b) & mask) == 0;
    // Elements before the first whole vector, which belong to the first tile; all others start with a whole one.
    const unsigned head = wide ? (0 - a) & mask : 0;
    const unsigned ahead = tile == 0 ? head : 0;
    const std::uint64_t first = least(part.count, tile * elements + (head - ahead));
    const auto length = static_cast<unsigned>(least(part.count - first, ahead + elements));
    begin = copy_anew(first);
    count = copy_anew(length);
    before = copy_anew(length < ahead ? length : ahead);
    vectors = copy_anew(wide && length > ahead ? (length - ahead) >> shift : 0);
  }
};

/// Elements `first`, `first` + step and so on below `end`.
struct copy_run {
  unsigned first, end, step;
};
/// A thread's share of those that are in no vector.
HVD_HOST_DEVICE copy_run copy_rest(const copy_tile& t, unsigned shift, unsigned thread) {
  if (thread < t.before) return {thread, t.before, copy_threads};
  return {(t.vectors << shift) + thread, t.count, copy_threads};
}

/// Elements `i`, `i` + run.step and so on, all in flight at once; behind the end of the run, the first again.
HVD_HOST_DEVICE void copy_load_elements(const std::byte* in, std::uint64_t begin, unsigned i, const copy_run& run,
                                        copy_type type, std::uint64_t (&loaded)[copy_flight]) {
  const std::byte* from[copy_flight];
  HVD_UNROLLED
  for (unsigned k = 0; k != copy_flight; ++k) {
    const unsigned at = i + k * run.step;
    from[k] = in + ((begin + (at < run.end ? at : i)) << type.shift);
  }
  const auto load = [&]<class Bits>(Bits) {
    HVD_UNROLLED
    for (unsigned k = 0; k != copy_flight; ++k) loaded[k] = copy_load<Bits>(from[k]);
  };
  if (type.shift == 3) {
    load(std::uint64_t{});
  } else if (type.shift == 2) {
    load(std::uint32_t{});
  } else {
    load(std::uint16_t{});
  }
}

/// The word of poison as often as there is room for it.
template <class Word>
HVD_HOST_DEVICE Word copy_poison(std::uint32_t poison) {
  return static_cast<Word>(poison | static_cast<std::uint64_t>(poison) << 32);
}

/// A thread's share of bytes, in accesses of Bytes: number `first`, `first` + copy_threads and so on below `end`.
template <unsigned Bytes, class Word>
HVD_HOST_DEVICE void copy_words(const std::byte* in, std::byte* out, unsigned first, unsigned end,
                                std::uint32_t poison) {
  using words = copied_words<Bytes, Word>;
  HVD_ROLLED
  for (unsigned i = first; i < end; i += copy_flight * copy_threads) {
    const std::byte* const from = in + std::size_t{i} * Bytes;
    std::byte* const to = out + std::size_t{i} * Bytes;
    words loaded[copy_flight];
    HVD_UNROLLED
    for (unsigned u = 0; u != copy_flight; ++u) {
      if (i + u * copy_threads < end) loaded[u] = copy_load<words>(from + std::size_t{u} * copy_threads * Bytes);
    }
    HVD_UNROLLED
    for (unsigned u = 0; u != copy_flight; ++u) {
      if (i + u * copy_threads >= end) continue;
      HVD_UNROLLED
      for (Word& each : loaded[u].at) each = static_cast<Word>(each | copy_poison<Word>(poison));
      copy_store(to + std::size_t{u} * copy_threads * Bytes, loaded[u]);
    }
  }
}

// The body of each kernel: run() handles the part at `place` in its parameters.

/// Bytes, unchanged.
struct bytes_copy {
  HVD_HOST_DEVICE static void run(const copy_parameters& p, unsigned place, unsigned block, unsigned thread,
                                  std::uint32_t poison) {
    const copy_part& part = p.part[place];
    const std::uintptr_t differ =
        reinterpret_cast<std::uintptr_t>(part.in) ^ reinterpret_cast<std::uintptr_t>(part.out);
    const unsigned shift = (differ & 15) == 0 ? 4 : (differ & 3) == 0 ? 2 : 0;
    constexpr copy_type byte = copy_type::of<std::byte>();
    const copy_tile t(part, block - p.first_tile[place], shift, byte, byte);
    const std::byte* const in = part.in + t.begin;
    std::byte* const out = part.out + t.begin;
    if (shift == 4) copy_words<16, std::uint32_t>(in + t.before, out + t.before, thread, t.vectors, poison);
    if (shift == 2) copy_words<4, std::uint32_t>(in + t.before, out + t.before, thread, t.vectors, poison);
    const copy_run rest = copy_rest(t, shift, thread);
    copy_words<1, std::uint8_t>(in, out, rest.first, rest.end, poison);
  }
};

/// Integers, scaled: of the width and sign that the parameters say, for which no inner loop branches.
struct integers_copy {
  HVD_HOST_DEVICE static void run(const copy_parameters& p, unsigned place, unsigned block, unsigned thread,
                                  std::uint32_t poison) {
    const unsigned bytes = 1U << p.from.shift, bits = 8 * bytes, shift = 4 - p.from.shift;
    const bool is_signed = p.from.format == copy_format::signed_integer;
    const copy_part& part = p.part[place];
    const copy_tile t(part, block - p.first_tile[place], shift, p.from, p.from);
    HVD_ROLLED
    for (unsigned round = 0; round != 2; ++round) {  // of vectors, then of single elements
      const bool wide = copy_anew(round) == 0;
      const copy_run run = wide ? copy_run{thread, t.vectors, copy_threads} : copy_rest(t, shift, thread);
      HVD_ROLLED
      for (unsigned i = run.first; i < run.end; i += run.step) {
        const std::size_t at = (t.begin << p.from.shift) + (wide ? t.before * bytes + i * 16 : i * bytes);
        copied_words<16, std::uint64_t> words{};
        if (wide) {
          words = copy_load<copied_words<16, std::uint64_t>>(part.in + at);
        } else {
          words.at[0] = copy_load_element(part.in + at, p.from);
        }
        // In place, in loops that stay ones: an element goes out at the bottom, and its result comes in at the top.
        HVD_ROLLED
        for (unsigned k = 0; k != (wide ? 2 : 1); ++k) {
          std::uint64_t eight = words.at[0] | copy_poison<std::uint64_t>(poison);
          HVD_ROLLED
          for (unsigned n = 0; n < (wide ? 64 : bits); n += bits) {
            const std::uint64_t top = eight << (64 - bits);
            const std::uint64_t value = is_signed
                                            ? static_cast<std::uint64_t>(static_cast<std::int64_t>(top) >> (64 - bits))
                                            : top >> (64 - bits);
            const std::uint64_t result = copied_integer(value, bits, is_signed, p.factor, p.divisor);
            eight = eight >> (bits - 1) >> 1 | result << (64 - bits);
          }
          words.at[0] = words.at[1];
          words.at[1] = eight;
        }
        if (wide) {
          copy_store(part.out + at, words);
        } else {
          copy_store_element(part.out + at, p.from, words.at[1] >> (64 - bits));
        }
      }
    }
  }
};

/// A thread's vectors of floating-point elements, `own` of at most copy_flight. Returns which are left, as bits: those
/// with a NaN, about which only the way of single elements is exact, and all with poison.
template <class From, class To>
HVD_HOST_DEVICE unsigned copy_vectors(const copy_parameters& p, const std::byte* in, std::byte* out, unsigned own,
                                      std::uint32_t poison) {
  constexpr unsigned n = 16 / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  using read = copied_vector<From, n>;
  using written = copied_vector<To, n>;
  const copy_scale<copied_in<From, To>> scale(p.factor, p.divisor);
  read loaded[copy_flight];
  HVD_UNROLLED
  for (unsigned u = 0; u != copy_flight; ++u) {
    if (u < own) loaded[u] = copy_load<read>(in + u * copy_threads * sizeof(read));
  }
  unsigned left = 0;
  HVD_UNROLLED
  for (unsigned u = 0; u != copy_flight; ++u) {
#if !defined(                                                                                                          \
    __CUDA_ARCH__)  // A GPU computes something of nothing, which takes fewer registers than a branch around it.
    if (u >= own) continue;
#endif
    written result;
    const bool done = copied<From, To, n>(loaded[u], scale, result) & (poison == 0);
    left |= done ? 0 : 1U << u;
    if (done & (u < own)) copy_store(out + u * copy_threads * sizeof(written), result);
  }
  return left;
}

/// Floating-point numbers, scaled and converted. A block branches once by the types, to code of their own for vectors;
/// everything else goes one way, an element at a time.
struct floats_copy {
  HVD_HOST_DEVICE static unsigned vectors(const copy_parameters& p, const std::byte* in, std::byte* out, unsigned own,
                                          std::uint32_t poison) {
    switch (p.from.format) {
      case copy_format::float16:
        if (p.to.format == copy_format::float16) return copy_vectors<half, half>(p, in, out, own, poison);
        return copy_vectors<half, float>(p, in, out, own, poison);
      case copy_format::bfloat16:
        if (p.to.format == copy_format::bfloat16) return copy_vectors<bfloat16, bfloat16>(p, in, out, own, poison);
        return copy_vectors<bfloat16, float>(p, in, out, own, poison);
      case copy_format::float32:
        if (p.to.format == copy_format::float32) return copy_vectors<float, float>(p, in, out, own, poison);
        if (p.to.format == copy_format::float16) return copy_vectors<float, half>(p, in, out, own, poison);
        if (p.to.format == copy_format::bfloat16) return copy_vectors<float, bfloat16>(p, in, out, own, poison);
        return copy_vectors<float, double>(p, in, out, own, poison);
      default:
        if (p.to.format == copy_format::float64) return copy_vectors<double, double>(p, in, out, own, poison);
        return copy_vectors<double, float>(p, in, out, own, poison);
    }
  }

  HVD_HOST_DEVICE static void run(const copy_parameters& p, unsigned place, unsigned block, unsigned thread,
                                  std::uint32_t poison) {
    const unsigned shift = 4 - (p.from.shift > p.to.shift ? p.from.shift : p.to.shift);
    unsigned left = 0;
    {
      const copy_part& part = p.part[place];
      const copy_tile t(part, block - p.first_tile[place], shift, p.from, p.to);
      const std::uint64_t first = t.begin + t.before + (thread << shift);
      const unsigned own = t.vectors > thread ? (t.vectors - thread + copy_threads - 1) / copy_threads : 0;
      left = vectors(p, part.in + copy_anew(first << p.from.shift), part.out + copy_anew(first << p.to.shift),
                     copy_anew(own), poison);
      left &= (1U << own) - 1;
      if (left == 0 && own != 0 && thread >= 2U << shift) return;  // as most do
    }
    // All of it again, because the vectors need the registers that would keep it.
    place = copy_anew(place);
    const copy_part& part = p.part[place];
    const copy_tile t(part, block - p.first_tile[place], shift, p.from, p.to);
    const std::uint64_t set = copy_poison<std::uint64_t>(poison) >> (64 - (8U << p.from.shift));
    HVD_ROLLED
    for (unsigned u = left == 0 ? copy_flight : 0; u <= copy_flight; ++u) {
      copy_run run = copy_rest(t, shift, thread);
      if (u != copy_flight) {
        const unsigned at = t.before + ((thread + u * copy_threads) << shift);
        run = {at, at + ((left >> u & 1) << shift), 1};
      }
      HVD_ROLLED
      for (unsigned i = run.first; i < run.end;) {
        std::uint64_t loaded[copy_flight];
        copy_load_elements(part.in, t.begin, i, run, p.from, loaded);
        HVD_ROLLED
        for (unsigned k = 0; k != copy_flight && i < run.end; ++k, i += run.step) {
          const std::uint64_t result = copied_float(loaded[0] | set, copy_anew(p.from.format), copy_anew(p.to.format),
                                                    p.factor, copy_anew(p.divisor));
          copy_store_element(part.out + ((t.begin + i) << p.to.shift), p.to, result);
          HVD_UNROLLED
          for (unsigned j = 0; j + 1 != copy_flight; ++j) loaded[j] = loaded[j + 1];
        }
      }
    }
  }
};

/// The work of one thread of a kernel.
template <class Body>
HVD_HOST_DEVICE void copy_block(const copy_parameters& p, unsigned block, unsigned thread) {
  std::uint32_t low = 0, high = p.parts;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    if (p.first_tile[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  Body::run(p, low, block, thread, p.poison == nullptr ? 0 : *p.poison);
}

// ---- the kernels ------------------------------------------------------------------------------------------

// clang-format off
#define HVD_COPY_KERNELS(kernel)  \
  kernel(bytes, bytes_copy)       \
  kernel(integers, integers_copy) \
  kernel(floats, floats_copy)
// clang-format on

#define HVD_COPY_NAME(name, ...) "hvd_copy_" #name,
inline constexpr std::string_view copy_kernels[] = {HVD_COPY_KERNELS(HVD_COPY_NAME)};
#undef HVD_COPY_NAME

/// A kernel on a CPU: the work of one of `threads` threads, which do that of copy_threads.
using host_copy_kernel = void (*)(const copy_parameters&, unsigned block, unsigned thread, unsigned threads);
template <class Body>
void copy_on_host(const copy_parameters& p, unsigned block, unsigned thread, unsigned threads) {
  for (unsigned t = thread; t < copy_threads; t += threads) copy_block<Body>(p, block, t);
}
/// In the order of copy_kernels. (A template, so that it is compiled only in files that use it.)
template <class = void>
host_copy_kernel find_host_copy_kernel(std::size_t place) {
#define HVD_COPY_FUNCTION(name, ...) &copy_on_host<__VA_ARGS__>,
  static constexpr host_copy_kernel all[] = {HVD_COPY_KERNELS(HVD_COPY_FUNCTION)};
#undef HVD_COPY_FUNCTION
  return all[place];
}

}  // namespace hvd::inline HVD_ABI::detail

#if defined(HVD_CUDA_COPY_CU)
#define HVD_COPY_KERNEL(name, ...)                                                                                     \
  extern "C" __global__ void __launch_bounds__(hvd::detail::copy_threads)                                              \
      hvd_copy_##name(const __grid_constant__ hvd::detail::copy_parameters p) {                                        \
    using namespace hvd;                                                                                               \
    using namespace hvd::detail;                                                                                       \
    copy_block<__VA_ARGS__>(p, blockIdx.x, threadIdx.x);                                                               \
  }
HVD_COPY_KERNELS(HVD_COPY_KERNEL)
#undef HVD_COPY_KERNEL
#endif

#undef HVD_COPY_KERNELS
#undef HVD_INSTRUCTION
#undef HVD_ROLLED
#undef HVD_UNROLLED
#undef HVD_HOST_DEVICE
