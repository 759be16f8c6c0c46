// hvd/op.hpp: reduction operations, and the erased form in which algorithms run them.
#pragma once

#include <hvd/detail/kernel.hpp>
#include <hvd/dtype.hpp>

#include <bit>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace hvd::inline HVD_ABI {

/// Elementwise sum. Integers wrap modulo 2^bits, as in MPI. Not defined for bool (use `max`).
struct sum_t {
  friend constexpr bool operator==(sum_t, sum_t) = default;
};
/// The sum (as above), divided by the number of ranks; for integers the sum wraps first, and the quotient is truncated
/// toward zero.
struct average_t {
  friend constexpr bool operator==(average_t, average_t) = default;
};
/// Elementwise minimum; a NaN on any rank gives NaN. For bool: logical and. Not defined for complex.
struct min_t {
  friend constexpr bool operator==(min_t, min_t) = default;
};
/// Elementwise maximum; a NaN on any rank gives NaN. For bool: logical or. Not defined for complex.
struct max_t {
  friend constexpr bool operator==(max_t, max_t) = default;
};
/// Elementwise product. Integers wrap. Not defined for bool (use `min`).
struct product_t {
  friend constexpr bool operator==(product_t, product_t) = default;
};

inline constexpr sum_t sum{};          ///< see sum_t; the default of every reduction
inline constexpr average_t average{};  ///< see average_t
inline constexpr min_t min{};          ///< see min_t
inline constexpr max_t max{};          ///< see max_t
inline constexpr product_t product{};  ///< see product_t

/// A user's function object whose result depends on the order of its operands: ranks are combined in rank
/// order, f(f(x0, x1), x2) up to association.
template <class F>
struct non_commutative_op {
  [[no_unique_address]] F op;
};
/// Declares `f` non-commutative. (A function object may also say `static constexpr bool commutative = false`.)
template <class F>
constexpr non_commutative_op<F> non_commutative(F f) {
  return {f};
}

/// `op` with every input multiplied by `prescale` and the result by `postscale`. Floating-point types are
/// scaled in the type they are accumulated in (float for 16-bit floats); integers in double, truncated toward
/// zero and clamped to their range. Not for bool or user-defined element types.
template <class Op>
struct scaled_op {
  [[no_unique_address]] Op op;
  double prescale = 1.0;
  double postscale = 1.0;
};
/// Makes one: `hvd::scaled(hvd::sum, 1.0 / 128)`.
template <class Op>
constexpr scaled_op<Op> scaled(Op op, double prescale, double postscale = 1.0) {
  return {op, prescale, postscale};
}

/// An operation on elements of one type with the types erased: what algorithms see. Made by `make_reduction`
/// at the front door, so that an algorithm is compiled once per transport and not once per element type.
/// All counts are elements of the user's type.
class reduction {
 public:
  dtype type = dtype::user;
  bool commutative = true;
  std::uint32_t op = 0;           ///< equal on ranks that mean the same operation
  std::size_t element_bytes = 1;  ///< of the user's type
  std::size_t lanes = 1;          ///< kernel elements in one of the user's (2 for a complex sum)
  detail::scaling scale{};
  detail::kernel fold = nullptr;

  /// All of it at once: outs[j][i] = finish(fold of prepare(ins[k][i]) in order of k).
  void complete(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count) const {
    fold(outs, nouts, ins, nins, count * lanes, scales() ? &scale : nullptr);
  }
  /// The three parts, for algorithms that combine in several steps: prepare each rank's own input once,
  /// combine pairs (`out` may be `a` or `b`), finish the result once.
  void prepare(std::byte* out, const std::byte* in, std::size_t count) const {
    const detail::scaling part{scale.pre, 1.0, 1};
    if (prepares()) return fold(&out, 1, &in, 1, count * lanes, &part);
    if (out != in) detail::copy_bytes(out, in, count * element_bytes);
  }
  void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) const {
    const std::byte* const ins[] = {a, b};
    fold(&out, 1, ins, 2, count * lanes, nullptr);
  }
  void finish(std::byte* inout, std::size_t count) const {
    const detail::scaling part{1.0, scale.post, scale.divisor};
    const std::byte* const in = inout;
    if (scale.postscales()) fold(&inout, 1, &in, 1, count * lanes, &part);
  }

  [[nodiscard]] bool prepares() const noexcept { return scale.prescales(); }
  [[nodiscard]] bool scales() const noexcept { return scale.prescales() || scale.postscales(); }
};

namespace detail {

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

template <class T>
consteval auto find_builtin() {
  if constexpr (std::is_arithmetic_v<T> || is_complex<T> || is_half<T> || dtype_of<T> == dtype::user) {
    return std::type_identity<T>{};
  } else {
    using found = std::tuple_element_t<static_cast<std::size_t>(dtype_of<T>), dtypes>;
    static_assert(sizeof(found) == sizeof(T), "hvd: dtype_of names a type of another size");
    return std::type_identity<found>{};
  }
}
/// The type whose built-in operations T has: T itself, or what a specialisation of `dtype_of` says that it is.
template <class T>
using builtin_of = typename decltype(find_builtin<T>())::type;

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

/// The kernel for everything that has no vector form: user-defined operations, products of complex numbers,
/// scaled integers. Works on tiles that stay in the first-level cache; its inner loops are the compiler's to
/// vectorise.
template <class T, class F>
void reduce_tiled(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                  const scaling* s) {
  constexpr std::size_t tile = sizeof(T) < 2048 ? 2048 / sizeof(T) : 1;
  alignas(T) alignas(cache_line) std::byte storage[tile * sizeof(T)];
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
      const T* const b = reinterpret_cast<const T*>(ins[k] + offset);
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

// The scalar twin of a vector operation. Arithmetic is unsigned and wide, so that it wraps without overflow.
template <class Combine>
struct scalar {
  template <class T>
  T operator()(T a, T b) const {
    if constexpr (std::is_same_v<Combine, add> || std::is_same_v<Combine, multiply>) {
      std::uint64_t wide = static_cast<std::uint64_t>(a);
      Combine::apply(wide, static_cast<std::uint64_t>(b));
      return static_cast<T>(wide);
    } else {
      Combine::apply(a, b);
      return a;
    }
  }
};

template <class T, class Combine>
void reduce_integer(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                    const scaling* s) {
  if (s != nullptr) return reduce_tiled<T, scalar<Combine>>(outs, nouts, ins, nins, count, s);
  constexpr bool wraps = std::is_same_v<Combine, add> || std::is_same_v<Combine, multiply>;
  using byte_or_t = std::conditional_t<std::is_same_v<T, bool>, std::uint8_t, T>;
  using lane = typename std::conditional_t<wraps, std::make_unsigned<byte_or_t>, std::type_identity<byte_or_t>>::type;
  vectorised<plain<lane>, Combine>()(outs, nouts, ins, nins, count, nullptr);
}

template <class T, class Combine>
kernel builtin_kernel() {
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
      struct times {
        T operator()(T a, T b) const { return a * b; }
      };
      return &reduce_tiled<T, times>;
    }
  } else if constexpr (std::is_same_v<T, long double>) {
    struct fold {
      T operator()(T a, T b) const {
        Combine::apply(a, b);
        return a;
      }
    };
    return &reduce_tiled<T, fold>;
  } else {
    return vectorised<plain<T>, Combine>();
  }
}

/// A number that ranks running the same program agree on and that differs between types.
template <class T>
constexpr std::uint32_t type_hash() {
  std::uint32_t h = 2166136261U;  // FNV-1a
  for (const char c : std::string_view(__PRETTY_FUNCTION__)) {
    h = (h ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return h | 0x80000000U;  // apart from the built-in operations
}

template <class Op>
inline constexpr std::uint32_t op_id = type_hash<Op>();
template <>
inline constexpr std::uint32_t op_id<sum_t> = 1;
template <>
inline constexpr std::uint32_t op_id<average_t> = 2;
template <>
inline constexpr std::uint32_t op_id<min_t> = 3;
template <>
inline constexpr std::uint32_t op_id<max_t> = 4;
template <>
inline constexpr std::uint32_t op_id<product_t> = 5;

/// The operation's name for messages; user-defined ones have none that would mean anything to a reader.
inline std::string_view op_name(std::uint32_t id) {
  constexpr std::string_view names[] = {"none", "sum", "average", "min", "max", "product"};
  return id < 6 ? names[id] : "user-defined";
}

template <class Op>
inline constexpr bool is_builtin = op_id<Op> < 6;
template <class Op>
inline constexpr bool is_builtin<scaled_op<Op>> = is_builtin<Op>;

template <class Op>
constexpr bool is_commutative() {
  if constexpr (requires { bool{Op::commutative}; }) {
    return Op::commutative;
  } else {
    return true;
  }
}

}  // namespace detail

/// The erased form of `op` on elements of type T in a group of `size` ranks. A compile-time error with a
/// sentence if `op` is not defined for T.
template <class T, class Op>
reduction make_reduction(const Op& /*an empty object: its type says it all*/, int size) {
  using N = detail::builtin_of<T>;
  reduction r;
  r.type = dtype_of<T>;
  r.element_bytes = sizeof(T);
  r.op = detail::op_id<Op>;
  if constexpr (std::is_same_v<Op, sum_t> || std::is_same_v<Op, average_t>) {
    static_assert(detail::is_number<N>,
                  "hvd: sum and average are defined for numbers (integers, half, bfloat16, float, double, "
                  "complex); for bool use hvd::max (or) or hvd::min (and), for your own type pass a function "
                  "object T operator()(T, T)");
    r.fold = detail::builtin_kernel<N, detail::add>();
    if constexpr (detail::is_complex<N>) r.lanes = 2;
    if constexpr (std::is_same_v<Op, average_t>) r.scale.divisor = static_cast<std::uint32_t>(size);
  } else if constexpr (std::is_same_v<Op, min_t> || std::is_same_v<Op, max_t>) {
    static_assert(detail::is_ordered<N>,
                  "hvd: min and max are defined for ordered types (integers, half, bfloat16, float, double, "
                  "bool); complex numbers have no order");
    r.fold = std::is_same_v<Op, min_t> ? detail::builtin_kernel<N, detail::minimum>()
                                       : detail::builtin_kernel<N, detail::maximum>();
  } else if constexpr (std::is_same_v<Op, product_t>) {
    static_assert(detail::is_number<N>,
                  "hvd: product is defined for numbers (integers, half, bfloat16, float, double, complex); "
                  "for bool use hvd::min (and), for your own type pass a function object T operator()(T, T)");
    r.fold = detail::builtin_kernel<N, detail::multiply>();
  } else {
    static_assert(!std::is_arithmetic_v<Op>,
                  "hvd: a number stands where the reduction is expected: the root and the algorithm come after the "
                  "reduction, and counts of elements only after pointers");
    static_assert(std::is_empty_v<Op> && std::is_default_constructible_v<Op>,
                  "hvd: a reduction's function object must be stateless (no captures, no members): every rank "
                  "must run the same function");
    static_assert(std::is_invocable_r_v<T, const Op&, const T&, const T&>,
                  "hvd: a reduction's function object must be callable as T operator()(T, T) const for the "
                  "buffers' element type");
    r.fold = &detail::reduce_tiled<T, Op>;
    r.commutative = detail::is_commutative<Op>();
  }
  // Division by a power of two is exact as a multiplication, which is several times faster.
  if (!std::is_integral_v<N> && std::has_single_bit(r.scale.divisor)) {
    r.scale.post /= static_cast<double>(r.scale.divisor);
    r.scale.divisor = 1;
  }
  return r;
}

template <class T, class F>
reduction make_reduction(const non_commutative_op<F>& op, int size) {
  reduction r = make_reduction<T>(op.op, size);
  r.commutative = false;
  return r;
}

template <class T, class Op>
reduction make_reduction(const scaled_op<Op>& op, int size) {
  static_assert(detail::is_number<T> || (detail::is_builtin<Op> && detail::is_number<detail::builtin_of<T>>),
                "hvd: prescale and postscale need numbers: not bool, not your own type");
  reduction r = make_reduction<T>(op.op, size);
  r.scale.pre *= op.prescale;
  r.scale.post *= op.postscale;
  return r;
}

}  // namespace hvd::inline HVD_ABI
