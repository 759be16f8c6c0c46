// hvd/reduce.hpp: combine a vector over all ranks; the root gets the result.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

/// out[i] = op over all ranks of in[i], on `root`. Elsewhere `out` is not touched and may be empty. In place on the
/// root if `in` and `out` are the same memory. Ranks must agree on the same things as for allreduce, and on `root`.
/// Errors as for allreduce.
template <Transport T, Buffer In, BorrowedBuffer Out, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void reduce(T& comm, const In& in, Out&& out, const Op& op = {}, int root = 0, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  const std::byte* const in_bytes = detail::bytes_of(from);
  std::byte* const out_bytes = detail::writable_bytes_of(to);
  detail::arguments check(operation::reduce, comm.rank(), comm.size());
  check.buffer("input", from).root(root);
  if (comm.rank() == root) {
    check.buffer("output", to)
        .equal("output", to.size(), "as the input", from.size())
        .apart(in_bytes, from.size_bytes(), out_bytes, to.size_bytes(), in_bytes == out_bytes);
  }
  check.check(comm);
  const reduction r = make_reduction<element_of<In>>(op, comm.size());
  detail::run(comm, reduce_call{in_bytes, out_bytes, from.size(), r, root}, how);
}

/// In place: on the root the buffer receives the result; elsewhere it is unchanged.
template <Transport T, BorrowedBuffer B, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void reduce(T& comm, B&& inout, const Op& op = {}, int root = 0, const Algorithm& how = {}) {
  const auto s = as_output(inout);
  reduce(comm, s, s, op, root, how);
}

/// Pointers with a count of elements; `out` may be null except on the root.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Op = sum_t, class Algorithm = automatic<>>
void reduce(T& comm, In&& in, Out&& out, std::size_t count, const Op& op = {}, int root = 0,
            const Algorithm& how = {}) {
  reduce(comm, std::span(in, count), std::span(out, comm.rank() == root ? count : 0), op, root, how);
}
template <Transport T, detail::Pointer P, class Op = sum_t, class Algorithm = automatic<>>
void reduce(T& comm, P&& inout, std::size_t count, const Op& op = {}, int root = 0, const Algorithm& how = {}) {
  reduce(comm, std::span(inout, count), op, root, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void reduce(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
