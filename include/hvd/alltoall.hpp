// hvd/alltoall.hpp: every rank sends a block to every rank.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

/// Block r of `in` goes to rank r, where it becomes block `rank` of `out`. Both have size() equal blocks, the same on
/// all ranks; `in` and `out` are the same memory or do not overlap. Errors: invalid_argument, mismatch, peer_lost,
/// timeout, aborted.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
  requires Buffer<Out>
void alltoall(T& comm, const In& in, Out&& out, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  const std::byte* const in_bytes = detail::bytes_of(from);
  std::byte* const out_bytes = detail::writable_bytes_of(to);
  const std::size_t ranks = static_cast<std::size_t>(comm.size());
  detail::arguments(operation::alltoall, comm.rank(), comm.size())
      .buffer("input", from)
      .buffer("output", to)
      .multiple("input", from.size())
      .equal("output", to.size(), "as the input", from.size())
      .apart(in_bytes, from.size_bytes(), out_bytes, to.size_bytes(), in_bytes == out_bytes)
      .check(comm);
  const partition blocks(comm.size(), from.size() / ranks, sizeof(element_of<In>));
  detail::run(comm, alltoall_call{in_bytes, out_bytes, blocks, blocks}, how);
}

/// In place.
template <Transport T, BorrowedBuffer B, class Algorithm = automatic<>>
  requires(!Buffer<Algorithm>)
void alltoall(T& comm, B&& inout, const Algorithm& how = {}) {
  const auto s = as_output(inout);
  alltoall(comm, s, s, how);
}

/// send_counts[r] elements go to rank r and recv_counts[r] come from it; blocks lie one after the other. Every receiver
/// must expect as many elements as the sender sends; otherwise all ranks get mismatch. Not in place.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void alltoall_v(T& comm, const In& in, Out&& out, std::span<const std::size_t> send_counts,
                std::span<const std::size_t> recv_counts, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  const std::byte* const in_bytes = detail::bytes_of(from);
  std::byte* const out_bytes = detail::writable_bytes_of(to);
  constexpr std::size_t unit = sizeof(element_of<In>);
  detail::arguments check(operation::alltoall, comm.rank(), comm.size(), "_v");
  check.counts("send_counts", send_counts, unit).counts("recv_counts", recv_counts, unit).check(comm);
  const partition send(send_counts, unit);
  const partition recv(recv_counts, unit);
  check.buffer("input", from)
      .buffer("output", to)
      .equal("input", from.size(), "the sum of send_counts", send.total_count())
      .equal("output", to.size(), "the sum of recv_counts", recv.total_count())
      .apart(in_bytes, from.size_bytes(), out_bytes, to.size_bytes(), false);
  if (comm.size() == 1) check.equal("recv_counts", recv.count(0), "as in send_counts", send.count(0));
  check.check(comm);
  detail::run(comm, alltoall_call{in_bytes, out_bytes, send, recv}, how);
}

/// Pointers with the count of elements of one block: `in` and `out` have size() x count.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void alltoall(T& comm, In&& in, Out&& out, std::size_t count, const Algorithm& how = {}) {
  const std::size_t all = detail::blocks_of(count, comm.size());
  alltoall(comm, std::span(in, all), std::span(out, all), how);
}
template <Transport T, detail::Pointer P, class Algorithm = automatic<>>
void alltoall(T& comm, P&& inout, std::size_t count, const Algorithm& how = {}) {
  alltoall(comm, std::span(inout, detail::blocks_of(count, comm.size())), how);
}
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void alltoall_v(T& comm, In&& in, Out&& out, std::span<const std::size_t> send_counts,
                std::span<const std::size_t> recv_counts, const Algorithm& how = {}) {
  alltoall_v(comm, detail::all_blocks(in, send_counts), detail::all_blocks(out, recv_counts), send_counts, recv_counts,
             how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void alltoall(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void alltoall_v(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
