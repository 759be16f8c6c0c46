// hvd/transport/self.hpp: a group of one rank, for programs that run alone and for tests.
#pragma once

#include <hvd/call.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/transport.hpp>

#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// Rank 0 of 1. Collectives copy or scale, and never wait. Messages to itself are queued.
class SelfTransport {
 public:
  [[nodiscard]] int rank() const noexcept { return 0; }  ///< always 0
  [[nodiscard]] int size() const noexcept { return 1; }  ///< always 1
  void barrier() const noexcept {}                       ///< nothing to wait for
  /// Another group of one.
  [[nodiscard]] SelfTransport split(int /*color*/, int /*key*/) const { return {}; }

  /// Queues a message to rank 0. Errors: invalid_argument for another rank.
  void send(const std::byte* data, std::size_t bytes, int peer) {
    check_peer(peer, "send");
    queue_.emplace_back(data, data + bytes);
  }
  /// Errors: invalid_argument for another rank, or if nothing was sent (no other rank can send); mismatch for another
  /// length.
  void recv(std::byte* data, std::size_t bytes, int peer) {
    check_peer(peer, "recv");
    if (queue_.empty()) {
      detail::fail(error_kind::invalid_argument,
                   {"recv on rank 0 of 1: no message was sent before, and nobody else can send one"});
    }
    const std::vector<std::byte> message = std::move(queue_.front());
    queue_.pop_front();
    if (message.size() != bytes) {
      detail::fail(error_kind::mismatch,
                   {"recv on rank 0 of 1: expected ", bytes, " bytes from rank 0 but it sent ", message.size(),
                    "; the message was dropped"},
                   0);
    }
    detail::copy_bytes(data, message.data(), bytes);
  }
  /// `send`, then `recv`.
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    send(out, out_bytes, to);
    recv(in, in_bytes, from);
  }

  /// True if a message to itself is queued. Errors: invalid_argument for another rank.
  [[nodiscard]] bool arrived(int peer) const {
    check_peer(peer, "arrived");
    return !queue_.empty();
  }
  void check() const noexcept {}                                 ///< no rank can be lost
  [[nodiscard]] int waiting_for() const noexcept { return -1; }  ///< always -1: it never waits

  /// Without effect: it never waits.
  void set_timeout(std::chrono::duration<double> /*timeout*/) noexcept {}
  [[nodiscard]] std::chrono::duration<double> timeout() const noexcept { return {}; }  ///< always 0: no limit

  /// n elements, zero at first.
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    return detail::private_array<T>(n, "rank 0 of 1");
  }

 private:
  static void check_peer(int peer, const char* operation) {
    if (peer == 0) return;
    detail::fail(error_kind::invalid_argument, {operation, " on rank 0 of 1: there is no rank ", peer, "; allowed: 0"});
  }

  std::deque<std::vector<std::byte>> queue_;
};

static_assert(Transport<SelfTransport> && Probing<SelfTransport> && !PeerMemory<SelfTransport>);

}  // namespace hvd::inline HVD_ABI
