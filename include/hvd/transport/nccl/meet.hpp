// hvd/transport/nccl/meet.hpp: the messages of ranks, over another transport, before NCCL connects them.
#pragma once

#include <hvd/error.hpp>
#include <hvd/pin.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/nccl/communicator.hpp>
#include <hvd/version.hpp>

#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The message of each rank.
struct nccl_greeting {
  short_text<24> version{hvd::version};
  short_text<512> problem{};  ///< the reason why this rank cannot take part; empty if it can
  error_kind kind{};          ///< of the problem
  int nccl = 0;
  bool instances_apart = false;  ///< NCCL_HOSTID is set: NCCL treats each rank as a host
  device_of_rank gpu{};          ///< and host
  nccl_unique_id id{};           ///< of rank 0
};

/// All greetings, in rank order: rank 0 collects and sends them back.
template <Bootstrap Control>
std::vector<nccl_greeting> exchange_greetings(Control& control, const nccl_greeting& mine) {
  std::vector<nccl_greeting> all(static_cast<std::size_t>(control.size()), mine);
  const auto whole = std::as_writable_bytes(std::span(all));
  if (control.rank() != 0) {
    control.send(reinterpret_cast<const std::byte*>(&mine), sizeof mine, 0);
    control.recv(whole.data(), whole.size(), 0);
    return all;
  }
  for (int r = 1; r != control.size(); ++r) {
    control.recv(whole.data() + static_cast<std::size_t>(r) * sizeof mine, sizeof mine, r);
  }
  for (int r = 1; r != control.size(); ++r) control.send(whole.data(), whole.size(), r);
  return all;
}

/// Throws the problem of the first rank that has one, the same on all ranks. Prefers other problems to those of ranks
/// that have waited in vain.
inline void check_problems(std::span<const nccl_greeting> all) {
  for (const bool waited : {false, true}) {
    for (std::size_t r = 0; r != all.size(); ++r) {
      const nccl_greeting& g = all[r];
      if (g.problem.view().empty() || (g.kind == error_kind::timeout) != waited) continue;
      const int rank = static_cast<int>(r);
      fail(g.kind, {"NcclTransport: rank ", rank, " on ", g.gpu.host_name.view(), ": ", g.problem.view()}, rank);
    }
  }
}

/// Throws if the ranks cannot be connected; the same error on all ranks.
inline void check_greetings(std::span<const nccl_greeting> all) {
  check_problems(all);
  for (std::size_t r = 0; r != all.size(); ++r) {
    const nccl_greeting& g = all[r];
    const int rank = static_cast<int>(r);
    if (g.version.view() != all[0].version.view() || g.nccl != all[0].nccl) {
      fail(error_kind::mismatch,
           {"NcclTransport: rank 0 on ", all[0].gpu.host_name.view(), " has hvd ", all[0].version.view(), " and NCCL ",
            nccl_version_text(all[0].nccl), ", rank ", rank, " on ", g.gpu.host_name.view(), " has hvd ",
            g.version.view(), " and NCCL ", nccl_version_text(g.nccl), "; give all ranks the same"},
           rank);
    }
  }
  std::vector<device_of_rank> gpus;
  for (const nccl_greeting& g : all) {
    gpus.push_back(g.gpu);
    // Two instances (MIG) of one card have UUIDs of their own, and one address, by which NCCL before 2.30 tells GPUs
    // apart.
    if (g.nccl >= 23000 || g.instances_apart) continue;
    for (const device_of_rank& other : std::span(gpus).first(gpus.size() - 1)) {
      if (other.host != g.gpu.host || other.pci.view() != g.gpu.pci.view() || other.uuid.view() == g.gpu.uuid.view()) {
        continue;
      }
      fail(error_kind::unsupported,
           {"NcclTransport: ranks ", other.rank, " and ", g.gpu.rank, " on host ", g.gpu.host_name.view(),
            " have two instances (MIG) of one GPU, at ", g.gpu.pci.view(),
            ": that needs NCCL 2.30 or newer, and this is ", nccl_version_text(g.nccl),
            "; use instances of different GPUs, or start one rank for each GPU"},
           g.gpu.rank);
    }
  }
  if (const std::string problem = find_shared_device(gpus); !problem.empty()) {
    throw error(error_kind::invalid_argument, "NcclTransport: " + problem);
  }
}

/// Called before the first call of NCCL: lets several ranks use one GPU. Errors: unsupported if this NCCL does not
/// allow it.
inline void allow_sharing(const nccl_options& options) {
  if (options.ranks_per_device == 1) return;
  if (std::getenv("NCCL_HOSTID") != nullptr) return;  // then NCCL treats each rank as a host
  const int version = nccl_search::result().version;
  if (version < 23000) {
    fail(error_kind::unsupported,
         {"several ranks on one GPU need NCCL 2.30 or newer, and this is ", nccl_version_text(version), " (",
          nccl_search::result().library, "); start one rank for each GPU"});
  }
  ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
}

/// Called before the first call of NCCL. In some versions the first collective connects the ranks, inside of the call
/// although that does not block, without a deadline: they have to connect at the start.
inline void connect_at_the_start() {
  const int version = nccl_search::result().version;
  if (version >= 22200 && version < 22600) ::setenv("NCCL_RUNTIME_CONNECT", "0", 0);
}

}  // namespace hvd::inline HVD_ABI::detail
