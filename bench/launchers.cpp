// bench/launchers.cpp: from the names and commands of --peer to what is executed.
#include <bench/launchers.hpp>

#include <bench/peers/launch.hpp>

#include <algorithm>
#include <iterator>
#include <string_view>

#include <unistd.h>

namespace hvd::bench {
namespace {

/// The path of a peer's program, beside this one or in its folder peers; empty if it was not built.
std::string program_of(std::string_view program) {
  char self[4096];
  const ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  std::string folder(self, n > 0 ? static_cast<std::size_t>(n) : 0);
  folder.resize(folder.rfind('/') == std::string::npos ? 0 : folder.rfind('/'));
  for (const char* const below : {"/peers/", "/"}) {
    const std::string path = folder + below + std::string(program);
    if (::access(path.c_str(), X_OK) == 0) return path;
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
  const auto* const known =
      std::find_if(std::begin(peers), std::end(peers), [&](const peer& p) { return p.name == wanted.name; });
  if (known == std::end(peers)) {
    std::string names;
    for (const peer& p : peers) names += std::string(p.name) + ", ";
    throw usage_error("--peer " + wanted.name + " is not known; allowed: " + names + "or NAME=COMMAND");
  }
  const std::string program = program_of(known->program);
  if (program.empty()) {
    l.missing = std::string(known->title) + " was not there when hvd-bench was built, or its program was not built; " +
                "tools/setup --bench installs it, then configure and build again, all of it";
    return l;
  }
  peer_launch found = launch_peer(wanted.name, program, ranks > cpus);
  l.argv = std::move(found.argv);
  l.environment = std::move(found.environment);
  l.each_rank = found.each_rank;
  l.missing = std::move(found.missing);
  return l;
}

}  // namespace hvd::bench
