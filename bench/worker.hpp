// bench/worker.hpp: the life of one rank of a library under measurement; the same code for hvd and for its peers.
//
// A peer is a program of three lines:
//
//   int main(int argc, char** argv) {
//     return hvd::bench::worker_main([&](hvd::bench::place at) { return my_backend(argc, argv, at); });
//   }
#pragma once

#include <bench/inputs.hpp>
#include <bench/job.hpp>
#include <bench/replay.hpp>
#include <bench/stage.hpp>

#include <concepts>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <unistd.h>

namespace hvd::bench {

/// What a library has to offer. All members but the first four are collective: all ranks call them with equal arguments
/// (`run` aside, whose buffers are the rank's own). Errors are exceptions; a rank that throws ends the library.
template <class B>
concept Backend = requires(B& b, const job& j, const call& c, std::size_t bytes, bool shared, void* memory) {
  { b.rank() } -> std::convertible_to<int>;
  { b.size() } -> std::convertible_to<int>;
  /// Version and settings in one line: "MPICH 4.0.2; device ch4:ucx; MPIR_CVAR_X=1".
  { b.describe() } -> std::convertible_to<std::string>;
  /// Empty, or a clause that says why not: "Gloo has no bfloat16". The same on all ranks.
  { b.supports(j) } -> std::convertible_to<std::string>;
  /// Once before the calls of a job, outside of what is timed.
  b.prepare(j);
  /// Page-aligned memory; `shared` asks for memory in which peers can work directly, where the library has such.
  { b.allocate(bytes, shared) } -> std::convertible_to<void*>;
  b.release(memory);
  /// What is timed.
  b.run(c);
};

/// Buffers up to this size stay with a library from job to job; larger ones are given back.
inline constexpr std::size_t kept_bytes = std::size_t{64} << 20;

/// Where a rank is, as far as is known before its library starts.
struct place {
  int rank = 0;
  int size = 1;
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
  /// For jobs of kind engine; empty where a library has no such thing.
  std::function<std::unique_ptr<NamedReductions>(const job&)> named;
  /// Reduces gradients in place, fused by the library itself; empty where a library has no such thing.
  std::function<void(const job&, std::span<const std::span<std::byte>>)> fuse;
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
  if constexpr (requires { B::synchronises; }) e.synchronises = B::synchronises;
  return e;
}

/// Runs jobs until the coordinator has no more; returns the exit code. Compiled once, in worker.cpp.
int serve(const Stage& stage, erased_backend b);

/// The rank and size that HVD_BENCH_RANK or an MPI launcher gives in the environment.
place find_place();
/// Pins the calling thread to its CPU of HVD_BENCH_CPUS; -1 if that is not set. Throws if the CPU may not be used.
int pin_to_list(int rank);
/// The CPU that pin_to_list chose for this thread; -1 if none.
int pinned_cpu();
/// The stage of HVD_BENCH_STAGE. The process ends if the coordinator does.
Stage open_stage();
/// Says on the stage, or on stderr, why this rank cannot go on.
void report_start_failure(const Stage& stage, int rank, const std::string& why);

/// The whole program of a peer: joins the stage, pins, makes the backend and serves.
template <class Make>
  requires Backend<std::remove_cvref_t<std::invoke_result_t<Make&, place>>>
int worker_main(Make make) {
  place at;
  try {
    const Stage stage = open_stage();
    at = find_place();
    try {
      pin_to_list(at.rank);  // before the library starts threads
      auto backend = make(at);
      return serve(stage, erase(backend));
    } catch (const stage_ended&) {
      return 3;
    } catch (const std::exception& e) {
      report_start_failure(stage, at.rank, e.what());
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", at.rank, e.what());
  }
  return 1;
}

}  // namespace hvd::bench
