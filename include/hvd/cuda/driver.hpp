// hvd/cuda/driver.hpp: the functions of the CUDA driver that hvd calls, in a table that is filled when it is first
// used.
//
// The types are declared here, as the driver's binary interface has them, so that no CUDA toolkit is needed to compile
// a program; tests/gpu/declarations.cpp compares them with cuda.h. The driver's interface and not the runtime's: its
// functions keep their names between major versions, and it works together with any runtime of the program.
#pragma once

#include <hvd/cuda/library.hpp>
#include <hvd/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <type_traits>

#include <unistd.h>

#if defined(HVD_CUDA_LINKED)  // the program links libcuda: `-DHVD_CUDA_LINKED -lcuda`, with cuda.h at hand
#include <cuda.h>
#endif

namespace hvd::inline HVD_ABI::detail {

/// CUresult. Only the values that hvd tells apart are named.
using cu_result = int;
inline constexpr cu_result cu_success = 0, cu_invalid_value = 1, cu_out_of_memory = 2, cu_deinitialized = 4,
                           cu_no_device = 100, cu_invalid_device = 101, cu_not_found = 500, cu_not_ready = 600,
                           cu_capture_implicit = 906, cu_captured_event = 907;

using cu_device = int;             ///< CUdevice: an ordinal among the visible devices
using cu_pointer = std::uint64_t;  ///< CUdeviceptr
using cu_context = struct cu_context_type*;
using cu_module = struct cu_module_type*;
using cu_function = struct cu_function_type*;
using cu_stream = void*;  ///< CUstream, the same as cudaStream_t; programs pass theirs
using cu_event = void*;   ///< CUevent, the same as cudaEvent_t

/// CUuuid.
struct cu_uuid {
  std::array<unsigned char, 16> bytes;
  friend bool operator==(const cu_uuid&, const cu_uuid&) = default;
};

inline constexpr std::uintptr_t cu_stream_per_thread = 2;
// CUdevice_attribute, CUpointer_attribute, flags: the values that hvd passes.
inline constexpr int cu_attribute_pci_bus = 33, cu_attribute_pci_device = 34, cu_attribute_pci_domain = 50,
                     cu_attribute_capability_major = 75, cu_attribute_capability_minor = 76,
                     cu_attribute_multiprocessors = 16, cu_attribute_host_numa_id = 134;
inline constexpr int cu_pointer_memory_type = 2, cu_pointer_device_ordinal = 9, cu_pointer_is_managed = 8;
inline constexpr unsigned cu_memory_host = 1, cu_memory_device = 2;
inline constexpr unsigned cu_stream_non_blocking = 1, cu_event_disable_timing = 2;
inline constexpr int cu_capture_none = 0, cu_capture_relaxed = 2;  // a CUstreamCaptureStatus, a CUstreamCaptureMode

/// The table. No pointer is null once the driver was found: every driver since CUDA 11.7 has all of these functions.
struct cuda_driver {
  cu_result (*init)(unsigned flags) = nullptr;
  cu_result (*driver_version)(int* version) = nullptr;
  cu_result (*error_name)(cu_result, const char** text) = nullptr;
  cu_result (*error_text)(cu_result, const char** text) = nullptr;

  cu_result (*device_count)(int* count) = nullptr;
  cu_result (*device_get)(cu_device*, int ordinal) = nullptr;
  cu_result (*device_name)(char* text, int length, cu_device) = nullptr;
  cu_result (*device_uuid)(cu_uuid*, cu_device) = nullptr;  ///< of a MIG instance, its own
  cu_result (*device_pci)(char* text, int length, cu_device) = nullptr;
  cu_result (*device_attribute)(int* value, int attribute, cu_device) = nullptr;
  cu_result (*device_memory)(std::size_t* bytes, cu_device) = nullptr;

  cu_result (*primary_retain)(cu_context*, cu_device) = nullptr;
  cu_result (*primary_release)(cu_device) = nullptr;
  cu_result (*context_current)(cu_context*) = nullptr;
  cu_result (*context_device)(cu_device*) = nullptr;  ///< of the current context
  cu_result (*context_set)(cu_context) = nullptr;
  cu_result (*context_push)(cu_context) = nullptr;
  cu_result (*context_pop)(cu_context*) = nullptr;
  cu_result (*priorities)(int* least, int* greatest) = nullptr;

  cu_result (*memory_info)(std::size_t* free, std::size_t* total) = nullptr;
  cu_result (*alloc)(cu_pointer*, std::size_t bytes) = nullptr;
  cu_result (*free)(cu_pointer) = nullptr;
  cu_result (*alloc_host)(void**, std::size_t bytes, unsigned flags) = nullptr;
  cu_result (*free_host)(void*) = nullptr;
  cu_result (*pointer_attribute)(void* value, int attribute, cu_pointer) = nullptr;
  cu_result (*copy_to_device)(cu_pointer, const void*, std::size_t bytes, cu_stream) = nullptr;
  cu_result (*copy_to_host)(void*, cu_pointer, std::size_t bytes, cu_stream) = nullptr;
  cu_result (*copy_on_device)(cu_pointer to, cu_pointer from, std::size_t bytes, cu_stream) = nullptr;
  cu_result (*fill_bytes)(cu_pointer, unsigned char, std::size_t bytes, cu_stream) = nullptr;

  cu_result (*stream_create)(cu_stream*, unsigned flags, int priority) = nullptr;
  cu_result (*stream_destroy)(cu_stream) = nullptr;
  cu_result (*stream_synchronize)(cu_stream) = nullptr;
  cu_result (*stream_query)(cu_stream) = nullptr;
  cu_result (*stream_wait)(cu_stream, cu_event, unsigned flags) = nullptr;
  cu_result (*stream_context)(cu_stream, cu_context*) = nullptr;
  cu_result (*stream_capturing)(cu_stream, int* status) = nullptr;
  /// Writes a word once all earlier work of the stream is done, and what that has written is visible.
  cu_result (*stream_write)(cu_stream, cu_pointer to, std::uint32_t value, unsigned flags) = nullptr;
  cu_result (*exchange_capture_mode)(int* mode) = nullptr;  ///< of the calling thread
  cu_result (*call_host)(cu_stream, void (*function)(void*), void* argument) = nullptr;
  cu_result (*event_create)(cu_event*, unsigned flags) = nullptr;
  cu_result (*event_destroy)(cu_event) = nullptr;
  cu_result (*event_record)(cu_event, cu_stream) = nullptr;
  cu_result (*event_query)(cu_event) = nullptr;
  cu_result (*event_synchronize)(cu_event) = nullptr;
  cu_result (*event_elapsed)(float* milliseconds, cu_event start, cu_event end) = nullptr;

  cu_result (*module_load)(cu_module*, const void* image) = nullptr;
  cu_result (*module_unload)(cu_module) = nullptr;
  cu_result (*module_function)(cu_function*, cu_module, const char* name) = nullptr;
  cu_result (*launch)(cu_function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream, void** parameters,
                      void** extra) = nullptr;

  /// Calls f(pointer, name of the symbol) for each function of the table.
  template <class F>
  void each(F f) {
    f(init, "cuInit");
    f(driver_version, "cuDriverGetVersion");
    f(error_name, "cuGetErrorName");
    f(error_text, "cuGetErrorString");
    f(device_count, "cuDeviceGetCount");
    f(device_get, "cuDeviceGet");
    f(device_name, "cuDeviceGetName");
    f(device_uuid, "cuDeviceGetUuid_v2");
    f(device_pci, "cuDeviceGetPCIBusId");
    f(device_attribute, "cuDeviceGetAttribute");
    f(device_memory, "cuDeviceTotalMem_v2");
    f(primary_retain, "cuDevicePrimaryCtxRetain");
    f(primary_release, "cuDevicePrimaryCtxRelease_v2");
    f(context_current, "cuCtxGetCurrent");
    f(context_device, "cuCtxGetDevice");
    f(context_set, "cuCtxSetCurrent");
    f(context_push, "cuCtxPushCurrent_v2");
    f(context_pop, "cuCtxPopCurrent_v2");
    f(priorities, "cuCtxGetStreamPriorityRange");
    f(memory_info, "cuMemGetInfo_v2");
    f(alloc, "cuMemAlloc_v2");
    f(free, "cuMemFree_v2");
    f(alloc_host, "cuMemHostAlloc");
    f(free_host, "cuMemFreeHost");
    f(pointer_attribute, "cuPointerGetAttribute");
    f(copy_to_device, "cuMemcpyHtoDAsync_v2");
    f(copy_to_host, "cuMemcpyDtoHAsync_v2");
    f(copy_on_device, "cuMemcpyDtoDAsync_v2");
    f(fill_bytes, "cuMemsetD8Async");
    f(stream_create, "cuStreamCreateWithPriority");
    f(stream_destroy, "cuStreamDestroy_v2");
    f(stream_synchronize, "cuStreamSynchronize");
    f(stream_query, "cuStreamQuery");
    f(stream_wait, "cuStreamWaitEvent");
    f(stream_context, "cuStreamGetCtx");
    f(stream_capturing, "cuStreamIsCapturing");
    f(stream_write, "cuStreamWriteValue32_v2");
    f(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    f(call_host, "cuLaunchHostFunc");
    f(event_create, "cuEventCreate");
    f(event_destroy, "cuEventDestroy_v2");
    f(event_record, "cuEventRecord");
    f(event_query, "cuEventQuery");
    f(event_synchronize, "cuEventSynchronize");
    f(event_elapsed, "cuEventElapsedTime");
    f(module_load, "cuModuleLoadData");
    f(module_unload, "cuModuleUnload");
    f(module_function, "cuModuleGetFunction");
    f(launch, "cuLaunchKernel");
  }

  /// The text of a result: "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  [[nodiscard]] std::string text(cu_result code) const {
    const char *name = nullptr, *sentence = nullptr;
    if (error_name != nullptr) error_name(code, &name);
    if (error_text != nullptr) error_text(code, &sentence);
    if (name == nullptr) return joined({"CUDA error ", code});
    return sentence == nullptr ? std::string(name) : joined({name, " (", sentence, ")"});
  }
  /// Throws if a call has failed: no_memory for want of memory, system for anything else.
  void check(cu_result code, std::string_view function) const {
    if (code == cu_success) [[likely]]
      return;
    fail(code == cu_out_of_memory ? error_kind::no_memory : error_kind::system, {function, " failed: ", text(code)});
  }
};

#if defined(HVD_CUDA_LINKED)
// The addresses of functions that the linker has found; the types are the same to the machine.
inline void fill_linked(cuda_driver& t) {
  const auto set = [](auto& to, auto* from) { as_function(to, reinterpret_cast<void*>(from)); };
  set(t.init, &cuInit);
  set(t.driver_version, &cuDriverGetVersion);
  set(t.error_name, &cuGetErrorName);
  set(t.error_text, &cuGetErrorString);
  set(t.device_count, &cuDeviceGetCount);
  set(t.device_get, &cuDeviceGet);
  set(t.device_name, &cuDeviceGetName);
  set(t.device_uuid, &cuDeviceGetUuid_v2);
  set(t.device_pci, &cuDeviceGetPCIBusId);
  set(t.device_attribute, &cuDeviceGetAttribute);
  set(t.device_memory, &cuDeviceTotalMem);
  set(t.primary_retain, &cuDevicePrimaryCtxRetain);
  set(t.primary_release, &cuDevicePrimaryCtxRelease);
  set(t.context_current, &cuCtxGetCurrent);
  set(t.context_device, &cuCtxGetDevice);
  set(t.context_set, &cuCtxSetCurrent);
  set(t.context_push, &cuCtxPushCurrent);
  set(t.context_pop, &cuCtxPopCurrent);
  set(t.priorities, &cuCtxGetStreamPriorityRange);
  set(t.memory_info, &cuMemGetInfo);
  set(t.alloc, &cuMemAlloc);
  set(t.free, &cuMemFree);
  set(t.alloc_host, &cuMemHostAlloc);
  set(t.free_host, &cuMemFreeHost);
  set(t.pointer_attribute, &cuPointerGetAttribute);
  set(t.copy_to_device, &cuMemcpyHtoDAsync);
  set(t.copy_to_host, &cuMemcpyDtoHAsync);
  set(t.copy_on_device, &cuMemcpyDtoDAsync);
  set(t.fill_bytes, &cuMemsetD8Async);
  set(t.stream_create, &cuStreamCreateWithPriority);
  set(t.stream_destroy, &cuStreamDestroy);
  set(t.stream_synchronize, &cuStreamSynchronize);
  set(t.stream_query, &cuStreamQuery);
  set(t.stream_wait, &cuStreamWaitEvent);
  set(t.stream_context, &cuStreamGetCtx);
  set(t.stream_capturing, &cuStreamIsCapturing);
  set(t.stream_write, &cuStreamWriteValue32);
  set(t.exchange_capture_mode, &cuThreadExchangeStreamCaptureMode);
  set(t.call_host, &cuLaunchHostFunc);
  set(t.event_create, &cuEventCreate);
  set(t.event_destroy, &cuEventDestroy);
  set(t.event_record, &cuEventRecord);
  set(t.event_query, &cuEventQuery);
  set(t.event_synchronize, &cuEventSynchronize);
  set(t.event_elapsed, &cuEventElapsedTime);
  set(t.module_load, &cuModuleLoadData);
  set(t.module_unload, &cuModuleUnload);
  set(t.module_function, &cuModuleGetFunction);
  set(t.launch, &cuLaunchKernel);
}
#endif

/// The driver of a process. It is looked for once, as libcuda.so.1 or the file in HVD_CUDA_LIBRARY.
struct cuda_search {
  cuda_driver table{};
  bool usable = false;    ///< there is a driver, and it shows at least one GPU
  std::string why{};      ///< if not: one sentence
  std::string library{};  ///< the source of the table: a file's name, or "linked"
  pid_t process = ::getpid();

  static const cuda_search& result() {
    static const cuda_search once;
    return once;
  }

 private:
  cuda_search();
  [[nodiscard]] bool fill();
};

inline bool cuda_search::fill() {
#if defined(HVD_CUDA_LINKED)
  library = "linked";
  fill_linked(table);
#else
  const dynamic_library driver = dynamic_library::find("libcuda.so.1", "HVD_CUDA_LIBRARY");
  if (!driver) {
    why = joined({"no CUDA driver was found; looked for ", driver.why()});
    return false;
  }
  library = driver.name();
  std::string missing;
  table.each([&](auto*& function, const char* symbol) {
    driver.look_up(function, symbol);
    if (function == nullptr && missing.empty()) missing = symbol;
  });
  if (!missing.empty()) {
    why = joined({library, " has no ", missing, ": it is not a CUDA driver, or is older than CUDA 11.7"});
    return false;
  }
#endif
  return true;
}

inline cuda_search::cuda_search() {
  if (!fill()) return;
  const cu_result code = table.init(0);
  int devices = 0;
  if (code == cu_success) table.device_count(&devices);
  usable = devices > 0;
  if (usable) return;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string limit = visible == nullptr ? std::string()
                                               : joined({"; CUDA_VISIBLE_DEVICES is \"", visible,
                                                         "\"; an invalid entry hides itself and all entries after it"});
  if (code == cu_success || code == cu_no_device) {
    why = joined({"the CUDA driver (", library, ") shows no GPU to this process", limit});
  } else {
    why = joined({"the CUDA driver (", library, ") cannot be used: cuInit failed: ", table.text(code), limit});
  }
}

/// The driver, ready to use; null if there is no driver that shows a GPU.
inline const cuda_driver* find_cuda() {
  const cuda_search& found = cuda_search::result();
  return found.usable ? &found.table : nullptr;
}

/// The same. Errors: unsupported if there is none, with the names and places that were searched; invalid_argument in a
/// process that was forked after the driver was initialised, in which CUDA does not work.
inline const cuda_driver& get_cuda() {
  const cuda_search& found = cuda_search::result();
  if (!found.usable) throw error(error_kind::unsupported, found.why);
  if (found.process != ::getpid()) {
    fail(error_kind::invalid_argument, {"this process was forked after CUDA was initialised, and CUDA does not work in "
                                        "it; fork before the first use of a GPU"});
  }
  return found.table;
}

}  // namespace hvd::inline HVD_ABI::detail
