// tests/gpu/standin/cuda.cpp: libcuda-standin.so, a stand-in for the CUDA driver, for tests on machines without a GPU.
//
// It has the functions that hvd/cuda/driver.hpp asks for, over memory of the host. This file has devices, contexts and
// memory.
#include "gpu/standin/cuda.hpp"

#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#pragma GCC visibility push(default)

using namespace hvd::standin;

namespace {

struct error_entry {
  cu_result code;
  const char *name, *text;
};
constexpr error_entry errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

template <auto Member>
cu_result error_string(cu_result code, const char** text) {
  if (text == nullptr) return cu_invalid_value;
  for (const error_entry& e : errors) {
    if (e.code == code) return *text = e.*Member, cu_success;
  }
  return *text = nullptr, cu_invalid_value;
}

// The body of a function that asks about one device.
template <class F>
cu_result about(const char* symbol, cu_device device, F&& body) {
  return call(symbol, needs::driver, [&](machine& m, auto&) {
    if (device < 0 || device >= static_cast<int>(m.devices.size())) return cu_invalid_device;
    return body(m, m.devices[static_cast<std::size_t>(device)]);
  });
}

}  // namespace

extern "C" {

cu_result cuInit(unsigned flags) {
  return call("cuInit", needs::nothing, [&](machine& m, auto&) { return flags != 0 ? cu_invalid_value : m.init(); });
}
cu_result cuDriverGetVersion(int* version) {
  if (version == nullptr) return cu_invalid_value;
  *version = static_cast<int>(number_of("HVD_STANDIN_DRIVER_VERSION", 13000));
  return cu_success;
}
cu_result cuGetErrorName(cu_result code, const char** text) { return error_string<&error_entry::name>(code, text); }
cu_result cuGetErrorString(cu_result code, const char** text) { return error_string<&error_entry::text>(code, text); }

cu_result cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", needs::driver,
              [&](machine& m, auto&) { return *count = static_cast<int>(m.devices.size()), cu_success; });
}
cu_result cuDeviceGet(cu_device* device, int ordinal) {
  return about("cuDeviceGet", ordinal, [&](auto&...) { return *device = ordinal, cu_success; });
}
cu_result cuDeviceGetName(char* text, int length, cu_device device) {
  return about("cuDeviceGetName", device, [&](machine&, const device_info& d) {
    std::snprintf(text, static_cast<std::size_t>(length), "hvd stand-in GPU%s", d.mig ? " MIG 1g.1gb" : "");
    return cu_success;
  });
}
cu_result cuDeviceGetUuid_v2(cu_uuid* uuid, cu_device device) {
  return about("cuDeviceGetUuid_v2", device,
               [&](machine&, const device_info& d) { return *uuid = d.uuid, cu_success; });
}
cu_result cuDeviceGetPCIBusId(char* text, int length, cu_device device) {
  return about("cuDeviceGetPCIBusId", device, [&](machine&, const device_info& d) {
    return std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", d.gpu + 1) < length
               ? cu_success
               : cu_invalid_value;
  });
}
cu_result cuDeviceGetAttribute(int* value, int attribute, cu_device device) {
  return about("cuDeviceGetAttribute", device, [&](machine&, const device_info& d) {
    switch (attribute) {
      case cu_attribute_pci_bus: *value = d.gpu + 1; break;
      case cu_attribute_pci_device:
      case cu_attribute_pci_domain: *value = 0; break;
      case cu_attribute_capability_major: *value = 9; break;
      case cu_attribute_capability_minor: *value = 0; break;
      case cu_attribute_multiprocessors: *value = 4; break;
      case cu_attribute_host_numa_id: *value = -1; break;
      default: return cu_invalid_value;
    }
    return cu_success;
  });
}
cu_result cuDeviceTotalMem_v2(std::size_t* bytes, cu_device device) {
  return about("cuDeviceTotalMem_v2", device, [&](machine& m, auto&) { return *bytes = m.memory_limit, cu_success; });
}

cu_result cuDevicePrimaryCtxRetain(cu_context* context, cu_device device) {
  return about("cuDevicePrimaryCtxRetain", device, [&](machine& m, auto&) {
    auto& c = m.contexts[static_cast<std::size_t>(device)];
    ++c.users;
    *context = reinterpret_cast<cu_context>(&c);
    return cu_success;
  });
}
cu_result cuDevicePrimaryCtxRelease_v2(cu_device device) {
  return about("cuDevicePrimaryCtxRelease_v2", device, [&](machine& m, auto&) {
    auto& c = m.contexts[static_cast<std::size_t>(device)];
    if (c.users == 0) return cu_invalid_context;
    if (--c.users != 0) return cu_success;
    // All that was made in it ends with it.
    for (auto& [address, a] : m.memory) {
      if (a.device == device && !a.freed) m.release(address, true);
    }
    for (auto& [handle, s] : m.streams) {
      if (s->owner == &c) s->destroyed = true;
    }
    for (auto& [handle, e] : m.events) {
      if (e->owner == &c) e->destroyed = true;
    }
    c.standard = nullptr;
    m.changed.notify_all();
    return cu_success;
  });
}
cu_result cuCtxGetCurrent(cu_context* context) {
  return call("cuCtxGetCurrent", needs::driver,
              [&](auto&...) { return *context = reinterpret_cast<cu_context>(current()), cu_success; });
}
cu_result cuCtxGetDevice(cu_device* device) {
  return call("cuCtxGetDevice", needs::context, [&](auto&...) { return *device = current()->device, cu_success; });
}
cu_result cuCtxSetCurrent(cu_context to) {
  return call("cuCtxSetCurrent", needs::driver, [&](auto&...) {
    auto& stack = context_stack();
    if (!stack.empty()) stack.pop_back();
    if (to != nullptr) stack.push_back(reinterpret_cast<hvd::standin::context*>(to));
    return cu_success;
  });
}
cu_result cuCtxPushCurrent_v2(cu_context to) {
  return call("cuCtxPushCurrent_v2", needs::driver, [&](auto&...) {
    if (to == nullptr) return cu_invalid_context;
    context_stack().push_back(reinterpret_cast<hvd::standin::context*>(to));
    return cu_success;
  });
}
cu_result cuCtxPopCurrent_v2(cu_context* from) {
  return call("cuCtxPopCurrent_v2", needs::driver, [&](auto&...) {
    if (current() == nullptr) return cu_invalid_context;
    if (from != nullptr) *from = reinterpret_cast<cu_context>(current());
    context_stack().pop_back();
    return cu_success;
  });
}
cu_result cuCtxSynchronize() {
  return call("cuCtxSynchronize", needs::context, [&](machine& m, auto& lock) {
    m.synchronise_all(lock, "cuCtxSynchronize", current(), 0);
    return cu_success;
  });
}
cu_result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return call("cuCtxGetStreamPriorityRange", needs::context, [&](auto&...) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cu_success;
  });
}

cu_result cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  return call("cuMemGetInfo_v2", needs::context, [&](machine& m, auto&) {
    *total = *free = m.memory_limit;
    for (const auto& [begin, a] : m.memory) {
      if (!a.freed && a.device == current()->device) *free -= a.bytes;
    }
    return cu_success;
  });
}
cu_result cuMemAlloc_v2(cu_pointer* address, std::size_t bytes) {
  return call("cuMemAlloc_v2", needs::context, [&](machine& m, auto&) {
    return address == nullptr ? cu_invalid_value : m.allocate(*address, bytes, 0, current()->device);
  });
}
cu_result cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  return call("cuMemHostAlloc", needs::context, [&](machine& m, auto&) {
    std::uint64_t at = 0;
    const cu_result code = m.allocate(at, bytes, 0, -1);
    if (code == cu_success) *address = reinterpret_cast<void*>(at);
    return code;
  });
}

// Both wait for the device, as the driver does; not for ever, because works here can wait for other processes.
static cu_result free_synchronised(const char* symbol, std::uint64_t address, bool of_device) {
  return call(symbol, needs::context, [&](machine& m, std::unique_lock<std::mutex>& lock) {
    if (address == 0) return cu_success;
    m.synchronise_all(lock, symbol, of_device ? current() : nullptr, std::max(m.free_limit_ms, 1U));
    return m.release(address, of_device);
  });
}
cu_result cuMemFree_v2(cu_pointer address) { return free_synchronised("cuMemFree_v2", address, true); }
cu_result cuMemFreeHost(void* address) {
  return free_synchronised("cuMemFreeHost", reinterpret_cast<std::uint64_t>(address), false);
}

cu_result cuPointerGetAttribute(void* value, int attribute, cu_pointer address) {
  return call("cuPointerGetAttribute", needs::driver, [&](machine& m, auto&) {
    const allocation* const a = m.find_live(address, 1);
    if (a == nullptr || value == nullptr) return cu_invalid_value;
    if (attribute == cu_pointer_memory_type) {
      *static_cast<unsigned*>(value) = a->device < 0 ? cu_memory_host : cu_memory_device;
    } else if (attribute == cu_pointer_device_ordinal) {
      *static_cast<int*>(value) = std::max(a->device, 0);
    } else if (attribute == cu_pointer_is_managed) {
      *static_cast<unsigned*>(value) = 0;
    } else {
      return cu_invalid_value;
    }
    return cu_success;
  });
}

}  // extern "C"

// Their types are those of hvd's table.
[[maybe_unused]] static void fill_table(cuda_driver& t) {
  t.init = cuInit;
  t.driver_version = cuDriverGetVersion;
  t.error_name = cuGetErrorName;
  t.error_text = cuGetErrorString;
  t.device_count = cuDeviceGetCount;
  t.device_get = cuDeviceGet;
  t.device_name = cuDeviceGetName;
  t.device_uuid = cuDeviceGetUuid_v2;
  t.device_pci = cuDeviceGetPCIBusId;
  t.device_attribute = cuDeviceGetAttribute;
  t.device_memory = cuDeviceTotalMem_v2;
  t.primary_retain = cuDevicePrimaryCtxRetain;
  t.primary_release = cuDevicePrimaryCtxRelease_v2;
  t.context_current = cuCtxGetCurrent;
  t.context_device = cuCtxGetDevice;
  t.context_set = cuCtxSetCurrent;
  t.context_push = cuCtxPushCurrent_v2;
  t.context_pop = cuCtxPopCurrent_v2;
  t.priorities = cuCtxGetStreamPriorityRange;
  t.memory_info = cuMemGetInfo_v2;
  t.alloc = cuMemAlloc_v2;
  t.free = cuMemFree_v2;
  t.alloc_host = cuMemHostAlloc;
  t.free_host = cuMemFreeHost;
  t.pointer_attribute = cuPointerGetAttribute;
}
