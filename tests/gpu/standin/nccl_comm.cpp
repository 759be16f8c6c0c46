// tests/gpu/standin/nccl_comm.cpp: the functions of the stand-in for NCCL that make and end communicators and memory.
#include "gpu/standin/nccl.hpp"

#include <hvd/cuda/driver.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using namespace hvd::standin;

#pragma GCC visibility push(default)
extern "C" {

nccl_result ncclGetVersion(int* version) {
  if (version == nullptr) return nccl_invalid_argument;
  *version = library_version();
  return nccl_success;
}
const char* ncclGetErrorString(nccl_result code) {
  switch (code) {
    case 0: return "no error";
    case 1: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case 2: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case 3: return "internal error - please report this issue to the NCCL developers";
    case 4: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case 5: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case 6: return "remote process exited or there was a network error";
    case 7: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
const char* ncclGetLastError(nccl_comm) {
  thread_local char text[500];
  std::memset(text, 0, sizeof text);
  last_sentence().copy(text, sizeof text - 1);
  return text;
}

nccl_result ncclGetUniqueId(nccl_unique_id* id) {
  if (const nccl_result code = injected("ncclGetUniqueId"); code != nccl_success) return code;
  if (id == nullptr) return nccl_invalid_argument;
  std::memset(id->bytes, 0, sizeof id->bytes);
  const std::string name = joined({id_prefix, hex(random_word()), hex(random_word())});
  name.copy(id->bytes, sizeof id->bytes - 1);
  return nccl_success;
}

nccl_result ncclCommInitRankConfig(nccl_comm* made, int ranks, nccl_unique_id id, int rank, nccl_config* config) {
  if (const nccl_result code = injected("ncclCommInitRankConfig"); code != nccl_success) return code;
  if (made == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
    return failed(nccl_invalid_argument,
                  "Invalid rank requested : " + std::to_string(rank) + "/" + std::to_string(ranks));
  }
  *made = nullptr;
  const std::string name(id.bytes, ::strnlen(id.bytes, sizeof id.bytes));
  if (!name.starts_with(id_prefix) || name.find('/') != std::string::npos) {
    return failed(nccl_invalid_argument, "this is no unique id");
  }
  auto c = std::make_shared<communicator>();
  if (const nccl_result code = read_config(config, c->config); code != nccl_success) return code;
  c->rank = rank;
  c->size = ranks;
  c->name = name;
  c->blocking = c->config.blocking != 0;
  c->device = find_gpu()->current_device();
  if (c->device < 0) return failed(nccl_unhandled_cuda_error, "there is no current device");
  if (const nccl_result code = allocate(*c); code != nccl_success) return code;
  *made = keep(c);
  const nccl_result code = perform(c->blocking, {c}, [c] { return connect(*c); });
  if (code != nccl_success && code != nccl_in_progress) {
    forget(c);
    *made = nullptr;
  }
  return code;
}

nccl_result ncclCommFinalize(nccl_comm handle) {
  if (const nccl_result code = injected("ncclCommFinalize"); code != nccl_success) return code;
  const auto c = find(handle);
  if (const nccl_result code = ready(c); code != nccl_success) return code;
  c->finalized = true;
  return perform(c->blocking, {c}, [c] { return c->drain() ? nccl_success : nccl_internal_error; });
}
nccl_result ncclCommDestroy(nccl_comm handle) {
  if (const nccl_result code = injected("ncclCommDestroy"); code != nccl_success) return code;
  if (handle == nullptr) return nccl_success;
  const auto c = find(handle);
  if (!c) return failed(nccl_invalid_argument, "the communicator was destroyed already");
  if (const nccl_result code = ensure_ready(*c); code != nccl_success) return code;
  c->drain();
  forget(c);
  return nccl_success;
}
nccl_result ncclCommAbort(nccl_comm handle) {
  if (const nccl_result code = injected("ncclCommAbort"); code != nccl_success) return code;
  if (handle == nullptr) return nccl_success;
  const auto c = find(handle);
  if (!c) return failed(nccl_invalid_argument, "the communicator was destroyed already");
  c->aborted = true;
  end_works(*c);
  while (c->state == nccl_in_progress) std::this_thread::sleep_for(std::chrono::microseconds(200));
  forget(c);
  return nccl_success;
}
nccl_result ncclCommGetAsyncError(nccl_comm handle, nccl_result* state) {
  if (const nccl_result code = injected("ncclCommGetAsyncError"); code != nccl_success) return code;
  const auto c = find(handle);
  if (!c || state == nullptr) return failed(nccl_invalid_argument, "this is no communicator");
  *state = state_of(*c);
  if (*state == nccl_success && library_version() >= 22600) join_job(*c);
  return nccl_success;
}
nccl_result ncclCommCount(nccl_comm handle, int* count) {
  const auto c = find(handle);
  if (!c || count == nullptr) return failed(nccl_invalid_argument, "this is no communicator");
  *count = c->size;
  return ensure_ready(*c);
}

nccl_result ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, nccl_comm handle) {
  if (const nccl_result code = injected("ncclRedOpCreatePreMulSum"); code != nccl_success) return code;
  const auto c = find(handle);
  if (const nccl_result code = ready(c); code != nccl_success) return code;
  if (op == nullptr || scalar == nullptr || !valid_type(type))
    return failed(nccl_invalid_argument, "ncclRedOpCreatePreMulSum");
  reduction made{.op = reduction::pre_mul, .type = type};
  if (residence == nccl_scalar_on_host) {
    std::memcpy(made.factor.data(), scalar, bytes_of(type));
  } else {
    made.on_device = reinterpret_cast<std::uint64_t>(scalar);
  }
  const std::lock_guard lock(c->mutex);
  *op = ++c->last_op;
  c->ops[*op] = made;
  return nccl_success;
}
#if !defined(HVD_STANDIN_NCCL_BROKEN)
nccl_result ncclRedOpDestroy(int op, nccl_comm handle) {
  const auto c = find(handle);
  if (!c) return failed(nccl_invalid_argument, "this is no communicator");
  const std::lock_guard lock(c->mutex);
  return c->ops.erase(op) == 1 ? nccl_success : failed(nccl_invalid_argument, "there is no such operation");
}
#endif

nccl_result ncclCommSplit(nccl_comm handle, int color, int key, nccl_comm* made, nccl_config* config) {
  if (const nccl_result code = injected("ncclCommSplit"); code != nccl_success) return code;
  const auto c = find(handle);
  if (const nccl_result code = ready(c); code != nccl_success) return code;
  if (made == nullptr || color < nccl_split_no_color) return failed(nccl_invalid_argument, "ncclCommSplit");
  const unsigned count = ++c->children;
  return derive(c, made, config, color == nccl_split_no_color, [=](communicator& child) {
    const std::array<int, 3> mine{color, key, c->rank};
    std::vector<std::byte> bytes;
    if (!c->exchange(mine.data(), sizeof mine, bytes)) return nccl_internal_error;
    std::vector<std::array<int, 3>> all(bytes.size() / sizeof mine);
    std::memcpy(all.data(), bytes.data(), bytes.size());
    std::erase_if(all, [&](const auto& one) { return one[0] != color; });
    std::sort(all.begin(), all.end());
    child.size = static_cast<int>(all.size());
    child.rank = static_cast<int>(std::find(all.begin(), all.end(), mine) - all.begin());
    child.name = joined({c->name, "-s", count, "-", color});
    return nccl_success;
  });
}
#if !defined(HVD_STANDIN_NCCL_OLD)
nccl_result ncclCommShrink(nccl_comm handle, int* exclude, int count, nccl_comm* made, nccl_config* config, int flags) {
  if (const nccl_result code = injected("ncclCommShrink"); code != nccl_success) return code;
  const auto c = find(handle);
  if (!c || made == nullptr || exclude == nullptr || count < 1) return failed(nccl_invalid_argument, "ncclCommShrink");
  // As NCCL, which clears here the flags that a revocation under way still needs.
  if ((flags & nccl_shrink_abort) != 0) {
    if (c->revoked && c->state == nccl_in_progress) find_gpu()->violation("ncclCommShrink beside ncclCommRevoke");
    end_works(*c);
  }
  if (const nccl_result code = ensure_ready(*c); code != nccl_success) return code;
  std::set<int> gone(exclude, exclude + count);
  if (gone.contains(c->rank)) return failed(nccl_invalid_argument, "a rank that leaves calls ncclCommShrink");
  const unsigned number = ++c->children;
  return derive(c, made, config, false, [=](communicator& child) {
    std::string name = joined({c->name, "-k", number});
    for (int q = 0; q != c->size; ++q) {
      if (gone.contains(q)) {
        name += joined({"-", q});
        continue;
      }
      if (q == c->rank) child.rank = child.size;
      ++child.size;
    }
    child.name = name;
    return nccl_success;
  });
}
nccl_result ncclCommRevoke(nccl_comm handle, int flags) {
  if (const nccl_result code = injected("ncclCommRevoke"); code != nccl_success) return code;
  const auto c = find(handle);
  if (!c || flags != 0) return failed(nccl_invalid_argument, "ncclCommRevoke");
  if (c->revoked || c->finalized) return failed(nccl_invalid_argument, "ncclCommRevoke: revoked, or finalized");
  if (!c->connected_once) find_gpu()->violation("ncclCommRevoke of a communicator that was never connected");
  c->revoked = true;
  end_works(*c);
  while (c->state == nccl_in_progress) std::this_thread::sleep_for(std::chrono::microseconds(200));
  c->finalized = true;
  // It waits for the streams, and stops the proxies.
  return perform(c->blocking, {c}, [c] {
    std::this_thread::sleep_for(std::chrono::milliseconds(number_of("HVD_STANDIN_NCCL_REVOKE_MS", 50)));
    return nccl_success;
  });
}

nccl_result ncclMemAlloc(void** address, std::size_t bytes) {
  if (const nccl_result code = injected("ncclMemAlloc"); code != nccl_success) return code;
  std::uint64_t at = 0;
  const int code = find_gpu()->alloc(&at, bytes, nccl_window_alignment);
  if (code != cu_success) return failed(nccl_unhandled_cuda_error, "ncclMemAlloc: CUDA error " + std::to_string(code));
  *address = reinterpret_cast<void*>(at);
  return nccl_success;
}
nccl_result ncclMemFree(void* address) {
  if (const nccl_result code = injected("ncclMemFree"); code != nccl_success) return code;
  const auto free = find_gpu()->function<decltype(cuda_driver::free)>("cuMemFree_v2");
  return free(reinterpret_cast<std::uint64_t>(address)) == cu_success ? nccl_success : nccl_unhandled_cuda_error;
}
nccl_result ncclCommRegister(nccl_comm handle, void* address, std::size_t bytes, void** made) {
  if (const nccl_result code = injected("ncclCommRegister"); code != nccl_success) return code;
  const auto c = find(handle);
  if (const nccl_result code = ready(c); code != nccl_success) return code;
  if (find_gpu()->memory(reinterpret_cast<std::uint64_t>(address), bytes) != c->device) {
    return failed(nccl_invalid_argument, "ncclCommRegister: this is no memory of the communicator's device");
  }
  const std::lock_guard lock(c->mutex);
  c->registered.insert(address);
  *made = address;
  return nccl_success;
}
nccl_result ncclCommDeregister(nccl_comm handle, void* made) {
  const auto c = find(handle);
  if (!c) return failed(nccl_invalid_argument, "this is no communicator");
  const std::lock_guard lock(c->mutex);
  return c->registered.erase(made) == 1 ? nccl_success : failed(nccl_invalid_argument, "ncclCommDeregister");
}
// Collective. HVD_STANDIN_NCCL_WINDOWS=0: the ranks' memory cannot be registered, of which NCCL 2.28 says nothing.
nccl_result ncclCommWindowRegister(nccl_comm handle, void* address, std::size_t bytes, nccl_window* made, int flags) {
  if (const nccl_result code = injected("ncclCommWindowRegister"); code != nccl_success) return code;
  const auto c = find(handle);
  if (const nccl_result code = ready(c); code != nccl_success) return code;
  const auto at = reinterpret_cast<std::uint64_t>(address);
  if (at % nccl_window_alignment != 0) return failed(nccl_invalid_argument, "a window begins at a multiple of 4096");
  if (find_gpu()->memory(at, bytes) != c->device) {
    return failed(nccl_invalid_argument, "ncclCommWindowRegister: this is no memory of the communicator's device");
  }
  // As NCCL from 2.28 on: the call returns success while a thread still registers.
  const nccl_result code = perform(c->blocking, {c}, [=] {
    std::vector<std::byte> sizes;
    if (!c->exchange(&bytes, sizeof bytes, sizes)) return nccl_internal_error;
    if (number_of("HVD_STANDIN_NCCL_WINDOWS", 1) == 0) return nccl_success;
    const std::lock_guard lock(c->mutex);
    c->windows[at + bytes] = {at, ++c->last_window, (flags & nccl_window_symmetric) != 0};
    *made = reinterpret_cast<nccl_window>(address);
    return nccl_success;
  });
  return code == nccl_in_progress && library_version() >= 22800 ? nccl_success : code;
}
nccl_result ncclCommWindowDeregister(nccl_comm handle, nccl_window window) {
  const auto c = find(handle);
  if (!c) return failed(nccl_invalid_argument, "this is no communicator");
  const std::lock_guard lock(c->mutex);
  if (c->over != c->queued) find_gpu()->violation("ncclCommWindowDeregister beside operations");
  const auto gone = std::erase_if(
      c->windows, [&](const auto& w) { return w.second.begin == reinterpret_cast<std::uint64_t>(window); });
  return gone == 1 ? nccl_success : failed(nccl_invalid_argument, "ncclCommWindowDeregister");
}
#endif

}  // extern "C"

// Their types are those of hvd's table.
[[maybe_unused]] static void fill_table(nccl_library& t) {
  t.version = ncclGetVersion;
  t.error_text = ncclGetErrorString;
  t.unique_id = ncclGetUniqueId;
  t.comm_init = ncclCommInitRankConfig;
  t.comm_finalize = ncclCommFinalize;
  t.comm_destroy = ncclCommDestroy;
  t.comm_abort = ncclCommAbort;
  t.comm_async_error = ncclCommGetAsyncError;
  t.comm_count = ncclCommCount;
  t.pre_mul_sum = ncclRedOpCreatePreMulSum;
  t.last_error = ncclGetLastError;
#if !defined(HVD_STANDIN_NCCL_BROKEN)
  t.op_destroy = ncclRedOpDestroy;
#endif
  t.comm_split = ncclCommSplit;
#if !defined(HVD_STANDIN_NCCL_OLD)
  t.alloc = ncclMemAlloc;
  t.free = ncclMemFree;
  t.comm_register = ncclCommRegister;
  t.comm_deregister = ncclCommDeregister;
  t.window_register = ncclCommWindowRegister;
  t.window_deregister = ncclCommWindowDeregister;
  t.comm_shrink = ncclCommShrink;
  t.comm_revoke = ncclCommRevoke;
#endif
}
