// hvd/dynamic_op.hpp: reductions whose operation and element type are known at run time only.
#pragma once

#include <hvd/error.hpp>
#include <hvd/op.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace hvd::inline HVD_ABI {

#pragma GCC diagnostic push  // g++ 12 takes the enumerators for names of the namespace
#pragma GCC diagnostic ignored "-Wshadow"
/// The operations by number, as Horovod numbers them. The numbers travel between ranks and languages: append, never
/// reorder.
enum class reduce_op : std::uint8_t {
  average,  ///< see average_t
  sum,      ///< see sum_t
  adasum,   ///< see hvd/algorithm/adasum.hpp: an algorithm of its own, no elementwise operation
  min,      ///< see min_t
  max,      ///< see max_t
  product,  ///< see product_t
};
#pragma GCC diagnostic pop

namespace detail {

struct adasum_entry {
  static constexpr std::string_view name = "adasum";
};
/// The operation of each number of reduce_op.
using reduce_ops = std::tuple<average_t, sum_t, adasum_entry, min_t, max_t, product_t>;
static_assert(std::tuple_size_v<reduce_ops> == static_cast<std::size_t>(reduce_op::product) + 1);

inline constexpr auto reduce_op_names =
    std::apply([](auto... ops) { return std::array{std::string_view(decltype(ops)::name)...}; }, reduce_ops());

}  // namespace detail

/// The name in messages, such as "average"; "unknown" for an invalid value, which a peer or another language may send.
constexpr std::string_view name(reduce_op op) noexcept {
  const auto index = static_cast<std::size_t>(op);
  return index < detail::reduce_op_names.size() ? detail::reduce_op_names[index] : "unknown";
}

namespace detail {

/// The number of a built-in operation.
template <class Op>
constexpr reduce_op number_of() noexcept {
  static_assert(
      is_builtin<Op>,
      "hvd: this reduction must be built in (sum, average, min, max, product), because ranks compare its name; "
      "your own function object works in the collectives on one buffer");
  return static_cast<reduce_op>(place_in<Op, reduce_ops>());
}

using reduction_maker = reduction (*)(int size);

/// Null if the operation is not defined for the type: make_reduction<T> would not compile.
template <class Op, class T>
constexpr reduction_maker maker_of() noexcept {
  if constexpr (!is_builtin<Op>) {
    return nullptr;
  } else if constexpr (Op::of_ordered ? is_ordered<T> : is_number<T>) {
    return [](int size) { return make_reduction<T>(Op{}, size); };
  } else {
    return nullptr;
  }
}

/// By dtype.
template <class Op, std::size_t... Place>
constexpr auto makers_of(std::index_sequence<Place...>) noexcept {
  return std::array{maker_of<Op, std::tuple_element_t<Place, dtypes>>()...};
}
/// By operation and dtype.
inline constexpr auto makers = std::apply(
    [](auto... ops) {
      return std::array{makers_of<decltype(ops)>(std::make_index_sequence<std::tuple_size_v<dtypes>>())...};
    },
    reduce_ops());

inline reduction_maker find_maker(dtype type, reduce_op op) noexcept {
  const auto row = static_cast<std::size_t>(op), column = static_cast<std::size_t>(type);
  return row < makers.size() && column < makers[row].size() ? makers[row][column] : nullptr;
}

[[noreturn, gnu::cold]] inline void refuse_reduction(dtype type, reduce_op op) {
  std::string_view why = "the type is not one of hvd's";
  if (name(op) == "unknown") {
    std::string allowed;
    for (std::size_t i = 0; i != reduce_op_names.size(); ++i) {
      allowed += joined({i == 0                            ? ""
                         : i + 1 == reduce_op_names.size() ? " and "
                                                           : ", ",
                         i, " (", reduce_op_names[i], ")"});
    }
    fail(error_kind::invalid_argument, {"reduction ", static_cast<int>(op), " is unknown; allowed: ", allowed});
  }
  if (op == reduce_op::adasum) {
    why = "adasum is an algorithm (hvd::adasum); elementwise are average, sum, min, max and product";
  } else if (type == dtype::user) {
    why = "hvd does not know how to combine a type of your own; pass a built-in type";
  } else if (type == dtype::boolean) {
    why = "use max (the logical or) or min (the logical and)";
  } else if (size_of(type) != 0) {
    why = "complex numbers have no order";
  }
  fail(error_kind::invalid_argument, {name(op), " of ", name(type), " is not defined: ", why});
}

}  // namespace detail

/// A built-in operation with its factors, as a value. It converts from the operations of other calls, such as
/// `hvd::average` or `hvd::scaled(hvd::sum, 0.5)`, and from a reduce_op.
struct dynamic_op {
  reduce_op op = reduce_op::sum;
  double prescale = 1.0;   ///< factor of every input
  double postscale = 1.0;  ///< factor of the result

  constexpr dynamic_op() = default;
  constexpr dynamic_op(reduce_op by_number, double before = 1.0, double after = 1.0) noexcept
      : op(by_number), prescale(before), postscale(after) {}
  template <class Op>
    requires(!std::is_convertible_v<Op, reduce_op>)
  constexpr dynamic_op(const Op& /*an empty object: its type says it all*/) noexcept : op(detail::number_of<Op>()) {}
  template <class Op>
  constexpr dynamic_op(const scaled_op<Op>& scaled) noexcept : dynamic_op(scaled.op) {
    prescale *= scaled.prescale;
    postscale *= scaled.postscale;
  }
};

/// The run-time twin of make_reduction<T>(op, size): `op` on elements of `type` in a group of `size` ranks, with every
/// input multiplied by `prescale` and the result by `postscale` (see scaled_op). It equals the reduction of the typed
/// call, so ranks may mix the two.
///
/// Errors: invalid_argument for undefined combinations: sum, average and product of bool, min and max of complex
/// numbers, adasum (an algorithm), user types, a scale on bool, and invalid numbers of types or operations. Cost: two
/// loads and a call.
inline reduction make_reduction(dtype type, reduce_op op, int size, double prescale = 1.0, double postscale = 1.0) {
  const detail::reduction_maker make = detail::find_maker(type, op);
  if (make == nullptr) detail::refuse_reduction(type, op);
  reduction r = make(size);
  if (prescale == 1.0 && postscale == 1.0) return r;
  if (type == dtype::boolean) {
    detail::fail(error_kind::invalid_argument, {name(op), " of bool cannot be scaled (prescale ", prescale,
                                                ", postscale ", postscale, "); both must be 1"});
  }
  r.scale.pre *= prescale;
  r.scale.post *= postscale;
  return r;
}
inline reduction make_reduction(dtype type, const dynamic_op& op, int size) {
  return make_reduction(type, op.op, size, op.prescale, op.postscale);
}

}  // namespace hvd::inline HVD_ABI
