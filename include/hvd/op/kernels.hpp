// hvd/op/kernels.hpp: the kernel of an operation on one element type: by vectors where possible, else by tiles.
#pragma once

#include <hvd/detail/kernel.hpp>
#include <hvd/detail/precise.hpp>
#include <hvd/dtype.hpp>

#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>

namespace hvd::inline HVD_ABI::detail {

template <class T>
inline constexpr bool is_complex = false;
template <class T>
inline constexpr bool is_complex<std::complex<T>> = true;
template <class T>
inline constexpr bool is_half = std::is_same_v<T, half> || std::is_same_v<T, bfloat16>;
/// Types with sum, product and average built in.
template <class T>
inline constexpr bool is_number = (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || is_complex<T> || is_half<T>;
template <class T>
inline constexpr bool is_ordered = std::is_arithmetic_v<T> || is_half<T>;

using dtypes =
    std::tuple<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t,
               std::uint64_t, half, bfloat16, float, double, bool, std::complex<float>, std::complex<double>>;

/// The index of T among a tuple's types.
template <class T, class... All>
consteval std::size_t find_place_in(std::type_identity<std::tuple<All...>>) {
  std::size_t at = sizeof...(All), i = 0;
  ((at = std::is_same_v<All, T> ? i : at, ++i), ...);
  return at;
}
template <class T, class Tuple>
consteval std::size_t place_in() {
  return find_place_in<T>(std::type_identity<Tuple>());
}

template <class T>
consteval auto find_builtin() {
  // C++23's 16-bit types are arithmetic, too: they are reduced as `half` and `bfloat16` are.
  constexpr bool wide = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, long double>;
  if constexpr (std::is_integral_v<T> || wide || is_complex<T> || is_half<T> || dtype_of<T> == dtype::user) {
    return std::type_identity<T>{};
  } else {
    using found = std::tuple_element_t<static_cast<std::size_t>(dtype_of<T>), dtypes>;
    static_assert(sizeof(found) == sizeof(T), "hvd: dtype_of names a type of another size");
    return std::type_identity<found>{};
  }
}
/// The type whose built-in operations T has: T itself, or the type that a specialisation of `dtype_of` names.
template <class T>
using builtin_of = typename decltype(find_builtin<T>())::type;

HVD_PRECISE_BEGIN

template <class T>
T scale_value(T value, double factor, double divisor = 1.0) {
  if constexpr (std::is_integral_v<T>) {
    const double exact = std::trunc(static_cast<double>(value) * factor / divisor);
    // 2^digits is exact in double where max() may not be.
    const double above = std::ldexp(1.0, std::numeric_limits<T>::digits);
    if (exact >= above) return std::numeric_limits<T>::max();
    if (!(exact >= (std::is_signed_v<T> ? -above : 0.0))) return std::numeric_limits<T>::min();
    return static_cast<T>(exact);
  } else if constexpr (is_half<T>) {
    return T(static_cast<float>(value) * static_cast<float>(factor) / static_cast<float>(divisor));
  } else if constexpr (is_complex<T>) {
    using real = typename T::value_type;
    return value * static_cast<real>(factor) / static_cast<real>(divisor);
  } else {
    return value * static_cast<T>(factor) / static_cast<T>(divisor);
  }
}

template <class T>
T finish_value(T value, const scaling& s) {
  if constexpr (std::is_integral_v<T>) {
    if (s.post == 1.0) {  // exact where double would not be
      if constexpr (std::is_signed_v<T>) {
        return static_cast<T>(static_cast<std::int64_t>(value) / static_cast<std::int64_t>(s.divisor));
      } else {
        return static_cast<T>(static_cast<std::uint64_t>(value) / s.divisor);
      }
    }
  }
  return scale_value(value, s.post, s.divisor);
}

// The scalar twin of a vector operation. Integers are combined unsigned and wide, so that they wrap without overflow.
template <class Combine>
struct scalar {
  template <class T>
  T operator()(T a, T b) const {
    constexpr bool wraps = std::is_same_v<Combine, add> || std::is_same_v<Combine, multiply>;
    if constexpr (std::is_integral_v<T> && wraps) {
      std::uint64_t wide = static_cast<std::uint64_t>(a);
      Combine::apply(wide, static_cast<std::uint64_t>(b));
      return static_cast<T>(wide);
    } else {
      Combine::apply(a, b);
      return a;
    }
  }
};

/// Product of complex numbers. (Not std::complex's own, which is compiled as the program's options say.)
struct times {
  template <class T>
  T operator()(T a, T b) const {
    __extension__ using parts =
        std::conditional_t<std::is_same_v<typename T::value_type, float>, __complex__ float, __complex__ double>;
    parts x, y;
    __real__ x = a.real();
    __imag__ x = a.imag();
    __real__ y = b.real();
    __imag__ y = b.imag();
    x *= y;
    return {__real__ x, __imag__ x};
  }
};

HVD_PRECISE_END

/// The kernel for everything that has no vector form: user-defined operations, products of complex numbers,
/// scaled integers. Works on tiles that stay in the first-level cache; the compiler may vectorise its inner loops.
/// Inputs and outputs may lie at any address: `F` gets aligned elements.
template <class T, class F>
void reduce_tiled(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                  const scaling* s) {
  constexpr std::size_t tile = sizeof(T) < 2048 ? 2048 / sizeof(T) : 1;
  alignas(T) alignas(cache_line) std::byte storage[tile * sizeof(T)];
  alignas(T) std::byte aligned[tile * sizeof(T)];
  T* const a = reinterpret_cast<T*>(storage);
  for (std::size_t done = 0; done < count; done += tile) {
    const std::size_t n = count - done < tile ? count - done : tile;
    const std::size_t offset = done * sizeof(T);
    std::memcpy(storage, ins[0] + offset, n * sizeof(T));
    if constexpr (is_number<T>) {
      if (s != nullptr && s->prescales()) {
        for (std::size_t i = 0; i != n; ++i) a[i] = scale_value(a[i], s->pre);
      }
    }
    for (int k = 1; k < nins; ++k) {
      const std::byte* from = ins[k] + offset;
      // Payloads lie 8 bytes behind a line, and temporary memory at one, whatever the alignment of T.
      if (reinterpret_cast<std::uintptr_t>(from) % alignof(T) != 0) {
        from = static_cast<std::byte*>(std::memcpy(aligned, from, n * sizeof(T)));
      }
      const T* const b = reinterpret_cast<const T*>(from);
      if constexpr (is_number<T>) {
        if (s != nullptr && s->prescales()) {
          for (std::size_t i = 0; i != n; ++i) a[i] = F{}(a[i], scale_value(b[i], s->pre));
          continue;
        }
      }
      for (std::size_t i = 0; i != n; ++i) a[i] = F{}(a[i], b[i]);
    }
    if constexpr (is_number<T>) {
      if (s != nullptr && s->postscales()) {
        for (std::size_t i = 0; i != n; ++i) a[i] = finish_value(a[i], *s);
      }
    }
    for (int j = 0; j != nouts; ++j) std::memcpy(outs[j] + offset, storage, n * sizeof(T));
  }
}

template <class T, class Combine>
void reduce_integer(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                    const scaling* s) {
  if (s != nullptr) return reduce_tiled<T, scalar<Combine>>(outs, nouts, ins, nins, count, s);
  constexpr bool wraps = std::is_same_v<Combine, add> || std::is_same_v<Combine, multiply>;
  using byte_or_t = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
  using element =
      typename std::conditional_t<wraps, std::make_unsigned<byte_or_t>, std::type_identity<byte_or_t>>::type;
  vectorised<plain<element>, Combine>()(outs, nouts, ins, nins, count, nullptr);
}

template <class T, class Combine>
kernel make_kernel() {
  if constexpr (std::is_integral_v<T>) {
    return &reduce_integer<T, Combine>;
  } else if constexpr (std::is_same_v<T, half>) {
    return vectorised<half_format, Combine>();
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return vectorised<bfloat16_format, Combine>();
  } else if constexpr (is_complex<T>) {
    using real = typename T::value_type;
    if constexpr (std::is_same_v<Combine, add>) {
      return vectorised<plain<real>, add>();
    } else {
      return &reduce_tiled<T, times>;
    }
  } else if constexpr (std::is_same_v<T, long double>) {
    return &reduce_tiled<T, scalar<Combine>>;
  } else {
    return vectorised<plain<T>, Combine>();
  }
}

using combines = std::tuple<add, multiply, minimum, maximum>;

#if HVD_COMPILED
/// In hvd/compiled.hpp: make_kernel for a type of `dtypes` and an operation of `combines`, by their places.
kernel compiled_kernel(std::size_t type, std::size_t combine) noexcept;
#endif

template <class T, class Combine>
kernel builtin_kernel() {
#if HVD_COMPILED
  if constexpr (dtype_of<T> != dtype::user) {
    return compiled_kernel(static_cast<std::size_t>(dtype_of<T>), place_in<Combine, combines>());
  } else
#endif
    return make_kernel<T, Combine>();
}

}  // namespace hvd::inline HVD_ABI::detail
