// tests/gpu/standin/reduce.cpp: NCCL's reductions, one element after another, in the order of the ranks.
#include "gpu/standin/nccl.hpp"

#include <hvd/dtype.hpp>

#include <cstring>
#include <type_traits>

namespace hvd::standin {

namespace {

template <class F>
void with_type(int type, F&& f) {
  switch (type) {
    case nccl_int8: return f(std::int8_t{});
    case nccl_uint8: return f(std::uint8_t{});
    case nccl_int32: return f(std::int32_t{});
    case nccl_uint32: return f(std::uint32_t{});
    case nccl_int64: return f(std::int64_t{});
    case nccl_uint64: return f(std::uint64_t{});
    case nccl_float16: return f(half{});
    case nccl_float32: return f(float{});
    case nccl_float64: return f(double{});
    case nccl_bfloat16: return f(bfloat16{});
    default: return;
  }
}

// In what an element of T is computed: sums of integers wrap, those of 16 bits are rounded after each step.
template <class T>
struct computed {
  using type = float;
};
template <class T>
  requires std::is_floating_point_v<T>
struct computed<T> {
  using type = T;
};
template <class T>
  requires std::is_integral_v<T>
struct computed<T> {
  using type = std::make_unsigned_t<T>;
};

template <class T>
T combined(T a, T b, int op) {
  using C = typename computed<T>::type;
  if (op == nccl_max || op == nccl_min) {
    const bool less = [&] {
      if constexpr (std::is_arithmetic_v<T>) {
        return a < b;
      } else {
        return static_cast<float>(a) < static_cast<float>(b);
      }
    }();
    return less == (op == nccl_max) ? b : a;
  }
  const C x = static_cast<C>(a), y = static_cast<C>(b);
  return static_cast<T>(static_cast<C>(op == nccl_product ? x * y : x + y));
}

template <class T>
void reduce_as(std::span<const std::vector<std::byte>> in, std::byte* out, const reduction& how) {
  using C = typename computed<T>::type;
  const std::size_t count = in[0].size() / sizeof(T), ranks = in.size();
  bool scaled = how.op == reduction::pre_mul;
  T factor{};
  if (scaled) std::memcpy(&factor, how.factor.data(), sizeof factor);
  // As NCCL does it: floats are multiplied before the sum, by a factor of their own type; integers are divided after
  // it.
  if constexpr (!std::is_integral_v<T>) {
    if (how.op == nccl_average_op) {
      scaled = true;
      factor = static_cast<T>(C{1} / static_cast<C>(ranks));
    }
  }
  for (std::size_t i = 0; i != count; ++i) {
    T sum{};
    for (std::size_t rank = 0; rank != ranks; ++rank) {
      T element;
      std::memcpy(&element, in[rank].data() + i * sizeof(T), sizeof(T));
      if (scaled) element = combined(element, factor, nccl_product);
      sum = rank == 0 ? element : combined(sum, element, how.op);
    }
    if constexpr (std::is_integral_v<T>) {
      if (how.op == nccl_average_op)
        sum = static_cast<T>(sum /
                             static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(ranks));
    }
    std::memcpy(out + i * sizeof(T), &sum, sizeof(T));
  }
}

}  // namespace

std::size_t bytes_of(int type) {
  std::size_t bytes = 0;
  with_type(type, [&](auto element) { bytes = sizeof element; });
  return bytes;
}
bool valid_type(int type) { return bytes_of(type) != 0; }

void reduce(std::span<const std::vector<std::byte>> in, std::byte* out, int type, const reduction& how) {
  with_type(type, [&](auto element) { reduce_as<decltype(element)>(in, out, how); });
}

}  // namespace hvd::standin
