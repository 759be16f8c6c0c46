// bench/replay.hpp: a rank's training step without the training: gradients come one by one and must be reduced.
#pragma once

#include <bench/job.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hvd::bench {

class Stage;
struct erased_backend;

/// What a library has if it takes tensors by name, in any order on each rank. Lives as long as a job; making it and its
/// end are collective.
class NamedReductions {
 public:
  NamedReductions() = default;
  NamedReductions(const NamedReductions&) = delete;
  NamedReductions& operator=(const NamedReductions&) = delete;
  virtual ~NamedReductions() = default;

  /// Begins to reduce the tensor in place and returns.
  virtual void submit(const std::string& name, void* data, const std::vector<std::size_t>& shape) = 0;
  /// Returns when all that was submitted is done.
  virtual void wait() = 0;
  virtual void start_timeline(const std::string& path) = 0;
  virtual void stop_timeline() = 0;
};

/// Measures or checks one job of kind engine, as serve() does for the others. Samples are times of steps: from a
/// barrier at the begin of the backward pass to the last gradient reduced.
void run_replay(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch);

}  // namespace hvd::bench
