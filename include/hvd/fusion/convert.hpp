// hvd/fusion/convert.hpp: copies in vectors that convert between floating-point types.
#pragma once

#include <hvd/detail/kernel.hpp>
#include <hvd/detail/precise.hpp>

#include <cstddef>

HVD_PRECISE_BEGIN

namespace hvd::inline HVD_ABI::detail {

/// out[i] = finish(prepare(in[i])) as another type, scaled in the wider of the two and rounded to nearest (ties to
/// even). `scale` may be null. No overlap.
using converter = void (*)(std::byte* out, const std::byte* in, std::size_t count, const scaling* scale);

/// float in memory, double in registers.
struct widened_float {
  using stored = float;
  using accumulated = double;

  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load(const std::byte* from, vec_t<double, Bytes>& v) noexcept {
    vec_t<float, Bytes / 2> narrow;
    get(from, narrow);
    v = __builtin_convertvector(narrow, vec_t<double, Bytes>);
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void store(std::byte* to, const vec_t<double, Bytes>& v) noexcept {
    const auto narrow = __builtin_convertvector(v, vec_t<float, Bytes / 2>);
    put(to, narrow);
  }
};

template <class From, class To, std::size_t Bytes>
struct conversion_kernel {
  using scaled = vector_kernel<From, add, Bytes>;
  static_assert(std::is_same_v<typename From::accumulated, typename To::accumulated>);

  [[gnu::always_inline]] static void run(std::byte* out, const std::byte* in, std::size_t count,
                                         const scaling* scale) noexcept {
    constexpr std::size_t width = Bytes / sizeof(typename scaled::acc);
    constexpr std::size_t from = sizeof(typename From::stored), to = sizeof(typename To::stored);
    const factors<typename scaled::acc> s(scale);
    const auto one = [&](std::byte * stored, const std::byte* loaded) __attribute__((always_inline)) {
      typename scaled::V v;
      From::template load<Bytes>(loaded, v);
      scaled::prepare(v, s);
      scaled::finish(v, s);
      To::template store<Bytes>(stored, v);
    };
    std::size_t i = 0;
    for (; i + width <= count; i += width) one(out + i * to, in + i * from);
    if (i == count) return;
    alignas(Bytes) std::byte loaded[width * from] = {};  // the rest, padded with zeros
    alignas(Bytes) std::byte stored[width * to];
    __builtin_memcpy(loaded, in + i * from, (count - i) * from);
    one(stored, loaded);
    __builtin_memcpy(out + i * to, stored, (count - i) * to);
  }
};

template <class From, class To>
void convert_baseline(std::byte* out, const std::byte* in, std::size_t count, const scaling* s) {
  conversion_kernel<From, To, 16>::run(out, in, count, s);
}

#if defined(__x86_64__)
template <class From, class To>
[[gnu::target("avx2,f16c")]] void convert_avx2(std::byte* out, const std::byte* in, std::size_t count,
                                               const scaling* s) {
  conversion_kernel<From, To, 32>::run(out, in, count, s);
}

template <class From, class To>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,f16c")]] void convert_avx512(std::byte* out, const std::byte* in,
                                                                               std::size_t count, const scaling* s) {
  conversion_kernel<From, To, 64>::run(out, in, count, s);
}
#endif

/// The conversion for this CPU.
template <class From, class To>
converter conversion(isa level = cpu_isa()) noexcept {
#if defined(__x86_64__)
  if (level == isa::avx512) return &convert_avx512<From, To>;
  if (level == isa::avx2) return &convert_avx2<From, To>;
#endif
  static_cast<void>(level);
  return &convert_baseline<From, To>;
}

}  // namespace hvd::inline HVD_ABI::detail

HVD_PRECISE_END
