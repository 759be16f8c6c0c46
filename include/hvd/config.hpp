// hvd/config.hpp: the environment variables of a job, and parsers that name what they refuse.
#pragma once

#include <hvd/config/parse.hpp>
#include <hvd/config/place.hpp>
#include <hvd/error.hpp>
#include <hvd/version.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI {

/// The settings from the environment. The defaults are those of a process that no launcher has started: alone.
///
/// Its place comes from HOROVOD_RANK, HOROVOD_SIZE and their companions, which hvdrun sets, else from the variables of
/// torchrun, MPICH's or Intel MPI's mpiexec, Open MPI's, MVAPICH2's mpirun_rsh, jsrun or srun. Members: `rank` and
/// `size` in the job, `local_rank` and `local_size` on this host, `cross_rank` and `cross_size` among the processes of
/// the same local rank on all hosts; `job`, HVD_JOB, or the launcher's name where that is known; `launch`, HVD_LAUNCH
/// or what the launcher reports of itself, equal on all ranks of one launch and different in another one of the same
/// job; `launcher`, "none" if nothing says that a launcher has started this process.
struct config : detail::place {
  /// A function object that returns the value of a variable, or nothing if it is not set; by reference.
  using lookup = detail::variable_lookup;

  std::chrono::duration<double> start_timeout{30.0};  ///< HOROVOD_START_TIMEOUT: for all ranks to join
  std::chrono::duration<double> timeout{300.0};       ///< HVD_TIMEOUT: for a peer to answer; 0: no limit

  bool check = HVD_CHECK != 0;       ///< HVD_CHECK: compare calls between ranks
  std::string shm_dir = "/dev/shm";  ///< HVD_SHM_DIR: where segments are made

  /// Reads this process's environment. Rank and size must both be set or both not, for the job, the host and across
  /// hosts. Without the local pair the job is on one host. Without the cross pair hosts are taken to have equal numbers
  /// of consecutive ranks, if that fits. An invalid_argument error names the variable, its value and what is allowed.
  static config from_environment() { return from_environment(detail::variable_of_environment); }

  /// The same from any source of variables.
  static config from_environment(const lookup& variable);
};

inline config config::from_environment(const lookup& variable) {
  config result;
  static_cast<detail::place&>(result) = detail::find_place(variable);
  if (const auto value = variable("HOROVOD_START_TIMEOUT"))
    result.start_timeout = parse_seconds("HOROVOD_START_TIMEOUT", *value);
  if (const auto value = variable("HVD_TIMEOUT")) result.timeout = parse_seconds("HVD_TIMEOUT", *value, "no limit");
  if (const auto value = variable("HVD_CHECK")) result.check = parse_boolean("HVD_CHECK", *value);
  if (const auto value = variable("HVD_SHM_DIR")) result.shm_dir = parse_directory("HVD_SHM_DIR", *value);
  return result;
}

}  // namespace hvd::inline HVD_ABI
