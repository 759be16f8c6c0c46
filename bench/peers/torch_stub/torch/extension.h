// bench/peers/torch_stub/torch/extension.h: all that DeepSpeed's shm.cpp asks of PyTorch, so that its allreduce can be
// built, and measured, without it: a tensor's address and type, and numbers of 16 bits for what vectors leave over.
#pragma once

#include <hvd/dtype.hpp>

#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <unistd.h>

namespace at {
template <class Stored>
struct number {
  Stored stored;
  operator float() const { return static_cast<float>(stored); }
  number& operator=(float value) {
    stored = Stored(value);
    return *this;
  }
};
using BFloat16 = number<hvd::bfloat16>;
using Half = number<hvd::half>;
}  // namespace at
namespace c10 {
enum class ScalarType { Float, Half, BFloat16 };
}
namespace torch {
struct Tensor {
  void* data;
  c10::ScalarType type;
  [[nodiscard]] void* data_ptr() const { return data; }
  [[nodiscard]] c10::ScalarType scalar_type() const { return type; }
};
}  // namespace torch
