// hvd/op.hpp: reduction operations, and the erased form in which algorithms run them.
#pragma once

#include <hvd/dtype.hpp>
#include <hvd/op/kernels.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace hvd::inline HVD_ABI {

namespace detail {

/// The parts of a built-in operation: the kernel that combines two elements, and the types it is defined for.
template <class Kernel, bool OfOrdered, bool DividesByRanks = false>
struct builtin_op {
  using kernel = Kernel;
  static constexpr bool of_ordered = OfOrdered;  ///< for ordered types; else for numbers
  static constexpr bool divides = DividesByRanks;
  friend constexpr bool operator==(const builtin_op&, const builtin_op&) = default;
};

}  // namespace detail

/// Elementwise sum. Integers wrap modulo 2^bits, as in MPI. Not defined for bool (use `max`).
struct sum_t : detail::builtin_op<detail::add, false> {
  static constexpr std::string_view name = "sum";
};
/// The sum (as above), divided by the number of ranks; for integers the sum wraps first, and the quotient is truncated
/// toward zero.
struct average_t : detail::builtin_op<detail::add, false, true> {
  static constexpr std::string_view name = "average";
};
/// Elementwise minimum; a NaN on any rank gives NaN. For bool: logical and. Not defined for complex.
struct min_t : detail::builtin_op<detail::minimum, true> {
  static constexpr std::string_view name = "min";
};
/// Elementwise maximum; a NaN on any rank gives NaN. For bool: logical or. Not defined for complex.
struct max_t : detail::builtin_op<detail::maximum, true> {
  static constexpr std::string_view name = "max";
};
/// Elementwise product. Integers wrap. Not defined for bool (use `min`).
struct product_t : detail::builtin_op<detail::multiply, false> {
  static constexpr std::string_view name = "product";
};

namespace detail {

/// All built-in operations. Their numbers, from 1, travel between ranks.
using builtin_ops = std::tuple<sum_t, average_t, min_t, max_t, product_t>;

}  // namespace detail

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
/// Declares `f` non-commutative. (A function object may also declare `static constexpr bool commutative = false`.)
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

/// An operation on elements of one type, with the types erased, for algorithms. `make_reduction` makes it when a
/// collective is called, so an algorithm is compiled once per transport and not once per element type. All counts are
/// elements of the user's type.
class reduction {
 public:
  dtype type = dtype::user;
  bool commutative = true;
  std::uint32_t op = 0;           ///< equal on ranks that mean the same operation
  std::size_t element_bytes = 1;  ///< of the user's type
  std::size_t components = 1;     ///< kernel elements in one of the user's (2 for a complex sum)
  detail::scaling scale{};
  detail::kernel fold = nullptr;

  /// All three parts at once: outs[j][i] = finish(fold of prepare(ins[k][i]) in order of k).
  void complete(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count) const {
    fold(outs, nouts, ins, nins, count * components, scales() ? &scale : nullptr);
  }
  /// The three parts, for algorithms that combine in several steps: prepare each rank's own input once,
  /// combine pairs (`out` may be `a` or `b`), finish the result once.
  void prepare(std::byte* out, const std::byte* in, std::size_t count) const {
    const detail::scaling part{scale.pre, 1.0, 1};
    if (prepares()) return fold(&out, 1, &in, 1, count * components, &part);
    if (out != in) detail::copy_bytes(out, in, count * element_bytes);
  }
  void combine(std::byte* out, const std::byte* a, const std::byte* b, std::size_t count) const {
    const std::byte* const ins[] = {a, b};
    fold(&out, 1, ins, 2, count * components, nullptr);
  }
  void finish(std::byte* inout, std::size_t count) const {
    const detail::scaling part{1.0, scale.post, scale.divisor};
    const std::byte* const in = inout;
    if (scale.postscales()) fold(&inout, 1, &in, 1, count * components, &part);
  }

  [[nodiscard]] bool prepares() const noexcept { return scale.prescales(); }
  [[nodiscard]] bool scales() const noexcept { return scale.prescales() || scale.postscales(); }
};

namespace detail {

/// A number for a type: different for different types, the same on all ranks that run the same program.
template <class T>
constexpr std::uint32_t type_hash() {
  std::uint32_t h = 2166136261U;  // FNV-1a
  for (const char c : std::string_view(__PRETTY_FUNCTION__)) {
    h = (h ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return h | 0x80000000U;  // apart from the built-in operations
}

using builtin_places = std::make_index_sequence<std::tuple_size_v<builtin_ops>>;

/// The number of Op in builtin_ops, from 1; 0 if Op is not in it.
template <class Op>
inline constexpr std::uint32_t builtin_place =
    static_cast<std::uint32_t>((place_in<Op, builtin_ops>() + 1) % (std::tuple_size_v<builtin_ops> + 1));
template <class Op>
inline constexpr bool is_builtin = builtin_place<Op> != 0;
template <class Op>
inline constexpr bool is_builtin<scaled_op<Op>> = is_builtin<Op>;

/// True if the result is divided by the number of ranks.
template <class Op>
inline constexpr bool divides_by_ranks = requires { requires Op::divides; };
template <class F>
inline constexpr bool divides_by_ranks<non_commutative_op<F>> = divides_by_ranks<F>;
template <class Op>
inline constexpr bool divides_by_ranks<scaled_op<Op>> = divides_by_ranks<Op>;

/// Equal on ranks that mean the same operation.
template <class Op>
inline constexpr std::uint32_t op_id = builtin_place<Op> != 0 ? builtin_place<Op> : type_hash<Op>();

template <std::size_t... Place>
constexpr auto builtin_names(std::index_sequence<Place...>) noexcept {
  return std::array{std::string_view("none"), std::tuple_element_t<Place, builtin_ops>::name...};
}
/// The operation's name for messages. User-defined operations have no readable name.
inline std::string_view op_name(std::uint32_t id) {
  constexpr auto names = builtin_names(builtin_places());
  return id < names.size() ? names[id] : "user-defined";
}

template <class Op>
constexpr bool is_commutative() {
  if constexpr (requires { bool{Op::commutative}; }) {
    return Op::commutative;
  } else {
    return true;
  }
}

}  // namespace detail

/// The erased form of `op` on elements of type T in a group of `size` ranks. Does not compile if `op` is not defined
/// for T; the message says why.
template <class T, class Op>
reduction make_reduction(const Op& /*an empty object: its type says it all*/, int size) {
  using N = detail::builtin_of<T>;
  reduction r;
  r.type = dtype_of<T>;
  r.element_bytes = sizeof(T);
  r.op = detail::op_id<Op>;
  if constexpr (detail::is_builtin<Op>) {
    if constexpr (Op::of_ordered) {
      static_assert(
          detail::is_ordered<N>,
          "hvd: min and max are defined for ordered types (integers, half, bfloat16, float, double, bool), not "
          "for complex numbers; for another name of one of these types, declare: template <> inline "
          "constexpr hvd::dtype hvd::dtype_of<T> = hvd::dtype::float16;");
    } else {
      static_assert(detail::is_number<N>,
                    "hvd: sum, average and product are defined for numbers (integers, half, bfloat16, float, double, "
                    "complex); for bool use hvd::max (or) or hvd::min (and), for your own type pass a function "
                    "object T operator()(T, T); for another name of one of these types, declare: template <> "
                    "inline constexpr hvd::dtype hvd::dtype_of<T> = hvd::dtype::float16;");
    }
    r.fold = detail::builtin_kernel<N, typename Op::kernel>();
    if constexpr (detail::is_complex<N> && std::is_same_v<typename Op::kernel, detail::add>) r.components = 2;
    if constexpr (Op::divides) r.scale.divisor = static_cast<std::uint32_t>(size);
  } else {
    static_assert(!std::is_arithmetic_v<Op>,
                  "hvd: a number was passed where the reduction is expected: the root and the algorithm come after the "
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
