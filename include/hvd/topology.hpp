// hvd/topology.hpp: what this process may use of this host: CPUs, caches, NUMA nodes.
#pragma once

#include <hvd/error.hpp>
#include <hvd/version.hpp>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

/// Sorts ascending, and removes duplicates.
inline void put_in_order(std::vector<int>& cpus) {
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
}

}  // namespace detail

/// The CPUs in the kernel's list format ("0-3,8"), ascending and each once; none for an empty text. Anything else is
/// invalid_argument, which names the text and the position in it.
inline std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int most = (1 << 20) - 1;  // far above what Linux can have; bounds the cost of a typing error
  std::vector<std::pair<int, int>> ranges;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto refuse = [&](const char* problem) {
    detail::fail(error_kind::invalid_argument,
                 {"CPU list \"", text, "\", character ", at - text.data() + 1, ": ", problem,
                  "; allowed: numbers and ranges from 0 to ", most, ", as in \"0-3,8\""});
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
    ranges.emplace_back(first, last);
    if (at == end) break;
    if (*at != ',') refuse("neither ',' nor '-'");
    if (++at == end) refuse("nothing after ','");
  }
  // Sorted, so that ranges that are repeated cost no memory.
  std::sort(ranges.begin(), ranges.end());
  std::vector<int> cpus;
  for (const auto& [first, last] : ranges) {
    for (int cpu = cpus.empty() ? first : std::max(first, cpus.back() + 1); cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

/// What one process may use of its host. What the host does not report is 0, empty or infinity, as documented below;
/// making one throws nothing but std::bad_alloc.
struct topology {
  struct numa_node {
    int id;  ///< the kernel's number; -1 where it names no node
    std::vector<int> cpus;
    bool operator==(const numa_node&) const = default;
  };

  /// How many CPUs it can use at once: the number of cpu_ids or the quota rounded up, whichever is less; at least 1.
  int cpus = 1;
  /// The CPUs it may run on, ascending; empty if unknown.
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

  /// The usable CPUs of each last-level cache, ordered by first CPU. CPUs of unknown cache are in one group, the last.
  std::vector<std::vector<int>> l3_domains;
  /// The usable CPUs of each NUMA node, ordered by id; nodes without any are left out.
  std::vector<numa_node> numa_nodes;

  /// Reads some 40 of the kernel's files: 0.25 ms with one last-level cache, 0.14 ms more for each further
  /// one (measured on AMD Zen 4 under Linux 6).
  static topology of_this_process();

  /// The same for a process that may run on `cpu_ids`, with proc and sys below another root.
  static topology of(std::vector<int> cpu_ids, const std::string& root = "/");
};

namespace detail {

/// A small file's text without the line's end; empty if it cannot be read.
inline std::string read_text(std::initializer_list<piece> path) {
  std::string text;
  const int fd = ::open(joined(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (;;) {
    const ssize_t n = ::read(fd, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(part, static_cast<std::size_t>(n));
  }
  ::close(fd);
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

inline std::vector<int> read_cpu_list(std::initializer_list<piece> path) {
  try {
    return parse_cpu_list(read_text(path));
  } catch (const error&) {
    return {};
  }
}

/// "48K" and the like in bytes; 0 for anything else.
inline std::size_t read_size(std::initializer_list<piece> path) {
  const std::string text = read_text(path);
  std::size_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || number > std::numeric_limits<std::size_t>::max() >> 30) return 0;
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (unit.empty()) return number;
  if (unit == "K") return number << 10;
  if (unit == "M") return number << 20;
  return unit == "G" ? number << 30 : 0;
}

/// Takes the first part of a text off, and the separator behind it.
inline std::string_view take_part(std::string_view& text, char separator) noexcept {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(part.size() + 1, text.size()));
  return part;
}

/// CPUs granted by "quota" of every "period", in one unit; infinity where either is "max", negative or no
/// number.
inline double parse_quota(std::string_view quota, std::string_view period) {
  double limit = 0.0, length = 0.0;
  std::from_chars(quota.data(), quota.data() + quota.size(), limit);
  std::from_chars(period.data(), period.data() + period.size(), length);
  const bool limited = limit > 0.0 && length > 0.0;
  return limited ? limit / length : std::numeric_limits<double>::infinity();
}

/// The least quota of the groups from `path` up to the mount's root. In a container nothing above its own group is
/// visible, and its path may be one of the host: what does not exist limits nothing.
inline double least_quota(std::string_view mount, std::string_view path, bool unified) {
  double least = std::numeric_limits<double>::infinity();
  if (path.find("/..") != std::string_view::npos) path = {};  // a group outside of this namespace's root
  for (;;) {
    while (path.ends_with('/')) path.remove_suffix(1);
    if (unified) {
      const std::string both = read_text({mount, path, "/cpu.max"});
      std::string_view period = both;
      const std::string_view quota = take_part(period, ' ');
      if (period.find(' ') == std::string_view::npos) least = std::min(least, parse_quota(quota, period));
    } else {
      least = std::min(least, parse_quota(read_text({mount, path, "/cpu.cfs_quota_us"}),
                                          read_text({mount, path, "/cpu.cfs_period_us"})));
    }
    if (path.empty()) return least;
    const auto slash = path.rfind('/');
    path = path.substr(0, slash == std::string_view::npos ? 0 : slash);
  }
}

/// Whether a list of controllers, as in "cpu,cpuacct", has the one that limits CPU time.
inline bool has_cpu(std::string_view controllers) noexcept {
  while (!controllers.empty()) {
    if (take_part(controllers, ',') == "cpu") return true;
  }
  return false;
}

/// A mounted hierarchy of control groups: where, which group is its root, and whether it is of version 2.
struct group_mount {
  std::string_view point, group;
  bool unified;
};

/// The mount in a line of mountinfo, if it is a hierarchy that can limit CPU time; else one without a point.
inline group_mount parse_mount(std::string_view line) noexcept {
  group_mount mount{};
  std::string_view field;
  for (int i = 0; !line.empty() && field != "-"; ++i) {  // any number of fields, and three behind the dash
    field = take_part(line, ' ');
    if (i == 3) mount.group = field;
    if (i == 4) mount.point = field;
  }
  const std::string_view kind = take_part(line, ' ');
  take_part(line, ' ');  // the source
  mount.unified = kind == "cgroup2";
  const bool limits = mount.unified || (kind == "cgroup" && has_cpu(take_part(line, ' ')));
  if (!limits || !mount.point.starts_with('/')) mount.point = {};
  return mount;
}

/// The quota of the process's control groups, version 2 and 1, which a host may have side by side.
inline double read_quota(std::string_view root) {
  const std::string mounts = read_text({root, "proc/self/mountinfo"}), groups = read_text({root, "proc/self/cgroup"});
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const group_mount& mount) {
    for (std::string_view lines = groups; !lines.empty();) {
      std::string_view path = take_part(lines, '\n');  // number:controllers:path
      take_part(path, ':');
      if (path.find(':') == std::string_view::npos) continue;
      const std::string_view controllers = take_part(path, ':');
      if (mount.unified ? !controllers.empty() : !has_cpu(controllers)) continue;
      const std::string_view below = path.starts_with(mount.group) ? path.substr(mount.group.size()) : path;
      const bool inside = mount.group != "/" && (below.empty() || below.starts_with('/'));
      const std::string point = joined({root, mount.point.substr(1)});
      least = std::min(least, least_quota(point, inside ? below : path, mount.unified));
    }
  };
  bool any = false;
  for (std::string_view lines = mounts; !lines.empty();) {
    const group_mount mount = parse_mount(take_part(lines, '\n'));
    if (mount.point.empty()) continue;
    any = true;
    consider(mount);
  }
  if (any) return least;
  for (const group_mount& usual : {group_mount{"/sys/fs/cgroup", "/", true},
                                   {"/sys/fs/cgroup/unified", "/", true},
                                   {"/sys/fs/cgroup/cpu", "/", false},
                                   {"/sys/fs/cgroup/cpu,cpuacct", "/", false}}) {
    consider(usual);
  }
  return least;
}

/// What sched_getaffinity returns for one thread, with a mask that grows until the kernel's fits: a cpu_set_t ends at
/// 1024. `get(pid, bytes, words)` is the call itself; no CPU if it fails.
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

/// The CPUs of the calling and of the main thread together: either may already be pinned to one, by an OpenMP runtime
/// for instance, which is no limit of the process.
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

/// Removes the CPUs in `which` from `rest` and returns those removed; both are in order.
inline std::vector<int> take_out(std::vector<int>& rest, const std::vector<int>& which) {
  std::vector<int> taken, left;
  for (const int cpu : rest) (std::binary_search(which.begin(), which.end(), cpu) ? taken : left).push_back(cpu);
  rest = std::move(left);
  return taken;
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

inline topology topology::of_this_process() { return of(detail::process_affinity()); }

/// The topology of this process, read at the first call. Safe from any thread; later calls cost a load.
inline const topology& host() {
  static const topology found = topology::of_this_process();
  return found;
}

}  // namespace hvd::inline HVD_ABI
