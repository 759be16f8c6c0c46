// bench/report/machine.cpp: reads the kernel's files.
#include <bench/report/machine.hpp>

#include <hvd/policy.hpp>
#include <hvd/topology.hpp>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>

#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

/// The text after `key` and a colon in a file of the kernel.
std::string value_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return {};
}

std::size_t number_in(const char* path) {
  std::ifstream file(path);
  std::size_t n = 0;
  return file >> n ? n : std::numeric_limits<std::size_t>::max();  // "max" is not a number
}

}  // namespace

machine machine::of_this_process() {
  machine m;
  utsname u{};
  ::uname(&u);
  m.kernel = std::string(u.sysname) + " " + u.release;
  m.host = u.nodename;
  m.cpu = value_of("/proc/cpuinfo", "model name");
  if (m.cpu.empty()) m.cpu = u.machine;
  m.cpus = hvd::host().cpu_ids;
  m.l2 = hvd::host().l2;
  m.l3 = hvd::host().l3;
  return m;
}

std::size_t available_memory() {
  std::istringstream text(value_of("/proc/meminfo", "MemAvailable"));
  std::size_t kib = 0;
  const std::size_t host = text >> kib ? kib * 1024 : std::numeric_limits<std::size_t>::max();
  const std::size_t limit = number_in("/sys/fs/cgroup/memory.max");
  const std::size_t used = number_in("/sys/fs/cgroup/memory.current");
  return limit == std::numeric_limits<std::size_t>::max() || used > limit ? host : std::min(host, limit - used);
}

std::size_t available_shared() {
  struct statvfs s {};
  const std::string directory = memory_policy::from_environment().directory;
  if (::statvfs(directory.c_str(), &s) != 0) return 0;
  return static_cast<std::size_t>(s.f_bavail) * s.f_frsize;
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return text;
}

}  // namespace hvd::bench
