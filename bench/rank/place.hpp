// bench/rank/place.hpp: which rank a process is, on which CPU, and where its stage is.
#pragma once

#include <bench/stage.hpp>

#include <string>

namespace hvd::bench {

/// The place of a rank, as far as it is known before its library starts.
struct place {
  int rank = 0;
  int size = 1;
};

/// The rank and size that HVD_BENCH_RANK or an MPI launcher gives in the environment.
place find_place();
/// Pins the calling thread to its CPU of HVD_BENCH_CPUS, if that is set. Throws if the CPU may not be used.
void pin_to_list(int rank);
/// The CPU that this thread is bound to, by pin_to_list or by a launcher; -1 if it may use several.
int bound_cpu();
/// The stage of HVD_BENCH_STAGE. The process ends if the coordinator does.
Stage open_stage();
/// Says on the stage, or on stderr, why this rank cannot go on.
void report_start_failure(const Stage& stage, int rank, const std::string& why);

}  // namespace hvd::bench
