// hvd/topology.hpp: the resources of this host that this process may use: CPUs, caches, NUMA nodes, GPUs.
#pragma once

#include <hvd/error.hpp>
#include <hvd/topology/cgroup.hpp>
#include <hvd/topology/cpu_list.hpp>
#include <hvd/topology/files.hpp>
#include <hvd/topology/gpus.hpp>
#include <hvd/version.hpp>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The resources of a host that one process may use. Values that the host does not report are 0, empty or infinity, as
/// documented below; making a topology throws only std::bad_alloc.
struct topology {
  struct numa_node {
    int id;  ///< the kernel's number; -1 where it names no node
    std::vector<int> cpus;
    bool operator==(const numa_node&) const = default;
  };

  /// The number of CPUs that it can use at once: the number of cpu_ids or the quota rounded up, whichever is less; at
  /// least 1.
  int cpus = 1;
  /// The CPUs it may run on, ascending; empty if unknown.
  std::vector<int> cpu_ids;
  /// The CPU time that its control groups grant, in CPUs; infinity if there is no limit.
  double quota = std::numeric_limits<double>::infinity();

  // If CPUs differ, the least value, so that a size that fits there fits everywhere.
  std::size_t cache_line = 0;  ///< bytes; 0 if unknown, here and below
  std::size_t l1d = 0;         ///< bytes of the first-level data cache of a core
  std::size_t l2 = 0;          ///< bytes of the second-level cache of a core
  std::size_t l3 = 0;          ///< bytes of a third-level cache
  /// CPUs of the host, usable or not, that share one level 3 cache (the largest number if they differ); 0 if unknown.
  int l3_sharers = 0;

  /// The usable CPUs of each last-level cache, ordered by first CPU. CPUs of unknown cache are in one group, the last.
  std::vector<std::vector<int>> l3_domains;
  /// The usable CPUs of each NUMA node, ordered by id; nodes without any are left out.
  std::vector<numa_node> numa_nodes;

  /// The usable CPUs of each core, ordered by socket, NUMA node and core, so that neighbours are near each other.
  /// `discover_cpus` and `discover` find them.
  std::vector<std::vector<int>> cores;

  // Found by `discover` alone.
  /// The GPUs that this process sees, ordered by ordinal.
  std::vector<gpu> gpus;
  /// If there are no GPUs: one sentence with the reason.
  std::string no_gpus;
  /// The ordinal of the calling thread's current GPU; -1 if there is none.
  int current_gpu = -1;
  /// CUDA_VISIBLE_DEVICES; empty if it is not set.
  std::string visible_devices;

  /// Reads some 40 of the kernel's files: 0.25 ms with one last-level cache, 0.14 ms more for each further
  /// one (measured on AMD Zen 4 under Linux 6).
  static topology of_this_process();

  /// The same for a process that may run on `cpu_ids`, with proc and sys below another root.
  static topology of(std::vector<int> cpu_ids, const std::string& root = "/");

  /// With cores and without GPUs: reads two files more for each CPU.
  static topology discover_cpus(const std::string& root = "/");

  /// Everything. Looks for the CUDA driver at run time. If it exists, the first call initialises it, which takes 0.1 s
  /// to some seconds and makes CUDA unusable in processes forked later.
  static topology discover();
};

namespace detail {

/// The CPUs that sched_getaffinity returns for one thread, with a mask that grows until the kernel's mask fits: a
/// cpu_set_t ends at 1024. `get(pid, bytes, words)` makes the call; no CPUs if it fails.
template <class Get>
std::vector<int> read_affinity(int thread, Get&& get) {
  constexpr std::size_t bits = std::numeric_limits<unsigned long>::digits;
  for (std::size_t words = 1024 / bits; words <= (std::size_t{1} << 20) / bits; words *= 2) {
    std::vector<unsigned long> mask(words);
    errno = 0;
    if (get(thread, words * sizeof(unsigned long), mask.data()) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < words * bits; ++cpu)
      if ((mask[cpu / bits] >> cpu % bits & 1u) != 0) cpus.push_back(static_cast<int>(cpu));
    return cpus;
  }
  return {};
}

/// The CPUs of the calling and of the main thread together: either may already be pinned to one CPU, for example by an
/// OpenMP runtime, which does not limit the process.
inline std::vector<int> process_affinity() {
  const auto get = [](int thread, std::size_t bytes, unsigned long* words) {
    return sched_getaffinity(thread, bytes, reinterpret_cast<cpu_set_t*>(words));
  };
  std::vector<int> both;
  for (const int thread : {0, getpid()}) {
    for (const int cpu : read_affinity(thread, get)) both.push_back(cpu);
  }
  put_in_order(both);
  return both;
}

inline void take_least(std::size_t& least, std::size_t bytes) {
  if (bytes != 0) least = least == 0 ? bytes : std::min(least, bytes);
}

/// Fills in the sizes and domains, from the files of one CPU of each last-level cache.
inline void read_caches(topology& host, std::string_view cpu_folder) {
  std::vector<int> rest = host.cpu_ids, unknown;
  while (!rest.empty()) {
    const int cpu = rest.front();
    int last_level = 0;
    std::vector<int> sharers;
    for (int index = 0;; ++index) {
      const std::string cache = joined({cpu_folder, "cpu", cpu, "/cache/index", index, "/"});
      const auto level = static_cast<int>(read_size({cache, "level"}));
      if (level == 0) break;
      if (read_text({cache, "type"}) == "Instruction") continue;
      const std::size_t bytes = read_size({cache, "size"});
      const auto shared = read_cpu_list({cache, "shared_cpu_list"});
      take_least(host.cache_line, read_size({cache, "coherency_line_size"}));
      if (level == 1) take_least(host.l1d, bytes);
      if (level == 2) take_least(host.l2, bytes);
      if (level == 3) {
        take_least(host.l3, bytes);
        host.l3_sharers = std::max(host.l3_sharers, static_cast<int>(shared.size()));
      }
      if (level > last_level) {
        last_level = level;
        sharers = shared;
      }
    }
    if (std::binary_search(sharers.begin(), sharers.end(), cpu)) {
      host.l3_domains.push_back(take_out(rest, sharers));
    } else {  // no list, or nonsense
      unknown.push_back(cpu);
      rest.erase(rest.begin());
    }
  }
  if (!unknown.empty()) host.l3_domains.push_back(unknown);
}

/// Linux numbers them below this (CONFIG_NODES_SHIFT is at most 10): higher numbers in a file are ignored.
inline constexpr int max_numa_nodes = 1024;

inline void read_nodes(topology& host, std::string_view node_folder) {
  std::vector<int> rest = host.cpu_ids;
  for (const int id : read_cpu_list({node_folder, "online"})) {
    if (rest.empty() || id >= max_numa_nodes) break;
    std::vector<int> cpus = take_out(rest, read_cpu_list({node_folder, "node", id, "/cpulist"}));
    if (!cpus.empty()) host.numa_nodes.push_back({id, std::move(cpus)});
  }
  if (!rest.empty()) host.numa_nodes.push_back({-1, std::move(rest)});
}

/// Fills in the cores. A CPU whose core is unknown counts as a core.
inline void read_cores(topology& host, std::string_view cpu_folder) {
  std::map<std::tuple<int, int, int>, std::vector<int>> cores;
  for (const int cpu : host.cpu_ids) {
    int node = 0;
    for (const topology::numa_node& n : host.numa_nodes) {
      if (std::binary_search(n.cpus.begin(), n.cpus.end(), cpu)) node = n.id;
    }
    const std::string folder = joined({cpu_folder, "cpu", cpu, "/topology/"});
    const int socket = read_number({folder, "physical_package_id"}, 0);
    cores[{socket, node, read_number({folder, "core_id"}, cpu)}].push_back(cpu);
  }
  host.cores.clear();
  for (auto& [place, cpus] : cores) host.cores.push_back(std::move(cpus));
}

}  // namespace detail

inline topology topology::of(std::vector<int> cpu_ids, const std::string& root) {
  const std::string base = detail::joined({root, root.ends_with('/') ? "" : "/"});
  topology host;
  detail::put_in_order(cpu_ids);
  host.cpu_ids = std::move(cpu_ids);
  host.quota = detail::read_quota(base);
  const double count = host.cpu_ids.empty() ? static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN))
                                            : static_cast<double>(host.cpu_ids.size());
  host.cpus = std::max(1, static_cast<int>(std::min(count, std::ceil(host.quota))));
  detail::read_caches(host, detail::joined({base, "sys/devices/system/cpu/"}));
  detail::read_nodes(host, detail::joined({base, "sys/devices/system/node/"}));
  return host;
}

inline topology topology::discover_cpus(const std::string& root) {
  topology found = of(detail::process_affinity(), root);
  detail::read_cores(found, detail::joined({root, root.ends_with('/') ? "" : "/", "sys/devices/system/cpu/"}));
  return found;
}

inline topology topology::discover() {
  topology found = discover_cpus();
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES")) found.visible_devices = visible;
  try {
    const detail::cuda_driver& cuda = detail::get_cuda();
    found.gpus = detail::read_gpus(cuda, "/");
    found.current_gpu = detail::current_ordinal(cuda);
  } catch (const error& e) {
    found.no_gpus = detail::sentence(e);
  }
  return found;
}

inline topology topology::of_this_process() { return of(detail::process_affinity()); }

/// The topology of this process, read at the first call. Safe from any thread; later calls cost a load.
inline const topology& host() {
  static const topology found = topology::of_this_process();
  return found;
}

}  // namespace hvd::inline HVD_ABI
