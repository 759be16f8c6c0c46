// bench/fused.hpp: gradients of real models: packed into a fusion buffer, reduced, unpacked.
#pragma once

#include <bench/job.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::bench {

class Stage;
struct erased_backend;

/// Elements of each parameter tensor in the order in which a backward pass finishes their gradients: the last layer
/// first.
std::vector<std::size_t> gradients_of(model m);
std::size_t parameters_of(model m);

/// Measures or checks one job of kind fused, as serve() does for the others.
void run_fused(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch);

}  // namespace hvd::bench
