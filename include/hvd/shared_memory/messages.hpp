// hvd/shared_memory/messages.hpp: point-to-point messages through slots in the sender's window.
//
// One channel for each ordered pair of ranks: two slots that the sender fills in turn, and a word in the receiver's
// window that counts the fragments it has taken. A message travels in fragments of one slot each, so that any length
// goes through fixed memory, and the copy in of one fragment overlaps the copy out of the previous one.
#pragma once

#include <hvd/shared_memory/peer_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd::inline HVD_ABI::detail {

class outgoing;
class incoming;

/// A rank's end of the channels to all its peers.
struct channel_view {
  peer_memory& m;

  [[nodiscard]] std::size_t stride() const noexcept {
    return slots_per_channel * (sizeof(slot) + m.shape().slot_bytes) + apart;
  }
  [[nodiscard]] std::byte* of(int writer, int peer) const noexcept {
    return m.window(writer) + m.shape().channels_at + static_cast<std::size_t>(peer) * stride();
  }
  /// Slot for fragment number `f` from `from` to `to`.
  [[nodiscard]] slot& at(int from, int to, std::uint64_t f) const noexcept {
    return *reinterpret_cast<slot*>(of(from, to) + apart +
                                    f % slots_per_channel * (sizeof(slot) + m.shape().slot_bytes));
  }
  /// The number of fragments that `reader` has taken from `writer`; lies in the reader's window.
  [[nodiscard]] word& taken(int reader, int writer) const noexcept {
    return *reinterpret_cast<word*>(of(reader, writer));
  }
};

/// A message on its way out. `step` moves one fragment if there is room.
class outgoing {
 public:
  outgoing(peer_memory& m, const std::byte* data, std::size_t bytes, int to, std::int64_t tag = 0)
      : channels_{m}, data_(data), left_(bytes), bytes_(bytes), tag_(tag), to_(to) {}

  [[nodiscard]] bool finished() const noexcept { return finished_; }
  /// True if a fragment of it has been sent.
  [[nodiscard]] bool begun() const noexcept { return finished_ || left_ != bytes_; }
  [[nodiscard]] bool room() const noexcept {
    const std::uint64_t taken = channels_.taken(to_, channels_.m.rank()).load(std::memory_order_acquire);
    return channels_.m.sent(to_) - taken < slots_per_channel;
  }
  void step() {
    peer_memory& m = channels_.m;
    std::uint64_t& sent = m.sent(to_);
    slot& s = channels_.at(m.rank(), to_, sent);
    const std::size_t n = std::min<std::size_t>(left_, m.shape().slot_bytes);
    copy_bytes(reinterpret_cast<std::byte*>(&s + 1), data_, n);
    s.message_bytes = bytes_;
    s.tag = tag_;
    data_ += n;
    left_ -= n;
    m.store(s.stamp, ++sent);
    finished_ = left_ == 0;
  }

 private:
  channel_view channels_;
  const std::byte* data_;
  std::size_t left_;
  std::size_t bytes_;
  std::int64_t tag_;
  int to_;
  bool finished_ = false;  // a message of no bytes still sends one fragment
};

/// A message on its way in. A message of another length is received completely and dropped, so that the channel stays
/// usable.
class incoming {
 public:
  incoming(peer_memory& m, std::byte* data, std::size_t bytes, int from)
      : channels_{m}, data_(data), bytes_(bytes), from_(from) {}

  [[nodiscard]] bool finished() const noexcept { return finished_; }
  [[nodiscard]] bool ready() const noexcept {
    peer_memory& m = channels_.m;
    const std::uint64_t next = m.taken(from_);
    return channels_.at(from_, m.rank(), next).stamp.load(std::memory_order_acquire) > next;
  }
  /// The first slot, with length and tag, of a message that is ready and not yet begun.
  [[nodiscard]] const slot& first() const noexcept {
    peer_memory& m = channels_.m;
    return channels_.at(from_, m.rank(), m.taken(from_));
  }
  void step() {
    peer_memory& m = channels_.m;
    std::uint64_t& taken = m.taken(from_);
    const slot& s = channels_.at(from_, m.rank(), taken);
    // The sender refills a slot only after this fragment is taken. Any other stamp means that the memory was
    // overwritten; a wrong length with it could keep this rank busy for ever.
    if (s.stamp.load(std::memory_order_relaxed) != taken + 1) m.give_up(error_kind::mismatch, from_, phase::send);
    if (got_ == 0) message_bytes_ = s.message_bytes;
    const std::size_t n = std::min<std::size_t>(message_bytes_ - got_, m.shape().slot_bytes);
    if (message_bytes_ == bytes_) copy_bytes(data_ + got_, reinterpret_cast<const std::byte*>(&s + 1), n);
    got_ += n;
    m.store(channels_.taken(m.rank(), from_), ++taken);
    finished_ = got_ == message_bytes_;
  }
  /// After the last step: throws if the message was of another length.
  void check() const {
    if (message_bytes_ == bytes_) return;
    peer_memory& m = channels_.m;
    fail(error_kind::mismatch,
         {m.operation_name(), " on ", m.label(), ": expected ", bytes_, " bytes from rank ", from_, " but it sent ",
          message_bytes_, "; the message was dropped"},
         from_);
  }

 private:
  channel_view channels_;
  std::byte* data_;
  std::size_t bytes_;
  int from_;
  std::size_t message_bytes_ = 0;
  std::size_t got_ = 0;
  bool finished_ = false;
};

inline void check_peer(const peer_memory& m, std::string_view operation, int peer) {
  if (peer >= 0 && peer < m.size()) return;
  fail(error_kind::invalid_argument,
       {operation, " on ", m.label(), ": there is no rank ", peer, "; allowed: 0 to ", m.size() - 1});
}

/// Sends `bytes` to a peer; returns when the last fragment lies in its slot. A rank may send itself as much as its
/// slots hold; `exchange` sends more.
inline void send_message(peer_memory& m, const std::byte* data, std::size_t bytes, int to) {
  check_peer(m, "send", to);
  peer_memory::scope scope(m, "send");
  if (to == m.rank()) {
    const std::uint64_t waiting = m.sent(to) - m.taken(to);
    const std::uint64_t fragments = bytes == 0 ? 1 : (bytes + m.shape().slot_bytes - 1) / m.shape().slot_bytes;
    if (waiting + fragments > slots_per_channel) {
      scope.leave();
      fail(error_kind::invalid_argument,
           {"send on ", m.label(), ": a message of ", bytes, " bytes to itself would wait for itself; use exchange"});
    }
  }
  for (outgoing o(m, data, bytes, to); !o.finished();) {
    if (!o.room()) m.await_until(to, phase::receive, [&] { return o.room(); });
    o.step();
  }
  scope.leave();
}

inline void receive_message(peer_memory& m, std::byte* data, std::size_t bytes, int from) {
  check_peer(m, "recv", from);
  peer_memory::scope scope(m, "recv");
  incoming i(m, data, bytes, from);
  while (!i.finished()) {
    if (!i.ready()) m.await_until(from, phase::send, [&] { return i.ready(); });
    i.step();
  }
  scope.leave();
  i.check();
}

/// True if the next message from a peer, or its first fragment, has arrived.
inline bool message_arrived(peer_memory& m, int from) {
  check_peer(m, "arrived", from);
  m.enter("arrived");
  const bool over = m.aborted();  // read first: a message sent before a rank gave up is then visible
  const bool there = incoming(m, nullptr, 0, from).ready();
  if (over && !there) m.check_abort(-1, phase::answer);
  return there;
}

/// Sends and receives at once, in alternating fragments, so that two ranks can exchange more than the slots hold.
inline void exchange_messages(peer_memory& m, const std::byte* out, std::size_t out_bytes, int to, std::byte* in,
                              std::size_t in_bytes, int from) {
  check_peer(m, "exchange", to);
  check_peer(m, "exchange", from);
  peer_memory::scope scope(m, "exchange");
  outgoing o(m, out, out_bytes, to);
  incoming i(m, in, in_bytes, from);
  while (!o.finished() || !i.finished()) {
    const auto can_send = [&] { return !o.finished() && o.room(); };
    const auto can_receive = [&] { return !i.finished() && i.ready(); };
    if (!can_send() && !can_receive()) {
      const bool receiving = !i.finished();
      m.await_until(
          receiving ? from : to, receiving ? phase::send : phase::receive, [&] { return can_send() || can_receive(); },
          receiving && !o.finished() ? to : -1);
    }
    if (can_receive()) i.step();
    if (can_send()) o.step();
  }
  scope.leave();
  i.check();
}

}  // namespace hvd::inline HVD_ABI::detail
