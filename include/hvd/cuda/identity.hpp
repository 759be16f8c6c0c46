// hvd/cuda/identity.hpp: the unique id of a GPU, and the GPU that a thread uses.
#pragma once

#include <hvd/cuda/driver.hpp>

#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI::detail {

/// "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", as nvidia-smi writes it; "MIG-..." for a MIG instance.
inline std::string device_uuid(const cu_uuid& uuid, bool mig) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text = mig ? "MIG-" : "GPU-";
  for (std::size_t i = 0; i != uuid.bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[uuid.bytes[i] >> 4];
    text += digits[uuid.bytes[i] & 15];
  }
  return text;
}

/// The number of the device whose context is current in this thread; -1 if none is.
inline int current_ordinal(const cuda_driver& cuda) {
  cu_context context = nullptr;
  cu_device current = -1, each = -1;
  int count = 0;
  if (cuda.context_current(&context) != cu_success || context == nullptr) return -1;
  if (cuda.context_device(&current) != cu_success || cuda.device_count(&count) != cu_success) return -1;
  for (int i = 0; i < count; ++i) {
    if (cuda.device_get(&each, i) == cu_success && each == current) return i;
  }
  return -1;
}

}  // namespace hvd::inline HVD_ABI::detail
