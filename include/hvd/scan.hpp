// hvd/scan.hpp: combine a vector over the ranks up to each rank, or over those before it.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

/// out[i] = op over ranks 0 to this one of in[i], in their order: MPI_Scan; the default op is `sum`. Every rank passes
/// the same count, element type and op. `in` and `out` are the same memory or do not overlap. `average` does not
/// compile: the ranks' prefixes have different lengths.
///
/// Errors as for allreduce. Cost in shared memory: each rank stages its input once and reads the inputs of the ranks
/// below it, at most p - 1. Cost by messages: ceil(log2 p) messages of the whole vector.
template <Transport T, Buffer In, BorrowedBuffer Out, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void scan(T& comm, const In& in, Out&& out, const Op& op = {}, const Algorithm& how = {}) {
  static_assert(
      !detail::divides_by_ranks<Op>,
      "hvd: scan has no average, because each rank combines a different number of ranks; use hvd::sum and divide");
  detail::reduce_vector<scan_call>(comm, in, out, op, how);
}

/// In place.
template <Transport T, BorrowedBuffer B, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void scan(T& comm, B&& inout, const Op& op = {}, const Algorithm& how = {}) {
  const auto s = as_output(inout);
  scan(comm, s, s, op, how);
}

/// Pointers with a count of elements.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Op = sum_t, class Algorithm = automatic<>>
void scan(T& comm, In&& in, Out&& out, std::size_t count, const Op& op = {}, const Algorithm& how = {}) {
  scan(comm, std::span(in, count), std::span(out, count), op, how);
}
template <Transport T, detail::Pointer P, class Op = sum_t, class Algorithm = automatic<>>
void scan(T& comm, P&& inout, std::size_t count, const Op& op = {}, const Algorithm& how = {}) {
  scan(comm, std::span(inout, count), op, how);
}

/// out[i] = op over the ranks before this one of in[i], in their order: MPI_Exscan. On rank 0, which has none before
/// it, `out` is left untouched: in place it keeps the input. The rest is as for scan; by messages a rank combines twice
/// in each step, and has temporary memory for two vectors.
template <Transport T, Buffer In, BorrowedBuffer Out, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void exscan(T& comm, const In& in, Out&& out, const Op& op = {}, const Algorithm& how = {}) {
  static_assert(
      !detail::divides_by_ranks<Op>,
      "hvd: exscan has no average, because each rank combines a different number of ranks; use hvd::sum and divide");
  detail::reduce_vector<exscan_call>(comm, in, out, op, how);
}

/// In place.
template <Transport T, BorrowedBuffer B, class Op = sum_t, class Algorithm = automatic<>>
  requires(!Buffer<Op>)
void exscan(T& comm, B&& inout, const Op& op = {}, const Algorithm& how = {}) {
  const auto s = as_output(inout);
  exscan(comm, s, s, op, how);
}

/// Pointers with a count of elements.
template <Transport T, detail::Pointer In, detail::Pointer Out, class Op = sum_t, class Algorithm = automatic<>>
void exscan(T& comm, In&& in, Out&& out, std::size_t count, const Op& op = {}, const Algorithm& how = {}) {
  exscan(comm, std::span(in, count), std::span(out, count), op, how);
}
template <Transport T, detail::Pointer P, class Op = sum_t, class Algorithm = automatic<>>
void exscan(T& comm, P&& inout, std::size_t count, const Op& op = {}, const Algorithm& how = {}) {
  exscan(comm, std::span(inout, count), op, how);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void scan(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

/// The same for exscan.
template <Transport T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void exscan(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
