// hvd/gather.hpp: the root gets the blocks of all ranks.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

namespace detail {

template <class T, class From, class To, class Algorithm>
void gather_blocks(T& comm, From from, To to, const partition& blocks, int root, arguments& check,
                   const Algorithm& how) {
  const std::byte* const in = bytes_of(from);
  std::byte* const out = writable_bytes_of(to);
  check.buffer("input", from);
  if (comm.rank() == root) {
    check.buffer("output", to)
        .equal("output", to.size(), "the blocks of all ranks", blocks.total_count())
        .apart(in, from.size_bytes(), out, to.size_bytes(), lies_at(in, out, blocks.offset(root)));
  }
  check.check(comm);
  run(comm, gather_call{in, out, blocks, root}, how);
}

}  // namespace detail

/// `out` on `root` receives the `in` of every rank, in rank order: size() x in.size() elements. Elsewhere `out` is not
/// touched and may be empty. All ranks pass the same count. On the root `in` may be the root's own block of `out` (in
/// place). Errors: invalid_argument, mismatch, peer_lost, timeout, aborted.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void gather(T& comm, const In& in, Out&& out, int root = 0, const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  detail::arguments check(operation::gather, comm.rank(), comm.size());
  check.root(root).buffer("input", from);
  // Checked on ranks that do not touch it as well, so that all ranks report the same error.
  check.addressable("output", detail::blocks_of(from.size(), comm.size()), sizeof(element_of<In>));
  detail::gather_blocks(comm, from, as_output(out), partition(comm.size(), from.size(), sizeof(element_of<In>)), root,
                        check, how);
}

/// Rank r gives counts[r] elements; `counts` is the same on all ranks.
template <Transport T, Buffer In, BorrowedBuffer Out, class Algorithm = automatic<>>
void gather_v(T& comm, const In& in, Out&& out, std::span<const std::size_t> counts, int root = 0,
              const Algorithm& how = {}) {
  detail::same_elements<In, Out>();
  const auto from = as_span(in);
  detail::arguments check(operation::gather, comm.rank(), comm.size(), "_v");
  check.root(root).counts("counts", counts, sizeof(element_of<In>)).check(comm);
  const partition blocks(counts, sizeof(element_of<In>));
  check.equal("input", from.size(), "this rank's count", blocks.count(comm.rank()));
  detail::gather_blocks(comm, from, as_output(out), blocks, root, check, how);
}

/// Pointers with the count of elements of one block; `out` has size() x count on the root and may be null elsewhere.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void gather(T& comm, In&& in, Out&& out, std::size_t count, int root = 0, const Algorithm& how = {}) {
  const std::size_t all = comm.rank() == root ? detail::blocks_of(count, comm.size()) : 0;
  gather(comm, std::span(in, count), std::span(out, all), root, how);
}
template <Transport T, detail::Pointer In, detail::Pointer Out, class Algorithm = automatic<>>
void gather_v(T& comm, In&& in, Out&& out, std::span<const std::size_t> counts, int root = 0,
              const Algorithm& how = {}) {
  auto all = detail::all_blocks(out, counts);
  if (comm.rank() != root) all = {};
  gather_v(comm, detail::one_block(in, counts, comm.rank()), all, counts, root, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void gather(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void gather_v(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
