// hvd/transport/tcp/socket.hpp: addresses and sockets of TCP.
#pragma once

#include <hvd/config.hpp>
#include <hvd/detail/socket_descriptor.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/fork_guard.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace hvd::inline HVD_ABI::detail {

using tcp_clock = std::chrono::steady_clock;

/// An address and a port, as text "10.0.0.1:4711" or "[fe80::1]:4711", or for the system.
class tcp_address {
 public:
  tcp_address() = default;
  /// Errors: invalid_argument unless it is HOST:PORT; system for a host without an address.
  explicit tcp_address(std::string_view host_and_port) {
    const std::size_t colon = host_and_port.rfind(':');
    std::string_view host = host_and_port.substr(0, colon);
    if (colon == std::string_view::npos || host.empty()) {
      refuse_value("address", host_and_port, " has no port", {"HOST:PORT"});
    }
    const std::string port =
        std::to_string(parse_integer("port", host_and_port.substr(colon + 1), 0, 65535, "0: any free port"));
    if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    addrinfo wanted{}, *found = nullptr;
    wanted.ai_socktype = SOCK_STREAM;
    const int code = ::getaddrinfo(std::string(host).c_str(), port.c_str(), &wanted, &found);
    if (code != 0) fail(error_kind::system, {"no address for host \"", host, "\": ", ::gai_strerror(code)});
    length_ = found->ai_addrlen;
    std::memcpy(&data_, found->ai_addr, length_);
    ::freeaddrinfo(found);
  }
  /// The address of this end of a socket; with getpeername that of the other end.
  static tcp_address of(int fd, int (&name)(int, sockaddr*, socklen_t*) = ::getsockname) noexcept {
    tcp_address a;
    a.length_ = sizeof a.data_;
    if (name(fd, reinterpret_cast<sockaddr*>(&a.data_), &a.length_) != 0) a.length_ = 0;
    return a;
  }

  [[nodiscard]] const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&data_); }
  [[nodiscard]] socklen_t size() const noexcept { return length_; }
  [[nodiscard]] int family() const noexcept { return data_.ss_family; }
  [[nodiscard]] int port() const noexcept {
    in_port_t port = 0;
    std::memcpy(&port, reinterpret_cast<const std::byte*>(&data_) + port_offset, sizeof port);
    return ntohs(port);
  }
  [[nodiscard]] tcp_address with_port(int number) const noexcept {
    tcp_address other = *this;
    const in_port_t port = htons(static_cast<std::uint16_t>(number));
    std::memcpy(reinterpret_cast<std::byte*>(&other.data_) + port_offset, &port, sizeof port);
    return other;
  }
  [[nodiscard]] std::string text() const {
    char host[64] = "?", port[8] = "?";
    ::getnameinfo(data(), length_, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    return family() == AF_INET6 ? joined({"[", host, "]:", port}) : joined({host, ":", port});
  }

 private:
  static constexpr std::size_t port_offset = offsetof(sockaddr_in, sin_port);
  static_assert(port_offset == offsetof(sockaddr_in6, sin6_port));

  sockaddr_storage data_{};
  socklen_t length_ = 0;
};

/// Owns a socket that does not block; a forked child closes its copy at once.
class tcp_socket {
 public:
  tcp_socket() = default;
  explicit tcp_socket(int fd) : guard_(new fork_guard(fd, nullptr, nullptr)) {}

  /// The descriptor; -1 without a socket, and in a forked child.
  [[nodiscard]] int fd() const noexcept { return guard_ ? guard_->fd() : -1; }
  explicit operator bool() const noexcept { return fd() >= 0; }

  /// A socket of this family, or of an accepted connection; none with errno.
  static tcp_socket open(int family, int type = SOCK_STREAM) {
    const fork_guard::pause no_fork;
    const int fd = socket_descriptor(family, type);
    return fd < 0 ? tcp_socket() : tcp_socket(fd);
  }
  static tcp_socket accepted(int listener) {
    const fork_guard::pause no_fork;
    const int fd = accept_descriptor(listener);
    return fd < 0 ? tcp_socket() : tcp_socket(fd);
  }

  /// For a connection: small messages leave at once, and the kernel looks every 3 s whether the host of an idle one
  /// still answers. (TCP_USER_TIMEOUT would also end a connection to a rank that computes and does not read: see
  /// `silent`.)
  void prepare() const noexcept {
    set(IPPROTO_TCP, TCP_NODELAY, 1);
    set(SOL_SOCKET, SO_KEEPALIVE, 1);
    set(IPPROTO_TCP, TCP_KEEPIDLE, 3);
    set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  }
  void set(int level, int option, int value) const noexcept { ::setsockopt(fd(), level, option, &value, sizeof value); }

  /// Reads or writes some bytes without waiting: their number; 0 if it would have to wait; nothing at the end of the
  /// stream, or with an error in errno (0 at the end).
  [[nodiscard]] std::optional<std::size_t> read(std::byte* to, std::size_t bytes) const noexcept {
    const ssize_t n = ::recv(fd(), to, bytes, MSG_DONTWAIT);
    if (n == 0 && bytes != 0) errno = 0;
    return moved(n, n == 0 && bytes != 0);
  }
  [[nodiscard]] std::optional<std::size_t> write(const iovec* parts, std::size_t count) const noexcept {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = count;
    return moved(::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL), false);
  }
  [[nodiscard]] std::optional<std::size_t> write(const void* from, std::size_t bytes) const noexcept {
    const iovec part{const_cast<void*>(from), bytes};
    return write(&part, 1);
  }
  /// The same for a message in two parts, of which `done` bytes have been written.
  [[nodiscard]] std::optional<std::size_t> write(const void* head, std::size_t head_bytes, const std::byte* body,
                                                 std::size_t body_bytes, std::size_t done) const noexcept {
    const std::size_t of_head = std::min(done, head_bytes), of_body = done - of_head;
    const iovec parts[] = {{static_cast<std::byte*>(const_cast<void*>(head)) + of_head, head_bytes - of_head},
                           {const_cast<std::byte*>(body) + of_body, body_bytes - of_body}};
    return write(parts, 2);
  }
  /// Waits until `events` (POLLIN, POLLOUT), an error or a time; false at that time.
  [[nodiscard]] bool await(short events, tcp_clock::time_point until) const noexcept {
    pollfd one{fd(), events, 0};
    return poll_until(&one, 1, until);
  }
  /// poll(2) until one is ready, or until a time; false at that time.
  static bool poll_until(pollfd* all, std::size_t count, tcp_clock::time_point until) noexcept {
    using std::chrono::milliseconds;
    const auto now = tcp_clock::now();
    const auto limit =
        until <= now ? milliseconds(0) : std::min(std::chrono::ceil<milliseconds>(until - now), milliseconds(60'000));
    return ::poll(all, count, static_cast<int>(limit.count())) > 0 || tcp_clock::now() < until;
  }
  /// Reads or writes all of it, before a time; false with the reason in errno (0: the other end closed it; ETIMEDOUT).
  [[nodiscard]] bool read_all(void* to, std::size_t bytes, tcp_clock::time_point until) const noexcept {
    return all(bytes, POLLIN, until,
               [&](std::size_t done) { return read(static_cast<std::byte*>(to) + done, bytes - done); });
  }
  [[nodiscard]] bool write_all(const void* from, std::size_t bytes, tcp_clock::time_point until) const noexcept {
    return all(bytes, POLLOUT, until,
               [&](std::size_t done) { return write(static_cast<const std::byte*>(from) + done, bytes - done); });
  }
  /// The number of bytes that the other host has yet to receive; 0 after an error.
  [[nodiscard]] int unsent() const noexcept {
    int n = 0;
    return state().tcpi_state != TCP_CLOSE && ::ioctl(fd(), TIOCOUTQ, &n) == 0 ? n : 0;
  }
  /// True if the other host has not answered for 8 s, although the kernel has asked it again and again. (A host whose
  /// process does not read answers.)
  [[nodiscard]] bool silent() const noexcept {
    const tcp_info now = state();
    return now.tcpi_last_ack_recv > 8000 && std::max(now.tcpi_retransmits, now.tcpi_probes) >= 4;
  }

 private:
  static std::optional<std::size_t> moved(ssize_t n, bool ended) noexcept {
    if (n >= 0 && !ended) return static_cast<std::size_t>(n);
    if (!ended && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    return std::nullopt;
  }
  [[nodiscard]] tcp_info state() const noexcept {
    tcp_info now{};
    socklen_t length = sizeof now;
    if (::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &now, &length) != 0) now.tcpi_state = TCP_CLOSE;
    return now;
  }
  template <class Move>
  bool all(std::size_t bytes, short events, tcp_clock::time_point until, const Move& move) const noexcept {
    for (std::size_t done = 0; done != bytes;) {
      const auto n = move(done);
      if (!n) return false;
      done += *n;
      if (*n == 0 && !await(events, until)) {
        errno = ETIMEDOUT;
        return false;
      }
    }
    return true;
  }

  std::unique_ptr<fork_guard> guard_;
};

/// A sentence for errno after an operation on a connection; 0: the other end has closed it.
inline std::string tcp_problem(int code) {
  return code == 0 ? std::string("the connection was closed") : std::string(std::strerror(code));
}

}  // namespace hvd::inline HVD_ABI::detail
