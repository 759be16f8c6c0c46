// hvd/transport/nccl/collectives.hpp: hvd's collectives as calls of NCCL on a stream.
#pragma once

#include <hvd/call.hpp>
#include <hvd/cuda/device.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/nccl/communicator.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// NCCL's part of a reduction, and the rest of it.
struct nccl_reduction {
  int type = 0;
  std::size_t components = 1;  ///< of NCCL's elements in one of hvd's
  int op = nccl_sum;
  bool multiplies = false;  ///< by PreMulSum, with 1 / ranks
  scaling rest{};           ///< `pre` before, `post` and `divisor` after
};

/// NCCL's type for elements that are reduced; -1 if it has none.
constexpr int nccl_type_of(dtype type) noexcept {
  switch (type) {
    case dtype::int8: return nccl_int8;
    case dtype::boolean:
    case dtype::uint8: return nccl_uint8;
    case dtype::int32: return nccl_int32;
    case dtype::uint32: return nccl_uint32;
    case dtype::int64: return nccl_int64;
    case dtype::uint64: return nccl_uint64;
    case dtype::float16: return nccl_float16;
    case dtype::bfloat16: return nccl_bfloat16;
    case dtype::complex64:
    case dtype::float32: return nccl_float32;
    case dtype::complex128:
    case dtype::float64: return nccl_float64;
    default: return -1;
  }
}
constexpr bool is_floating(dtype type) noexcept {
  return type == dtype::float16 || type == dtype::bfloat16 || type == dtype::float32 || type == dtype::float64 ||
         type == dtype::complex64 || type == dtype::complex128;
}

/// Errors: unsupported for reductions that NCCL does not support; the same on all ranks.
inline nccl_reduction nccl_reduction_of(const reduction& r, int ranks, nccl_average how, operation kind) {
  nccl_reduction n;
  n.type = nccl_type_of(r.type);
  n.components = r.components;
  n.rest = r.scale;
  const std::string_view op = op_name(r.op);
  const auto refuse = [&](std::string_view why) {
    fail(error_kind::unsupported, {name(kind), " of ", name(r.type), " by ", op, ": ", why});
  };
  if (r.type == dtype::user || op == "user-defined") {
    refuse(
        "NCCL supports neither your own types nor your own operations; use a built-in one, or a transport on the host");
  }
  if (n.type < 0) refuse("NCCL has no 16-bit integers; convert to int32, or use a transport on the host");
  if (r.components == 1 && (r.type == dtype::complex64 || r.type == dtype::complex128)) {
    refuse("NCCL can only add complex numbers; use a transport on the host");
  }
  if (op == "product") n.op = nccl_product;
  if (op == "min") n.op = nccl_min;
  if (op == "max") n.op = nccl_max;
  if (op != average_t::name) return n;
  const bool floating = is_floating(r.type);
  // An integer quotient that is scaled afterwards is rounded once, and not by NCCL.
  const bool whole = floating || (n.rest.divisor != 1 && n.rest.post == 1.0);
  if ((how == nccl_average::nccl_avg && whole) || (how == nccl_average::pre_mul && floating)) {
    // Take the division by the number of ranks out again, in any of its forms.
    if (n.rest.divisor != 1) {
      n.rest.divisor = 1;
    } else {
      n.rest.post *= ranks;
    }
    n.multiplies = how == nccl_average::pre_mul;
    if (!n.multiplies) n.op = nccl_average_op;
  }
  return n;
}

/// 1 / ranks in an element type, as PreMulSum wants it.
struct nccl_scalar {
  alignas(8) std::array<std::byte, 8> bytes{};

  nccl_scalar(dtype type, int ranks) {
    const double factor = 1.0 / ranks;
    const auto put = [&](auto value) { std::memcpy(bytes.data(), &value, sizeof value); };
    switch (type) {
      case dtype::float16: put(half(static_cast<float>(factor))); break;
      case dtype::bfloat16: put(bfloat16(static_cast<float>(factor))); break;
      case dtype::float64:
      case dtype::complex128: put(factor); break;
      default: put(static_cast<float>(factor));
    }
  }
};

/// Calls of NCCL on one stream, in one group, so that they are launched together and cannot wait for each other. They
/// neither scale nor copy: `in` and `out` are NCCL's. Use: construct, `add` calls, `close`.
class nccl_group_call {
 public:
  nccl_group_call(nccl_communicator& comm, cu_stream stream, std::string_view what)
      : comm_(comm), nccl_(comm.library()), handle_(comm.get()), stream_(stream), what_(what), watched_(comm.watch()) {
    check(nccl_.group_start());
    open_ = true;
  }
  nccl_group_call(const nccl_group_call&) = delete;
  nccl_group_call& operator=(const nccl_group_call&) = delete;
  ~nccl_group_call() {
    if (open_) {  // after an error, which is thrown
      nccl_.group_end();
      if (calls_ != 0) comm_.condemn(what_);
    }
    if (!comm_.has(handle_)) return;  // after an abort
    for (const int op : ops_) nccl_.op_destroy(op, handle_);
  }
  /// True if all calls are on the stream; if not, see nccl_communicator::ready.
  [[nodiscard]] bool close() {
    open_ = false;
    const nccl_result code = nccl_.group_end();
    watched_.end();
    return comm_.queued(what_, code);
  }

  void add(const allreduce_call& c, const nccl_reduction& r) {
    check(nccl_.allreduce(c.in, c.out, c.count * r.components, r.type, r.op, handle_, stream_));
  }
  void add(const reduce_call& c, const nccl_reduction& r) {
    check(nccl_.reduce(c.in, c.out, c.count * r.components, r.type, r.op, c.root, handle_, stream_));
  }
  void add(const reduce_scatter_call& c, const nccl_reduction& r) {
    if (c.blocks.uniform()) {
      return check(nccl_.reduce_scatter(c.in, c.out, c.blocks.count(0) * r.components, r.type, r.op, handle_, stream_));
    }
    for (int q = 0; q != comm_.size(); ++q) {
      if (c.blocks.count(q) == 0) continue;
      check(nccl_.reduce(c.in + c.blocks.offset(q), c.out, c.blocks.count(q) * r.components, r.type, r.op, q, handle_,
                         stream_));
    }
  }
  void add(const allgather_call& c) {
    if (c.blocks.uniform()) {
      return check(nccl_.allgather(c.in, c.out, c.blocks.bytes(0), nccl_uint8, handle_, stream_));
    }
    for (int q = 0; q != comm_.size(); ++q) {  // NCCL runs a group of broadcasts as one
      if (c.blocks.count(q) == 0) continue;
      check(nccl_.broadcast(q == comm_.rank() ? c.in : c.out + c.blocks.offset(q), c.out + c.blocks.offset(q),
                            c.blocks.bytes(q), nccl_uint8, q, handle_, stream_));
    }
  }
  void add(const broadcast_call& c) {
    check(nccl_.broadcast(c.in, c.out, c.bytes, nccl_uint8, c.root, handle_, stream_));
  }
  /// `in` and `out` are different memory.
  void add(const alltoall_call& c) {
    if (c.send.uniform() && c.recv.uniform() && nccl_.alltoall != nullptr) {
      return check(nccl_.alltoall(c.in, c.out, c.send.bytes(0), nccl_uint8, handle_, stream_));
    }
    for (int q = 0; q != comm_.size(); ++q) {
      send(c.in + c.send.offset(q), c.send.bytes(q), q);
      recv(c.out + c.recv.offset(q), c.recv.bytes(q), q);
    }
  }
  void add(const gather_call& c) {
    if (c.blocks.uniform() && nccl_.gather != nullptr) {
      return check(nccl_.gather(c.in, c.out, c.blocks.bytes(0), nccl_uint8, c.root, handle_, stream_));
    }
    send(c.in, c.blocks.bytes(comm_.rank()), c.root);
    for (int q = 0; c.root == comm_.rank() && q != comm_.size(); ++q) {
      recv(c.out + c.blocks.offset(q), c.blocks.bytes(q), q);
    }
  }
  void add(const scatter_call& c) {
    if (c.blocks.uniform() && nccl_.scatter != nullptr) {
      return check(nccl_.scatter(c.in, c.out, c.blocks.bytes(0), nccl_uint8, c.root, handle_, stream_));
    }
    for (int q = 0; c.root == comm_.rank() && q != comm_.size(); ++q) {
      send(c.in + c.blocks.offset(q), c.blocks.bytes(q), q);
    }
    recv(c.out, c.blocks.bytes(comm_.rank()), c.root);
  }
  /// Empty messages are not sent: both sides know the length.
  void send(const std::byte* data, std::size_t bytes, int peer) {
    if (bytes != 0) check(nccl_.send(data, bytes, nccl_uint8, peer, handle_, stream_));
  }
  void recv(std::byte* data, std::size_t bytes, int peer) {
    if (bytes != 0) check(nccl_.recv(data, bytes, nccl_uint8, peer, handle_, stream_));
  }

  /// The operation of PreMulSum with 1 / ranks, valid for this group of calls alone.
  [[nodiscard]] int multiply(dtype type, int nccl_type) {
    nccl_scalar scalar(type, comm_.size());
    int op = nccl_sum;
    check(nccl_.pre_mul_sum(&op, scalar.bytes.data(), nccl_type, nccl_scalar_on_host, handle_));
    return ops_.emplace_back(op);
  }

 private:
  void check(nccl_result code) {
    if (code != nccl_in_progress && !comm_.queued(what_, code)) fail(error_kind::system, {what_, ": NCCL is busy"});
    ++calls_;
  }

  nccl_communicator& comm_;
  const nccl_library& nccl_;
  nccl_comm handle_;
  cu_stream stream_;
  std::string_view what_;
  std::vector<int> ops_;
  int calls_ = -1;  // that of ncclGroupStart does not count
  bool open_ = false;
  call_watch::scope watched_;
};

/// A call for which NCCL has a collective, or several calls that form one.
template <class Call>
concept nccl_collective = requires(nccl_group_call& g, const Call& c) { g.add(c); } ||
                          requires(nccl_group_call& g, const Call& c, const nccl_reduction& r) { g.add(c, r); };

}  // namespace hvd::inline HVD_ABI::detail
