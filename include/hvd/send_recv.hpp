// hvd/send_recv.hpp: messages between two ranks.
#pragma once

#include <hvd/collective/front_door.hpp>

namespace hvd::inline HVD_ABI {

/// Sends a buffer to one rank, which calls `recv` with as many bytes. Messages between two ranks arrive in order; there
/// are no tags. May block until the receiver takes the message: two ranks that both send first may wait for each other
/// up to the time limit; the transport's `exchange` does both at once. Collectives that travel as messages (all on a
/// transport without common memory; `ring`, `tree` and the like by name) share the channel: receive all messages before
/// the next collective, or it ends in mismatch. Errors: invalid_argument, peer_lost, timeout, aborted.
template <SendRecv T, Buffer B>
void send(T& comm, const B& buffer, int peer) {
  const auto s = as_span(buffer);
  detail::arguments(operation::send, comm.rank(), comm.size()).buffer("buffer", s).rank_of("peer", peer).check_alone();
  comm.send(detail::bytes_of(s), s.size_bytes(), peer);
}

/// Receives the next message of one rank. Errors: as send; mismatch if the message has another length (it is dropped
/// and the channel stays usable).
template <SendRecv T, Buffer B>
void recv(T& comm, B&& buffer, int peer) {
  const auto s = as_output(buffer);
  detail::arguments(operation::recv, comm.rank(), comm.size()).buffer("buffer", s).rank_of("peer", peer).check_alone();
  comm.recv(detail::writable_bytes_of(s), s.size_bytes(), peer);
}

/// What is no buffer does not compile, and the error says what to pass instead.
template <SendRecv T, detail::NoBuffer B, class... More>
void send(T&, B&&, More&&...) {
  detail::refuse_buffer<B>();
}
template <SendRecv T, detail::NoBuffer B, class... More>
void recv(T&, B&&, More&&...) {
  detail::refuse_buffer<B>();
}

}  // namespace hvd::inline HVD_ABI
