// hvd/engine/request.hpp: a request to the engine.
#pragma once

#include <hvd/call.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/handle.hpp>
#include <hvd/tensors.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The location of a tensor: on the host, or on a device of this rank.
struct tensor_memory {
  memory_kind kind = memory_kind::host;
  int device = 0;  ///< its index on this rank; ranks need not have the same
  /// An event of the device: the input is read and the output written only after it; null: at once. The type of the
  /// event depends on the device. It must live until the operation is done.
  void* ready = nullptr;
};

/// One tensor of a submission, on this rank: contiguous memory in row-major order.
struct tensor {
  const std::byte* in = nullptr;  ///< null only without elements
  /// Memory for the result, or null: then the engine allocates it, and `handle::output` returns it. As long as `in` for
  /// allreduce and broadcast, and possibly the same memory; this rank's rows for reduce_scatter. For allgather all
  /// ranks pass memory, for all tensors, or none does; with memory all have equally many rows, and `in` may be this
  /// rank's part of it. For alltoall see `out_rows`.
  std::byte* out = nullptr;
  /// alltoall: the rows for which `out` has room. If other ranks send another number in all, the engine allocates the
  /// result as if `out` were null.
  std::size_t out_rows = 0;
  dtype type = dtype::float32;
  std::vector<std::size_t> shape{};   ///< of the input; empty: a scalar
  std::vector<std::size_t> splits{};  ///< alltoall: rows (of dimension 0) for each rank; empty: equal parts
  tensor_memory memory{};             ///< of `in` and `out`; of one kind for all tensors of an operation, on all ranks
};

namespace detail {

/// Converts a tensor of a list to a tensor of a request.
inline tensor tensor_of(const fused& f) {
  tensor t;
  t.in = f.in;
  t.out = f.out;
  t.type = f.type;
  t.shape = {f.count};
  return t;
}

}  // namespace detail

/// One named operation, on one tensor or on a group of them. Ranks may submit in any order; an operation runs when all
/// ranks of the process set have submitted its name.
struct request {
  operation kind = operation::allreduce;  ///< allreduce, allgather, broadcast, reduce_scatter, alltoall or barrier
  std::string name{};                     ///< not one that a handle of the process set holds: see `handle`
  std::vector<tensor> tensors{};          ///< the tensors of a group become ready, and run, together
  reduce_op op = reduce_op::sum;          ///< for allreduce and reduce_scatter
  double prescale = 1.0;                  ///< factor of every input
  double postscale = 1.0;                 ///< factor of the result
  /// For allreduce and reduce_scatter: the type in which wider floating-point tensors travel and are reduced, float16
  /// or bfloat16 for float32, float32 for float64; other tensors travel as they are. They are converted while they are
  /// packed, and each result is rounded to this type. `user`: no conversion.
  dtype wire = dtype::user;
  int root = 0;  ///< of a broadcast: a rank of the process set
  /// For allgather, and for alltoall without splits: all ranks pass tensors of one shape, or all get an error of kind
  /// mismatch. Ranks then exchange no numbers of rows. An allgather into the callers' memory is always so.
  bool even = false;
  /// Of operations that are ready at the same time, those with higher values run first. For a new name the value of the
  /// lowest rank counts.
  int priority = 0;
  std::shared_ptr<void> keep{};  ///< kept alive until the operation is done
  /// Called once, by the thread that ended the operation; must neither wait nor throw. Its handle does not hold the
  /// name. Calling `poll` on it releases the name, so that the callback can submit the name again.
  std::function<void(const handle&)> done{};
};

namespace detail {

/// True if the tensors lie on a device.
inline bool lies_on_device(const request& r) noexcept {
  return !r.tensors.empty() && r.tensors.front().memory.kind == memory_kind::device;
}

}  // namespace detail

/// The optional arguments of a call by name and buffer.
struct submit_options {
  int process_set = 0;
  int priority = 0;              ///< as in request
  dtype wire = dtype::user;      ///< as in request
  std::shared_ptr<void> keep{};  ///< owner of the buffer's memory: kept alive until the operation is done
  bool wake = true;              ///< false if the caller waits at once, and so does the work itself: saves some us
};

}  // namespace hvd::inline HVD_ABI
