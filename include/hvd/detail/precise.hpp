// hvd/detail/precise.hpp: code with the same results in programs compiled with -Ofast or -ffast-math.
#pragma once

#include <hvd/version.hpp>

// Between the two the compiler knows NaN, divides instead of multiplying by a reciprocal, and adds in the order that is
// written. (GCC warns that `optimize` is not a feature for everyday use, so it has it only where the options need it.)
#if defined(__clang__)
#define HVD_PRECISE_BEGIN _Pragma("float_control(precise, on, push)")
#define HVD_PRECISE_END _Pragma("float_control(pop)")
#elif defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ || defined(__RECIPROCAL_MATH__) || defined(__ASSOCIATIVE_MATH__)
#define HVD_PRECISE_BEGIN                                                                                              \
  _Pragma("GCC push_options") _Pragma("GCC optimize(\"no-fast-math\", \"no-finite-math-only\")")                       \
      _Pragma("GCC optimize(\"no-reciprocal-math\", \"no-associative-math\")")                                         \
          _Pragma("GCC optimize(\"no-cx-limited-range\")")
#define HVD_PRECISE_END _Pragma("GCC pop_options")
#else
#define HVD_PRECISE_BEGIN
#define HVD_PRECISE_END
#endif
