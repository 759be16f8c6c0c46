// bench/peers/gloo_types.hpp: from types and operations as values to Gloo's.
#pragma once

#include <bench/job.hpp>

#include <gloo/algorithm.h>
#include <gloo/math.h>
#include <gloo/types.h>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace hvd::bench {

template <class T>
inline constexpr bool has_order = true;
template <class T>
inline constexpr bool has_order<std::complex<T>> = false;

/// f(function) for Gloo's function on arrays of the type; an average is a sum here.
template <class F>
void with_gloo_type(dtype type, redop op, F f) {
  const auto as = [&]<class T>() {
    using function = gloo::ReductionFunction<T>;
    if (op == redop::sum || op == redop::avg) {
      static const function sum(gloo::SUM, [](T* a, const T* b, std::size_t n) { gloo::sum<T>(a, b, n); });
      return f(&sum);
    }
    if (op == redop::prod) {
      static const function product(gloo::PRODUCT, [](T* a, const T* b, std::size_t n) { gloo::product<T>(a, b, n); });
      return f(&product);
    }
    if constexpr (has_order<T>) {
      if (op == redop::min) {
        static const function min(gloo::MIN, [](T* a, const T* b, std::size_t n) { gloo::min<T>(a, a, b, n); });
        return f(&min);
      }
      static const function max(gloo::MAX, [](T* a, const T* b, std::size_t n) { gloo::max<T>(a, a, b, n); });
      return f(&max);
    }
    throw std::runtime_error("complex numbers have no order");
  };
  switch (type) {
    case dtype::int8: return as.template operator()<std::int8_t>();
    case dtype::uint8: return as.template operator()<std::uint8_t>();
    case dtype::int16: return as.template operator()<std::int16_t>();
    case dtype::uint16: return as.template operator()<std::uint16_t>();
    case dtype::int32: return as.template operator()<std::int32_t>();
    case dtype::uint32: return as.template operator()<std::uint32_t>();
    case dtype::int64: return as.template operator()<std::int64_t>();
    case dtype::uint64: return as.template operator()<std::uint64_t>();
    case dtype::float16: return as.template operator()<gloo::float16>();
    case dtype::float32: return as.template operator()<float>();
    case dtype::float64: return as.template operator()<double>();
    case dtype::boolean: return as.template operator()<std::uint8_t>();  // it has only min and max
    case dtype::complex64: return as.template operator()<std::complex<float>>();
    case dtype::complex128: return as.template operator()<std::complex<double>>();
    default: throw std::runtime_error("Gloo has no such type");
  }
}

/// The same for the newer interface, which takes functions on bytes.
inline std::function<void(void*, const void*, const void*, std::size_t)> gloo_function(dtype type, redop op) {
  std::function<void(void*, const void*, const void*, std::size_t)> found;
  with_gloo_type(type, op, [&]<class T>(const gloo::ReductionFunction<T>*) {
    using three = void (*)(void*, const void*, const void*, std::size_t);
    if (op == redop::prod) {
      found = static_cast<three>(&gloo::product<T>);
    } else if (op == redop::sum || op == redop::avg) {
      found = static_cast<three>(&gloo::sum<T>);
    } else if constexpr (has_order<T>) {
      found = op == redop::min ? static_cast<three>(&gloo::min<T>) : static_cast<three>(&gloo::max<T>);
    }
  });
  return found;
}

}  // namespace hvd::bench
