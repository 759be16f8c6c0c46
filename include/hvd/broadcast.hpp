// hvd/broadcast.hpp: every rank gets the root's vector.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

/// `out` on every rank receives `in` of `root`; elsewhere `in` is not read and may be empty. All ranks pass the same
/// count (of `out`) and root. Errors: invalid_argument, mismatch, peer_lost, timeout, aborted.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void broadcast(T& comm, const In& in, Out&& out, int root = 0, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  const std::byte* const in_bytes = detail::bytes_of(from);
  std::byte* const out_bytes = detail::writable_bytes_of(to);
  detail::arguments check(operation::broadcast, comm.rank(), comm.size());
  check.buffer("output", to).root(root);
  if (comm.rank() == root) {
    check.buffer("input", from)
        .equal("input", from.size(), "as the output", to.size())
        .apart(in_bytes, from.size_bytes(), out_bytes, to.size_bytes(), in_bytes == out_bytes);
  }
  check.check(comm);
  detail::run(comm, broadcast_call{in_bytes, out_bytes, to.size_bytes(), root}, how);
}

/// In place.
template <Transport T, BorrowedBuffer B, class Algorithm = automatic<>>
void broadcast(T& comm, B&& inout, int root = 0, const Algorithm& how = {}) {
  const auto s = as_output(inout);
  broadcast(comm, s, s, root, how);
}

/// Pointers with a count of elements; `in` may be null except on the root.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void broadcast(T& comm, In&& in, Out&& out, std::size_t count, int root = 0, const Algorithm& how = {}) {
  broadcast(comm, std::span(in, comm.rank() == root ? count : 0), std::span(out, count), root, how);
}
template <Transport T, detail::Pointer P, class Algorithm = automatic<>>
void broadcast(T& comm, P&& inout, std::size_t count, int root = 0, const Algorithm& how = {}) {
  broadcast(comm, std::span(inout, count), root, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void broadcast(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
