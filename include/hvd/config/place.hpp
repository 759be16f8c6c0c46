// hvd/config/place.hpp: the place of a process in its job, from the variables of its launcher.
#pragma once

#include <hvd/config/parse.hpp>
#include <hvd/detail/descriptor.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/error.hpp>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

struct place {
  int rank = 0, size = 1;              ///< in the job
  int local_rank = 0, local_size = 1;  ///< on this host
  int cross_rank = 0, cross_size = 1;  ///< among the processes of the same local rank on all hosts
  std::string job{};                   ///< the name under which ranks of one host meet; empty if there is none
  std::string launch{};                ///< equal on all ranks of one launch, different in another one; empty if unknown
  std::string_view launcher = "none";  ///< the source of the variables: HOROVOD, or one of `launchers`
};

/// A launcher, and the variables in which it passes a process its place. (This is the only table of them: Python reads
/// it.)
struct launcher {
  std::string_view name;
  const char *rank, *size, *local_rank, *local_size;
  /// Variables that together identify a launch. Without the first, the launcher's process identifies it.
  std::array<const char*, 3> identity;
  bool marked;  ///< the launcher has started a process only if the first of them is set: others use the same variables
};

/// The first whose variables are set counts. torchrun comes first because srun or mpiexec may start it, one on each
/// host, and it then starts the ranks.
inline constexpr launcher launchers[] = {
    {"TORCHRUN",
     "RANK",
     "WORLD_SIZE",
     "LOCAL_RANK",
     "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"},
     true},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {}, false},
    {"OMPI",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE"},
     false},
    {"MVAPICH",
     "MV2_COMM_WORLD_RANK",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     {},
     false},
    {"JSM",
     "JSM_NAMESPACE_RANK",
     "JSM_NAMESPACE_SIZE",
     "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE",
     {"PMIX_NAMESPACE"},
     false},
    {"SLURM",
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",  // not set for the script of a batch job, which is not a rank
     nullptr,                 // see slurm_host
     nullptr,
     {"SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"},
     true},
    // Set by hand, as torch.distributed reads them.
    {"RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {}, false},
};

/// True also if one of the two variables is missing, which is then an error and not a job of one.
inline bool has_started_this(const launcher& l, const variable_lookup& variable) {
  const bool rank = variable(l.rank).has_value(), size = variable(l.size).has_value();
  if (l.marked) return rank && size && variable(l.identity.front());
  if (!rank && !size) return false;
  if (variable(l.local_size)) return true;
  // A PMI without variables about hosts is srun's; Slurm's variables have the hosts.
  return !variable("SLURM_STEP_ID") || !variable("SLURM_PROCID") || !variable("SLURM_STEP_NUM_TASKS");
}

/// The nearest ancestor of this process that launches programs, as host, process number and start time; without one
/// the parent if `or_parent`, else empty.
inline std::string launcher_process(bool or_parent) {
  char host[256] = {};
  static_cast<void>(::gethostname(host, sizeof host - 1));
  std::string first;
  for (long pid = ::getppid(); pid > 1;) {
    std::string text(1024, '\0');
    const int fd = open_descriptor(joined({"/proc/", pid, "/stat"}).c_str(), O_RDONLY);
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
      break;
    }
    const std::string_view name(text.data() + open + 1, close - open - 1);
    const std::string identity = joined({std::string_view(host), " ", pid, " ", start});
    for (const std::string_view known :
         {"hydra_", "mpiexec", "mpirun", "mpispawn", "prterun", "prted", "orted", "slurmstepd"}) {
      if (name.starts_with(known)) return identity;
    }
    if (first.empty()) first = identity;
    pid = parent;
  }
  if (!or_parent) return {};
  return first.empty() ? joined({std::string_view(host), " ", ::getppid()}) : first;
}

/// 16 hexadecimal digits, or nothing if the launcher does not identify its launches. Ranks without a launcher are
/// identified by their common parent, unless their job has a name.
inline std::string identity_of(const launcher& l, const variable_lookup& variable, bool or_parent) {
  std::string text;
  if (l.identity.front() == nullptr || !variable(l.identity.front())) {
    text = launcher_process(or_parent);
    if (text.empty()) return {};
  }
  for (const char* const name : l.identity) {
    if (name != nullptr) text += variable(name).value_or("") + '.';
  }
  return hex(text_hash(text));
}

/// Two variables: a rank, and the number of them.
struct rank_of_size {
  int rank = 0, size = 1;
};
inline rank_of_size parse_rank(const variable_lookup& variable, std::string_view rank_name, std::string_view size_name,
                               int largest, std::string_view meaning = {}) {
  const auto rank = variable(rank_name.data()), size = variable(size_name.data());
  if (!rank || !size) {
    const std::string given = rank ? assignment(rank_name, *rank) : assignment(size_name, *size);
    fail(error_kind::invalid_argument,
         {given, " is set but ", rank ? size_name : rank_name, " is not; allowed: both or neither"});
  }
  rank_of_size found;
  found.size = parse_integer(size_name, *size, 1, largest, meaning);
  found.rank = parse_integer(rank_name, *rank, 0, found.size - 1, joined({"0 to ", size_name, "-1"}));
  return found;
}
/// The same, or nothing if neither is set.
inline std::optional<rank_of_size> find_rank(const variable_lookup& variable, std::string_view rank_name,
                                             std::string_view size_name, int largest, std::string_view meaning = {}) {
  if (!variable(rank_name.data()) && !variable(size_name.data())) return std::nullopt;
  return parse_rank(variable, rank_name, size_name, largest, meaning);
}

/// HOROVOD_RANK and its companions, as hvdrun sets them; nothing if there are none.
inline std::optional<place> place_by_horovod(const variable_lookup& variable) {
  const auto given = find_rank(variable, "HOROVOD_RANK", "HOROVOD_SIZE", std::numeric_limits<int>::max());
  const rank_of_size global = given.value_or(rank_of_size{});
  const auto given_local =
      find_rank(variable, "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", global.size, "1 to HOROVOD_SIZE");
  const rank_of_size local = given_local.value_or(global);
  // Every other host in the cross group has at least one rank.
  const auto given_cross =
      find_rank(variable, "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", global.size - local.size + 1,
                given_local ? "1 to HOROVOD_SIZE-HOROVOD_LOCAL_SIZE+1" : "1 while HOROVOD_LOCAL_SIZE is not set");
  rank_of_size cross = given_cross.value_or(rank_of_size{});
  if (!given_cross && local.size != global.size) {
    if (global.size % local.size != 0 || global.rank % local.size != local.rank)
      fail(error_kind::invalid_argument,
           {"HOROVOD_CROSS_RANK and HOROVOD_CROSS_SIZE are not set and do not follow from rank ", global.rank, " of ",
            global.size, ", local rank ", local.rank, " of ", local.size,
            "; allowed: hosts with equal numbers of consecutive ranks, or all six variables"});
    cross = {global.rank / local.size, global.size / local.size};
  }
  if (!given) return std::nullopt;
  place p;
  p.rank = global.rank, p.size = global.size;
  p.local_rank = local.rank, p.local_size = local.size;
  p.cross_rank = cross.rank, p.cross_size = cross.size;
  p.launcher = "HOROVOD";
  // A launcher has started exactly these ranks if its counts agree; otherwise it has started another program of this
  // job, which has started the ranks.
  for (const launcher& l : launchers) {
    if (!has_started_this(l, variable)) continue;
    if (variable(l.rank) != joined({p.rank}) || variable(l.size) != joined({p.size})) continue;
    p.launch = identity_of(l, variable, false);
    if (!p.launch.empty()) break;
  }
  return p;
}

/// The place on its host of a rank that srun started. SLURM_STEP_TASKS_PER_NODE is a list such as "2(x3),1": three
/// hosts with two ranks, then one with one.
inline rank_of_size slurm_host(const variable_lookup& variable, int size) {
  constexpr std::string_view name = "SLURM_STEP_TASKS_PER_NODE";
  const std::string text = variable(name.data()).value_or(joined({size}));
  const auto refuse = [&] {
    refuse_value(name, text, " does not list the ranks of the hosts",
                 {"numbers that add up to ", size, ", such as 2(x3),1"});
  };
  std::string_view rest = text;
  const auto number = [&](std::string_view until) {
    const std::size_t digits = rest.find_first_not_of("0123456789");
    const std::string_view found = rest.substr(0, digits);
    if (found.empty() || found.size() > 9) refuse();
    rest.remove_prefix(found.size());
    if (!until.empty() && !rest.starts_with(until)) refuse();
    rest.remove_prefix(until.size());
    return std::strtoull(std::string(found).c_str(), nullptr, 10);
  };
  const auto node_text = variable("SLURM_NODEID");
  unsigned long long ranks = 0, hosts = 0;
  const auto each = [&](const auto& visit) {
    for (rest = text;; rest.remove_prefix(1)) {
      const unsigned long long count = number("");
      unsigned long long repeated = 1;
      if (rest.starts_with("(x")) {
        rest.remove_prefix(2);
        repeated = number(")");
      }
      visit(count, repeated);
      if (rest.empty()) return;
      if (rest.front() != ',') refuse();
    }
  };
  each([&](unsigned long long count, unsigned long long repeated) {
    if (count > static_cast<unsigned long long>(size) || repeated > static_cast<unsigned long long>(size)) refuse();
    ranks += count * repeated;
    hosts += repeated;
    if (ranks > static_cast<unsigned long long>(size) || hosts > static_cast<unsigned long long>(size)) refuse();
  });
  if (ranks != static_cast<unsigned long long>(size)) refuse();
  unsigned long long node = 0;
  if (hosts > 1) {
    if (!node_text) fail(error_kind::invalid_argument, {assignment(name, text), " is set but SLURM_NODEID is not"});
    node = static_cast<unsigned>(parse_integer("SLURM_NODEID", *node_text, 0, static_cast<int>(hosts) - 1));
  }
  int here = 0;
  each([&](unsigned long long count, unsigned long long repeated) {
    if (here != 0) return;
    if (node < repeated) here = static_cast<int>(count);
    node -= repeated;
  });
  if (here == 0) refuse();
  const auto local = variable("SLURM_LOCALID");
  if (!local) fail(error_kind::invalid_argument, {assignment(name, text), " is set but SLURM_LOCALID is not"});
  return {parse_integer("SLURM_LOCALID", *local, 0, here - 1), here};
}

/// The place from the first existing set of variables: HOROVOD_RANK, which hvdrun sets, or those of one of `launchers`;
/// otherwise a job of one. Without local variables all ranks are assumed to be on this host; without cross variables
/// hosts have equal numbers of consecutive ranks. Errors: invalid_argument for variables that contradict each other,
/// and for values that are not numbers; it names the variable, its value and the allowed values.
inline place find_place(const variable_lookup& variable) {
  std::string given_launch;
  if (const auto value = variable("HVD_LAUNCH")) given_launch = parse_job("HVD_LAUNCH", *value);
  std::optional<place> found = place_by_horovod(variable);
  if (!found) {
    for (const launcher& l : launchers) {
      if (!has_started_this(l, variable)) continue;
      const rank_of_size global = parse_rank(variable, l.rank, l.size, std::numeric_limits<int>::max());
      rank_of_size local = global;
      if (l.local_size == nullptr) {
        local = slurm_host(variable, global.size);
      } else if (variable(l.local_size)) {
        local = parse_rank(variable, l.local_rank, l.local_size, global.size, joined({"1 to ", l.size}));
      }
      found.emplace();
      found->rank = global.rank, found->size = global.size;
      found->local_rank = local.rank, found->local_size = local.size;
      if (local.size != global.size) {
        found->cross_rank = global.rank / local.size;
        found->cross_size = (global.size - 1) / local.size + 1;
      }
      found->launcher = l.name;
      found->launch = given_launch.empty() ? identity_of(l, variable, !variable("HVD_JOB")) : std::string();
      for (const char c : l.name) found->job += static_cast<char>(c - 'A' + 'a');
      break;
    }
  }
  place p = std::move(found).value_or(place{});
  if (const auto value = variable("HVD_JOB")) p.job = parse_job("HVD_JOB", *value);
  if (!given_launch.empty()) p.launch = given_launch;
  return p;
}

/// Variables by which further launchers number processes, without those that a job needs; and of Slurm's, with which a
/// process may be no rank. (SLURM_NTASKS is not one of them: the script of a batch job has it too, and is a single
/// process.)
struct unknown_launcher {
  const char *rank, *size;  ///< size: null if there is no such variable
};
inline constexpr unknown_launcher unknown_launchers[] = {{"PMIX_RANK", nullptr},
                                                         {"PALS_RANKID", nullptr},
                                                         {"ALPS_APP_PE", nullptr},
                                                         {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
                                                         {"SLURM_PROCID", nullptr}};

/// A warning if this process is a job of one, and a variable shows that its launcher has started others; else empty.
inline std::string lone_rank_warning(const place& p, const variable_lookup& variable) {
  if (p.launcher != "none") return {};
  const auto beyond = [&](const char* name, long most) -> std::string {
    const auto value = name != nullptr ? variable(name) : std::nullopt;
    if (!value || std::strtol(value->c_str(), nullptr, 10) <= most) return {};
    return joined({assignment(name, *value),
                   ": an unknown launcher has started several processes, and each of them would be a job of its own; "
                   "start them with hvdrun or a launcher that hvd supports, or set HVD_JOB and HOROVOD_RANK, "
                   "HOROVOD_SIZE, HOROVOD_LOCAL_RANK and HOROVOD_LOCAL_SIZE on each (HOROVOD_RANK=0 and HOROVOD_SIZE=1 "
                   "if it is meant to be alone)"});
  };
  for (const unknown_launcher& l : unknown_launchers) {
    if (std::string text = beyond(l.rank, 0); !text.empty()) return text;
    if (std::string text = beyond(l.size, 1); !text.empty()) return text;
  }
  return {};
}

/// The name of the job's group on this host: "job@launch", or the job alone if the launch is unknown.
inline std::string meeting_name(const place& p) {
  if (p.job.empty()) return {};
  return p.launch.empty() ? p.job : joined({p.job, "@", p.launch});
}

/// Errors: invalid_argument if the ranks of one host have no name under which they could meet.
inline void refuse_nameless(const place& p) {
  if (p.size == 1 || p.local_size != p.size || !p.job.empty()) return;
  fail(error_kind::invalid_argument, {"HOROVOD_SIZE is ", p.size,
                                      " but HVD_JOB, the name of the job, is not set; set it to the same name on all "
                                      "ranks, or start them with `hvdrun -np N PROGRAM`"});
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
