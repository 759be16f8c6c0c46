// bench/coordinator/launchers.cpp: from the names and commands of --peer to programs: each peer in its best
// documented setting on one host. docs/performance.md has the settings that were tried, with their results.
#include <bench/coordinator/launchers.hpp>

#include <bench/peers/settings.hpp>
#include <bench/stage.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

constexpr const char* how_to_install = "tools/setup --bench installs it";

bool is_program(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

/// The path of a program in PATH; empty if there is none.
std::string find_program(std::string_view program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string found = folder + "/" + std::string(program);
    if (is_program(found)) return found;
  }
  return {};
}

using settings = std::vector<std::pair<std::string, std::string>>;

/// Settings of mallopt(3) that keep freed memory: MPIs take their temporary buffers from malloc, and would otherwise
/// pay for fresh pages in every call that needs one.
const settings keep_memory = {{"MALLOC_MMAP_MAX_", "0"}, {"MALLOC_TRIM_THRESHOLD_", "4294967296"}};

/// Puts settings of an MPI into the environment, and their text into a variable for the ranks.
void set(launch& l, const settings& chosen, std::string_view prefix = "") {
  std::string text;
  for (const auto& [key, value] : keep_memory) {
    l.environment.emplace_back(key, value);
    text += key + "=" + value + " ";
  }
  for (const auto& [key, value] : chosen) {
    l.environment.emplace_back(std::string(prefix) + key, value);
    text += key + "=" + value + " ";
  }
  text.pop_back();
  l.environment.emplace_back(settings_variable, text);
}

/// The path of a launcher in PATH; sets `missing` without it.
std::string launcher_in_path(launch& l, const char* name) {
  const std::string path = find_program(name);
  if (path.empty()) l.missing = std::string(name) + " is not in PATH; " + how_to_install;
  return path;
}

/// Its defaults look for network cards, and copy large messages by cross-memory attach, which costs more than two
/// copies through the cache up to some MiB. UCX_POSIX_SEG_SIZE from 64k on hangs in UCX 1.13.
void start_mpich(launch& l, const std::string& program, bool oversubscribed) {
  // Several MPIs have an mpiexec and an mpiexec.hydra; only this name is unique.
  const std::string launcher = launcher_in_path(l, "mpiexec.mpich");
  if (launcher.empty()) return;
  l.argv = {launcher, "-launcher", "fork", "-n", "{ranks}", program};
  settings s = {{"UCX_TLS", "posix,self"}, {"UCX_POSIX_SEG_SIZE", "16k"}, {"UCX_RNDV_THRESH", "1m"}};
  // Nothing that it documents helps when ranks outnumber CPUs; this at least asks for it.
  if (oversubscribed) s.emplace_back("MPIR_CVAR_POLLS_BEFORE_YIELD", "1");
  set(l, s);
}

/// Further settings of both versions of Open MPI.
void finish_openmpi(launch& l, settings s, bool oversubscribed) {
  if (::geteuid() == 0) l.argv.insert(l.argv.begin() + 1, "--allow-run-as-root");
  if (oversubscribed) l.argv.insert(l.argv.begin() + 1, "--oversubscribe");
  if (oversubscribed) s.emplace_back("mpi_yield_when_idle", "1");
  set(l, s, "OMPI_MCA_");
  l.environment.emplace_back("TMPDIR", "{scratch}");  // for its session folders
}

/// The point-to-point layer for shared memory, by copying or by cross-memory attach. Both send more eagerly than by
/// default.
void start_openmpi_by(launch& l, const std::string& program, bool oversubscribed, bool attach) {
  const std::string launcher = launcher_in_path(l, "mpirun.openmpi");
  if (launcher.empty()) return;
  l.argv = {launcher, "--bind-to", "none", "-n", "{ranks}", program};
  settings s = {{"pml", "ob1"}, {"btl", "self,vader"}, {"btl_vader_max_send_size", "262144"}};
  if (attach) {
    s.insert(s.end(), {{"btl_vader_single_copy_mechanism", "cma"},
                       {"btl_vader_eager_limit", "131072"},
                       {"btl_vader_rndv_eager_limit", "131072"}});
  } else {
    s.insert(s.end(), {{"btl_vader_single_copy_mechanism", "none"},
                       {"btl_vader_eager_limit", "32768"},
                       {"btl_vader_rndv_eager_limit", "131072"}});
  }
  finish_openmpi(l, std::move(s), oversubscribed);
}

void start_openmpi(launch& l, const std::string& program, bool oversubscribed) {
  start_openmpi_by(l, program, oversubscribed, false);
}
void start_openmpi_cma(launch& l, const std::string& program, bool oversubscribed) {
  start_openmpi_by(l, program, oversubscribed, true);
}

/// The launcher, with arguments `words`, in the folder of .venv named next to the program, against which it was built;
/// nothing if that folder is gone.
std::optional<std::string> launcher_of_venv(launch& l, const std::string& program, const char* launcher,
                                            std::initializer_list<const char*> words) {
  std::string root;
  std::ifstream file(program + ".root");
  std::getline(file, root);
  const std::string path = root + "/bin/" + launcher;
  if (root.empty() || !is_program(path)) {
    l.missing = std::string("its launcher is not in .venv any more; ") + how_to_install;
    return std::nullopt;
  }
  l.argv = {path};
  l.argv.insert(l.argv.end(), words.begin(), words.end());
  l.argv.insert(l.argv.end(), {"-n", "{ranks}", program});
  return root;
}

/// Its defaults: within a host it copies through shared memory, and longer messages by cross-memory attach.
void start_mpich5(launch& l, const std::string& program, bool oversubscribed) {
  if (!launcher_of_venv(l, program, "mpiexec.hydra", {"-launcher", "fork"})) return;
  settings s;
  if (oversubscribed) s.emplace_back("MPIR_CVAR_POLLS_BEFORE_YIELD", "1");
  set(l, s);
}

/// Its own transport for shared memory, without looking for networks.
void start_openmpi5(launch& l, const std::string& program, bool oversubscribed) {
  if (!launcher_of_venv(l, program, "mpirun", {"--bind-to", "none"})) return;
  settings s = {{"pml", "ob1"}, {"btl", "self,sm"}};
  finish_openmpi(l, std::move(s), oversubscribed);
}

settings intel_settings(bool oversubscribed) {
  settings s = {{"I_MPI_FABRICS", "shm"}};
  if (oversubscribed) s.insert(s.end(), {{"I_MPI_THREAD_YIELD", "2"}, {"I_MPI_SPIN_COUNT", "1"}});
  s.emplace_back("I_MPI_PIN", "off");  // ranks pin themselves
  return s;
}

void start_intelmpi(launch& l, const std::string& program, bool oversubscribed) {
  const auto root = launcher_of_venv(l, program, "mpiexec.hydra", {"-launcher", "fork"});
  if (!root) return;
  set(l, intel_settings(oversubscribed));
  l.environment.emplace_back("I_MPI_ROOT", *root);
}

/// Over Intel MPI. No CPU is left for threads of oneCCL's own.
void start_oneccl(launch& l, const std::string& program, bool oversubscribed) {
  const auto root = launcher_of_venv(l, program, "mpiexec.hydra", {"-launcher", "fork"});
  if (!root) return;
  settings s = intel_settings(oversubscribed);
  s.insert(s.end(), {{"CCL_ATL_TRANSPORT", "mpi"},
                     {"CCL_WORKER_OFFLOAD", "0"},
                     {"CCL_ALLREDUCE", "direct:0-65536;ring:65537-max"},
                     {"CCL_LOG_LEVEL", "error"}});
  set(l, s);
  l.environment.emplace_back("I_MPI_ROOT", *root);
}

/// Ranks find each other by the name of the folder. One thread for each, as ranks have one CPU.
void start_deepspeed(launch& l, const std::string& program, bool /*oversubscribed*/) {
  l.argv = {program};
  l.each_rank = true;
  l.environment = {{scratch_variable, "{scratch}"}, {"OMP_NUM_THREADS", "1"}, {settings_variable, "OMP_NUM_THREADS=1"}};
}

void start_gloo(launch& l, const std::string& program, bool oversubscribed) {
  l.argv = {program};
  l.each_rank = true;
  l.environment = {{scratch_variable, "{scratch}"}, {settings_variable, oversubscribed ? "" : "busy-poll"}};
}

/// A variant of a library is another peer: no setting is the best at every size, and the best peer counts.
struct peer {
  std::string_view name;
  std::string_view title;
  std::string_view program;
  void (*start)(launch& l, const std::string& program, bool oversubscribed);  ///< more ranks than CPUs
};
constexpr peer peers[] = {
    {"mpich", "MPICH", "bench-peer-mpich", start_mpich},
    {"mpich5", "MPICH 5", "bench-peer-mpich5", start_mpich5},
    {"openmpi", "Open MPI", "bench-peer-openmpi", start_openmpi},
    {"openmpi-cma", "Open MPI, large messages by cross-memory attach", "bench-peer-openmpi", start_openmpi_cma},
    {"openmpi5", "Open MPI 5", "bench-peer-openmpi5", start_openmpi5},
    {"intelmpi", "Intel MPI", "bench-peer-intelmpi", start_intelmpi},
    {"oneccl", "oneCCL", "bench-peer-oneccl", start_oneccl},
    {"deepspeed", "DeepSpeed", "bench-peer-deepspeed", start_deepspeed},
    {"gloo", "Gloo", "bench-peer-gloo", start_gloo},
};

/// The path of a peer's program, next to this one or in its folder peers; empty if it was not built.
std::string program_of(std::string_view program) {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  std::string folder(self, n > 0 ? static_cast<std::size_t>(n) : 0);
  folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
  for (const char* const below : {"/peers/", "/"}) {
    const std::string path = folder + below + std::string(program);
    if (is_program(path)) return path;
  }
  return {};
}

}  // namespace

std::vector<std::string> known_peers() {
  std::vector<std::string> names;
  for (const peer& p : peers) names.emplace_back(p.name);
  return names;
}

launch launch_of(const peer_option& wanted, int ranks, int cpus) {
  launch l;
  l.how = launch::kind::command;
  l.name = wanted.name;
  if (!wanted.command.empty()) {
    // A plain command takes the shell's place, so that signals reach it.
    const bool plain = wanted.command.find_first_of(";&|<>()`") == std::string::npos;
    l.argv = {"/bin/sh", "-c", (plain ? "exec " : "") + wanted.command};
    l.each_rank = wanted.command.find("{ranks}") == std::string::npos;
    return l;
  }
  if (wanted.name == bare_nccl) {
    l.how = launch::kind::nccl;
    return l;
  }
  const auto* const known =
      std::find_if(std::begin(peers), std::end(peers), [&](const peer& p) { return p.name == wanted.name; });
  if (known == std::end(peers)) {
    std::string names = std::string(bare_nccl) + ", ";
    for (const peer& p : peers) names += std::string(p.name) + ", ";
    throw usage_error("--peer " + wanted.name + " is not known; allowed: " + names + "or NAME=COMMAND");
  }
  const std::string program = program_of(known->program);
  if (program.empty()) {
    l.missing = std::string(known->title) + " was not found when hvd-bench was built, or its program was not built; " +
                std::string(how_to_install) + ", then configure and build again, all of it";
    return l;
  }
  known->start(l, program, ranks > cpus);
  return l;
}

std::string replace_all(std::string text, std::string_view what, std::string_view with) {
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

void become(const launch& how, int rank, int ranks, const std::string& stage, const std::string& scratch, int output) {
  const auto fill = [&](const std::string& text) {
    return replace_all(replace_all(text, "{ranks}", std::to_string(ranks)), "{scratch}", scratch);
  };
  ::setenv(stage_variable, stage.c_str(), 1);
  ::setenv("HVD_BENCH_SIZE", std::to_string(ranks).c_str(), 1);
  if (how.each_rank) ::setenv(rank_variable, std::to_string(rank).c_str(), 1);
  for (const auto& [key, value] : how.environment) ::setenv(key.c_str(), fill(value).c_str(), 1);
  std::vector<std::string> words;
  for (const auto& word : how.argv) words.push_back(fill(word));
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, 0);
  if (output >= 0) {
    ::fcntl(output, F_SETFL, O_APPEND);
    ::dup2(output, 1);
    ::dup2(output, 2);
  }
  ::execvp(argv[0], argv.data());
  ::dprintf(2, "cannot execute %s: %s\n", argv[0], std::strerror(errno));
  ::_exit(127);
}

}  // namespace hvd::bench
