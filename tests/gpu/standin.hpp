// tests/gpu/standin.hpp: how a test looks into the stand-in for the CUDA driver, and makes it do what a GPU seldom
// does.
//
// libcuda-standin.so exports these functions beside those of the driver. Python calls them through ctypes. The
// environment describes the machine, read when cuInit or the first function of NCCL is called:
//   HVD_CUDA_LIBRARY, HVD_NCCL_LIBRARY    the stand-ins' files, which hvd loads then
//   CUDA_VISIBLE_DEVICES                  as the driver reads it
//   HVD_STANDIN_GPUS=2                    how many there are; HVD_STANDIN_MIG=1: each has two instances
//   HVD_STANDIN_MEMORY=1073741824         bytes of each, in each process
//   HVD_STANDIN_DRIVER_VERSION=13000
//   HVD_STANDIN_DELAY_US=200              each work begins up to this much later than it could
//   HVD_STANDIN_FREE_LIMIT_MS=1000        how long cuMemFree waits for works, for which the driver waits for ever
//   HVD_STANDIN_STRICT=1                  a violation ends the process
//   HVD_STANDIN_THREAD_CLOCKS=1           see thread_clocks
//   HVD_STANDIN_NCCL_VERSION=22809        what ncclGetVersion says, and ranks compare
//   HVD_STANDIN_NCCL_IN_PROGRESS=1        operations are in their stream 1 ms after the call, which says ncclInProgress
//   HVD_STANDIN_NCCL_REMOTE_ERROR=1       the end of a peer is noticed, as over a network; else operations hang
//   HVD_STANDIN_NCCL_FAIL=call:N:CODE     the N-th operation of the process (or ncclAllReduce:N:CODE: of this kind)
//   hangs,
//                                         and the communicator's state becomes CODE
//   HVD_STANDIN_NCCL_WINDOWS=0            windows cannot be registered, which the call does not say
//   HVD_STANDIN_NCCL_SERIAL=1             operations of all communicators of a process run one after another, in the
//   order in which they were launched
//   NCCL_HOSTID, NCCL_MULTI_RANK_GPU_ENABLE    as NCCL reads them
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <dlfcn.h>

extern "C" {
/// Bytes that a work reads (writes == 0) or writes.
struct hvd_standin_range {
  std::uint64_t address, bytes;
  int writes;
};
}

namespace hvd::test {

/// The control functions of the stand-in that HVD_CUDA_LIBRARY names, which hvd then uses, too.
struct standin_gpu {
  /// Where the host can read and write what is at this address of a device; null for any other address.
  void* (*host)(std::uint64_t address) = nullptr;
  /// How many mistakes were found so far, and the sentence about the last one, cut to `length`.
  std::uint64_t (*violations)(char* last, std::size_t length) = nullptr;
  /// Forgets them: for tests that make one on purpose.
  void (*clear_violations)() = nullptr;
  /// Counts a mistake: for what stands on this stand-in.
  void (*violation)(const char* sentence) = nullptr;
  /// How often the host has waited for the device: cuStreamSynchronize, cuEventSynchronize, cuMemFree, cuMemFreeHost,
  /// and copies to memory that is not page-locked.
  std::uint64_t (*host_synchronisations)() = nullptr;
  /// How often a function of the driver or of NCCL was called, by its symbol.
  std::uint64_t (*calls)(const char* symbol) = nullptr;
  /// The next call of this function (of the driver or of NCCL) fails with this code; calls of `fail_next` queue up.
  void (*fail_next)(const char* symbol, int code) = nullptr;
  /// Counts a call of `symbol`, of NCCL. The code that it shall fail with; 0 if it shall not.
  int (*take_failure)(const char* symbol) = nullptr;

  /// What is queued on this stream from now on waits until `release`. (Null: the current context's default stream.)
  int (*hold)(void* stream) = nullptr;
  int (*release)(void* stream) = nullptr;
  /// How many works of this stream are not over.
  std::uint64_t (*pending)(void* stream) = nullptr;
  /// Queues a work of the test's own: f(argument) runs on the stream's thread, and touches these ranges and no others.
  /// Returns a CUresult.
  int (*enqueue)(void* stream, const char* name, void (*f)(void*), void* argument, const hvd_standin_range* ranges,
                 std::size_t count) = nullptr;
  /// cuMemFree without the wait: works that are not over yet touch freed memory then.
  int (*free_now)(std::uint64_t address) = nullptr;
  /// Whether each thread of the host has to synchronise with the device for itself (HVD_STANDIN_THREAD_CLOCKS=1). At
  /// first one does it for all, because the threads' own mutexes and queues cannot be seen from here.
  void (*thread_clocks)(int on) = nullptr;

  /// cuMemAlloc with an alignment.
  int (*alloc)(std::uint64_t* address, std::size_t bytes, std::size_t alignment) = nullptr;
  /// The device that all of these bytes are on; -1: page-locked memory of the host; -2: neither.
  int (*memory)(std::uint64_t address, std::size_t bytes) = nullptr;
  /// The device of the current context, of a stream; -1 if there is none.
  int (*current_device)() = nullptr;
  int (*stream_device)(void* stream) = nullptr;

  void* library = nullptr;

  /// Throws where HVD_CUDA_LIBRARY names no stand-in.
  static const standin_gpu& get() {
    static const standin_gpu once = load();
    return once;
  }
  /// A function of the driver, for instance `gpu.function<decltype(cuda_driver::init)>("cuInit")`.
  template <class F>
  [[nodiscard]] F function(const char* symbol) const {
    return reinterpret_cast<F>(::dlsym(library, symbol));
  }
  [[nodiscard]] std::string last_violation() const {
    char text[500] = {};
    violations(text, sizeof text);
    return text;
  }

 private:
  static standin_gpu load() {
    const char* const path = std::getenv("HVD_CUDA_LIBRARY");
    standin_gpu gpu;
    gpu.library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (gpu.library == nullptr) throw std::runtime_error("HVD_CUDA_LIBRARY does not name the stand-in's file");
    const auto find = [&](auto*& function, const char* symbol) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(gpu.library, symbol));
      if (function == nullptr)
        throw std::runtime_error(std::string(path) + " has no " + symbol + ": it is no stand-in");
    };
    find(gpu.host, "hvd_standin_host");
    find(gpu.violations, "hvd_standin_violations");
    find(gpu.clear_violations, "hvd_standin_clear_violations");
    find(gpu.violation, "hvd_standin_violation");
    find(gpu.host_synchronisations, "hvd_standin_host_synchronisations");
    find(gpu.calls, "hvd_standin_calls");
    find(gpu.fail_next, "hvd_standin_fail_next");
    find(gpu.take_failure, "hvd_standin_take_failure");
    find(gpu.hold, "hvd_standin_hold");
    find(gpu.release, "hvd_standin_release");
    find(gpu.pending, "hvd_standin_pending");
    find(gpu.enqueue, "hvd_standin_enqueue");
    find(gpu.free_now, "hvd_standin_free_now");
    find(gpu.thread_clocks, "hvd_standin_thread_clocks");
    find(gpu.alloc, "hvd_standin_alloc");
    find(gpu.memory, "hvd_standin_memory");
    find(gpu.current_device, "hvd_standin_current_device");
    find(gpu.stream_device, "hvd_standin_stream_device");
    return gpu;
  }
};

}  // namespace hvd::test
