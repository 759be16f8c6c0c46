// hvd/dynamic_op.hpp: reductions whose operation and element type are known at run time only.
#pragma once

#include <hvd/error.hpp>
#include <hvd/op.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <tuple>
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

/// As in messages: "average". "unknown" for a value that is none, as a peer or another language may send one.
constexpr std::string_view name(reduce_op op) noexcept {
  constexpr std::string_view names[] = {"average", "sum", "adasum", "min", "max", "product"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(names) ? names[index] : "unknown";
}

namespace detail {

using reduction_maker = reduction (*)(int size);

/// Null where the operation is not defined for the type, which make_reduction<T> would not compile.
template <class Op, class T>
constexpr reduction_maker maker_of() noexcept {
  constexpr bool ordered = std::is_same_v<Op, min_t> || std::is_same_v<Op, max_t>;
  if constexpr (ordered ? is_ordered<T> : is_number<T>) {
    return [](int size) { return make_reduction<T>(Op{}, size); };
  } else {
    return nullptr;
  }
}

/// By dtype.
template <class Op, std::size_t... I>
constexpr auto makers_of(std::index_sequence<I...>) noexcept {
  return std::array{maker_of<Op, std::tuple_element_t<I, dtypes>>()...};
}
template <class Op>
inline constexpr auto makers = makers_of<Op>(std::make_index_sequence<std::tuple_size_v<dtypes>>());

inline reduction_maker find_maker(dtype type, reduce_op op) noexcept {
  const auto index = static_cast<std::size_t>(type);
  if (index >= std::tuple_size_v<dtypes>) return nullptr;
  switch (op) {
    case reduce_op::average: return makers<average_t>[index];
    case reduce_op::sum: return makers<sum_t>[index];
    case reduce_op::min: return makers<min_t>[index];
    case reduce_op::max: return makers<max_t>[index];
    case reduce_op::product: return makers<product_t>[index];
    case reduce_op::adasum: break;
  }
  return nullptr;
}

[[noreturn, gnu::cold]] inline void refuse_reduction(dtype type, reduce_op op) {
  std::string_view why = "the type is none of hvd's";
  if (name(op) == "unknown") {
    fail(error_kind::invalid_argument, {"reduction ", static_cast<int>(op),
                                        " is unknown; allowed: 0 (average), 1 (sum), 2 (adasum), 3 (min), 4 (max) "
                                        "and 5 (product)"});
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

/// The run-time twin of make_reduction<T>(op, size): `op` on elements of `type` in a group of `size` ranks, where every
/// input is multiplied by `prescale` before and the result by `postscale` after (see scaled_op). Equal to the reduction
/// that the typed call makes, so that ranks may mix the two.
///
/// Errors: invalid_argument, in a sentence, for what is not defined: sum, average and product of bool, min and max of
/// complex numbers, adasum (an algorithm), user types, a scale on bool, numbers that are no type or operation.
/// Cost: two loads and a call.
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

}  // namespace hvd::inline HVD_ABI
