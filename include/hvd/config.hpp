// hvd/config.hpp: the environment variables of a job, and parsers that name what they refuse.
#pragma once

#include <hvd/config/parse.hpp>
#include <hvd/config/place.hpp>
#include <hvd/version.hpp>

namespace hvd::inline HVD_ABI {

/// This process's place in its job. The defaults are those of a process that no launcher has started: alone.
///
/// It comes from HOROVOD_RANK, HOROVOD_SIZE and their companions, which hvdrun sets, else from the variables of
/// torchrun, MPICH's or Intel MPI's mpiexec, Open MPI's, MVAPICH2's mpirun_rsh, jsrun or srun. Members: `rank` and
/// `size` in the job, `local_rank` and `local_size` on this host, `cross_rank` and `cross_size` among the processes of
/// the same local rank on all hosts; `job`, HVD_JOB, or the launcher's name where that is known; `launch`, HVD_LAUNCH
/// or what the launcher reports of itself, equal on all ranks of one launch and different in another one of the same
/// job; `launcher`, "none" if nothing says that a launcher has started this process.
struct config : detail::place {
  /// A function object that returns the value of a variable, or nothing if it is not set; by reference.
  using lookup = detail::variable_lookup;

  /// Reads this process's environment. Rank and size must both be set or both not, for the job, the host and across
  /// hosts. Without the local pair the job is on one host. Without the cross pair hosts are taken to have equal numbers
  /// of consecutive ranks, if that fits. An invalid_argument error names the variable, its value and what is allowed.
  static config from_environment(const lookup& variable = detail::variable_of_environment) {
    return {detail::find_place(variable)};
  }
};

}  // namespace hvd::inline HVD_ABI
