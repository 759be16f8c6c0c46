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
template <SendRecv T, Buffer B>
void recv(T& comm, B&& buffer, int peer) {
  const auto s = as_output(buffer);
  detail::arguments(operation::recv, comm.rank(), comm.size()).buffer("buffer", s).rank_of("peer", peer).check_alone();
  comm.recv(detail::writable_bytes_of(s), s.size_bytes(), peer);
}

/// Rejects arguments that are not buffers, with a message that names what to pass instead.
template <SendRecv T, detail::NoBuffer B, class... More>
void send(T&, B&&, More&&...) {
  detail::refuse_buffer<B>();
}
template <SendRecv T, detail::NoBuffer B, class... More>
void recv(T&, B&&, More&&...) {
  detail::refuse_buffer<B>();
}

}  // namespace hvd::inline HVD_ABI
