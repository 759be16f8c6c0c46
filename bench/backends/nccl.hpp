// bench/backends/nccl.hpp: hvd on NCCL, as a rank of the library "hvd".
#pragma once

#include <bench/backends/hvd.hpp>
#include <bench/stage.hpp>

#include <hvd/transport/shm.hpp>

namespace hvd::bench {

/// One rank of hvd whose buffers lie on a GPU; ranks meet over `control`. Returns the exit code. Errors: hvd::error,
/// among them that there is no GPU.
int serve_nccl(const Stage& stage, ShmTransport& control, const hvd_settings& settings);

}  // namespace hvd::bench
