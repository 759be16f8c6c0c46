// hvd/allreduce.hpp: combine a vector over all ranks; every rank gets the result.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

/// out[i] = op over all ranks of in[i], on every rank; the default op is `sum`, as in MPI and NCCL. Every rank passes
/// the same count, element type and op. `in` and `out` are the same memory or do not overlap. All ranks get the same
/// bits; the same algorithm and rank count give the same bits in every run.
///
/// Errors: invalid_argument (null with a count, different lengths, overlap), mismatch (ranks in different calls),
/// peer_lost, timeout, aborted. Cost of the default in shared memory: one exchange of cache lines for small messages;
/// for large ones 6 - 4/p memory accesses a byte in private buffers, 2 in buffers from alloc_shared.
template <Transport T, Buffer In, BorrowedBuffer Out, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void allreduce(T& comm, const In& in, Out&& out, const Op& op = {}, const Algorithm& how = {}) {
  detail::reduce_vector<allreduce_call>(comm, in, out, op, how);
}

/// In place.
template <Transport T, BorrowedBuffer B, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void allreduce(T& comm, B&& inout, const Op& op = {}, const Algorithm& how = {}) {
  const auto s = as_output(inout);
  allreduce(comm, s, s, op, how);
}

/// Pointers with a count of elements.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Op = sum_t, class Algorithm = automatic<>>
void allreduce(T& comm, In&& in, Out&& out, std::size_t count, const Op& op = {}, const Algorithm& how = {}) {
  allreduce(comm, std::span(in, count), std::span(out, count), op, how);
}
template <Transport T, detail::Pointer P, class Op = sum_t, class Algorithm = automatic<>>
void allreduce(T& comm, P&& inout, std::size_t count, const Op& op = {}, const Algorithm& how = {}) {
  allreduce(comm, std::span(inout, count), op, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void allreduce(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
