// bench/job.hpp: a measurement: one collective on buffers of one size, as plain data that fits into shared memory.
//
// Only names, sizes and factors, so that a peer's program can include it and still runs none of hvd's code.
#pragma once

#include <bench/collective.hpp>

#include <hvd/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <type_traits>

namespace hvd::bench {

enum class redop : std::uint8_t { sum, prod, min, max, avg };
inline constexpr std::string_view redop_names[] = {"sum", "prod", "min", "max", "avg"};
constexpr std::string_view name(redop op) noexcept { return redop_names[static_cast<unsigned char>(op)]; }

enum class buffers : std::uint8_t { private_, shared };
inline constexpr std::string_view buffers_names[] = {"private", "shared"};
constexpr std::string_view name(buffers b) noexcept { return buffers_names[static_cast<unsigned char>(b)]; }

/// Which memory a call finds: dirty buffers have just been rewritten by their rank, clean ones were written once,
/// rotating ones are together larger than the last-level cache and take turns.
enum class mode : std::uint8_t { dirty, clean, rotating };
inline constexpr std::string_view mode_names[] = {"dirty", "clean", "rotating"};
constexpr std::string_view name(mode m) noexcept { return mode_names[static_cast<unsigned char>(m)]; }

/// Isolated calls have a barrier before each and are timed one by one; streaming calls follow each other.
enum class cadence : std::uint8_t { isolated, streaming };
inline constexpr std::string_view cadence_names[] = {"isolated", "streaming"};
constexpr std::string_view name(cadence c) noexcept { return cadence_names[static_cast<unsigned char>(c)]; }

/// Their gradients are in bench/cases/gradients.hpp.
enum class model : std::uint8_t { resnet50, transformer124m };
inline constexpr std::string_view model_names[] = {"resnet50", "transformer124m"};
constexpr std::string_view name(model m) noexcept { return model_names[static_cast<unsigned char>(m)]; }
/// Elements of all its gradients.
constexpr std::size_t parameters_of(model m) noexcept { return m == model::resnet50 ? 25'557'032 : 124'439'808; }

/// How a rank treats gradients that come one by one; and two numbers of the engine alone.
enum class schedule : std::uint8_t {
  engine,       ///< submits each by its name as it comes, and waits for all at the end
  each,         ///< reduces each as it comes, in the order of the list, which all ranks must share
  each_after,   ///< reduces each when all have come
  fused_after,  ///< packs, reduces and unpacks when all have come
  latency,      ///< one tensor of 8 bytes by name, from submission to its end
  idle,         ///< an engine with nothing to do: samples 0 and 1 are ns of CPU and 1000 times how often threads woke
};
inline constexpr std::string_view schedule_names[] = {"engine", "each", "each_after", "fused_after", "latency", "idle"};
constexpr std::string_view name(schedule s) noexcept { return schedule_names[static_cast<unsigned char>(s)]; }

/// How a backward pass is replayed.
struct replay {
  schedule what{};
  /// The pass keeps this rank's CPU busy, measured as CPU time; else it runs on an accelerator and the CPU is free.
  bool on_cpu = false;
  std::uint32_t window = 4;
  double backward_seconds = 0.05;
  double jitter = 0.1;
  std::uint64_t seed = 1;
  double idle_seconds = 10;
  char timeline[128] = {};  ///< path; empty is none
};

/// nccl-tests' name of a type.
constexpr std::string_view type_name(dtype type) noexcept {
  switch (type) {
    case dtype::float16: return "half";
    case dtype::float32: return "float";
    case dtype::float64: return "double";
    default: return hvd::name(type);
  }
}

/// Whether the collective has the operation at all, whatever the type.
constexpr bool has_op(collective c, redop op) noexcept { return reduces(c) && (op != redop::avg || facts(c).averages); }

/// The arguments of a backend's `run`, in the counts of nccl-tests: the elements of the whole vector for allreduce,
/// reduce, broadcast and send_recv; those of one rank's block for the others, whose larger buffer has `count` times
/// ranks.
///
/// In place, as in NCCL: in == out for allreduce, alltoall, and on the root for reduce and broadcast (elsewhere too,
/// if the other buffer has no meaning); in == out + rank blocks for allgather and (on the root) gather; out == in +
/// rank blocks for reduce_scatter and (on the root) scatter. MPI calls it MPI_IN_PLACE. `fused` and `engine` come as
/// allreduce.
struct call {
  collective kind{};
  dtype type{};
  redop op{};
  int root = 0;
  std::size_t count = 0;
  const void* in = nullptr;
  void* out = nullptr;
};

struct job {
  collective kind{};
  dtype type = dtype::float32;
  redop op = redop::sum;
  buffers memory = buffers::private_;
  mode state = mode::dirty;
  cadence pace = cadence::isolated;
  bool in_place = false;
  bool check = false;  ///< compare results instead of measuring; `iterations` times
  int root = 0;
  std::uint64_t count = 0;
  std::uint32_t warmup = 0;
  std::uint32_t iterations = 0;
  std::uint32_t unalign = 0;           ///< elements by which buffers are off their alignment
  std::uint64_t rotating_bytes = 0;    ///< of all ranks' buffers together, in mode rotating
  model parameters = model::resnet50;  ///< for fused and engine
  std::uint64_t fusion_bytes = 0;      ///< for fused and engine
  replay passes{};                     ///< for engine
  char algorithm[96] = {};             ///< for hvd; empty is automatic
};
static_assert(std::is_trivially_copyable_v<job>);

/// The value with this name; nothing if there is none.
template <class E, class Names>
constexpr std::optional<E> find(const Names& names, std::string_view text) noexcept {
  for (std::size_t i = 0; i != std::size(names); ++i) {
    if (names[i] == text) return static_cast<E>(i);
  }
  return std::nullopt;
}

}  // namespace hvd::bench
