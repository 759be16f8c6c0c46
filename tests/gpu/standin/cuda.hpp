// tests/gpu/standin/cuda.hpp: the inside of the stand-in for the CUDA driver: devices, memory, streams, and the clocks
// that find works which no event orders.
//
// One mutex guards everything; works run without it. Nothing is ever destroyed, because threads run until the process
// ends.
#pragma once

#include <hvd/cuda/driver.hpp>

#include "gpu/standin.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <unistd.h>

namespace hvd::standin {

using namespace hvd::detail;

inline constexpr cu_result cu_not_initialized = 3, cu_invalid_context = 201, cu_invalid_handle = 400,
                           cu_not_permitted = 800, cu_capture_unsupported = 900, cu_capture_invalidated = 901,
                           cu_capture_unjoined = 904, cu_capture_isolation = 905;

/// How many works of each stream are known to be over: a vector clock, by the streams' numbers.
using clock = std::vector<std::uint64_t>;
inline void merge(clock& into, const clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (std::size_t i = 0; i != from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

struct range {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  bool writes = false;
};

/// A place in a stream, reached when all that was queued before it is over.
struct mark {
  bool reached = false;
  std::chrono::steady_clock::time_point when{};
  clock past{};
};

struct work {
  std::string name{};
  std::function<void()> run{};  ///< null if it only waits or marks
  std::vector<range> touches{};
  std::shared_ptr<mark> await{}, reaches{};
  bool host_function = false;
};

/// A capture of a CUDA graph, from cuStreamBeginCapture to cuStreamEndCapture.
struct capture {
  std::thread::id thread{};
  int mode = 0;  ///< a CUstreamCaptureMode: global 0, of the thread 1, relaxed 2
  bool broken = false;
};

struct context;
struct stream {
  int number = 0;
  context* owner = nullptr;
  std::deque<work> queue{};  ///< the first one may be running
  std::deque<std::shared_ptr<mark>> gates{};
  clock past{};  ///< of what was queued last
  bool destroyed = false;
  std::shared_ptr<capture> graph{};  ///< that takes what is queued, which does not run
};

struct event {
  context* owner = nullptr;
  std::shared_ptr<mark> last{};      ///< of the last record; null if there was none
  std::shared_ptr<capture> graph{};  ///< in which that was
  bool timing = true, destroyed = false;
};

/// A primary context; its address is the CUcontext.
struct context {
  int device = 0;
  unsigned users = 0;
  std::shared_ptr<stream> standard{};  ///< of the handle null
};

struct device_info {
  cu_uuid uuid{};
  int gpu = 0;  ///< of the machine
  bool mig = false;
};

struct access {
  int stream = 0;
  std::uint64_t time = 0;  ///< by the stream's own clock; 0: never
  std::string name{};
};

/// Memory of a device, or page-locked memory of the host.
struct allocation {
  std::uint64_t begin = 0;
  std::size_t bytes = 0;
  int device = -1;             ///< -1: the host's
  std::byte* alias = nullptr;  ///< where this process can touch it
  void* mapped = nullptr;
  std::size_t mapped_bytes = 0;
  bool freed = false, poisoned = false;
  int users = 0;  ///< works that run now
  struct part {
    access write{};
    std::vector<access> reads{};
  };
  std::map<std::size_t, part> parts{};  ///< by the offset of their first byte
};

struct machine {
  static machine& get();

  std::mutex mutex{};
  std::condition_variable changed{};

  std::atomic<pid_t> process = 0;      ///< that has called cuInit with success
  std::vector<device_info> devices{};  ///< visible ones
  std::deque<context> contexts{};
  std::map<std::uint64_t, allocation> memory{};
  std::deque<std::uint64_t> quarantine{};
  std::size_t quarantined = 0;
  std::map<void*, std::shared_ptr<stream>> streams{};
  std::map<void*, std::shared_ptr<event>> events{};
  int last_stream = 0;

  std::uint64_t violations = 0, host_synchronisations = 0;
  std::string last_violation{};
  std::map<std::string, std::deque<int>, std::less<>> failures{};
  std::map<std::string, std::uint64_t, std::less<>> calls{};
  bool thread_clocks = false;
  clock process_clock{};
  std::vector<std::shared_ptr<capture>> graphs{};  ///< captures under way
  /// The thread whose call waits for the device and holds the context meanwhile: calls of other threads wait for it.
  std::thread::id holder{};

  /// The environment, read by cuInit.
  unsigned delay_us = 200, free_limit_ms = 1000;
  std::size_t memory_limit = std::size_t{1} << 30;
  bool strict = false;

  // All of these are called with the mutex held.

  cu_result init();
  void violation(const std::string& sentence);
  int take_failure(std::string_view symbol);
  /// What this thread of the host knows to be over.
  clock& host_clock();

  /// The stream of a handle; null if there is none, or no current context to have a default stream.
  stream* find_stream(void* handle);
  event* find_event(void* handle);
  std::shared_ptr<stream> add_stream(context& owner);
  /// Queues a work, having compared what it touches with what others have touched. A stream's clock counts its works
  /// that touch memory.
  cu_result enqueue(stream& on, work&& w);
  /// Whether it is in memory that is known, and not freed; else a violation.
  bool check(const stream& on, const work& w);
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& until) { changed.wait(lock, until); }
  /// The host waits until a stream has done all that is queued now, and knows that it has.
  void synchronise(std::unique_lock<std::mutex>& lock, stream& with);
  /// Waits until all streams of a context (null: of all) have done what is queued now, for `limit_ms` at most (0: for
  /// ever), and holds the context meanwhile.
  void synchronise_all(std::unique_lock<std::mutex>& lock, const char* symbol, const context* of, unsigned limit_ms);
  /// Breaks the captures that a call of this thread disturbs; true if there is one. All are disturbed by what is
  /// `unsafe`, except in a mode of the thread that allows it.
  bool disturb();

  /// The allocation that an address is in, freed or not.
  allocation* find_memory(std::uint64_t address);
  /// The same if all bytes are in it and it is not freed.
  allocation* find_live(std::uint64_t address, std::size_t bytes);
  cu_result allocate(std::uint64_t& address, std::size_t bytes, std::size_t alignment, int device);
  cu_result release(std::uint64_t address, bool of_device);
  void poison(allocation& a);
  /// A translated address; null for memory that was given back.
  std::byte* alias(std::uint64_t address);

 private:
  void touch(stream& on, const work& w, const range& r, bool& complained);
  bool begin(const stream& on, work& w);
  void end(const work& w);
  void work_off(const std::shared_ptr<stream>& s);
};

/// A thread's contexts, the current one last.
std::vector<context*>& context_stack();
inline context* current() { return context_stack().empty() ? nullptr : context_stack().back(); }

/// True on a stream's thread while a function of cuLaunchHostFunc runs, in which no function of CUDA may be called.
extern thread_local bool in_host_function;

unsigned long number_of(const char* variable, unsigned long otherwise);
std::vector<device_info> visible_devices();

/// What a kernel was launched with.
struct launch {
  unsigned grid[3]{}, block[3]{};
  std::vector<std::vector<std::byte>> parameters{};

  template <class T>
  [[nodiscard]] T parameter(std::size_t i) const {
    T value;
    std::memcpy(&value, parameters.at(i).data(), sizeof value);
    return value;
  }
  /// Where the host finds an address of a device.
  template <class T>
  [[nodiscard]] static T* host(std::uint64_t address) {
    machine& m = machine::get();
    const std::lock_guard lock(m.mutex);
    return reinterpret_cast<T*>(m.alias(address));
  }
};

/// What stands in for a kernel: the whole grid in one function of the host.
struct kernel {
  std::string_view name;
  std::vector<std::size_t> parameters;  ///< the bytes of each
  std::function<void(const launch&)> run;
  std::function<std::vector<range>(const launch&)> touches;
};
const kernel* find_kernel(std::string_view name);

enum class needs { nothing, driver, context };

/// The mode of this thread, of cuThreadExchangeStreamCaptureMode.
int& capture_mode();
/// Functions that wait for the context while another thread holds it: all but those about threads and devices.
bool waits_for_context(std::string_view symbol);
/// Functions that CUDA names unsafe while a stream is captured: they may depend on the device's state.
bool unsafe(std::string_view symbol);

/// The frame of every function of the driver.
template <class F>
cu_result call(const char* symbol, needs what, F&& body) {
  machine& m = machine::get();
  if (in_host_function) return cu_not_permitted;
  // A fork of a process that uses the driver: the mutex may be a thread's that is not here.
  if (const pid_t user = m.process; user != 0 && user != ::getpid()) return cu_not_initialized;
  std::unique_lock lock(m.mutex);
  ++m.calls[symbol];
  if (const int code = m.take_failure(symbol); code != 0) return code;
  if (what != needs::nothing && m.process == 0) return cu_not_initialized;
  if (what == needs::context && (current() == nullptr || current()->users == 0)) return cu_invalid_context;
  if (unsafe(symbol) && m.disturb()) return cu_capture_unsupported;
  if (waits_for_context(symbol)) {
    m.wait(lock, [&] { return m.holder == std::thread::id() || m.holder == std::this_thread::get_id(); });
  }
  return body(m, lock);
}

}  // namespace hvd::standin
