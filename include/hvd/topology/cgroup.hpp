// hvd/topology/cgroup.hpp: the CPU time that the control groups of a process grant.
#pragma once

#include <hvd/error.hpp>
#include <hvd/topology/files.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// CPUs granted by "quota" of every "period", in one unit; infinity if either is "max", negative or not a number.
inline double parse_quota(std::string_view quota, std::string_view period) {
  double limit = 0.0, length = 0.0;
  std::from_chars(quota.data(), quota.data() + quota.size(), limit);
  std::from_chars(period.data(), period.data() + period.size(), length);
  const bool limited = limit > 0.0 && length > 0.0;
  return limited ? limit / length : std::numeric_limits<double>::infinity();
}

/// The least quota of the groups from `path` up to the mount's root. In a container nothing above its own group is
/// visible, and its path may be one of the host: a group that does not exist limits nothing.
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

/// True if a list of controllers, such as "cpu,cpuacct", has the one that limits CPU time.
inline bool has_cpu(std::string_view controllers) noexcept {
  while (!controllers.empty()) {
    if (take_part(controllers, ',') == "cpu") return true;
  }
  return false;
}

/// A mounted hierarchy of control groups: its mount point, its root group, and its version (2 or 1).
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

/// The quota of the process's control groups, version 2 and 1; a host may have both.
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

}  // namespace hvd::inline HVD_ABI::detail
