// bench/options.hpp: the options of a run of hvd-bench.
#pragma once

#include <bench/job.hpp>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace hvd::bench {

/// Invalid options: one sentence, exit code 2.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class averaging { rank0, mean, min, max };  // over ranks, for each iteration
inline constexpr std::string_view averaging_names[] = {"of rank 0", "mean of ranks", "fastest rank", "slowest rank"};

struct peer_option {
  std::string name;
  std::string command;  ///< empty: as bench/coordinator/launchers.cpp knows it
};

struct options {
  collective kind = collective::allreduce;
  std::size_t min_bytes = std::size_t{32} << 20;
  std::size_t max_bytes = std::size_t{32} << 20;
  std::size_t step_bytes = std::size_t{1} << 20;
  std::size_t step_factor = 1;
  int ranks = 0;
  std::vector<dtype> types{dtype::float32};
  std::vector<redop> ops{redop::sum};
  std::vector<int> roots{0};
  std::optional<unsigned> warmup;      ///< nothing: chosen for each size; there if iterations are
  std::optional<unsigned> iterations;  ///< nothing: chosen for each size
  unsigned checks = 1;
  unsigned cycles = 1;
  unsigned rounds = 0;  ///< of all libraries at one size; 0: 1 alone, 3 with others
  averaging over_ranks = averaging::max;
  std::string transport = "shm";
  std::string algorithm;
  int ranks_per_gpu = 1;  ///< with transport nccl
  buffers memory = buffers::private_;
  mode state = mode::dirty;
  cadence pace = cadence::isolated;
  bool out_of_place = true;
  bool in_place = true;
  bool pin = true;
  bool limit = false;
  bool steady = false;  ///< measures a row again if the cost of cache lines changed during it
  bool timestamps = false;
  bool spread = false;  ///< -I: minimum, maximum and variation of iterations
  unsigned unalign = 0;
  double seconds = 0.25;      ///< for one cell of one library
  double limit_seconds = 20;  ///< a library that takes longer for a cell is ended
  double min_bandwidth = 0;   ///< NCCL_TESTS_MIN_BW
  model parameters = model::resnet50;
  std::size_t fusion_bytes = std::size_t{4} << 20;
  replay passes{};
  std::string json;
  std::string earlier;  ///< file with an earlier run; empty: looked for; "none"
  std::vector<peer_option> peers;
  bool list = false;
  bool explain = false;
  std::string command;  ///< the line as it was given

  [[nodiscard]] bool names_earlier() const { return !earlier.empty() && earlier != "none"; }
};

/// The part for a library, the same for all sizes.
job job_of(const options& o);

/// Timed calls in a cell if `seconds` chooses their number; grows with them.
unsigned most_iterations(const options& o);

/// The sizes of the table, in bytes.
std::vector<std::size_t> sizes_of(const options& o);

}  // namespace hvd::bench
