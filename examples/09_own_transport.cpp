// 09_own_transport.cpp: a transport of your own, here over Unix sockets. As a hvd::PointToPoint it runs all algorithms.
#include <hvd/hvd.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <poll.h>
#include <span>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

using Socket = std::shared_ptr<const int>;  // closed with its last owner
Socket own(int fd) {
  return {new int(fd), [](const int* p) { ::close(*p), delete p; }};
}
std::array<Socket, 2> make_sockets() {  // what is sent into the first comes out of the second
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) throw hvd::error(hvd::error::system, std::strerror(errno));
  return {own(fds[0]), own(fds[1])};
}

class SocketTransport {
 public:
  /// A socket to each rank and one from each, itself included; milliseconds for a peer to answer.
  SocketTransport(int rank, std::vector<Socket> out, std::vector<Socket> in, int timeout = 30000)
      : rank_(rank), timeout_(timeout), out_(std::move(out)), in_(std::move(in)) {}
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(out_.size()); }
  void send(const std::byte* data, std::size_t bytes, int to) { exchange(data, bytes, to, nullptr, 0, -1); }
  void recv(std::byte* data, std::size_t bytes, int from) { exchange(nullptr, 0, -1, data, bytes, from); }
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    transfer({to, const_cast<std::byte*>(out), out_bytes}, {from, in, in_bytes});
  }
  void barrier() {  // or anything else that takes all ranks
    std::array none{0};
    hvd::allreduce(*this, none);
  }
  SocketTransport split(int color, int key) {
    const std::array mine{color, key, rank_};
    std::vector<std::array<int, 3>> members(out_.size());
    hvd::allgather(*this, std::span(&mine, 1), members);
    std::erase_if(members, [&](const auto& m) { return m != mine && (m[0] != color || color == hvd::no_group); });
    std::ranges::sort(members);
    std::vector<Socket> out, in;  // each member makes those that it sends into and passes on their other ends
    for (const auto& member : members) {
      const auto [to, from] = make_sockets();
      out.push_back(to);
      transfer({member[2], nullptr, 0, from}, {});
    }
    for (const auto& member : members) in.push_back(transfer({}, {member[2]}));
    return {static_cast<int>(std::ranges::find(members, mine) - members.begin()), out, in, timeout_};
  }

 private:
  struct message {  // travels as 8 bytes of length, `length` bytes, and perhaps a socket (SCM_RIGHTS in unix(7))
    int peer = -1;  // -1: no message
    std::byte* data = nullptr;
    std::size_t length = 0;
    Socket attached = nullptr;
    std::size_t done = 0;
    bool complete() const { return peer < 0 || done == 8 + length; }
  };
  /// Sends and receives as far as each can go. Returns the socket that came.
  Socket transfer(message out, message in) {
    for (const std::size_t expected = in.length; !out.complete() || !in.complete();) {
      const int peer = in.complete() ? out.peer : in.peer;  // to name if nothing happens
      const int to = out.complete() ? -1 : *out_[out.peer], from = in.complete() ? -1 : *in_[in.peer];
      pollfd ready[] = {{to, POLLOUT, 0}, {from, POLLIN, 0}};
      if (::poll(ready, 2, timeout_) == 0) fail(hvd::error::timeout, peer, "does not answer");
      if (ready[0].revents != 0) move(out, to, true);
      if (ready[1].revents != 0) move(in, from, false);
      if (in.done == 8 && in.length != expected) fail(hvd::error::mismatch, peer, "sent a message of another length");
    }
    return in.attached;
  }
  void move(message& m, int fd, bool sends) {
    iovec part{reinterpret_cast<std::byte*>(&m.length) + m.done, 8 - m.done};
    if (m.done >= 8) part = {m.data + (m.done - 8), 8 + m.length - m.done};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
    msghdr h{nullptr, 0, &part, 1, control, sizeof control, 0};
    cmsghdr* const c = CMSG_FIRSTHDR(&h);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
    if (m.attached) std::memcpy(CMSG_DATA(c), m.attached.get(), sizeof fd);
    if (sends && (!m.attached || m.done != 0)) h.msg_controllen = 0;
    const ssize_t n = sends ? ::sendmsg(fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL) : ::recvmsg(fd, &h, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) fail(hvd::error::peer_lost, m.peer, "has ended");
    m.done += static_cast<std::size_t>(n);
    if (!sends && h.msg_controllen != 0) m.attached = own(*reinterpret_cast<int*>(CMSG_DATA(c)));
  }
  [[noreturn]] void fail(hvd::error_kind kind, int peer, const std::string& what) {
    for (int q = 0; q != size(); ++q) ::shutdown(*out_[q], SHUT_RDWR), ::shutdown(*in_[q], SHUT_RDWR);  // all learn it
    throw hvd::error(kind, "rank " + std::to_string(peer) + " " + what + ", says rank " + std::to_string(rank_), peer);
  }
  int rank_, timeout_;
  std::vector<Socket> out_, in_;
};

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 4;
  std::vector<std::vector<Socket>> to(ranks), from(ranks);  // by rank
  for (int i = 0; i != ranks * ranks; ++i) {
    const auto [out, in] = make_sockets();
    to[i / ranks].push_back(out), from[i % ranks].push_back(in);
  }
  return hvd::fork_run(ranks, [&](hvd::ShmTransport& started) {
    const int rank = started.rank();
    // The sockets so far are open in all processes. Those of a split have one owner, so that they tell when it ends.
    SocketTransport comm = SocketTransport(rank, to[rank], from[rank]).split(0, rank);
    std::vector<float> gradient(1000, static_cast<float>(rank + 1));
    hvd::allreduce(comm, gradient, hvd::average);           // the algorithm is chosen by size,
    hvd::allreduce(comm, gradient, hvd::max, hvd::tree{});  // or named
    if (rank == 0) std::printf("%g\n", gradient[0]);
  });
} catch (const hvd::error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 2;
}
