// hvd/transport/tcp/stream.hpp: the stream of messages between two ranks.
#pragma once

#include <hvd/buffer.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/tcp/socket.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The word before each message: its bytes and its channel; or how the sender's part in the group has ended.
class tcp_header {
 public:
  enum class channel : unsigned char { user, own, left, failed };

  constexpr tcp_header() = default;
  constexpr tcp_header(channel what, std::uint64_t value) : word_(static_cast<std::uint64_t>(what) << 60 | value) {}
  static constexpr tcp_header failure(error_kind kind, int culprit) {
    return {channel::failed, static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint32_t>(culprit)};
  }

  [[nodiscard]] constexpr channel what() const { return static_cast<channel>(word_ >> 60 & 3); }
  [[nodiscard]] constexpr std::size_t bytes() const { return word_ & ((std::uint64_t{1} << 60) - 1); }
  [[nodiscard]] constexpr error_kind kind() const { return kind_of(word_ >> 32 & 0xff); }
  [[nodiscard]] constexpr int culprit() const { return static_cast<int>(static_cast<std::uint32_t>(word_)); }

 private:
  std::uint64_t word_ = 0;
};

/// The stream from one rank and to it.
class tcp_peer {
 public:
  using channel = tcp_header::channel;

  tcp_peer() = default;
  explicit tcp_peer(tcp_socket s) : socket_(std::move(s)) {}

  [[nodiscard]] const tcp_socket& connection() const noexcept { return socket_; }
  /// Nothing more comes, for the reason `why` (errno); 0: the other end has closed the connection.
  bool ended = false;
  int why = 0;
  bool writing = false;  ///< in the middle of a message

  /// True if the next header has been read.
  [[nodiscard]] bool has_header() const noexcept { return end_ - begin_ >= sizeof(tcp_header); }
  /// The same after it has read what has come, without waiting.
  bool look() {
    if (has_header()) return true;
    if (ended) return false;
    if (memory_ == nullptr) memory_ = std::make_unique<std::byte[]>(capacity);
    std::memmove(memory_.get(), memory_.get() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
    end_ += read(memory_.get() + end_, capacity - end_);
    return has_header();
  }
  [[nodiscard]] tcp_header header() const noexcept {
    tcp_header h;
    std::memcpy(&h, memory_.get() + begin_, sizeof h);
    return h;
  }
  void take_header() noexcept {
    unread_ = header().bytes();
    begin_ += sizeof(tcp_header);
  }
  /// The bytes of the message, after its header, that have not been taken.
  [[nodiscard]] std::size_t unread() const noexcept { return unread_; }
  /// Takes some of them, without waiting. Returns how many.
  std::size_t take(std::byte* to, std::size_t bytes) {
    std::size_t n = std::min(bytes, end_ - begin_);
    copy_bytes(to, memory_.get() + begin_, n);
    begin_ += n;
    if (n != bytes && !ended) n += read(to + n, bytes - n);
    unread_ -= n;
    return n;
  }
  /// Takes the rest of the message, as far as it has come, and forgets it. True if that was all.
  bool skip() {
    std::array<std::byte, 4096> forgotten;
    while (unread_ != 0) {
      if (take(forgotten.data(), std::min(unread_, forgotten.size())) == 0) return false;
    }
    return true;
  }

  /// Messages that came before one of the other channel, for which this rank was waiting.
  std::array<std::deque<std::vector<std::byte>>, 2> kept{};

 private:
  static constexpr std::size_t capacity = 16 << 10;  // small messages take one system call

  std::size_t read(std::byte* to, std::size_t bytes) {
    if (const auto n = socket_.read(to, bytes)) return *n;
    ended = true;
    why = errno;
    return 0;
  }

  tcp_socket socket_;
  std::unique_ptr<std::byte[]> memory_;
  std::size_t begin_ = 0, end_ = 0, unread_ = 0;
};

/// Before connections are closed: a close cuts off what the kernel has not yet sent, if something unread has come.
inline void finish_sending(std::span<const tcp_peer> peers, std::chrono::milliseconds limit) noexcept {
  for (const tcp_peer& p : peers) {
    if (p.connection()) ::shutdown(p.connection().fd(), SHUT_WR);
  }
  const auto until = tcp_clock::now() + limit;
  for (const tcp_peer& p : peers) {
    if (!p.connection() || p.ended) continue;
    wait_until(until, paces::other_process, [&] { return p.connection().unsent() == 0; });
  }
}

}  // namespace hvd::inline HVD_ABI::detail
