// bench/coordinator/launchers.hpp: how the ranks of each library are started.
#pragma once

#include <bench/options.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::bench {

struct launch {
  enum class kind { hvd, limit, nccl, command };
  kind how = kind::hvd;
  std::string name;
  std::vector<std::string> argv;  ///< may contain {ranks} and {scratch}, a folder that is removed at the end
  std::vector<std::pair<std::string, std::string>> environment;
  bool each_rank = false;  ///< start it once for each rank, which finds its number in HVD_BENCH_RANK
  std::string missing;     ///< why it cannot be started, and a remedy
};

/// The peer that is NCCL without hvd, on the GPUs of --transport nccl.
inline constexpr std::string_view bare_nccl = "nccl";

/// The peers that `--peer NAME` knows.
std::vector<std::string> known_peers();

/// How to start `wanted` with so many ranks on so many CPUs, in the library's best documented setting. Errors:
/// usage_error for an unknown name; a library that is not installed is `missing`.
launch launch_of(const peer_option& wanted, int ranks, int cpus);

/// In a child: becomes the command, or its rank `rank` if it is started once for each. `output` is a file for all
/// that it prints; -1: as this process.
[[noreturn]] void become(const launch& how, int rank, int ranks, const std::string& stage, const std::string& scratch,
                         int output);

/// The text with each `what` as `with`.
std::string replace_all(std::string text, std::string_view what, std::string_view with);

}  // namespace hvd::bench
