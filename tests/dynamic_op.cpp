// tests/dynamic_op.cpp: reductions by number are those by type, and what is not defined is refused in a sentence.
#include <hvd/dynamic_op.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>

namespace {

using hvd::dtype;
using hvd::reduce_op;

doctest::String complaint(dtype type, reduce_op op, double prescale = 1.0, double postscale = 1.0) {
  try {
    static_cast<void>(hvd::make_reduction(type, op, 4, prescale, postscale));
  } catch (const hvd::error& e) {
    return (std::string(name(e.kind())) + ": " + e.what()).c_str();
  }
  return "accepted";
}

bool same(const hvd::reduction& a, const hvd::reduction& b) {
  return a.type == b.type && a.commutative == b.commutative && a.op == b.op && a.element_bytes == b.element_bytes &&
         a.components == b.components && a.scale == b.scale && a.fold == b.fold;
}

template <class T, class Op>
void compare(reduce_op op, Op typed) {
  const dtype type = hvd::dtype_of<T>;
  CAPTURE(std::string(name(type)));
  CAPTURE(std::string(name(op)));
  for (const int size : {1, 3, 4}) {
    CHECK(same(hvd::make_reduction(type, op, size), hvd::make_reduction<T>(typed, size)));
    if constexpr (hvd::detail::is_number<T>) {
      CHECK(same(hvd::make_reduction(type, op, size, 2.0, 0.75),
                 hvd::make_reduction<T>(hvd::scaled(typed, 2.0, 0.75), size)));
    }
  }
}

template <class F>
void for_each_type(const F& f) {
  std::apply([&](auto... value) { (f(value), ...); }, hvd::detail::dtypes());
}

}  // namespace

TEST_CASE("the numbers are Horovod's, and have names") {
  CHECK(static_cast<int>(reduce_op::average) == 0);
  CHECK(static_cast<int>(reduce_op::sum) == 1);
  CHECK(static_cast<int>(reduce_op::adasum) == 2);
  CHECK(static_cast<int>(reduce_op::min) == 3);
  CHECK(static_cast<int>(reduce_op::max) == 4);
  CHECK(static_cast<int>(reduce_op::product) == 5);
  const char* const names[] = {"average", "sum", "adasum", "min", "max", "product", "unknown"};
  for (int i = 0; i != 7; ++i) CHECK(name(static_cast<reduce_op>(i)) == names[i]);
}

TEST_CASE("what is defined is the reduction that the typed call makes") {
  int made = 0;
  for_each_type([&]<class T>(T) {
    if constexpr (hvd::detail::is_number<T>) {
      compare<T>(reduce_op::average, hvd::average);
      compare<T>(reduce_op::sum, hvd::sum);
      compare<T>(reduce_op::product, hvd::product);
      made += 3;
    }
    if constexpr (hvd::detail::is_ordered<T>) {
      compare<T>(reduce_op::min, hvd::min);
      compare<T>(reduce_op::max, hvd::max);
      made += 2;
    }
  });
  CHECK(made == 14 * 3 + 13 * 2);
}

TEST_CASE("what is not defined is an error that says what is") {
  for (const auto op : {reduce_op::sum, reduce_op::average, reduce_op::product}) {
    CHECK(complaint(dtype::boolean, op) ==
          ("invalid_argument: hvd: " + std::string(name(op)) +
           " of bool is not defined: use max (the logical or) or min (the logical and)")
              .c_str());
  }
  for (const auto op : {reduce_op::min, reduce_op::max}) {
    for (const auto type : {dtype::complex64, dtype::complex128}) {
      CHECK(complaint(type, op) == ("invalid_argument: hvd: " + std::string(name(op)) + " of " +
                                    std::string(name(type)) + " is not defined: complex numbers have no order")
                                       .c_str());
    }
  }
  CHECK(
      complaint(dtype::float32, reduce_op::adasum) ==
      "invalid_argument: hvd: adasum of float32 is not defined: adasum is an algorithm (hvd::adasum); elementwise are "
      "average, sum, min, max and product");
  CHECK(
      complaint(dtype::user, reduce_op::sum) ==
      "invalid_argument: hvd: sum of user is not defined: hvd does not know how to combine a type of your own; pass a "
      "built-in type");
  CHECK(complaint(static_cast<dtype>(77), reduce_op::sum) ==
        "invalid_argument: hvd: sum of unknown is not defined: the type is not one of hvd's");
  CHECK(
      complaint(dtype::float32, static_cast<reduce_op>(6)) ==
      "invalid_argument: hvd: reduction 6 is unknown; allowed: 0 (average), 1 (sum), 2 (adasum), 3 (min), 4 (max) and "
      "5 (product)");
}

TEST_CASE("bool cannot be scaled") {
  CHECK(complaint(dtype::boolean, reduce_op::min) == "accepted");
  CHECK(complaint(dtype::boolean, reduce_op::min, 0.5) ==
        "invalid_argument: hvd: min of bool cannot be scaled (prescale 0.5, postscale 1); both must be 1");
  CHECK(complaint(dtype::boolean, reduce_op::max, 1.0, 2.0) ==
        "invalid_argument: hvd: max of bool cannot be scaled (prescale 1, postscale 2); both must be 1");
}
