// bench/backends/kernels.hpp: hvd's reductions by type and operation.
//
// The function is in a separate file so that a test can link a wrong one instead.
#pragma once

#include <bench/job.hpp>

#include <hvd/dynamic_op.hpp>

namespace hvd::bench {

/// hvd's number of the operation.
constexpr reduce_op reduce_op_of(redop op) noexcept {
  switch (op) {
    case redop::prod: return reduce_op::product;
    case redop::min: return reduce_op::min;
    case redop::max: return reduce_op::max;
    case redop::avg: return reduce_op::average;
    case redop::sum: break;
  }
  return reduce_op::sum;
}

/// Errors: hvd::error, invalid_argument, if the operation is not defined for the type.
reduction reduction_for(dtype type, redop op, int ranks);

}  // namespace hvd::bench
