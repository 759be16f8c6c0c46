// hvd/scatter.hpp: each rank gets its block of the root's vector.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

namespace detail {

template <class T, class From, class To, class Algorithm>
void scatter_blocks(T& comm, From from, To to, const partition& blocks, int root, arguments& check,
                    const Algorithm& how) {
  const std::byte* const in = bytes_of(from);
  std::byte* const out = writable_bytes_of(to);
  check.buffer("output", to);
  if (comm.rank() == root) {
    check.buffer("input", from)
        .equal("input", from.size(), "the blocks of all ranks", blocks.total_count())
        .apart(in, from.size_bytes(), out, to.size_bytes(), lies_at(out, in, blocks.offset(root)));
  }
  check.check(comm);
  run(comm, scatter_call{in, out, blocks, root}, how);
}

}  // namespace detail

/// Block r of `in` on `root`, of out.size() elements, goes to rank r. Elsewhere `in` is not read and may be empty. All
/// ranks pass the same count. On the root `out` may be the root's own block of `in` (in place). Errors:
/// invalid_argument, mismatch, peer_lost, timeout, aborted.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void scatter(T& comm, const In& in, Out&& out, int root = 0, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto to = as_output(out);
  detail::arguments check(operation::scatter, comm.rank(), comm.size());
  check.root(root).buffer("output", to);
  // Checked on ranks that do not touch it as well, so that all ranks report the same error.
  check.addressable("input", detail::blocks_of(to.size(), comm.size()), sizeof(element_of<In>));
  detail::scatter_blocks(comm, as_span(in), to, partition(comm.size(), to.size(), sizeof(element_of<In>)), root, check,
                         how);
}

/// Rank r gets counts[r] elements; `counts` is the same on all ranks.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void scatter_v(T& comm, const In& in, Out&& out, std::span<const std::size_t> counts, int root = 0,
               const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto to = as_output(out);
  detail::arguments check(operation::scatter, comm.rank(), comm.size(), "_v");
  check.root(root).counts("counts", counts, sizeof(element_of<In>)).check(comm);
  const partition blocks(counts, sizeof(element_of<In>));
  check.equal("output", to.size(), "this rank's count", blocks.count(comm.rank()));
  detail::scatter_blocks(comm, as_span(in), to, blocks, root, check, how);
}

/// Pointers with the count of elements of one block; `in` has size() x count on the root and may be null elsewhere.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void scatter(T& comm, In&& in, Out&& out, std::size_t count, int root = 0, const Algorithm& how = {}) {
  const std::size_t all = comm.rank() == root ? detail::blocks_of(count, comm.size()) : 0;
  scatter(comm, std::span(in, all), std::span(out, count), root, how);
}
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void scatter_v(T& comm, In&& in, Out&& out, std::span<const std::size_t> counts, int root = 0,
               const Algorithm& how = {}) {
  auto all = detail::all_blocks(in, counts);
  if (comm.rank() != root) all = {};
  scatter_v(comm, all, detail::one_block(out, counts, comm.rank()), counts, root, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void scatter(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void scatter_v(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
