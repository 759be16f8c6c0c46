// hvd/reduce_scatter.hpp: combine a vector over all ranks; each rank gets one block of the result.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

namespace detail {

template <class T, class From, class To, class Op, class Algorithm>
void reduce_scatter_blocks(T& comm, From from, To to, const partition& blocks, arguments& check, const Op& op,
                           const Algorithm& how) {
  const std::byte* const in = bytes_of(from);
  std::byte* const out = writable_bytes_of(to);
  check.buffer("input", from).buffer("output", to);
  check.apart(in, from.size_bytes(), out, to.size_bytes(), lies_at(out, in, blocks.offset(comm.rank())));
  check.check(comm);
  const reduction r = make_reduction<typename To::value_type>(op, comm.size());
  run(comm, reduce_scatter_call{in, out, blocks, r}, how);
}

}  // namespace detail

/// out[i] = op over all ranks of block `rank` of in, where `in` is size() blocks of out.size() elements. `out` may be
/// this rank's own block of `in` (in place); the rest of `in` is not changed. Errors as for allreduce.
template <Transport T, Buffer In, BorrowedBuffer Out, class Op = sum_t, class Algorithm = automatic<>>
void reduce_scatter(T& comm, const In& in, Out&& out, const Op& op = {}, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  detail::arguments check(operation::reduce_scatter, comm.rank(), comm.size());
  check.buffer("output", to)
      .equal("input", from.size(), "ranks x elements of the output", detail::blocks_of(to.size(), comm.size()));
  detail::reduce_scatter_blocks(comm, from, to, partition(comm.size(), to.size(), sizeof(element_of<In>)), check, op,
                                how);
}

/// Blocks of counts[r] elements for rank r; `counts` is the same on all ranks.
template <Transport T, Buffer In, BorrowedBuffer Out, class Op = sum_t, class Algorithm = automatic<>>
void reduce_scatter_v(T& comm, const In& in, Out&& out, std::span<const std::size_t> counts, const Op& op = {},
                      const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  detail::arguments check(operation::reduce_scatter, comm.rank(), comm.size(), "_v");
  check.counts("counts", counts, sizeof(element_of<In>)).check(comm);
  const partition blocks(counts, sizeof(element_of<In>));
  check.equal("input", from.size(), "the sum of counts", blocks.total_count())
      .equal("output", to.size(), "this rank's count", blocks.count(comm.rank()));
  detail::reduce_scatter_blocks(comm, from, to, blocks, check, op, how);
}

/// Pointers with the count of elements of one block: `in` has size() x count.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Op = sum_t, class Algorithm = automatic<>>
void reduce_scatter(T& comm, In&& in, Out&& out, std::size_t count, const Op& op = {}, const Algorithm& how = {}) {
  reduce_scatter(comm, std::span(in, detail::blocks_of(count, comm.size())), std::span(out, count), op, how);
}
template <Transport T, detail::Pointer In, detail::Pointer Out, class Op = sum_t, class Algorithm = automatic<>>
void reduce_scatter_v(T& comm, In&& in, Out&& out, std::span<const std::size_t> counts, const Op& op = {},
                      const Algorithm& how = {}) {
  reduce_scatter_v(comm, detail::all_blocks(in, counts), detail::one_block(out, counts, comm.rank()), counts, op, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void reduce_scatter(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void reduce_scatter_v(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
