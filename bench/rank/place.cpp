// bench/rank/place.cpp: which rank a process is, on which CPU, and where its stage is.
#include <bench/rank/place.hpp>

#include <hvd/topology.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

#include <sched.h>
#include <sys/prctl.h>

namespace hvd::bench {
namespace {

int variable(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return -1;
  const char* const end = text + std::strlen(text);
  int value = -1;
  const auto [at, code] = std::from_chars(text, end, value);
  if (code != std::errc{} || at != end || value < 0) {
    throw std::runtime_error(std::string("the environment variable ") + name + " is \"" + text +
                             "\"; expected a number from 0");
  }
  return value;
}

thread_local int own_cpu = -1;

}  // namespace

place find_place() {
  // Hydra (MPICH, Intel MPI), Open MPI, PMIx (whose size has no variable of its own).
  constexpr struct {
    const char *rank, *size;
  } launchers[] = {{rank_variable, "HVD_BENCH_SIZE"},
                   {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                   {"PMI_RANK", "PMI_SIZE"},
                   {"PMIX_RANK", "SLURM_NTASKS"}};
  for (const auto& l : launchers) {
    const int rank = variable(l.rank);
    if (rank >= 0) return {rank, std::max(variable(l.size), 1)};
  }
  return {};
}

void pin_to_list(int rank) {
  const char* const list = std::getenv(cpus_variable);
  if (list == nullptr || *list == '\0') return;
  const std::vector<int> cpus = parse_cpu_list(list);
  own_cpu = cpus[static_cast<std::size_t>(rank) % cpus.size()];
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(own_cpu, &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    throw std::runtime_error("cannot pin to CPU " + std::to_string(own_cpu) + ": " + std::strerror(errno) +
                             "; --no-pin leaves ranks where they are");
  }
}

int bound_cpu() {
  cpu_set_t set;
  if (own_cpu >= 0 || ::sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1) return own_cpu;
  int cpu = 0;
  while (!CPU_ISSET(cpu, &set)) ++cpu;
  return cpu;
}

Stage open_stage() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // of the launcher; the coordinator's own end is seen by its lock
  const char* const path = std::getenv(stage_variable);
  if (path == nullptr) {
    throw std::runtime_error(std::string(stage_variable) + " is not set: this program is one rank of a library that "
                                                           "hvd-bench measures; start it by hvd-bench --peer");
  }
  return Stage::open(path);
}

void report_start_failure(const Stage& stage, int rank, const std::string& why) {
  if (rank < 0 || rank >= stage.ranks()) return;
  stage.report_failure(rank, stage.header().command.load(), why);
}

}  // namespace hvd::bench
