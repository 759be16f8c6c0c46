// tests/gpu/check/counted.cpp: the CUDA driver, with a count of how often hvd waits for the GPU.
//
// hvd loads this library where HVD_CUDA_LIBRARY names it. It is linked with the driver, so that a look-up finds the
// driver's functions behind these; NCCL and PyTorch use the driver itself, and are not counted.
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include <dlfcn.h>

namespace {

std::atomic<std::uint64_t> waits{0};

template <class F>
F* driver(const char* symbol) {
  const char* const path = std::getenv("HVD_COUNTED_CUDA_LIBRARY");
  static void* const library = ::dlopen(path != nullptr ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<F*>(::dlsym(library, symbol));
}

}  // namespace

extern "C" {
std::uint64_t hvd_standin_host_synchronisations() { return waits; }
int cuStreamSynchronize(void* stream) {
  static auto* const f = driver<int(void*)>("cuStreamSynchronize");
  ++waits;
  return f(stream);
}
int cuEventSynchronize(void* event) {
  static auto* const f = driver<int(void*)>("cuEventSynchronize");
  ++waits;
  return f(event);
}
int cuMemFree_v2(std::uint64_t address) {
  static auto* const f = driver<int(std::uint64_t)>("cuMemFree_v2");
  ++waits;
  return f(address);
}
int cuMemFreeHost(void* address) {
  static auto* const f = driver<int(void*)>("cuMemFreeHost");
  ++waits;
  return f(address);
}
}
