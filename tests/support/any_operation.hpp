// tests/support/any_operation.hpp: a random operation of a group, for tests in which something happens meanwhile.
#pragma once

#include <hvd/hvd.hpp>

#include "support/processes.hpp"

#include <cstddef>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace hvd::test {

/// One operation of a group, a collective or messages; all ranks with equal dice do the same.
template <class T>
void any_operation(T& comm, std::mt19937& dice) {
  const int p = comm.size(), r = comm.rank();
  const std::size_t ranks = static_cast<std::size_t>(p);
  const std::size_t sizes[] = {1, 14, 300, 5000, 70000};
  const std::size_t n = sizes[dice() % std::size(sizes)];
  const int root = static_cast<int>(dice() % ranks);
  std::vector<float> one(n, 1.0F), all(n * ranks, 1.0F), other(n * ranks);
  const std::vector<std::size_t> counts(ranks, n);
  switch (dice() % 16) {
    case 0: return hvd::allreduce(comm, one);
    case 1: {
      std::vector<float> large(400'000, 1.0F), result(large.size());
      hvd::allreduce(comm, large, result, hvd::max);
      return;
    }
    case 2: return hvd::reduce(comm, one, hvd::sum, root);
    case 3: return hvd::broadcast(comm, one, root);
    case 4: return hvd::allgather(comm, one, all);
    case 5: return hvd::reduce_scatter(comm, all, one);
    case 6: return hvd::alltoall(comm, all, other);
    case 7: return hvd::alltoall_v(comm, all, other, counts, counts);
    case 8: return hvd::gather(comm, one, all, root);
    case 9: return hvd::scatter(comm, all, one, root);
    case 10: return hvd::barrier(comm);
    case 11: {
      auto shared = comm.template alloc_shared<float>(n);
      hvd::allreduce(comm, shared);
      return;
    }
    case 12: {
      auto shared = comm.template alloc_shared<float>(n);
      auto part = comm.split(r % 2, r);
      try {
        hvd::allreduce(part, shared);
      } catch (const hvd::error& e) {
        const int culprit = 2 * e.rank() + r % 2;  // as the whole group counts
        throw hvd::error(e.kind(),
                         "in a part, rank " + std::to_string(culprit) +
                             (e.kind() == error_kind::peer_lost ? " has exited or was killed: " : " is at fault: ") +
                             e.what(),
                         culprit);
      }
      return;
    }
    case 13: {
      if (r == root) return hvd::send(comm, one, (r + 1) % p);
      if (r == (root + 1) % p) return hvd::recv(comm, one, root);
      return;
    }
    case 14:
      comm.exchange(reinterpret_cast<const std::byte*>(all.data()), all.size() * sizeof(float), (r + 1) % p,
                    reinterpret_cast<std::byte*>(other.data()), other.size() * sizeof(float), (r + p - 1) % p);
      return;
    default:
      if (r == root) pause_for(0.0005);  // somebody waits long enough to fall asleep
      return hvd::barrier(comm);
  }
}

}  // namespace hvd::test
