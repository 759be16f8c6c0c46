// hvd/barrier.hpp: wait for all ranks.
#pragma once

#include <hvd/transport.hpp>

namespace hvd::inline HVD_ABI {

/// Returns when every rank of the group has called it. Errors: peer_lost, timeout, mismatch, aborted.
template <Transport T>
void barrier(T& comm) {
  comm.barrier();
}

}  // namespace hvd::inline HVD_ABI
