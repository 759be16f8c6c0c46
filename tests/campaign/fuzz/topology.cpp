// tests/campaign/fuzz/topology.cpp: what the kernel's files say of control groups, caches and NUMA nodes. An input is
// several files, each after a line =PATH.
//
// Findings besides those of fuzz.hpp: any exception (of reads only std::bad_alloc is told), and CPUs that are in no
// domain, in no node or in two.
#include <hvd/topology.hpp>

#include "fuzz.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include <sys/stat.h>

namespace {

/// A folder in memory, made anew for each process, with the files of one input.
class root {
 public:
  root() {
    path_ = std::filesystem::temp_directory_path() / "hvd-fuzz-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
    std::atexit([] { std::filesystem::remove_all(here().path_); });
  }
  static root& here() {
    static root& made = *new root;  // for the function that runs at the end
    return made;
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  void clear() {
    for (const std::string& file : files_) ::unlink(file.c_str());
    files_.clear();
  }
  void write(std::string_view name, std::string_view text) {
    const bool plain = !name.empty() && name.size() < 100 && files_.size() < 30 && name.find("..") == name.npos &&
                       name.find('\0') == name.npos && name.front() != '/' && name.back() != '/';
    if (!plain || std::count(name.begin(), name.end(), '/') > 8) return;
    const std::string file = path_ + "/" + std::string(name);
    for (std::size_t at = path_.size() + 1; (at = file.find('/', at)) != file.npos; ++at) {
      const std::string folder = file.substr(0, at);
      if (folders_.contains(folder)) continue;
      if (folders_.size() == 500 || ::mkdir(folder.c_str(), 0700) != 0) return;
      folders_.insert(folder);
    }
    const int fd = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) return;
    (void)!::write(fd, text.data(), text.size());
    ::close(fd);
    files_.insert(file);
  }

 private:
  std::string path_;
  std::set<std::string> folders_, files_;
};

}  // namespace

FUZZ(in) {
  root& files = root::here();
  files.clear();
  in.part('=');
  while (!in.ended()) {
    const std::string_view name = in.part('\n');
    std::string text;
    for (bool more = true; more && !in.ended();) {
      const std::string_view part = in.part('=');
      text += part;
      more = !in.ended() && !text.empty() && text.back() != '\n';  // a sign within a line
      if (more) text += '=';
    }
    files.write(name, text);
  }
  const auto t = hvd::topology::of({3, 0, 1, 2}, files.path());
  fuzz::require(t.cpu_ids == std::vector{0, 1, 2, 3} && t.cpus >= 1 && t.cpus <= 4, "other CPUs");
  fuzz::require(t.quota > 0 && !std::isnan(t.quota) && t.l3_sharers >= 0, "no number");
  std::vector<int> domains, nodes;
  for (const auto& d : t.l3_domains) domains.insert(domains.end(), d.begin(), d.end());
  for (const auto& n : t.numa_nodes) nodes.insert(nodes.end(), n.cpus.begin(), n.cpus.end());
  std::sort(domains.begin(), domains.end());
  std::sort(nodes.begin(), nodes.end());
  fuzz::require(domains == t.cpu_ids && nodes == t.cpu_ids, "CPUs in no domain or node, or in two");
}
