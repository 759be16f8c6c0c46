// bench/types.hpp: from types and operations as values to C++ types.
#pragma once

#include <bench/job.hpp>

#include <hvd/op.hpp>

#include <complex>
#include <cstdint>
#include <type_traits>

namespace hvd::bench {

namespace by_type {

template <class Op, class F>
bool with_type(dtype type, Op op, F f) {
  constexpr bool ordered = std::is_same_v<Op, min_t> || std::is_same_v<Op, max_t>;
  switch (type) {
    case dtype::int8: return f(std::int8_t{}, op), true;
    case dtype::uint8: return f(std::uint8_t{}, op), true;
    case dtype::int16: return f(std::int16_t{}, op), true;
    case dtype::uint16: return f(std::uint16_t{}, op), true;
    case dtype::int32: return f(std::int32_t{}, op), true;
    case dtype::uint32: return f(std::uint32_t{}, op), true;
    case dtype::int64: return f(std::int64_t{}, op), true;
    case dtype::uint64: return f(std::uint64_t{}, op), true;
    case dtype::float16: return f(half{}, op), true;
    case dtype::bfloat16: return f(bfloat16{}, op), true;
    case dtype::float32: return f(float{}, op), true;
    case dtype::float64: return f(double{}, op), true;
    case dtype::boolean:
      if constexpr (ordered) return f(bool{}, op), true;
      return false;
    case dtype::complex64:
      if constexpr (!ordered) return f(std::complex<float>{}, op), true;
      return false;
    case dtype::complex128:
      if constexpr (!ordered) return f(std::complex<double>{}, op), true;
      return false;
    case dtype::user: break;
  }
  return false;
}
}  // namespace by_type

/// f(T{}, Op{}) for the type and operation; false where hvd does not define the operation.
template <class F>
bool with(dtype type, redop op, F f) {
  switch (op) {
    case redop::sum: return by_type::with_type(type, sum, f);
    case redop::prod: return by_type::with_type(type, product, f);
    case redop::min: return by_type::with_type(type, min, f);
    case redop::max: return by_type::with_type(type, max, f);
    case redop::avg: return by_type::with_type(type, average, f);
  }
  return false;
}

}  // namespace hvd::bench
