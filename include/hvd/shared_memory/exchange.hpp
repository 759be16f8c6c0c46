// hvd/shared_memory/exchange.hpp: small payloads that every rank publishes and others read.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/shared_memory/words.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hvd::inline HVD_ABI::detail {

/// Exchanges are numbered. Even and odd ones use different mailboxes, so no rank waits at the exit: publishing
/// exchange s+1 proves that this rank has read all it wanted of s, hence a rank that has read s+1 of all ranks may
/// overwrite the mailboxes of s in s+2. An exchange in which a rank does not read all others proves less; then
/// `payload` waits for the peers' `done` words instead.
class peer_exchanges : public peer_words {
 public:
  using peer_words::peer_words;

  /// Starts the next exchange. `signature` is equal on ranks in the same call.
  void begin(std::uint16_t signature) noexcept {
    stamp_ = ++sequence_ << 16 | signature;
    if (sequence_ % 2 == 0 && ++turn_ == size_) turn_ = 0;
  }

  /// Memory for this rank's payload: mailbox::capacity bytes.
  std::byte* payload() {
    if (known_ + 2 < sequence_) [[unlikely]]
      await_done(sequence_ - 2);
    return mailbox_of(rank_).payload;
  }
  /// Publishes the payload: the other ranks can read it, and see all that this rank has stored before.
  void publish() noexcept {
    mailbox_of(rank_).stamp.store(stamp_, std::memory_order_release);
    ring();
  }
  /// Copies `bytes` from `data` into the payload, and publishes it.
  void publish(const std::byte* data, std::size_t bytes) {
    copy_bytes(payload(), data, bytes);
    publish();
  }

  /// Waits for the peer's payload, and returns its address.
  const std::byte* read(int peer) {
    const mailbox& box = mailbox_of(peer);
    const std::uint64_t seen = await(box.stamp, stamp_ & ~std::uint64_t{0xffff}, peer, phase::enter);
    if (seen != stamp_) [[unlikely]]
      give_up(error_kind::mismatch, peer, phase::enter);
    return box.payload;
  }

  /// Marks that this rank has read the payloads of all others in this exchange.
  void mark_all_read() noexcept {
    known_ = sequence_ - 1;
    staging_.all_began();
  }
  /// Ends the exchange for this rank: it no longer needs its peers.
  void end() noexcept { store(mine().done.value, sequence_); }

  /// Waits until every peer has ended exchange `sequence` (by default the current one).
  void await_done(std::uint64_t sequence) {
    for (int q = 0; q != size_; ++q) {
      if (q != rank_) await(of(q).done.value, sequence, q, phase::finish);
    }
    known_ = sequence;
  }
  void await_done() { await_done(sequence_); }

 protected:
  ~peer_exchanges() = default;

 private:
  /// The mailbox of rank r in this exchange. They rotate through the windows, so that with two ranks each writes a
  /// mailbox that it has read. A store into a line that only another rank has read costs several times as much
  /// (algorithm/direct/staged.hpp).
  [[nodiscard]] mailbox& mailbox_of(int r) const noexcept {
    const int home = r + turn_ < size_ ? r + turn_ : r + turn_ - size_;
    return reinterpret_cast<mailbox*>(window(home) + geometry_.mailboxes_at)[sequence_ & 1];
  }

  std::uint64_t sequence_ = 0;  // exchanges begun
  int turn_ = 0;                // rank r writes the mailbox in window r + turn_
  std::uint64_t stamp_ = 0;     // of the current exchange
  std::uint64_t known_ = 0;     // every peer has ended exchange known_
};

}  // namespace hvd::inline HVD_ABI::detail
