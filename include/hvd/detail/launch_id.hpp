// hvd/detail/launch_id.hpp: an identifier of one launch of a job, different in another launch under the same name.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/error.hpp>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The nearest ancestor of this process that launches MPI programs, as process number and start time; empty if there is
/// none.
inline std::string mpi_launcher_process() {
  for (long pid = ::getppid(); pid > 1;) {
    std::string text(1024, '\0');
    const int fd = ::open(joined({"/proc/", pid, "/stat"}).c_str(), O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : ::read(fd, text.data(), text.size());
    if (fd >= 0) ::close(fd);
    text.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    const std::size_t open = text.find('('), close = text.rfind(')');
    long parent = 0;
    unsigned long long start = 0;
    // The state, then 20 numbers, of which the 1st is the parent and the 19th the start.
    if (close == text.npos ||
        std::sscanf(text.c_str() + close + 1,
                    " %*c %ld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                    "%llu",
                    &parent, &start) != 2) {
      return {};
    }
    const std::string_view name(text.data() + open + 1, close - open - 1);
    if (name.starts_with("hydra_") || name.starts_with("mpiexec") || name.starts_with("mpirun")) {
      return joined({pid, " ", start});
    }
    pid = parent;
  }
  return {};
}

/// Equal on all ranks of one launch, and different in another one, even of a job with the same name: made of what Open
/// MPI, Slurm, torchrun or MPICH's launcher reports of itself, if it has started exactly these ranks. Else empty.
inline std::string launch_id(const function_ref<std::optional<std::string>(const char* name)>& variable, int rank,
                             int size) {
  struct launcher {
    const char* rank;
    const char* size;
    std::array<const char*, 3> identity;
  };
  constexpr launcher launchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"PMIX_NAMESPACE", nullptr, nullptr}},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}},
      {"RANK", "WORLD_SIZE", {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
      {"PMI_RANK", "PMI_SIZE", {}},
  };
  for (const launcher& l : launchers) {
    if (variable(l.rank) != joined({rank}) || variable(l.size) != joined({size})) continue;
    std::string identity;
    if (l.identity.front() == nullptr) {
      identity = mpi_launcher_process();
    } else if (variable(l.identity.front())) {
      for (const char* const name : l.identity) identity += name == nullptr ? "" : variable(name).value_or("") + '.';
    }
    if (identity.empty()) continue;
    return hex(text_hash(identity));
  }
  return {};
}

/// HVD_JOB and HVD_LAUNCH as "job@launch", or HVD_JOB alone; `fallback` if HVD_JOB is not set. For ranks that need no
/// name to meet, because an MPI connects them, but whose files hvdrun finds by it.
inline std::string job_of_environment(std::string_view fallback) {
  const char* const job = std::getenv("HVD_JOB");
  const char* const launch = std::getenv("HVD_LAUNCH");
  if (job == nullptr || launch == nullptr) return std::string(job == nullptr ? fallback : job);
  return joined({job, "@", launch});
}

}  // namespace hvd::inline HVD_ABI::detail
