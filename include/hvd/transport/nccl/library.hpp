// hvd/transport/nccl/library.hpp: the functions of NCCL that hvd calls, in a table that is filled when it is first
// used.
//
// The types are declared here, as NCCL's binary interface has them, so that neither nccl.h nor the CUDA toolkit is
// needed to compile a program; tests/gpu/declarations.cpp compares them with nccl.h. NCCL keeps its interface
// compatible: enums and the configuration only grow, so the table serves libraries that are older and newer than these
// declarations.
#pragma once

#include <hvd/cuda/library.hpp>
#include <hvd/error.hpp>

#include <climits>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#if defined(HVD_NCCL_LINKED)  // the program links NCCL: `-DHVD_NCCL_LINKED -l:libnccl.so.2`, with nccl.h at hand
#include <nccl.h>
#endif

namespace hvd::inline HVD_ABI::detail {

/// ncclResult_t. Newer libraries have more.
using nccl_result = int;
inline constexpr nccl_result nccl_success = 0, nccl_unhandled_cuda_error = 1, nccl_system_error = 2,
                             nccl_internal_error = 3, nccl_invalid_argument = 4, nccl_invalid_usage = 5,
                             nccl_remote_error = 6, nccl_in_progress = 7;

using nccl_comm = struct nccl_comm_type*;
using nccl_window = struct nccl_window_type*;
using nccl_stream = void*;  ///< cudaStream_t

/// ncclUniqueId.
struct nccl_unique_id {
  char bytes[128];
};

/// ncclDataType_t; ncclRedOp_t, whose values from 5 on ncclRedOpCreatePreMulSum makes.
inline constexpr int nccl_int8 = 0, nccl_uint8 = 1, nccl_int32 = 2, nccl_uint32 = 3, nccl_int64 = 4, nccl_uint64 = 5,
                     nccl_float16 = 6, nccl_float32 = 7, nccl_float64 = 8, nccl_bfloat16 = 9;
inline constexpr int nccl_sum = 0, nccl_product = 1, nccl_max = 2, nccl_min = 3, nccl_average_op = 4;
inline constexpr int nccl_scalar_on_device = 0, nccl_scalar_on_host = 1;
inline constexpr int nccl_split_no_color = -1;
inline constexpr int nccl_window_default = 0, nccl_window_symmetric = 1;
inline constexpr int nccl_shrink_abort = 1;
inline constexpr std::size_t nccl_window_alignment = 4096;

/// ncclConfig_t of NCCL 2.27. A library reads `size` bytes of it, and uses its defaults for the rest.
struct nccl_config {
  std::size_t size = sizeof(nccl_config);
  unsigned magic = 0xcafebeef;
  unsigned version = 22700;
  int blocking = INT_MIN;  // INT_MIN and null: NCCL decides
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
  const char* comm_name = nullptr;
  int collnet_enable = INT_MIN;
  int cta_policy = INT_MIN;
  int shrink_share = INT_MIN;
  int nvls_ctas = INT_MIN;
};

/// The table. A pointer is null if the library has no such function. Functions that `each` marks as always present are
/// never null once NCCL was found.
struct nccl_library {
  nccl_result (*version)(int*) = nullptr;
  const char* (*error_text)(nccl_result) = nullptr;
  nccl_result (*unique_id)(nccl_unique_id*) = nullptr;
  nccl_result (*comm_init)(nccl_comm*, int ranks, nccl_unique_id, int rank, nccl_config*) = nullptr;  // 2.14
  nccl_result (*comm_finalize)(nccl_comm) = nullptr;                                                  // 2.14
  nccl_result (*comm_destroy)(nccl_comm) = nullptr;
  nccl_result (*comm_abort)(nccl_comm) = nullptr;
  nccl_result (*comm_async_error)(nccl_comm, nccl_result*) = nullptr;
  nccl_result (*comm_count)(nccl_comm, int*) = nullptr;

  nccl_result (*allreduce)(const void*, void*, std::size_t count, int type, int op, nccl_comm, nccl_stream) = nullptr;
  nccl_result (*reduce)(const void*, void*, std::size_t count, int type, int op, int root, nccl_comm,
                        nccl_stream) = nullptr;
  nccl_result (*broadcast)(const void*, void*, std::size_t count, int type, int root, nccl_comm, nccl_stream) = nullptr;
  nccl_result (*reduce_scatter)(const void*, void*, std::size_t each, int type, int op, nccl_comm,
                                nccl_stream) = nullptr;
  nccl_result (*allgather)(const void*, void*, std::size_t each, int type, nccl_comm, nccl_stream) = nullptr;
  nccl_result (*send)(const void*, std::size_t count, int type, int peer, nccl_comm, nccl_stream) = nullptr;
  nccl_result (*recv)(void*, std::size_t count, int type, int peer, nccl_comm, nccl_stream) = nullptr;
  nccl_result (*group_start)() = nullptr;
  nccl_result (*group_end)() = nullptr;
  nccl_result (*pre_mul_sum)(int* op, void* scalar, int type, int residence, nccl_comm) = nullptr;  // 2.11
  nccl_result (*op_destroy)(int op, nccl_comm) = nullptr;                                           // 2.11

  const char* (*last_error)(nccl_comm) = nullptr;                                                // 2.13
  nccl_result (*comm_split)(nccl_comm, int color, int key, nccl_comm*, nccl_config*) = nullptr;  // 2.18

  nccl_result (*alloc)(void**, std::size_t) = nullptr;                                                        // 2.19
  nccl_result (*free)(void*) = nullptr;                                                                       // 2.19
  nccl_result (*comm_register)(nccl_comm, void*, std::size_t, void** handle) = nullptr;                       // 2.19
  nccl_result (*comm_deregister)(nccl_comm, void* handle) = nullptr;                                          // 2.19
  nccl_result (*window_register)(nccl_comm, void*, std::size_t, nccl_window*, int flags) = nullptr;           // 2.27
  nccl_result (*window_deregister)(nccl_comm, nccl_window) = nullptr;                                         // 2.27
  nccl_result (*comm_shrink)(nccl_comm, int* exclude, int count, nccl_comm*, nccl_config*, int) = nullptr;    // 2.27
  nccl_result (*alltoall)(const void*, void*, std::size_t each, int type, nccl_comm, nccl_stream) = nullptr;  // 2.28
  nccl_result (*gather)(const void*, void*, std::size_t each, int type, int root, nccl_comm,
                        nccl_stream) = nullptr;  // 2.28
  nccl_result (*scatter)(const void*, void*, std::size_t each, int type, int root, nccl_comm,
                         nccl_stream) = nullptr;               // 2.28
  nccl_result (*comm_revoke)(nccl_comm, int flags) = nullptr;  // 2.28.7

  /// Calls f(pointer, name of the symbol, whether every supported library has it) for each function of the table.
  template <class F>
  void each(F f) {
    f(version, "ncclGetVersion", true);
    f(error_text, "ncclGetErrorString", true);
    f(unique_id, "ncclGetUniqueId", true);
    f(comm_init, "ncclCommInitRankConfig", true);
    f(comm_finalize, "ncclCommFinalize", true);
    f(comm_destroy, "ncclCommDestroy", true);
    f(comm_abort, "ncclCommAbort", true);
    f(comm_async_error, "ncclCommGetAsyncError", true);
    f(comm_count, "ncclCommCount", true);
    f(allreduce, "ncclAllReduce", true);
    f(reduce, "ncclReduce", true);
    f(broadcast, "ncclBroadcast", true);
    f(reduce_scatter, "ncclReduceScatter", true);
    f(allgather, "ncclAllGather", true);
    f(send, "ncclSend", true);
    f(recv, "ncclRecv", true);
    f(group_start, "ncclGroupStart", true);
    f(group_end, "ncclGroupEnd", true);
    f(pre_mul_sum, "ncclRedOpCreatePreMulSum", true);
    f(op_destroy, "ncclRedOpDestroy", true);
    f(last_error, "ncclGetLastError", true);
    f(comm_split, "ncclCommSplit", true);
    f(alloc, "ncclMemAlloc", false);
    f(free, "ncclMemFree", false);
    f(comm_register, "ncclCommRegister", false);
    f(comm_deregister, "ncclCommDeregister", false);
    f(window_register, "ncclCommWindowRegister", false);
    f(window_deregister, "ncclCommWindowDeregister", false);
    f(comm_shrink, "ncclCommShrink", false);
    f(alltoall, "ncclAlltoAll", false);
    f(gather, "ncclGather", false);
    f(scatter, "ncclScatter", false);
    f(comm_revoke, "ncclCommRevoke", false);
  }
};

/// The oldest version that hvd uses. Before 2.18.6, a thread of NCCL's can drop a call that is made after it has
/// published its success. Before 2.26, only the thread that has made a call may end it.
inline constexpr int nccl_oldest = 21806, nccl_free_threaded = 22600, nccl_revokes = 22807;

/// "2.28.9" for 22809.
inline std::string nccl_version_text(int code) {
  return joined({code / 10000, ".", code / 100 % 100, ".", code % 100});
}

/// The kind of an error of NCCL. NCCL does not know which rank is lost.
constexpr error_kind nccl_error_kind(nccl_result code) noexcept {
  switch (code) {
    case nccl_invalid_argument:
    case nccl_invalid_usage: return error_kind::invalid_argument;
    case nccl_remote_error: return error_kind::peer_lost;
    default: return error_kind::system;
  }
}

/// NCCL in this process: the file in HVD_NCCL_LIBRARY, or else a copy that is already loaded, or else libnccl.so.2. It
/// is looked for until it is found: a framework that is loaded later may bring it.
struct nccl_search {
  nccl_library table{};
  bool usable = false;
  int version = 0;
  std::string why{};      ///< if it is not usable: one sentence
  std::string library{};  ///< the source of the table: a file's name, or "linked"

  static const nccl_search& result() {
    static std::mutex searching;
    static std::optional<const nccl_search> found;
    thread_local std::optional<const nccl_search> failed;
    const std::lock_guard lock(searching);
    if (found) return *found;
    failed.emplace(nccl_search());
    return failed->usable ? found.emplace(*failed) : *failed;
  }

 private:
  nccl_search();
  [[nodiscard]] bool fill();
};

#if defined(HVD_NCCL_LINKED)
inline void fill_linked(nccl_library& t) {
  const auto set = [](auto& to, auto* from) { as_function(to, reinterpret_cast<void*>(from)); };
  set(t.version, &ncclGetVersion);
  set(t.error_text, &ncclGetErrorString);
  set(t.unique_id, &ncclGetUniqueId);
  set(t.comm_init, &ncclCommInitRankConfig);
  set(t.comm_finalize, &ncclCommFinalize);
  set(t.comm_destroy, &ncclCommDestroy);
  set(t.comm_abort, &ncclCommAbort);
  set(t.comm_async_error, &ncclCommGetAsyncError);
  set(t.comm_count, &ncclCommCount);
  set(t.allreduce, &ncclAllReduce);
  set(t.reduce, &ncclReduce);
  set(t.broadcast, &ncclBroadcast);
  set(t.reduce_scatter, &ncclReduceScatter);
  set(t.allgather, &ncclAllGather);
  set(t.send, &ncclSend);
  set(t.recv, &ncclRecv);
  set(t.group_start, &ncclGroupStart);
  set(t.group_end, &ncclGroupEnd);
  set(t.pre_mul_sum, &ncclRedOpCreatePreMulSum);
  set(t.op_destroy, &ncclRedOpDestroy);
  set(t.last_error, &ncclGetLastError);
  set(t.comm_split, &ncclCommSplit);
#if NCCL_VERSION_CODE >= 21900
  set(t.alloc, &ncclMemAlloc);
  set(t.free, &ncclMemFree);
  set(t.comm_register, &ncclCommRegister);
  set(t.comm_deregister, &ncclCommDeregister);
#endif
#if NCCL_VERSION_CODE >= 22700
  set(t.window_register, &ncclCommWindowRegister);
  set(t.window_deregister, &ncclCommWindowDeregister);
  set(t.comm_shrink, &ncclCommShrink);
#endif
#if NCCL_VERSION_CODE >= 22800
  set(t.alltoall, &ncclAlltoAll);
  set(t.gather, &ncclGather);
  set(t.scatter, &ncclScatter);
#endif
#if NCCL_VERSION_CODE >= 22807
  set(t.comm_revoke, &ncclCommRevoke);
#endif
}
#endif

inline bool nccl_search::fill() {
#if defined(HVD_NCCL_LINKED)
  library = "linked";
  fill_linked(table);
#else
  const dynamic_library nccl = dynamic_library::find("libnccl.so.2", "HVD_NCCL_LIBRARY");
  if (!nccl) {
    why = joined({"NCCL was not found; looked for ", nccl.why(), "; install it with pip install nvidia-nccl-cu13"});
    return false;
  }
  library = nccl.name();
  std::string missing;
  table.each([&](auto*& function, const char* symbol, bool required) {
    nccl.look_up(function, symbol);
    if (function == nullptr && required && missing.empty()) missing = symbol;
  });
  if (!missing.empty()) {
    why = joined({library, " has no ", missing, ": it is not NCCL, or older than 2.18.6; install a newer one"});
    return false;
  }
#endif
  return true;
}

inline nccl_search::nccl_search() {
  if (!fill()) return;
  const nccl_result code = table.version(&version);
  usable = code == nccl_success;
  if (!usable) why = joined({"NCCL (", library, ") does not report its version: ", table.error_text(code)});
  if (usable && version < nccl_oldest) {
    usable = false;
    why = joined({"NCCL ", nccl_version_text(version), " (", library, ") is older than ",
                  nccl_version_text(nccl_oldest), "; install a newer one, or name it in HVD_NCCL_LIBRARY"});
  }
}

/// NCCL's table. Errors: unsupported, with the names and places that were searched.
inline const nccl_library& get_nccl() {
  const nccl_search& found = nccl_search::result();
  if (!found.usable) throw error(error_kind::unsupported, found.why);
  return found.table;
}

}  // namespace hvd::inline HVD_ABI::detail
