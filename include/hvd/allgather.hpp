// hvd/allgather.hpp: every rank gets the blocks of all ranks.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

namespace detail {

template <class T, class From, class To, class Algorithm>
void allgather_blocks(T& comm, From from, To to, const partition& blocks, arguments& check, const Algorithm& how) {
  const std::byte* const in = bytes_of(from);
  std::byte* const out = writable_bytes_of(to);
  check.buffer("input", from).buffer("output", to);
  check.apart(in, from.size_bytes(), out, to.size_bytes(), lies_at(in, out, blocks.offset(comm.rank())));
  check.check(comm);
  run(comm, allgather_call{in, out, blocks}, how);
}

}  // namespace detail

/// `out` receives the `in` of every rank, in rank order: size() x in.size() elements. All ranks pass the same count.
/// `in` may be this rank's own block of `out` (in place). Errors: invalid_argument, mismatch, peer_lost, timeout,
/// aborted.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void allgather(T& comm, const In& in, Out&& out, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  detail::arguments check(operation::allgather, comm.rank(), comm.size());
  check.buffer("input", from)
      .equal("output", to.size(), "ranks x elements of the input", detail::blocks_of(from.size(), comm.size()));
  detail::allgather_blocks(comm, from, to, partition(comm.size(), from.size(), sizeof(element_of<In>)), check, how);
}

/// Rank r gives counts[r] elements; `counts` is the same on all ranks.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void allgather_v(T& comm, const In& in, Out&& out, std::span<const std::size_t> counts, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  detail::arguments check(operation::allgather, comm.rank(), comm.size(), "_v");
  check.counts("counts", counts, sizeof(element_of<In>)).check(comm);
  const partition blocks(counts, sizeof(element_of<In>));
  check.equal("output", to.size(), "the sum of counts", blocks.total_count())
      .equal("input", from.size(), "this rank's count", blocks.count(comm.rank()));
  detail::allgather_blocks(comm, from, to, blocks, check, how);
}

/// Pointers with the count of elements of one block: `out` has size() x count.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void allgather(T& comm, In&& in, Out&& out, std::size_t count, const Algorithm& how = {}) {
  allgather(comm, std::span(in, count), std::span(out, detail::blocks_of(count, comm.size())), how);
}
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void allgather_v(T& comm, In&& in, Out&& out, std::span<const std::size_t> counts, const Algorithm& how = {}) {
  allgather_v(comm, detail::one_block(in, counts, comm.rank()), detail::all_blocks(out, counts), counts, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void allgather(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void allgather_v(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
