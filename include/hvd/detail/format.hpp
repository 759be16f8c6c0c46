// hvd/detail/format.hpp: the storage of elements, and the types in which they are accumulated, in vectors of any width.
//
// load and store convert between one vector of accumulators and its elements in memory; load_unit and store_unit
// between `Bytes` bytes of memory and as many vectors as they need, in an order that the format chooses.
#pragma once

#include <hvd/detail/precise.hpp>

#include <cstddef>
#include <cstdint>

HVD_PRECISE_BEGIN

namespace hvd::inline HVD_ABI::detail {

// GCC and Clang vectors of `Bytes` bytes. They are passed by reference only: by value they would make an ABI
// that depends on compiler flags.
template <class T, std::size_t Bytes>
struct vec {
  typedef T type __attribute__((vector_size(Bytes)));
};
template <class T, std::size_t Bytes>
using vec_t = typename vec<T, Bytes>::type;

template <class V>
struct unaligned {
  typedef V type __attribute__((aligned(1), may_alias));
};
// A vector from memory and back, in one access. (Of __builtin_memcpy GCC makes pieces of 16 bytes before it knows that
// the function around it is for AVX2, and puts them together on the stack, which takes four times as long.)
template <class V>
[[gnu::always_inline]] inline void get(const std::byte* from, V& v) noexcept {
  v = *reinterpret_cast<const typename unaligned<V>::type*>(from);
}
template <class V>
[[gnu::always_inline]] inline void put(std::byte* to, const V& v) noexcept {
  *reinterpret_cast<typename unaligned<V>::type*>(to) = v;
}
/// The bits of a vector as one of other elements.
template <class From, class To>
[[gnu::always_inline]] inline void copy_bits(const From& from, To& to) noexcept {
  to = reinterpret_cast<To>(from);
}

template <class T>
struct plain {
  using stored = T;
  using accumulated = T;

  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load(const std::byte* from, vec_t<T, Bytes>& v) noexcept {
    get(from, v);
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void store(std::byte* to, const vec_t<T, Bytes>& v) noexcept {
    put(to, v);
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load_unit(const std::byte* from, vec_t<T, Bytes> (&v)[1]) noexcept {
    load<Bytes>(from, v[0]);
  }
  template <std::size_t Bytes, bool = false>
  [[gnu::always_inline]] static void store_unit(std::byte* to, const vec_t<T, Bytes> (&v)[1]) noexcept {
    store<Bytes>(to, v[0]);
  }
};

struct bfloat16_format {
  using stored = std::uint16_t;
  using accumulated = float;

  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load(const std::byte* from, vec_t<float, Bytes>& v) noexcept {
    vec_t<std::uint16_t, Bytes / 2> narrow;
    get(from, narrow);
    const auto bits = __builtin_convertvector(narrow, vec_t<std::uint32_t, Bytes>) << 16;
    copy_bits(bits, v);
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void store(std::byte* to, const vec_t<float, Bytes>& v) noexcept {
    vec_t<std::uint32_t, Bytes> bits;
    to_upper_half<Bytes>(v, bits);
    const auto narrow = __builtin_convertvector(bits >> 16, vec_t<std::uint16_t, Bytes / 2>);
    put(to, narrow);
  }
  /// Each 32-bit word has two elements: the vectors have the lower and the upper ones, so that no lane is moved.
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load_unit(const std::byte* from, vec_t<float, Bytes> (&v)[2]) noexcept {
    vec_t<std::uint32_t, Bytes> pairs;
    get(from, pairs);
    const auto lower = pairs << 16, upper = pairs & 0xffff0000U;
    copy_bits(lower, v[0]);
    copy_bits(upper, v[1]);
  }
  template <std::size_t Bytes, bool Computed = false>
  [[gnu::always_inline]] static void store_unit(std::byte* to, const vec_t<float, Bytes> (&v)[2]) noexcept {
    vec_t<std::uint32_t, Bytes> lower, upper;
    to_upper_half<Bytes, Computed>(v[0], lower);
    to_upper_half<Bytes, Computed>(v[1], upper);
    const auto pairs = (lower >> 16) | (upper & 0xffff0000U);
    put(to, pairs);
  }

 private:
  /// The upper half of each word is the result: to nearest, ties to even; a NaN becomes quiet. A NaN that is computed
  /// from elements is quiet and has a lower half of 0, so that rounding does not change it.
  template <std::size_t Bytes, bool Computed = false>
  [[gnu::always_inline]] static void to_upper_half(const vec_t<float, Bytes>& v,
                                                   vec_t<std::uint32_t, Bytes>& bits) noexcept {
    using integers = vec_t<std::int32_t, Bytes>;
    copy_bits(v, bits);
    const auto rounded = (bits | ((bits >> 16) & 1U)) + 0x7fffU;
    if constexpr (Computed) {
      bits = rounded;
    } else {
      integers magnitude;
      const auto without_sign = bits & 0x7fffffffU;
      copy_bits(without_sign, magnitude);
      bits = magnitude > 0x7f800000 ? bits | 0x400000U : rounded;
    }
  }
};

// IEEE half: by instructions in vectors that only CPUs with AVX2 or AVX-512 have; in others by integer arithmetic,
// after F. Giesen, "Float to half done quick" (2012), which vectorises on every CPU. Both give the same bits, also of
// subnormals if the caller's thread flushes subnormal floats to zero.
struct half_format {
  using stored = std::uint16_t;
  using accumulated = float;

  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load(const std::byte* from, vec_t<float, Bytes>& v) noexcept {
    if constexpr (by_instruction(Bytes)) {
      load_by_instruction<Bytes>(from, v);
    } else {
      load_by_integers<Bytes>(from, v);
    }
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void store(std::byte* to, const vec_t<float, Bytes>& v) noexcept {
    if constexpr (by_instruction(Bytes)) {
      store_by_instruction<Bytes>(to, v);
    } else {
      store_by_integers<Bytes>(to, v);
    }
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load_unit(const std::byte* from, vec_t<float, Bytes> (&v)[2]) noexcept {
    load<Bytes>(from, v[0]);
    load<Bytes>(from + Bytes / 2, v[1]);
  }
  template <std::size_t Bytes, bool = false>
  [[gnu::always_inline]] static void store_unit(std::byte* to, const vec_t<float, Bytes> (&v)[2]) noexcept {
    store<Bytes>(to, v[0]);
    store<Bytes>(to + Bytes / 2, v[1]);
  }

 private:
#if defined(__x86_64__) && (!defined(__clang__) || defined(__FLT16_MANT_DIG__))
  static constexpr bool by_instruction(std::size_t bytes) { return bytes >= 32; }

  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load_by_instruction(const std::byte* from, vec_t<float, Bytes>& v) noexcept {
#if defined(__clang__)
    vec_t<_Float16, Bytes / 2> halves;
    get(from, halves);
    v = __builtin_convertvector(halves, vec_t<float, Bytes>);
#else  // GCC 12 converts such vectors one element at a time. From memory it is one operation less than from a register.
    using halves = typename unaligned<vec_t<std::uint16_t, Bytes / 2>>::type;
    asm("vcvtph2ps {%1, %0|%0, %1}" : "=v"(v) : "m"(*reinterpret_cast<const halves*>(from)));
#endif
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void store_by_instruction(std::byte* to, const vec_t<float, Bytes>& v) noexcept {
#if defined(__clang__)
    const auto halves = __builtin_convertvector(v, vec_t<_Float16, Bytes / 2>);
#else
    vec_t<std::uint16_t, Bytes / 2> halves;
    asm("vcvtps2ph {$0, %1, %0|%0, %1, 0}" : "=v"(halves) : "v"(v));  // 0: to nearest, ties to even
#endif
    put(to, halves);
  }
#else
  static constexpr bool by_instruction(std::size_t) { return false; }
#endif

  template <std::size_t Bytes>
  [[gnu::always_inline]] static void load_by_integers(const std::byte* from, vec_t<float, Bytes>& v) noexcept {
    using words = vec_t<std::uint32_t, Bytes>;
    vec_t<std::uint16_t, Bytes / 2> narrow;
    get(from, narrow);
    const words h = __builtin_convertvector(narrow, words);
    const words magnitude = (h & 0x7fffU) << 13;
    const words normal = magnitude + (112U << 23);
    const words infinite_or_nan = magnitude + (224U << 23);
    // A subnormal is mantissa x 2^-24: build 2^-14 + mantissa x 2^-24 and subtract 2^-14 exactly.
    const words biased = magnitude + (113U << 23);
    const words base = words{} + (113U << 23);
    vec_t<float, Bytes> with_base, only_base;
    copy_bits(biased, with_base);
    copy_bits(base, only_base);
    with_base -= only_base;
    words subnormal;
    copy_bits(with_base, subnormal);
    words bits = magnitude >= (0x7c00U << 13) ? infinite_or_nan : normal;
    bits = magnitude < (0x0400U << 13) ? subnormal : bits;
    bits |= (h & 0x8000U) << 16;
    copy_bits(bits, v);
  }
  template <std::size_t Bytes>
  [[gnu::always_inline]] static void store_by_integers(std::byte* to, const vec_t<float, Bytes>& v) noexcept {
    using words = vec_t<std::uint32_t, Bytes>;
    words bits;
    copy_bits(v, bits);
    const words sign = (bits >> 16) & 0x8000U;
    const words f = bits & 0x7fffffffU;
    const words normal = (f - (112U << 23) + 0xfffU + ((f >> 13) & 1U)) >> 13;
    // Adding 0.5 lines the mantissa of a subnormal result up with the float's last bits and rounds it.
    const words half_bits = words{} + (126U << 23);
    vec_t<float, Bytes> shifted, half;
    copy_bits(f, shifted);
    copy_bits(half_bits, half);
    shifted += half;
    words subnormal;
    copy_bits(shifted, subnormal);
    subnormal -= half_bits;
    words result = f < (113U << 23) ? subnormal : normal;
    result = f >= (143U << 23) ? words{} + 0x7c00U : result;
    result = f > 0x7f800000U ? 0x7e00U | ((f >> 13) & 0x3ffU) : result;
    result |= sign;
    const auto narrow = __builtin_convertvector(result, vec_t<std::uint16_t, Bytes / 2>);
    put(to, narrow);
  }
};

}  // namespace hvd::inline HVD_ABI::detail

HVD_PRECISE_END
