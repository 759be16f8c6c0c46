// bench/backend.hpp: the interface of a library under measurement, and the same without its type.
#pragma once

#include <bench/job.hpp>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hvd::bench {

/// The interface of a library. All members but the first four are collective: all ranks call them with equal arguments
/// (`run` aside, whose buffers are the rank's own). Errors are exceptions; a rank that throws ends the library.
template <class B>
concept Backend = requires(B& b, const job& j, const call& c, std::size_t bytes, bool shared, void* memory) {
  { b.rank() } -> std::convertible_to<int>;
  { b.size() } -> std::convertible_to<int>;
  /// Version and settings in one line: "MPICH 4.0.2; device ch4:ucx; MPIR_CVAR_X=1".
  { b.describe() } -> std::convertible_to<std::string>;
  /// Empty, or the reason why not: "Gloo has no bfloat16". The same on all ranks. It refuses collectives that
  /// it does not know.
  { b.supports(j) } -> std::convertible_to<std::string>;
  /// Once before the calls of a job, outside of what is timed.
  b.prepare(j);
  /// Page-aligned memory; `shared` asks for memory in which peers can work directly, if the library has it.
  { b.allocate(bytes, shared) } -> std::convertible_to<void*>;
  b.release(memory);
  /// The timed call.
  b.run(c);
};

/// Members of a library that takes tensors by name, in any order on each rank. Lives as long as a job; making it and
/// its end are collective.
class NamedReductions {
 public:
  NamedReductions() = default;
  NamedReductions(const NamedReductions&) = delete;
  NamedReductions& operator=(const NamedReductions&) = delete;
  virtual ~NamedReductions() = default;

  /// Begins to reduce the tensor in place and returns.
  virtual void submit(const std::string& name, void* data, const std::vector<std::size_t>& shape) = 0;
  /// Reduces the tensor in place.
  virtual void run(const std::string& name, void* data, const std::vector<std::size_t>& shape) = 0;
  /// Returns when all that was submitted is done.
  virtual void wait() = 0;
  virtual void start_timeline(const std::string& path) = 0;
  virtual void stop_timeline() = 0;
};

/// Members of a library with buffers on a device, on which `run` only queues work.
struct device_buffers {
  std::string name;                                                               ///< of the device, for people
  int ordinal = 0;                                                                ///< among those that the rank sees
  std::function<void(void* to, const void* from, std::size_t bytes)> upload{};    ///< from the host; waits
  std::function<void(void* to, const void* from, std::size_t bytes)> download{};  ///< to the host; waits
  std::function<void()> finish{};                                                 ///< waits for all that was queued
};

/// A backend without its type. One indirect call, the same for all libraries, is within the timed part.
struct erased_backend {
  int rank = 0;
  int size = 1;
  std::function<std::string()> describe;
  std::function<std::string(const job&)> supports;
  std::function<void(const job&)> prepare;
  std::function<void*(std::size_t, bool)> allocate;
  std::function<void(void*)> release;
  void (*run)(void* self, const call& c) = nullptr;
  void* self = nullptr;
  /// For jobs of kind engine; empty if a library lacks it.
  std::function<std::unique_ptr<NamedReductions>(const job&)> named;
  /// Reduces gradients in place, fused by the library; empty if a library lacks it.
  std::function<void(const job&, std::span<const std::span<std::byte>>)> fuse;
  std::optional<device_buffers> device{};  ///< nothing: buffers are the host's
  bool synchronises = true;  ///< false: ranks need a barrier after each call before they may touch their buffers
};

template <Backend B>
erased_backend erase(B& b) {
  erased_backend e;
  e.rank = b.rank();
  e.size = b.size();
  e.describe = [&b] { return std::string(b.describe()); };
  e.supports = [&b](const job& j) { return std::string(b.supports(j)); };
  e.prepare = [&b](const job& j) { b.prepare(j); };
  e.allocate = [&b](std::size_t bytes, bool shared) { return static_cast<void*>(b.allocate(bytes, shared)); };
  e.release = [&b](void* memory) { b.release(memory); };
  e.run = [](void* self, const call& c) { static_cast<B*>(self)->run(c); };
  e.self = &b;
  if constexpr (requires(const job& j) { b.named(j); }) e.named = [&b](const job& j) { return b.named(j); };
  if constexpr (requires(const job& j, std::span<const std::span<std::byte>> g) { b.fuse(j, g); }) {
    e.fuse = [&b](const job& j, std::span<const std::span<std::byte>> g) { b.fuse(j, g); };
  }
  if constexpr (requires { b.device(); }) e.device = b.device();
  if constexpr (requires { B::synchronises; }) e.synchronises = B::synchronises;
  return e;
}

}  // namespace hvd::bench
