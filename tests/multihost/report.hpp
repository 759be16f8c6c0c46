// tests/multihost/report.hpp: what programs on the hosts of hosts.py say of themselves, for run.py to read.
#pragma once

#include <mpi.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace hvd::test {

/// Bytes that have left this host, with the headers of Ethernet, IP and TCP.
inline std::uint64_t bytes_sent() {
  std::ifstream table("/proc/self/net/dev");
  for (std::string line; std::getline(table, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || line.substr(0, colon).find("eth0") == std::string::npos) continue;
    std::uint64_t number = 0;
    std::size_t at = colon + 1;
    for (int column = 0; column <= 8; ++column) {
      std::size_t used = 0;
      number = std::stoull(line.substr(at), &used);
      at += used;
    }
    return number;
  }
  throw std::runtime_error("this host has no eth0");
}

/// Element i of a rank. Sums of it are exact in float up to 2^18 ranks.
inline float element(std::size_t i, int rank) { return static_cast<float>((i + static_cast<std::size_t>(rank)) % 64); }

inline std::vector<float> elements(std::size_t count, int rank) {
  std::vector<float> all(count);
  for (std::size_t i = 0; i != count; ++i) all[i] = element(i, rank);
  return all;
}

inline std::size_t wrong_sums(const std::vector<float>& sums, int size) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i != sums.size(); ++i) {
    float expected = 0;
    for (int rank = 0; rank != size; ++rank) expected += element(i, rank);
    wrong += sums[i] != expected;
  }
  return wrong;
}

/// Runs f, which sums `data` over all ranks in place, on all ranks at once; says in one line what this rank found.
/// True if all sums are right.
template <class F>
bool report(int local_rank, int local_size, const std::vector<float>& data, const F& f) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  MPI_Barrier(MPI_COMM_WORLD);
  const auto before = bytes_sent();
  MPI_Barrier(MPI_COMM_WORLD);  // after all have looked
  const double start = MPI_Wtime();
  f();
  MPI_Barrier(MPI_COMM_WORLD);  // after all have received
  const double seconds = MPI_Wtime() - start;
  const auto sent = bytes_sent() - before;
  const std::size_t wrong = wrong_sums(data, size);
  std::printf("rank %d of %d on %s, local rank %d of %d: %zu wrong, host sent %llu bytes in %.3f s\n", rank, size, host,
              local_rank, local_size, wrong, static_cast<unsigned long long>(sent), seconds);
  std::fflush(stdout);
  return wrong == 0;
}

}  // namespace hvd::test
