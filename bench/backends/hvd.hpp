// bench/backends/hvd.hpp: hvd as a library under measurement, and the limit that it is compared with.
#pragma once

#include <bench/stage.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace hvd::bench {

inline constexpr std::string_view transport_names[] = {"shm", "thread", "self", "nccl"};
/// Whether all ranks of a transport are one process.
constexpr bool in_one_process(std::string_view transport) noexcept {
  return transport == "thread" || transport == "self";
}
inline constexpr std::string_view algorithm_names[] = {
    "automatic", "direct", "ring", "tree", "recursive_doubling", "halving_doubling", "double_tree", "bruck"};

/// Empty, or why the text names no algorithm ("ring:chunk_bytes=64K" does).
std::string check_algorithm(std::string_view text);

/// The tunables of an algorithm by name, such as "one_shot_bytes, chunk_bytes"; may be empty.
std::string tunables_of(std::string_view algorithm);

struct hvd_settings {
  std::string transport = "shm";
  std::string algorithm;  ///< for the description only; jobs carry their own
  std::string job;        ///< name of the group, drawn at random by the coordinator
  int ranks_per_gpu = 1;  ///< with transport nccl
};

/// One process of the library "hvd": a rank, or with transport thread all of them (`rank` is then ignored). Returns the
/// exit code.
int hvd_process(const Stage& stage, const hvd_settings& settings, int rank);

/// One rank of the library "nccl": NCCL's own calls, on the buffers and by the means of transport nccl.
int nccl_process(const Stage& stage, const hvd_settings& settings, int rank);

/// One process of the library "limit": the bytes that a collective must move, moved without synchronisation.
int limit_process(const Stage& stage, const hvd_settings& settings, int rank);

}  // namespace hvd::bench
