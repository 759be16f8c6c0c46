// hvd/transport/tcp/meet.hpp: connections between processes that prove to each other that they know the job's secret.
//
// Each process has a listener. A process that connects to it sends a random number; the listener answers with a number
// of its own, and with a code of both numbers under the secret (siphash.hpp). Then the process introduces itself, with
// such a code of the numbers and of its introduction. Nothing is read further before its code is right, and a listener
// serves others while one is slow.
#pragma once

#include <hvd/detail/random_word.hpp>
#include <hvd/detail/siphash.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/tcp/socket.hpp>
#include <hvd/version.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Errors: invalid_argument for a secret that could be guessed.
inline secret_key tcp_key(std::string_view secret) {
  if (secret.size() < 16) {
    fail(error_kind::invalid_argument, {"the secret of a job over TCP has ", secret.size(),
                                        " characters; allowed: at least 16, which nobody can guess"});
  }
  return key_of(secret);
}

/// The introduction of a process that connects. The first two members are the same in all versions.
struct tcp_introduction {
  std::uint64_t code = 0;  ///< of the numbers and of all that follows
  std::array<char, 24> version{};
  std::uint64_t group = 0;  ///< the number of the group that it joins; 0 to find the others of a job
  std::int32_t rank = 0, size = 0;
  std::int32_t port = 0;  ///< of its own listener
  std::int32_t to = 0;    ///< the rank that it wants to reach
};
struct tcp_hello {
  std::array<char, 8> greeting{'h', 'v', 'd', ' ', 't', 'c', 'p', '1'};
  std::uint64_t number = 0;
};
struct tcp_challenge {
  std::uint64_t number = 0, code = 0;
};

inline std::uint64_t tcp_code(const secret_key& key, std::uint64_t who, std::uint64_t arrival, std::uint64_t host,
                              const tcp_introduction* said = nullptr) {
  std::array<std::uint64_t, 3 + sizeof(tcp_introduction) / 8> words{who, arrival, host};
  if (said != nullptr) std::memcpy(words.data() + 3, &said->version, sizeof *said - sizeof said->code);
  return siphash(key, std::as_bytes(std::span(words)));
}

/// A process that has come, and its connection.
struct tcp_arrival {
  tcp_socket socket;
  tcp_introduction who;
};

/// The socket to which the other processes of a job connect. Any thread may use it.
class tcp_listener {
 public:
  /// Errors: system if it cannot listen there.
  explicit tcp_listener(const tcp_address& at, const secret_key& key)
      : key_(key), socket_(tcp_socket::open(at.family())) {
    if (socket_.fd() >= 0) socket_.set(SOL_SOCKET, SO_REUSEADDR, 1);
    if (socket_.fd() < 0 || ::bind(socket_.fd(), at.data(), at.size()) != 0 || ::listen(socket_.fd(), SOMAXCONN) != 0) {
      const int why = errno;
      fail(error_kind::system, {"cannot listen at ", at.text(), ": ", std::strerror(why),
                                why == EADDRINUSE ? "; another program uses this port: choose another one" : ""});
    }
  }

  [[nodiscard]] tcp_address address() const noexcept { return tcp_address::of(socket_.fd()); }
  [[nodiscard]] const secret_key& key() const noexcept { return key_; }

  /// The next process that has come to join a group; none until a time. One thread serves the socket for all. Errors:
  /// system if the process has no descriptors left.
  std::optional<tcp_arrival> next(std::uint64_t group, tcp_clock::time_point until) {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (const auto found = arrived_.find(group); found != arrived_.end()) {
        tcp_arrival first = std::move(found->second.front());
        found->second.pop_front();
        if (found->second.empty()) arrived_.erase(found);
        return first;
      }
      const auto now = tcp_clock::now();
      if (now >= until || socket_.fd() < 0) return std::nullopt;
      const auto turn = std::min(until, now + std::chrono::milliseconds(50));
      if (serving_) {
        changed_.wait_until(lock, turn);
        continue;
      }
      serving_ = true;
      lock.unlock();
      std::list<tcp_arrival> come;
      const int problem = serve(turn, come);
      lock.lock();
      serving_ = false;
      for (tcp_arrival& a : come) arrived_[a.who.group].push_back(std::move(a));
      changed_.notify_all();
      if (problem != 0) {
        fail(error_kind::system, {"cannot accept a connection: ", std::strerror(problem), "; raise ulimit -n"});
      }
    }
  }

 private:
  static constexpr std::chrono::milliseconds greeting_limit{10'000};
  static constexpr std::size_t most_greetings = 64;  // others wait in the kernel

  /// A process that has not yet proved that it knows the secret.
  struct greeting {
    tcp_socket socket;
    tcp_clock::time_point since = tcp_clock::now();
    tcp_hello hello{};
    tcp_introduction said{};
    std::size_t got = 0;
    std::uint64_t number = 0;
  };

  /// Returns errno if there is no descriptor for a process that wants to connect.
  int serve(tcp_clock::time_point until, std::list<tcp_arrival>& come) {
    std::vector<pollfd> ready;
    for (const greeting& g : greetings_) ready.push_back({g.socket.fd(), POLLIN, 0});
    if (greetings_.size() < most_greetings) ready.push_back({socket_.fd(), POLLIN, 0});
    tcp_socket::poll_until(ready.data(), ready.size(), until);
    const bool knocked = greetings_.size() < most_greetings && ready.back().revents != 0;
    std::size_t i = 0;
    for (auto g = greetings_.begin(); g != greetings_.end(); ++i) {
      const bool keep = ready[i].revents == 0 ? tcp_clock::now() - g->since < greeting_limit : advance(*g, come);
      g = keep ? std::next(g) : greetings_.erase(g);
    }
    while (knocked && greetings_.size() < most_greetings) {
      tcp_socket next = tcp_socket::accepted(socket_.fd());
      if (!next) return errno == EMFILE || errno == ENFILE ? errno : 0;
      greetings_.push_back({std::move(next)});
    }
    return 0;
  }
  /// Reads on; false if it has come to an end, good or bad.
  bool advance(greeting& g, std::list<tcp_arrival>& come) {
    for (;;) {
      const bool first = g.got < sizeof g.hello;
      auto* const to = first ? reinterpret_cast<std::byte*>(&g.hello) + g.got
                             : reinterpret_cast<std::byte*>(&g.said) + (g.got - sizeof g.hello);
      const std::size_t end = sizeof g.hello + (first ? 0 : sizeof g.said);
      const auto n = g.socket.read(to, end - g.got);
      if (!n || *n == 0) return n.has_value();
      g.got += *n;
      if (g.got != end) continue;
      if (!first) break;
      if (g.hello.greeting != tcp_hello{}.greeting) return false;
      g.number = random_word();
      const tcp_challenge challenge{g.number, tcp_code(key_, 'd', g.hello.number, g.number)};
      // A new socket takes it at once.
      if (g.socket.write(&challenge, sizeof challenge) != sizeof challenge) return false;
    }
    if (g.said.code != tcp_code(key_, 'k', g.hello.number, g.number, &g.said)) return false;
    g.socket.prepare();
    come.push_back({std::move(g.socket), g.said});
    return false;
  }

  const secret_key key_;
  tcp_socket socket_;
  std::list<greeting> greetings_;  // of the thread that serves
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false;
  std::map<std::uint64_t, std::list<tcp_arrival>> arrived_;
};

/// Connects to the listener of rank `mine.to`; if it `may_open_later`, until a time. Errors: timeout, peer_lost;
/// mismatch if the listener does not know the secret.
inline tcp_socket tcp_connect(const tcp_address& at, const secret_key& key, tcp_introduction mine, std::string_view who,
                              bool may_open_later, tcp_clock::time_point until) {
  std::copy_n(version.begin(), std::min(version.size(), mine.version.size() - 1), mine.version.begin());
  int why = ETIMEDOUT;
  for (backoff rest(paces::connecting);; rest.step()) {
    tcp_socket s = tcp_socket::open(at.family());
    if (!s) {
      why = errno;
      fail(error_kind::system, {who, ": no socket: ", std::strerror(why)});
    }
    tcp_hello hello;
    hello.number = random_word();
    tcp_challenge challenge;
    if (::connect(s.fd(), at.data(), at.size()) != 0 && errno != EINPROGRESS) {
      why = errno;
    } else if (!s.write_all(&hello, sizeof hello, until) || !s.read_all(&challenge, sizeof challenge, until)) {
      why = errno;
    } else if (challenge.code != tcp_code(key, 'd', hello.number, challenge.number)) {
      fail(error_kind::mismatch, {who, ": the listener at ", at.text(),
                                  " does not know this job's secret; give all ranks the same secret and address"});
    } else {
      mine.code = tcp_code(key, 'k', hello.number, challenge.number, &mine);
      if (s.write_all(&mine, sizeof mine, until)) {
        s.prepare();
        return s;
      }
      why = errno;
    }
    const bool gone = !may_open_later && (why == ECONNREFUSED || why == ECONNRESET || why == 0);
    if (!gone && tcp_clock::now() < until) continue;
    fail(gone ? error_kind::peer_lost : error_kind::timeout,
         {who, ": cannot connect to rank ", mine.to, " at ", at.text(), ": ", tcp_problem(why)}, mine.to);
  }
}

}  // namespace hvd::inline HVD_ABI::detail
