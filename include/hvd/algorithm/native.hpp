// hvd/algorithm/native.hpp: the transport's own collective, if it has one.
#pragma once

#include <hvd/call.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <string>

namespace hvd::inline HVD_ABI {

/// Hands the call to the transport: `MpiTransport` runs the collective of its MPI. Cost, order of summation and memory
/// are the library's. The transport's documentation describes its guarantees about bits and failures. Ranks are
/// combined in rank order, or in any order if the operation commutes.
///
/// Errors: unsupported, on all ranks and before anything was sent, if the library does not support the type or
/// operation (16-bit floats, your own operations, ...); and those of the transport.
struct native {
  static constexpr bool rank_ordered = true;

  friend constexpr bool operator==(const native&, const native&) = default;

  template <Transport T, class Call>
    requires Native<T, Call>
  void operator()(T& t, const Call& call) const {
    if (t.native(call)) [[likely]]
      return;
    std::string what(name(Call::kind));
    if constexpr (Reducing<Call>) {
      what += " of " + std::string(name(call.op.type)) + " by " + std::string(detail::op_name(call.op.op));
    }
    throw error(error_kind::unsupported,
                what + " on rank " + std::to_string(t.rank()) + " of " + std::to_string(t.size()) +
                    ": the transport itself does not have this collective; use automatic, ring, tree, double_tree, "
                    "recursive_doubling or halving_doubling");
  }
};

/// The algorithm's name, for messages and bench output.
inline std::string name(const native&) { return "native()"; }

}  // namespace hvd::inline HVD_ABI
