// bench/peers/launch.hpp: how each peer is started on one host, in its best documented setting.
//
// docs/performance.md has the settings that were tried and what each gave.
#pragma once

#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

namespace hvd::bench {

/// A variant of a library is a peer of its own: no setting is the best at every size, and the best peer counts.
struct peer {
  std::string_view name;
  std::string_view title;
  std::string_view program;
};
inline constexpr peer peers[] = {
    {"mpich", "MPICH", "bench-peer-mpich"},
    {"mpich5", "MPICH 5", "bench-peer-mpich5"},
    {"openmpi", "Open MPI", "bench-peer-openmpi"},
    {"openmpi-cma", "Open MPI, large messages by cross-memory attach", "bench-peer-openmpi"},
    {"openmpi5", "Open MPI 5", "bench-peer-openmpi5"},
    {"intelmpi", "Intel MPI", "bench-peer-intelmpi"},
    {"oneccl", "oneCCL", "bench-peer-oneccl"},
    {"deepspeed", "DeepSpeed", "bench-peer-deepspeed"},
    {"gloo", "Gloo", "bench-peer-gloo"},
};

/// In the environment of ranks: the settings that their launcher chose, for their own description.
inline constexpr const char* settings_variable = "HVD_BENCH_SETTINGS";
/// In the environment of ranks that meet in a folder: a private one, removed by who made it.
inline constexpr const char* scratch_variable = "HVD_BENCH_SCRATCH";

/// "; A=1 B=2" for the end of a description; empty without settings.
inline std::string settings_text() {
  const char* const text = std::getenv(settings_variable);
  return text == nullptr || *text == '\0' ? std::string() : std::string("; ") + text;
}

struct peer_launch {
  std::vector<std::string> argv;  ///< {ranks} and {scratch}, a private folder, are to be filled in
  std::vector<std::pair<std::string, std::string>> environment;
  bool each_rank = false;  ///< started once for each rank, not by a launcher of its own
  std::string missing;     ///< why it cannot be started, and what to do
};

namespace detail {

inline constexpr const char* how_to_install = "tools/setup --bench installs it";

inline bool is_program(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

/// The path of a program in PATH; empty if there is none.
inline std::string find_program(std::string_view program) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string found = folder + "/" + std::string(program);
    if (is_program(found)) return found;
  }
  return {};
}

using settings = std::vector<std::pair<std::string, std::string>>;

/// What mallopt(3) has against giving memory back: MPIs take their temporary buffers from malloc, and would otherwise
/// pay for fresh pages in every call that needs one.
inline const settings keep_memory = {{"MALLOC_MMAP_MAX_", "0"}, {"MALLOC_TRIM_THRESHOLD_", "4294967296"}};

/// Puts settings of an MPI into the environment, and their text where the ranks find it.
inline void set(peer_launch& l, const settings& chosen, std::string_view prefix = "") {
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

/// Its defaults look for network cards, and copy large messages by cross-memory attach, which costs more than two
/// copies through the cache up to some MiB. UCX_POSIX_SEG_SIZE from 64k on hangs in UCX 1.13.
inline peer_launch launch_mpich(const std::string& program, bool oversubscribed) {
  peer_launch l;
  // Several MPIs have an mpiexec and an mpiexec.hydra; only this name says whose it is.
  const std::string launcher = find_program("mpiexec.mpich");
  if (launcher.empty()) {
    l.missing = std::string("mpiexec.mpich is not in PATH; ") + how_to_install;
    return l;
  }
  l.argv = {launcher, "-launcher", "fork", "-n", "{ranks}", program};
  settings s = {{"UCX_TLS", "posix,self"}, {"UCX_POSIX_SEG_SIZE", "16k"}, {"UCX_RNDV_THRESH", "1m"}};
  // Nothing that it documents helps when ranks outnumber CPUs; this at least asks for it.
  if (oversubscribed) s.emplace_back("MPIR_CVAR_POLLS_BEFORE_YIELD", "1");
  set(l, s);
  return l;
}

/// The point-to-point layer for shared memory, by copying or by cross-memory attach. Both send more eagerly than by
/// default.
inline peer_launch launch_openmpi(const std::string& program, bool oversubscribed, bool attach) {
  peer_launch l;
  const std::string launcher = find_program("mpirun.openmpi");
  if (launcher.empty()) {
    l.missing = std::string("mpirun.openmpi is not in PATH; ") + how_to_install;
    return l;
  }
  l.argv = {launcher, "--bind-to", "none", "-n", "{ranks}"};
  if (::geteuid() == 0) l.argv.insert(l.argv.begin() + 1, "--allow-run-as-root");
  if (oversubscribed) l.argv.emplace_back("--oversubscribe");
  l.argv.push_back(program);
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
  if (oversubscribed) s.emplace_back("mpi_yield_when_idle", "1");
  set(l, s, "OMPI_MCA_");
  l.environment.emplace_back("TMPDIR", "{scratch}");  // for its session folders
  return l;
}

/// The folder of .venv that a program was built against stands beside it: its launcher, started as `words` say, or
/// nothing where it is gone.
inline std::optional<std::string> launch_from_venv(peer_launch& l, const std::string& program, const char* launcher,
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
inline peer_launch launch_mpich5(const std::string& program, bool oversubscribed) {
  peer_launch l;
  if (!launch_from_venv(l, program, "mpiexec.hydra", {"-launcher", "fork"})) return l;
  settings s;
  if (oversubscribed) s.emplace_back("MPIR_CVAR_POLLS_BEFORE_YIELD", "1");
  set(l, s);
  return l;
}

/// Its own transport for shared memory, without looking for networks.
inline peer_launch launch_openmpi5(const std::string& program, bool oversubscribed) {
  peer_launch l;
  if (!launch_from_venv(l, program, "mpirun", {"--bind-to", "none"})) return l;
  if (::geteuid() == 0) l.argv.insert(l.argv.begin() + 1, "--allow-run-as-root");
  if (oversubscribed) l.argv.insert(l.argv.begin() + 1, "--oversubscribe");
  settings s = {{"pml", "ob1"}, {"btl", "self,sm"}};
  if (oversubscribed) s.emplace_back("mpi_yield_when_idle", "1");
  set(l, s, "OMPI_MCA_");
  l.environment.emplace_back("TMPDIR", "{scratch}");  // for its session folders
  return l;
}

inline settings intel_settings(bool oversubscribed) {
  settings s = {{"I_MPI_FABRICS", "shm"}};
  if (oversubscribed) s.insert(s.end(), {{"I_MPI_THREAD_YIELD", "2"}, {"I_MPI_SPIN_COUNT", "1"}});
  s.emplace_back("I_MPI_PIN", "off");  // ranks pin themselves
  return s;
}

inline peer_launch launch_intelmpi(const std::string& program, bool oversubscribed) {
  peer_launch l;
  const auto root = launch_from_venv(l, program, "mpiexec.hydra", {"-launcher", "fork"});
  if (!root) return l;
  set(l, intel_settings(oversubscribed));
  l.environment.emplace_back("I_MPI_ROOT", *root);
  return l;
}

/// Over Intel MPI. No CPU is left for threads of oneCCL's own.
inline peer_launch launch_oneccl(const std::string& program, bool oversubscribed) {
  peer_launch l;
  const auto root = launch_from_venv(l, program, "mpiexec.hydra", {"-launcher", "fork"});
  if (!root) return l;
  settings s = intel_settings(oversubscribed);
  s.insert(s.end(), {{"CCL_ATL_TRANSPORT", "mpi"},
                     {"CCL_WORKER_OFFLOAD", "0"},
                     {"CCL_ALLREDUCE", "direct:0-65536;ring:65537-max"},
                     {"CCL_LOG_LEVEL", "error"}});
  set(l, s);
  l.environment.emplace_back("I_MPI_ROOT", *root);
  return l;
}

/// Ranks find each other by the name of the folder. One thread for each, as ranks have one CPU.
inline peer_launch launch_deepspeed(const std::string& program) {
  peer_launch l;
  l.argv = {program};
  l.each_rank = true;
  l.environment = {{scratch_variable, "{scratch}"}, {"OMP_NUM_THREADS", "1"}, {settings_variable, "OMP_NUM_THREADS=1"}};
  return l;
}

inline peer_launch launch_gloo(const std::string& program, bool oversubscribed) {
  peer_launch l;
  l.argv = {program};
  l.each_rank = true;
  l.environment = {{scratch_variable, "{scratch}"}, {settings_variable, oversubscribed ? "" : "busy-poll"}};
  return l;
}

}  // namespace detail

/// How to start the peer of this name, whose program is at `program`. `oversubscribed`: more ranks than CPUs.
inline peer_launch launch_peer(std::string_view name, const std::string& program, bool oversubscribed) {
  if (name == "mpich") return detail::launch_mpich(program, oversubscribed);
  if (name == "openmpi") return detail::launch_openmpi(program, oversubscribed, false);
  if (name == "openmpi-cma") return detail::launch_openmpi(program, oversubscribed, true);
  if (name == "mpich5") return detail::launch_mpich5(program, oversubscribed);
  if (name == "openmpi5") return detail::launch_openmpi5(program, oversubscribed);
  if (name == "intelmpi") return detail::launch_intelmpi(program, oversubscribed);
  if (name == "oneccl") return detail::launch_oneccl(program, oversubscribed);
  if (name == "deepspeed") return detail::launch_deepspeed(program);
  if (name == "gloo") return detail::launch_gloo(program, oversubscribed);
  peer_launch none;
  none.missing = "there is no peer \"" + std::string(name) + "\"";
  return none;
}

}  // namespace hvd::bench
