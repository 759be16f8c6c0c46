// hvd/topology.hpp: what this process may use of this host: CPUs, caches, NUMA nodes.
#pragma once

#include <hvd/error.hpp>
#include <hvd/version.hpp>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The CPUs in the kernel's list format ("0-3,8"), ascending and each once; none for an empty text. Anything
/// else is invalid_argument, which names the text and the place in it.
inline std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int most = (1 << 20) - 1;  // far above what Linux can have, and a bound for what a typing error costs
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto refuse = [&](const std::string& problem) {
    throw error(error_kind::invalid_argument,
                "CPU list \"" + std::string(text) + "\", character " + std::to_string(at - text.data() + 1) + ": " +
                    problem + "; allowed: numbers and ranges from 0 to " + std::to_string(most) + ", as in \"0-3,8\"");
  };
  const auto number = [&] {
    int value = 0;
    const auto [next, code] = std::from_chars(at, end, value);
    if (code == std::errc::invalid_argument || *at == '-') refuse("no number");
    if (code != std::errc{} || value > most) refuse("number too large");
    at = next;
    return value;
  };
  while (at != end) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
      if (last < first) refuse("range ends before it begins");
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (at == end) break;
    if (*at != ',') refuse("neither ',' nor '-'");
    if (++at == end) refuse("nothing after ','");
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

/// What one process may use of its host. Whatever the host does not tell is 0, empty or infinity, as said
/// below; making one throws nothing but std::bad_alloc.
struct topology {
  struct numa_node {
    int id;  ///< the kernel's number; -1 where it names no node
    std::vector<int> cpus;
    bool operator==(const numa_node&) const = default;
  };

  /// How many it can use at once: the number of cpu_ids or the quota rounded up, what is less; at least 1.
  int cpus = 1;
  /// What it may run on, ascending; empty if unknown.
  std::vector<int> cpu_ids;
  /// CPUs' worth of time that its control groups grant; infinity if there is no limit.
  double quota = std::numeric_limits<double>::infinity();

  // Where CPUs differ, the least: what fits there fits everywhere.
  std::size_t cache_line = 0;  ///< bytes; 0 if unknown, here and below
  std::size_t l1d = 0;         ///< bytes of the first-level data cache of a core
  std::size_t l2 = 0;          ///< bytes of the second-level cache of a core
  std::size_t l3 = 0;          ///< bytes of a third-level cache
  /// CPUs of the host, usable or not, that share one level 3 cache (the most, where they differ); 0 if
  /// unknown.
  int l3_sharers = 0;

  /// The usable CPUs by last-level cache, by first CPU. CPUs of unknown cache are together in one, the last.
  std::vector<std::vector<int>> l3_domains;
  /// The usable CPUs by NUMA node, by id, nodes without any left out.
  std::vector<numa_node> numa_nodes;

  /// Reads some 40 of the kernel's files: 0.25 ms with one last-level cache, 0.14 ms more for each further
  /// one (measured on AMD Zen 4 under Linux 6).
  static topology of_this_process();

  /// The same for a process that may run on `cpu_ids`, with proc and sys below another root.
  static topology of(std::vector<int> cpu_ids, const std::string& root = "/");
};

namespace detail {

/// A small file's text without the line's end; nothing if it cannot be read.
inline std::optional<std::string> read_text(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text, '\0');  // catches what the stream buffer throws, for a directory say
  if (file.bad() || (text.empty() && !file.eof())) return std::nullopt;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

inline std::vector<int> read_cpu_list(const std::string& path) {
  try {
    return parse_cpu_list(read_text(path).value_or(""));
  } catch (const error&) {
    return {};
  }
}

/// "48K" and the like in bytes; 0 for anything else.
inline std::size_t read_size(const std::string& path) {
  const std::string text = read_text(path).value_or("");
  std::size_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || number > std::numeric_limits<std::size_t>::max() >> 30) return 0;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.empty()) return number;
  if (unit == "K") return number << 10;
  if (unit == "M") return number << 20;
  return unit == "G" ? number << 30 : 0;
}

inline std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t length = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, length));
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return parts;
}

/// CPUs granted by "quota" of every "period", in one unit; infinity where either is "max", negative or no
/// number.
inline double parse_quota(const std::string& quota, const std::string& period) {
  double limit = 0.0, length = 0.0;
  std::from_chars(quota.data(), quota.data() + quota.size(), limit);
  std::from_chars(period.data(), period.data() + period.size(), length);
  const bool limited = limit > 0.0 && length > 0.0;
  return limited ? limit / length : std::numeric_limits<double>::infinity();
}

/// The least quota of the groups from `path` up to the mount's root. Above a container's own group there is
/// nothing to see, and its path may be one that only the host knows: what does not exist limits nothing.
inline double least_quota(const std::string& mount, std::string path, bool unified) {
  double least = std::numeric_limits<double>::infinity();
  if (path.find("/..") != std::string::npos) path.clear();  // a group outside of this namespace's root
  for (;;) {
    while (!path.empty() && path.back() == '/') path.pop_back();
    const std::string group = mount + path + "/";
    if (unified) {
      const auto words = split_text(read_text(group + "cpu.max").value_or(""), ' ');
      if (words.size() == 2) least = std::min(least, parse_quota(words[0], words[1]));
    } else {
      least = std::min(least, parse_quota(read_text(group + "cpu.cfs_quota_us").value_or(""),
                                          read_text(group + "cpu.cfs_period_us").value_or("")));
    }
    if (path.empty()) return least;
    const auto slash = path.rfind('/');
    path.erase(slash == std::string::npos ? 0 : slash);
  }
}

/// The quota of the process's control groups, version 2 and 1, which a host may have side by side.
inline double read_quota(const std::string& root) {
  struct mount {
    std::string point, group;  // where, and which group is its root
    bool unified;
  };
  const auto has_cpu = [](std::string_view controllers) {
    const auto names = split_text(controllers, ',');
    return std::find(names.begin(), names.end(), "cpu") != names.end();
  };
  std::vector<mount> mounts;
  for (const std::string& line : split_text(read_text(root + "proc/self/mountinfo").value_or(""), '\n')) {
    const auto words = split_text(line, ' ');
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || !words[4].starts_with('/') || std::distance(dash, words.end()) < 4) continue;
    const bool unified = dash[1] == "cgroup2";
    if (unified || (dash[1] == "cgroup" && has_cpu(dash[3]))) mounts.push_back({words[4], words[3], unified});
  }
  if (mounts.empty())
    mounts = {{"/sys/fs/cgroup", "/", true},
              {"/sys/fs/cgroup/unified", "/", true},
              {"/sys/fs/cgroup/cpu", "/", false},
              {"/sys/fs/cgroup/cpu,cpuacct", "/", false}};

  double least = std::numeric_limits<double>::infinity();
  for (const std::string& line : split_text(read_text(root + "proc/self/cgroup").value_or(""), '\n')) {
    const auto first = line.find(':'), second = line.find(':', first + 1);  // number:controllers:path
    if (first == std::string::npos || second == std::string::npos) continue;
    const bool unified = second == first + 1;
    if (!unified && !has_cpu(std::string_view(line).substr(first + 1, second - first - 1))) continue;
    const std::string path = line.substr(second + 1);
    for (const mount& m : mounts) {
      if (m.unified != unified) continue;
      const bool inside = m.group != "/" && (path + "/").starts_with(m.group + "/");
      const std::string below = inside ? path.substr(m.group.size()) : path;
      least = std::min(least, least_quota(root + m.point.substr(1), below, unified));
    }
  }
  return least;
}

/// What sched_getaffinity says of one thread, with a mask that grows until the kernel's fits: a cpu_set_t
/// ends at 1024. `get(pid, bytes, words)` is the call itself; nothing if it fails.
template <class Get>
std::optional<std::vector<int>> read_affinity(int thread, Get&& get) {
  constexpr std::size_t bits = std::numeric_limits<unsigned long>::digits;
  for (std::size_t words = 1024 / bits; words <= (std::size_t{1} << 20) / bits; words *= 2) {
    std::vector<unsigned long> mask(words);
    errno = 0;
    if (get(thread, words * sizeof(unsigned long), mask.data()) != 0) {
      if (errno == EINVAL) continue;
      return std::nullopt;
    }
    std::vector<int> cpus;
    for (std::size_t cpu = 0; cpu < words * bits; ++cpu)
      if ((mask[cpu / bits] >> cpu % bits & 1u) != 0) cpus.push_back(static_cast<int>(cpu));
    return cpus;
  }
  return std::nullopt;
}

/// The CPUs of the calling and of the main thread together: either may have been pinned to one before anybody
/// asked, by an OpenMP runtime for instance, and that says nothing about the process.
inline std::vector<int> process_affinity() {
  const auto get = [](int thread, std::size_t bytes, unsigned long* words) {
    return sched_getaffinity(thread, bytes, reinterpret_cast<cpu_set_t*>(words));
  };
  const auto calling = read_affinity(0, get).value_or(std::vector<int>{});
  const auto main = read_affinity(getpid(), get).value_or(std::vector<int>{});
  std::vector<int> both;
  std::set_union(calling.begin(), calling.end(), main.begin(), main.end(), std::back_inserter(both));
  return both;
}

inline std::vector<int> intersection(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

inline void take_least(std::size_t& least, std::size_t bytes) {
  if (bytes != 0) least = least == 0 ? bytes : std::min(least, bytes);
}

/// Fills in the sizes and domains, from the files of one CPU of each last-level cache.
inline void read_caches(topology& host, const std::string& cpu_folder) {
  std::vector<int> rest = host.cpu_ids, unknown;
  while (!rest.empty()) {
    const int cpu = rest.front();
    int last_level = 0;
    std::vector<int> sharers;
    for (int index = 0;; ++index) {
      const std::string cache = cpu_folder + "cpu" + std::to_string(cpu) + "/cache/index" + std::to_string(index) + "/";
      const auto level = static_cast<int>(read_size(cache + "level"));
      if (level == 0) break;
      if (read_text(cache + "type").value_or("") == "Instruction") continue;
      const std::size_t bytes = read_size(cache + "size");
      const auto shared = read_cpu_list(cache + "shared_cpu_list");
      take_least(host.cache_line, read_size(cache + "coherency_line_size"));
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
    std::vector<int> domain = intersection(rest, sharers), others;
    if (std::find(domain.begin(), domain.end(), cpu) == domain.end()) {  // no list, or nonsense
      unknown.push_back(cpu);
      domain = {cpu};
    } else {
      host.l3_domains.push_back(domain);
    }
    std::set_difference(rest.begin(), rest.end(), domain.begin(), domain.end(), std::back_inserter(others));
    rest = std::move(others);
  }
  if (!unknown.empty()) host.l3_domains.push_back(unknown);
}

inline void read_nodes(topology& host, const std::string& node_folder) {
  std::vector<int> rest = host.cpu_ids, others;
  for (const int id : read_cpu_list(node_folder + "online")) {
    const auto cpus = intersection(rest, read_cpu_list(node_folder + "node" + std::to_string(id) + "/cpulist"));
    if (cpus.empty()) continue;
    host.numa_nodes.push_back({id, cpus});
    others.clear();
    std::set_difference(rest.begin(), rest.end(), cpus.begin(), cpus.end(), std::back_inserter(others));
    rest = others;
  }
  if (!rest.empty()) host.numa_nodes.push_back({-1, rest});
}

}  // namespace detail

inline topology topology::of(std::vector<int> cpu_ids, const std::string& root) {
  const std::string base = root.ends_with('/') ? root : root + '/';
  topology host;
  std::sort(cpu_ids.begin(), cpu_ids.end());
  cpu_ids.erase(std::unique(cpu_ids.begin(), cpu_ids.end()), cpu_ids.end());
  host.cpu_ids = std::move(cpu_ids);
  host.quota = detail::read_quota(base);
  const double count = host.cpu_ids.empty() ? static_cast<double>(std::thread::hardware_concurrency())
                                            : static_cast<double>(host.cpu_ids.size());
  host.cpus = std::max(1, static_cast<int>(std::min(count, std::ceil(host.quota))));
  detail::read_caches(host, base + "sys/devices/system/cpu/");
  detail::read_nodes(host, base + "sys/devices/system/node/");
  return host;
}

inline topology topology::of_this_process() { return of(detail::process_affinity()); }

/// The topology as it was when it was first asked for. Safe from any thread; after the first call it costs a
/// load.
inline const topology& host() {
  static const topology found = topology::of_this_process();
  return found;
}

}  // namespace hvd::inline HVD_ABI
