// hvd/send_recv.hpp: messages between two ranks.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

/// Sends a buffer to one rank, which calls `recv` with the same number of bytes. Messages between two ranks arrive in
/// order; there are no tags. May block until the receiver takes the message: two ranks that both send first may wait
/// for each other up to the time limit. The transport's `exchange` sends and receives at once. Collectives made of
/// messages share the channel: all collectives on a transport without common memory, and `ring`, `tree` and similar
/// algorithms chosen by name. Receive all messages before the next such collective, or it ends with mismatch. Errors:
/// invalid_argument, peer_lost, timeout, aborted.
template <SendRecv T, Buffer B>
void send(T& comm, const B& buffer, int peer) {
  const auto s = as_span(buffer);
  detail::arguments(operation::send, comm.rank(), comm.size()).buffer("buffer", s).rank_of("peer", peer).check_alone();
  comm.send(detail::bytes_of(s), s.size_bytes(), peer);
}

/// Receives the next message of one rank. Errors: those of `send`, and mismatch if the message has another length (it
/// is dropped, and the channel stays usable).
template <SendRecv T, BorrowedBuffer B>
void recv(T& comm, B&& buffer, int peer) {
  const auto s = as_output(buffer);
  detail::arguments(operation::recv, comm.rank(), comm.size()).buffer("buffer", s).rank_of("peer", peer).check_alone();
  comm.recv(detail::writable_bytes_of(s), s.size_bytes(), peer);
}

/// Refuses what is not a buffer, and outputs that are temporaries. Compilers print the line with its comment.
template <SendRecv T, class B, class... More>
  requires detail::NoBuffer<B&>
void send(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)
template <SendRecv T, class B, class... More>
  requires detail::NoBuffer<B, More...>
void recv(T&, B&&, More&&...) = delete;  // pass a variable or a std::span (see hvd::buffer_access)

}  // namespace hvd::inline HVD_ABI
