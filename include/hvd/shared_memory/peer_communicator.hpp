// hvd/shared_memory/peer_communicator.hpp: the common part of transports whose ranks have common memory.
#pragma once

#include <hvd/shared_memory/agree.hpp>
#include <hvd/shared_memory/messages.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

#include <cstddef>

namespace hvd::inline HVD_ABI::detail {

/// The part of a transport that needs only a peer_memory.
class peer_communicator {
 public:
  /// The rank of the caller in the group, from 0; and the number of ranks.
  [[nodiscard]] int rank() const noexcept { return peers_->rank(); }
  [[nodiscard]] int size() const noexcept { return peers_->size(); }
  /// No rank leaves before all have entered. Errors: peer_lost, timeout, aborted, mismatch.
  void barrier() { detail::barrier(*peers_); }

  /// Messages in bytes, as PointToPoint describes them; `hvd::send` and `hvd::recv` take buffers. Errors: peer_lost,
  /// timeout, aborted; of `recv` also mismatch, for a message of another length.
  void send(const std::byte* data, std::size_t bytes, int peer) { send_message(*peers_, data, bytes, peer); }
  /// See `send`.
  void recv(std::byte* data, std::size_t bytes, int peer) { receive_message(*peers_, data, bytes, peer); }
  /// Sends and receives at once, so that neither waits for the other. See `send`.
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    exchange_messages(*peers_, out, out_bytes, to, in, in_bytes, from);
  }
  /// True if a message from `peer`, or its beginning, has arrived. Errors: invalid_argument if there is no such rank;
  /// aborted, or any other error that ended the group.
  [[nodiscard]] bool arrived(int peer) { return message_arrived(*peers_, peer); }

  /// For waits outside of the transport: throws peer_lost if any rank is lost or has left the group, and the reason if
  /// a rank has failed. Ends the group like a failed wait. Cost: between processes a system call for each rank.
  void check() { peers_->check_all(); }
  /// The rank for which the thread of this rank currently waits; if an exchange waits for two, the one that it receives
  /// from. -1 while it does not wait, in the first microseconds of a wait, and while the ranks join a transport made
  /// over this one. Any thread may call this, as long as the transport is neither moved nor destroyed.
  [[nodiscard]] int waiting_for() const noexcept { return peers_->waits().waiting_for(); }

  /// Changes failure_policy::timeout for later operations. For one call: hvd::within.
  void set_timeout(failure_policy::seconds timeout) noexcept { peers_->set_timeout(timeout); }
  [[nodiscard]] failure_policy::seconds timeout() const noexcept { return peers_->timeout(); }
  /// Sets a callback that can end later waits.
  void set_interruption(const interruption& by) noexcept { peers_->set_interruption(by); }
  /// Ends the group for all its ranks: waits end with an error of kind aborted, on this rank and on the others. Any
  /// thread may call this while another one waits, as long as the transport is neither moved nor destroyed.
  void abort() noexcept { peers_->set_abort(error_kind::aborted, peers_->rank()); }

  /// For algorithms: see PeerMemory.
  [[nodiscard]] peer_memory& peers() noexcept { return *peers_; }

 protected:
  explicit peer_communicator(peer_memory& peers) noexcept : peers_(&peers) {}
  peer_communicator(const peer_communicator&) = default;
  peer_communicator& operator=(const peer_communicator&) = default;
  ~peer_communicator() = default;

 private:
  peer_memory* peers_;
};

}  // namespace hvd::inline HVD_ABI::detail
