// bench/cases/replay.hpp: a rank's training step without the training: gradients come one by one and must be reduced.
#pragma once

#include <bench/backend.hpp>
#include <bench/stage.hpp>

#include <cstdint>

namespace hvd::bench {

/// Measures or checks one job of kind engine, as serve() does for the others. Samples are times of steps: from a
/// barrier at the begin of the backward pass to the last gradient reduced.
void run_replay(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch);

}  // namespace hvd::bench
