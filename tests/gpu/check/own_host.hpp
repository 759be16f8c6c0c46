// tests/gpu/check/own_host.hpp: ranks that share a GPU before NCCL 2.30.
#pragma once

#include <cstdlib>
#include <string>

namespace hvd::test {

/// NCCL takes this process for a host, which talks to the others over the loopback device. Before its first call.
inline void be_own_host(int rank) {
  const auto set = [](const char* variable, const std::string& value) { ::setenv(variable, value.c_str(), 1); };
  set("NCCL_HOSTID", "hvd-" + std::to_string(rank));
  set("NCCL_SOCKET_IFNAME", "lo");
  set("NCCL_IB_DISABLE", "1");
  set("NCCL_MNNVL_ENABLE", "0");
  set("NCCL_NVLS_ENABLE", "0");
  set("NCCL_MAX_CTAS", "2");
  set("CUDA_MODULE_LOADING", "EAGER");
}

}  // namespace hvd::test
