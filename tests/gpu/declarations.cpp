// tests/gpu/declarations.cpp: what hvd declares of the CUDA driver and of NCCL is what their headers declare.
//
// Types, values and the places of fields are compared by the compiler, functions parameter by parameter; the symbols
// that hvd looks up are those that the headers' macros lead to.
#include <hvd/cuda/driver.hpp>
#include <hvd/transport/nccl/library.hpp>

#if __has_include(<cuda.h>)
#include <cuda.h>
#define HVD_TEST_HAS_CUDA 1
#if __has_include(<nccl.h>)
#include <nccl.h>
#define HVD_TEST_HAS_NCCL 1
#endif
#endif

#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <type_traits>

using namespace hvd::detail;

namespace {

// How the machine passes a parameter: as an address, a number of some size, or a structure.
template <class A, class B>
consteval bool alike() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
           std::is_class_v<A> == std::is_class_v<B> && std::is_floating_point_v<A> == std::is_floating_point_v<B>;
  }
}
// What an address leads to: hvd's handles are opaque, and those of streams are void*.
template <class A, class B>
consteval bool alike_behind() {
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using X = std::remove_pointer_t<A>;
    using Y = std::remove_pointer_t<B>;
    if constexpr (std::is_void_v<X> || std::is_void_v<Y> || std::is_function_v<X>) {
      return true;
    } else if constexpr (requires { sizeof(X), sizeof(Y); }) {
      return alike<X, Y>() || std::is_same_v<std::remove_const_t<X>, nccl_config>;
    }
  }
  return true;
}

template <class A, class B>
struct same_call : std::false_type {};
template <class R, class... P, class S, class... Q>
  requires(sizeof...(P) == sizeof...(Q))
struct same_call<R (*)(P...), S (*)(Q...)>
    : std::bool_constant<alike<R, S>() && (... && (alike<P, Q>() && alike_behind<P, Q>()))> {};

static_assert(same_call<int (*)(void*, int), int (*)(char*, unsigned)>::value);
static_assert(!same_call<int (*)(void*, int), int (*)(void*, long)>::value);
static_assert(!same_call<int (*)(void*, int), int (*)(void*)>::value);
static_assert(!same_call<int (*)(int*), int (*)(long*)>::value);

#if defined(HVD_TEST_HAS_CUDA)
int wrong = 0;

// The functions of a table by their place in it, those that were compared taken out.
template <class Table>
class comparison {
 public:
  comparison() {
    const auto keep = [&](auto*& function, const char* symbol, auto...) { symbols_[&function] = symbol; };
    table_.each(keep);
  }
  template <class F>
  void take(F Table::*member, const std::string& header) {
    const auto found = symbols_.find(&(table_.*member));
    // CUDA 13 has a second one with the same parameters; all drivers have the first.
    const bool fits =
        found != symbols_.end() &&
        (found->second == header || (found->second == "cuEventElapsedTime" && header.starts_with(found->second)));
    if (!fits) {
      std::printf("hvd looks up %s for the header's %s\n", found == symbols_.end() ? "nothing" : found->second.c_str(),
                  header.c_str());
      ++wrong;
    }
    if (found != symbols_.end()) symbols_.erase(found);
  }
  void end() const {
    for (const auto& [place, symbol] : symbols_) {
      std::printf("%s is not compared\n", symbol.c_str());
      ++wrong;
    }
  }

 private:
  Table table_{};
  std::map<const void*, std::string> symbols_{};
};

// The second one expands the header's own macros, which lead from one version of a function to the next.
#define HVD_TEST_TEXT(x) #x
#define HVD_TEST_EXPANDED(x) HVD_TEST_TEXT(x)
#define HVD_TEST_SAME(table, member, function)                                                                         \
  static_assert(same_call<decltype(table::member), decltype(&function)>::value, #member " differs");                   \
  compared.take(&table::member, HVD_TEST_EXPANDED(function))

void compare_cuda() {
  static_assert(cu_success == CUDA_SUCCESS && cu_invalid_value == CUDA_ERROR_INVALID_VALUE &&
                cu_out_of_memory == CUDA_ERROR_OUT_OF_MEMORY && cu_deinitialized == CUDA_ERROR_DEINITIALIZED &&
                cu_no_device == CUDA_ERROR_NO_DEVICE && cu_invalid_device == CUDA_ERROR_INVALID_DEVICE &&
                cu_not_found == CUDA_ERROR_NOT_FOUND && cu_not_ready == CUDA_ERROR_NOT_READY &&
                cu_capture_implicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT &&
                cu_captured_event == CUDA_ERROR_CAPTURED_EVENT);
  static_assert(sizeof(cu_uuid) == sizeof(CUuuid) && sizeof(cu_device) == sizeof(CUdevice) &&
                sizeof(cu_pointer) == sizeof(CUdeviceptr) && sizeof(cu_context) == sizeof(CUcontext));
  static_assert(cu_attribute_pci_bus == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID &&
                cu_attribute_pci_device == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID &&
                cu_attribute_pci_domain == CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID &&
                cu_attribute_capability_major == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR &&
                cu_attribute_capability_minor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR &&
                cu_attribute_multiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
#if CUDA_VERSION >= 12020
  static_assert(cu_attribute_host_numa_id == CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
#endif
  static_assert(cu_pointer_memory_type == CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
                cu_pointer_device_ordinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL &&
                cu_pointer_is_managed == CU_POINTER_ATTRIBUTE_IS_MANAGED && cu_memory_host == CU_MEMORYTYPE_HOST &&
                cu_memory_device == CU_MEMORYTYPE_DEVICE && cu_stream_non_blocking == CU_STREAM_NON_BLOCKING &&
                cu_event_disable_timing == CU_EVENT_DISABLE_TIMING &&
                cu_capture_none == CU_STREAM_CAPTURE_STATUS_NONE &&
                cu_capture_relaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

  comparison<cuda_driver> compared;
  HVD_TEST_SAME(cuda_driver, init, cuInit);
  HVD_TEST_SAME(cuda_driver, driver_version, cuDriverGetVersion);
  HVD_TEST_SAME(cuda_driver, error_name, cuGetErrorName);
  HVD_TEST_SAME(cuda_driver, error_text, cuGetErrorString);
  HVD_TEST_SAME(cuda_driver, device_count, cuDeviceGetCount);
  HVD_TEST_SAME(cuda_driver, device_get, cuDeviceGet);
  HVD_TEST_SAME(cuda_driver, device_name, cuDeviceGetName);
#if CUDA_VERSION >= 13000
  HVD_TEST_SAME(cuda_driver, device_uuid, cuDeviceGetUuid);
#else
  HVD_TEST_SAME(cuda_driver, device_uuid, cuDeviceGetUuid_v2);
#endif
  HVD_TEST_SAME(cuda_driver, device_pci, cuDeviceGetPCIBusId);
  HVD_TEST_SAME(cuda_driver, device_attribute, cuDeviceGetAttribute);
  HVD_TEST_SAME(cuda_driver, device_memory, cuDeviceTotalMem);
  HVD_TEST_SAME(cuda_driver, primary_retain, cuDevicePrimaryCtxRetain);
  HVD_TEST_SAME(cuda_driver, primary_release, cuDevicePrimaryCtxRelease);
  HVD_TEST_SAME(cuda_driver, context_current, cuCtxGetCurrent);
  HVD_TEST_SAME(cuda_driver, context_device, cuCtxGetDevice);
  HVD_TEST_SAME(cuda_driver, context_set, cuCtxSetCurrent);
  HVD_TEST_SAME(cuda_driver, context_push, cuCtxPushCurrent);
  HVD_TEST_SAME(cuda_driver, context_pop, cuCtxPopCurrent);
  HVD_TEST_SAME(cuda_driver, priorities, cuCtxGetStreamPriorityRange);
  HVD_TEST_SAME(cuda_driver, memory_info, cuMemGetInfo);
  HVD_TEST_SAME(cuda_driver, alloc, cuMemAlloc);
  HVD_TEST_SAME(cuda_driver, free, cuMemFree);
  HVD_TEST_SAME(cuda_driver, alloc_host, cuMemHostAlloc);
  HVD_TEST_SAME(cuda_driver, free_host, cuMemFreeHost);
  HVD_TEST_SAME(cuda_driver, pointer_attribute, cuPointerGetAttribute);
  HVD_TEST_SAME(cuda_driver, copy_to_device, cuMemcpyHtoDAsync);
  HVD_TEST_SAME(cuda_driver, copy_to_host, cuMemcpyDtoHAsync);
  HVD_TEST_SAME(cuda_driver, copy_on_device, cuMemcpyDtoDAsync);
  HVD_TEST_SAME(cuda_driver, fill_bytes, cuMemsetD8Async);
  HVD_TEST_SAME(cuda_driver, stream_create, cuStreamCreateWithPriority);
  HVD_TEST_SAME(cuda_driver, stream_destroy, cuStreamDestroy);
  HVD_TEST_SAME(cuda_driver, stream_synchronize, cuStreamSynchronize);
  HVD_TEST_SAME(cuda_driver, stream_query, cuStreamQuery);
  HVD_TEST_SAME(cuda_driver, stream_wait, cuStreamWaitEvent);
  HVD_TEST_SAME(cuda_driver, stream_context, cuStreamGetCtx);
  HVD_TEST_SAME(cuda_driver, stream_capturing, cuStreamIsCapturing);
  HVD_TEST_SAME(cuda_driver, stream_write, cuStreamWriteValue32);
  HVD_TEST_SAME(cuda_driver, exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
  HVD_TEST_SAME(cuda_driver, call_host, cuLaunchHostFunc);
  HVD_TEST_SAME(cuda_driver, event_create, cuEventCreate);
  HVD_TEST_SAME(cuda_driver, event_destroy, cuEventDestroy);
  HVD_TEST_SAME(cuda_driver, event_record, cuEventRecord);
  HVD_TEST_SAME(cuda_driver, event_query, cuEventQuery);
  HVD_TEST_SAME(cuda_driver, event_synchronize, cuEventSynchronize);
  HVD_TEST_SAME(cuda_driver, event_elapsed, cuEventElapsedTime);
  HVD_TEST_SAME(cuda_driver, module_load, cuModuleLoadData);
  HVD_TEST_SAME(cuda_driver, module_unload, cuModuleUnload);
  HVD_TEST_SAME(cuda_driver, module_function, cuModuleGetFunction);
  HVD_TEST_SAME(cuda_driver, launch, cuLaunchKernel);
  compared.end();
}
#endif

#if defined(HVD_TEST_HAS_NCCL)
void compare_nccl() {
  static_assert(nccl_success == ncclSuccess && nccl_unhandled_cuda_error == ncclUnhandledCudaError &&
                nccl_system_error == ncclSystemError && nccl_internal_error == ncclInternalError &&
                nccl_invalid_argument == ncclInvalidArgument && nccl_invalid_usage == ncclInvalidUsage &&
                nccl_remote_error == ncclRemoteError && nccl_in_progress == ncclInProgress);
  static_assert(nccl_int8 == ncclInt8 && nccl_uint8 == ncclUint8 && nccl_int32 == ncclInt32 &&
                nccl_uint32 == ncclUint32 && nccl_int64 == ncclInt64 && nccl_uint64 == ncclUint64 &&
                nccl_float16 == ncclFloat16 && nccl_float32 == ncclFloat32 && nccl_float64 == ncclFloat64 &&
                nccl_bfloat16 == ncclBfloat16);
  static_assert(nccl_sum == ncclSum && nccl_product == ncclProd && nccl_max == ncclMax && nccl_min == ncclMin &&
                nccl_average_op == ncclAvg && nccl_scalar_on_device == ncclScalarDevice &&
                nccl_scalar_on_host == ncclScalarHostImmediate);
  static_assert(sizeof(ncclDataType_t) == sizeof(int) && sizeof(ncclRedOp_t) == sizeof(int) &&
                sizeof(ncclScalarResidence_t) == sizeof(int) && sizeof(nccl_unique_id) == sizeof(ncclUniqueId));
  static_assert(nccl_split_no_color == NCCL_SPLIT_NOCOLOR && nccl_window_symmetric == NCCL_WIN_COLL_SYMMETRIC &&
                nccl_shrink_abort == NCCL_SHRINK_ABORT && nccl_window_alignment == NCCL_WIN_REQUIRED_ALIGNMENT);

  static_assert(sizeof(nccl_config) <= sizeof(ncclConfig_t) &&
                offsetof(nccl_config, size) == offsetof(ncclConfig_t, size) &&
                offsetof(nccl_config, magic) == offsetof(ncclConfig_t, magic) &&
                offsetof(nccl_config, version) == offsetof(ncclConfig_t, version) &&
                offsetof(nccl_config, blocking) == offsetof(ncclConfig_t, blocking) &&
                offsetof(nccl_config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize) &&
                offsetof(nccl_config, min_ctas) == offsetof(ncclConfig_t, minCTAs) &&
                offsetof(nccl_config, max_ctas) == offsetof(ncclConfig_t, maxCTAs) &&
                offsetof(nccl_config, net_name) == offsetof(ncclConfig_t, netName) &&
                offsetof(nccl_config, split_share) == offsetof(ncclConfig_t, splitShare) &&
                offsetof(nccl_config, traffic_class) == offsetof(ncclConfig_t, trafficClass) &&
                offsetof(nccl_config, comm_name) == offsetof(ncclConfig_t, commName) &&
                offsetof(nccl_config, collnet_enable) == offsetof(ncclConfig_t, collnetEnable) &&
                offsetof(nccl_config, cta_policy) == offsetof(ncclConfig_t, CTAPolicy) &&
                offsetof(nccl_config, shrink_share) == offsetof(ncclConfig_t, shrinkShare) &&
                offsetof(nccl_config, nvls_ctas) == offsetof(ncclConfig_t, nvlsCTAs));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const nccl_config ours;
  const bool same_defaults = ours.magic == theirs.magic && ours.blocking == theirs.blocking &&
                             ours.net_name == theirs.netName && ours.comm_name == theirs.commName &&
                             ours.nvls_ctas == theirs.nvlsCTAs && ours.version <= theirs.version;
  if (!same_defaults) {
    std::printf("NCCL_CONFIG_INITIALIZER has other values than nccl_config\n");
    ++wrong;
  }

  comparison<nccl_library> compared;
  HVD_TEST_SAME(nccl_library, version, ncclGetVersion);
  HVD_TEST_SAME(nccl_library, error_text, ncclGetErrorString);
  HVD_TEST_SAME(nccl_library, unique_id, ncclGetUniqueId);
  HVD_TEST_SAME(nccl_library, comm_init, ncclCommInitRankConfig);
  HVD_TEST_SAME(nccl_library, comm_finalize, ncclCommFinalize);
  HVD_TEST_SAME(nccl_library, comm_destroy, ncclCommDestroy);
  HVD_TEST_SAME(nccl_library, comm_abort, ncclCommAbort);
  HVD_TEST_SAME(nccl_library, comm_async_error, ncclCommGetAsyncError);
  HVD_TEST_SAME(nccl_library, comm_count, ncclCommCount);
  HVD_TEST_SAME(nccl_library, allreduce, ncclAllReduce);
  HVD_TEST_SAME(nccl_library, reduce, ncclReduce);
  HVD_TEST_SAME(nccl_library, broadcast, ncclBroadcast);
  HVD_TEST_SAME(nccl_library, reduce_scatter, ncclReduceScatter);
  HVD_TEST_SAME(nccl_library, allgather, ncclAllGather);
  HVD_TEST_SAME(nccl_library, send, ncclSend);
  HVD_TEST_SAME(nccl_library, recv, ncclRecv);
  HVD_TEST_SAME(nccl_library, group_start, ncclGroupStart);
  HVD_TEST_SAME(nccl_library, group_end, ncclGroupEnd);
  HVD_TEST_SAME(nccl_library, pre_mul_sum, ncclRedOpCreatePreMulSum);
  HVD_TEST_SAME(nccl_library, op_destroy, ncclRedOpDestroy);
  HVD_TEST_SAME(nccl_library, last_error, ncclGetLastError);
  HVD_TEST_SAME(nccl_library, comm_split, ncclCommSplit);
  HVD_TEST_SAME(nccl_library, alloc, ncclMemAlloc);
  HVD_TEST_SAME(nccl_library, free, ncclMemFree);
  HVD_TEST_SAME(nccl_library, comm_register, ncclCommRegister);
  HVD_TEST_SAME(nccl_library, comm_deregister, ncclCommDeregister);
  HVD_TEST_SAME(nccl_library, window_register, ncclCommWindowRegister);
  HVD_TEST_SAME(nccl_library, window_deregister, ncclCommWindowDeregister);
  HVD_TEST_SAME(nccl_library, comm_shrink, ncclCommShrink);
  HVD_TEST_SAME(nccl_library, alltoall, ncclAlltoAll);
  HVD_TEST_SAME(nccl_library, gather, ncclGather);
  HVD_TEST_SAME(nccl_library, scatter, ncclScatter);
  HVD_TEST_SAME(nccl_library, comm_revoke, ncclCommRevoke);
  compared.end();
}
#endif

}  // namespace

int main() {
#if defined(HVD_TEST_HAS_CUDA)
  compare_cuda();
#if defined(HVD_TEST_HAS_NCCL)
  compare_nccl();
#else
  std::puts("SKIP: gpu/declarations: nccl.h is not installed (tools/setup --gpu)");
#endif
  return wrong == 0 ? 0 : 1;
#else
  std::puts("SKIP: gpu/declarations: cuda.h of the CUDA toolkit is not installed");
  return 77;
#endif
}
