// bench/peers/torch_stub/torch/extension.h: all that DeepSpeed's shm.cpp asks of PyTorch, so that its allreduce can be
// built, and measured, without it: a tensor's address and type.
#pragma once

#include <atomic>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
