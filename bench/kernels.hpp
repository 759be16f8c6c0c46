// bench/kernels.hpp: hvd's reductions by type and operation.
//
// In a file of its own so that a test can link a wrong one in its place.
#pragma once

#include <bench/job.hpp>

#include <hvd/op.hpp>

namespace hvd::bench {

/// Errors: hvd::error, unsupported, where the operation is not defined for the type.
reduction reduction_for(dtype type, redop op, int ranks);

}  // namespace hvd::bench
