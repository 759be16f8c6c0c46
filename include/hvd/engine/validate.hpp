// hvd/engine/validate.hpp: checks of a request that one rank can make alone, before other ranks see it.
#pragma once

#include <hvd/engine/signature.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

[[noreturn]] inline void no_such_set(int id) {
  fail(error_kind::invalid_argument,
       {"there is no process set ", id, "; 0 is all ranks, others come from add_process_set"});
}

/// Checks the ranks of a new process set.
inline void check_members(const std::vector<int>& ranks, int rank, int size) {
  const std::string who = joined({"add_process_set on rank ", rank, " of ", size, ": "});
  if (ranks.empty()) fail(error_kind::invalid_argument, {who, "no ranks are given"});
  for (std::size_t i = 0; i != ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      fail(error_kind::invalid_argument, {who, "there is no rank ", ranks[i], "; allowed: 0 to ", size - 1});
    }
    if (std::find(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<std::ptrdiff_t>(i)) {
      fail(error_kind::invalid_argument, {who, "rank ", ranks[i], " is named twice"});
    }
  }
}

/// Throws invalid_argument, or unsupported, with the operation, the rank and the allowed values. `device` is the index
/// of the engine's device, or -1; `converts`: its tensors may travel as another type.
inline void validate(const request& r, int rank, int size, int device = -1, bool converts = false) {
  const auto refuse = [&](std::initializer_list<piece> why, error_kind kind = error_kind::invalid_argument) {
    fail(kind, {name(r.kind), " \"", r.name, "\" on rank ", rank, " of ", size, ": ", joined(why)});
  };
  switch (r.kind) {
    case operation::barrier:
      if (!r.tensors.empty()) refuse({"a barrier has no tensors, but ", r.tensors.size(), " are given"});
      break;
    case operation::allreduce:
    case operation::allgather:
    case operation::broadcast:
    case operation::reduce_scatter:
    case operation::alltoall: break;
    default:
      refuse({"is not an operation of the engine; allowed: allreduce, allgather, broadcast, reduce_scatter, alltoall, "
              "barrier"});
  }
  if (r.name.empty()) refuse({"the name is empty; every tensor needs one, the same on all ranks"});
  if (r.kind != operation::barrier && r.tensors.empty()) refuse({"no tensors are given"});
  if (r.kind == operation::broadcast && (r.root < 0 || r.root >= size)) {
    refuse({"root ", r.root, " is out of range; allowed: 0 to ", size - 1});
  }
  const bool reduces = has_op(r.kind);
  if (reduces && !(std::isfinite(r.prescale) && std::isfinite(r.postscale))) {
    refuse({"prescale ", r.prescale, " and postscale ", r.postscale, " must be finite numbers"});
  }
  if (r.wire != dtype::user && !(reduces && is_wire(r.wire))) {
    refuse({"the wire type is ", name(r.wire),
            "; allowed: float16, bfloat16 and float32, for allreduce and "
            "reduce_scatter"});
  }
  for (std::size_t i = 0; i != r.tensors.size(); ++i) {
    const tensor& t = r.tensors[i];
    const std::string which = r.tensors.size() == 1 ? std::string("the tensor") : joined({"tensor ", i});
    // Checked as if no dimension were 0: other ranks may have more than 0 rows.
    std::size_t elements = 1;
    for (const std::size_t n : t.shape) {
      if (__builtin_mul_overflow(elements, std::max<std::size_t>(n, 1), &elements) ||
          elements > std::size_t{PTRDIFF_MAX} / 16) {
        refuse({which, " has more elements than can be addressed"});
      }
    }
    if (std::find(t.shape.begin(), t.shape.end(), 0U) != t.shape.end()) elements = 0;
    if (size_of(t.type) == 0) refuse({which, " is of type ", name(t.type), ", which the engine does not support"});
    const memory_kind memory = t.memory.kind;
    if (name(memory) == "unknown") refuse({which, " is in memory of an unknown kind; allowed: host and device"});
    if (memory == memory_kind::device && device < 0) {
      refuse({which, " is on device ", t.memory.device,
              ", and this engine has none; copy it to the host, or make the engine with a device"},
             error_kind::unsupported);
    }
    if (memory != r.tensors.front().memory.kind) {
      refuse({which, " is on the ", name(memory), ", but tensor 0 on the ", name(r.tensors.front().memory.kind),
              "; allowed: one kind of memory in a group"});
    }
    if (memory == memory_kind::device && t.memory.device != device) {
      refuse(
          {which, " is on device ", t.memory.device, "; allowed: device ", device, ", which the engine was made with"});
    }
    if (memory == memory_kind::device && r.wire != dtype::user && !converts) {
      refuse(
          {which, " is on a device and has the wire type ", name(r.wire), "; only tensors on the host are converted"},
          error_kind::unsupported);
    }
    // Addresses of a device are checked by the device.
    if (memory == memory_kind::host && t.in == nullptr && elements != 0)
      refuse({which, " is null but has ", elements, " elements"});
    if (r.kind == operation::allgather && (t.out != nullptr) != (r.tensors.front().out != nullptr)) {
      refuse({"memory for the result is passed for some tensors and not for others; allowed: for all or for none"});
    }
    if (t.out != nullptr) {
      const std::size_t bytes = elements * size_of(t.type), rows = t.shape.empty() ? 0 : t.shape.front();
      std::size_t out_bytes = bytes, own = 0;  // in place, the input begins `own` bytes after the output
      if (r.kind == operation::reduce_scatter && rows != 0) {
        out_bytes = bytes / rows * share_of(rows, static_cast<std::size_t>(rank), static_cast<std::size_t>(size));
      } else if (r.kind == operation::allgather) {
        out_bytes = bytes * static_cast<std::size_t>(size);
        own = bytes * static_cast<std::size_t>(rank);
      } else if (r.kind == operation::alltoall) {
        out_bytes = rows == 0 ? 0 : bytes / rows * t.out_rows;
      }
      const auto in = reinterpret_cast<std::uintptr_t>(t.in), out = reinterpret_cast<std::uintptr_t>(t.out);
      const bool separate = r.kind == operation::reduce_scatter || r.kind == operation::alltoall;
      if (!(in == out + own && !separate) && bytes != 0 && out_bytes != 0 && in < out + out_bytes && out < in + bytes) {
        refuse({which, ": input and output overlap; allowed: ",
                separate ? "memory apart from the input"
                : r.kind == operation::allgather
                    ? "this rank's part of the output as the input, or memory apart from it"
                    : "the same memory, or none of it"});
      }
    }
    if (r.kind != operation::allreduce && r.kind != operation::broadcast && t.shape.empty()) {
      refuse({which, " is a scalar; ", name(r.kind), " needs a first dimension; reshape it to one element"});
    }
    if (reduces && r.op == reduce_op::adasum) {
      const bool floating =
          t.type == dtype::float16 || t.type == dtype::bfloat16 || t.type == dtype::float32 || t.type == dtype::float64;
      if (r.kind == operation::reduce_scatter) {
        refuse({"reduce_scatter does not support adasum; allowed: sum, average, min, max, product"},
               error_kind::unsupported);
      }
      if (!floating) refuse({"adasum is for float16, bfloat16, float32 and float64, not for ", name(t.type)});
    } else if (reduces) {
      try {
        make_reduction(t.type, r.op, size, r.prescale, r.postscale);
      } catch (const error& e) {
        refuse({which, ": ", sentence(e)});
      }
    }
    if (r.kind != operation::alltoall && !t.splits.empty()) refuse({"only alltoall takes splits"});
    if (r.even && r.kind != operation::allgather && r.kind != operation::alltoall) {
      refuse({"only allgather and alltoall can require one shape on all ranks"});
    }
    if (r.even && !t.splits.empty()) refuse({"splits, and one shape on all ranks required; allowed: one of both"});
    if (r.kind != operation::alltoall) continue;
    std::size_t rows = 0;
    for (const std::size_t n : t.splits) {
      if (n > t.shape.front() || (rows += n) > t.shape.front()) {
        refuse({"splits add up to more than the ", t.shape.front(), " rows of ", which});
      }
    }
    if (!t.splits.empty() && t.splits.size() != static_cast<std::size_t>(size)) {
      refuse({"splits has ", t.splits.size(), " entries; allowed: one for each of the ", size, " ranks"});
    }
    if (t.splits.empty() && t.shape.front() % static_cast<std::size_t>(size) != 0) {
      refuse({which, " has ", t.shape.front(), " rows, which ", size,
              " ranks cannot share equally; give splits, or a multiple of ", size});
    }
  }
}

}  // namespace hvd::inline HVD_ABI::detail
