// hvd/transport/tcp.hpp: ranks connected by TCP, on one host or on many, without an MPI.
#pragma once

#include <hvd/call.hpp>
#include <hvd/config.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/siphash.hpp>
#include <hvd/error.hpp>
#include <hvd/policy.hpp>
#include <hvd/selection.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/tcp/group.hpp>
#include <hvd/transport/tcp/meet.hpp>
#include <hvd/transport/tcp/tagged_messages.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// Where rank 0 of a TcpTransport listens for the others, for a program that wants any free port: it makes this, tells
/// the others `address()`, and gives it to rank 0's transport.
class TcpListener {
 public:
  /// `address`: "HOST:PORT" of this host; port 0 is any free one. `secret`: see TcpTransport. Errors: invalid_argument,
  /// system (the port is in use, no such host).
  TcpListener(std::string_view address, std::string_view secret)
      : listener_(std::make_shared<detail::tcp_listener>(detail::tcp_address(address), detail::tcp_key(secret))) {}

  /// "10.0.0.1:40123". For a listener at "0.0.0.0" the address is that, and the port the one to tell.
  [[nodiscard]] std::string address() const { return listener_->address().text(); }

 private:
  friend class TcpTransport;
  std::shared_ptr<detail::tcp_listener> listener_;
};

/// Ranks connected by TCP, each with each. It is slow inside a host: Hierarchical<ShmTransport, TcpTransport> uses it
/// between hosts alone. Move-only; groups made by `split` may outlive it.
///
/// * Only processes that know the job's secret can connect (meet.hpp). What the ranks send is neither encrypted nor
///   signed, as with an MPI, NCCL or Gloo: use it in a network that you trust.
/// * A rank that ends without having left is noticed at once by all that wait, on every host, and named. (If it has
/// sent
///   messages that a rank has not yet received, that rank notices when it waits for it.) A host that is gone is noticed
///   after some 8 s; a rank that does not answer, at failure_policy::timeout.
/// * Each group has a connection for each pair of its ranks; a rank of an engine on two levels has some 6 for each
///   other rank.
class TcpTransport {
 public:
  using options = failure_policy;
  static constexpr std::string_view timeline_name = "TCP";  ///< see timeline_name_of

  /// Connects `size` ranks; collective. Rank 0 listens at `address`, "HOST:PORT", and the others find it there; each
  /// then listens on a port of its own, on the network by which it has reached rank 0. `secret` is the same text on all
  /// ranks, of at least 16 characters, and no other user's process may know it: 32 random hexadecimal digits, for
  /// example.
  ///
  /// Errors: invalid_argument (a rank out of range, an address without a port, a short secret), system (the port is in
  /// use, no such host), timeout (ranks that do not come within failure_policy::start_timeout), mismatch (another
  /// secret; ranks that differ in their version of hvd or in the size, or two with one number: on all that have come).
  /// Cost: some milliseconds.
  TcpTransport(int rank, int size, std::string_view address, std::string_view secret,
               const options& opts = options::from_environment())
      : TcpTransport(join(rank, size, address, secret, nullptr, opts)) {}
  /// As rank 0 of `size`, with a listener.
  TcpTransport(TcpListener listener, int size, const options& opts = options::from_environment())
      : TcpTransport(join(0, size, {}, {}, std::move(listener.listener_), opts)) {}

  /// Joins the job that the environment describes (hvd/config.hpp): rank and size as a launcher sets them, and
  /// HVD_TCP_ADDRESS and HVD_TCP_SECRET, which are `address` and `secret`. hvdrun sets them all if it starts ranks of
  /// several hosts without an MPI. Errors: invalid_argument, which names the variable; those of the constructor.
  static TcpTransport from_environment() {
    const config c = config::from_environment();
    const char* const address = std::getenv("HVD_TCP_ADDRESS");
    const char* const secret = std::getenv("HVD_TCP_SECRET");
    if (c.size > 1 && (address == nullptr || secret == nullptr)) {
      detail::fail(error_kind::invalid_argument,
                   {"rank ", c.rank, " of ", c.size, ": ", address == nullptr ? "HVD_TCP_ADDRESS" : "HVD_TCP_SECRET",
                    " is not set, so ranks cannot meet over TCP: start them with hvdrun --gloo, or give all ranks"
                    " \"HOST:PORT\" of rank 0 and a secret"});
    }
    return TcpTransport(c.rank, c.size, address == nullptr ? "" : address, secret == nullptr ? "" : secret);
  }

  TcpTransport(TcpTransport&&) noexcept = default;
  TcpTransport& operator=(TcpTransport&&) noexcept = default;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;
  ~TcpTransport() = default;

  /// The rank of this process in the group, from 0; and the number of ranks.
  [[nodiscard]] int rank() const noexcept { return group_->rank(); }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  /// No rank leaves before all have entered; log p messages. Errors: peer_lost, timeout, aborted.
  void barrier() { group_->barrier("barrier"); }

  /// Messages in bytes, as PointToPoint describes them, of any length; `hvd::send` and `hvd::recv` take buffers. A rank
  /// may send to itself, which makes a copy. Errors: invalid_argument (no such rank, or a message to itself that was
  /// never sent), peer_lost, timeout, aborted; of `recv` also mismatch, for a message of another length, which is
  /// dropped.
  void send(const std::byte* data, std::size_t bytes, int peer) {
    group_->check_peer("send", peer);
    group_->transfer("send", channel::user, data, bytes, peer, nullptr, 0, -1);
  }
  /// See `send`.
  void recv(std::byte* data, std::size_t bytes, int peer) {
    group_->check_peer("recv", peer);
    group_->transfer("recv", channel::user, nullptr, 0, -1, data, bytes, peer);
  }
  /// Sends and receives at once, so that neither waits for the other. See `send`.
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    for (const int peer : {to, from}) group_->check_peer("exchange", peer);
    group_->transfer("exchange", channel::user, out, out_bytes, to, in, in_bytes, from);
  }

  /// True if a message from `peer`, or its beginning, has arrived; a system call. Errors: invalid_argument if there is
  /// no such rank; those that have ended the group.
  [[nodiscard]] bool arrived(int peer) { return group_->arrived(peer); }
  /// Throws peer_lost if any rank is lost or has left the group, and the reason if a rank has failed. See Probing.
  void check() { group_->check(); }
  /// The rank for which the thread of this rank currently waits, or -1; also in the first microseconds of a wait. Any
  /// thread may call this, as long as the transport is neither moved nor destroyed.
  [[nodiscard]] int waiting_for() const noexcept { return group_->waiting_for(); }

  /// Changes failure_policy::timeout for later operations. For one call: hvd::within.
  void set_timeout(options::seconds timeout) noexcept { group_->set_timeout(timeout); }
  [[nodiscard]] options::seconds timeout() const noexcept { return group_->failure().timeout; }
  /// Sets a callback that can end later waits.
  void set_interruption(const interruption& by) noexcept { group_->set_interruption(by); }
  /// Ends the group: this rank's waits end with an error of kind aborted, and so do those of the others as soon as this
  /// one has noticed. Any thread may call this.
  void abort() noexcept { group_->abort(); }
  /// Ends the group for a reason that was found elsewhere, in another group of the same ranks: the waits of the other
  /// ranks end at once, with an error of this kind that names `rank`. The thread that uses the group calls this.
  void abort(error_kind kind, int rank) noexcept { group_->abort(kind, rank); }

  /// Collective: ranks with the same color form a group, ordered by key and then by rank here; see no_group. Errors:
  /// those of `barrier`, and those of connecting. Cost: a connection to each other rank of the new group.
  [[nodiscard]] TcpTransport split(int color, int key) {
    struct wish {
      int color, key, rank, unused;
      std::uint64_t number;
    };
    const auto wishes = group_->share("split", wish{color, key, rank(), 0, detail::random_word()});
    std::vector<wish> members;
    for (const wish& w : wishes) {
      if (detail::same_group(w.color, w.rank, color, rank())) members.push_back(w);
    }
    std::sort(members.begin(), members.end(),
              [](const wish& a, const wish& b) { return std::tuple(a.key, a.rank) < std::tuple(b.key, b.rank); });
    auto part = std::make_shared<address_book>();
    part->listener = book_->listener;
    int mine = 0;
    for (const wish& w : members) {
      if (w.rank == rank()) mine = static_cast<int>(part->addresses.size());
      part->addresses.push_back(book_->addresses[static_cast<std::size_t>(w.rank)]);
    }
    std::vector<detail::tcp_peer> peers(members.size());
    connect(*part, mine, members.front().number, peers, 0, "split on " + group_->label(),
            detail::deadline_after(group_->failure().start_timeout), [this] { group_->check(); });
    return TcpTransport(std::move(part), mine, std::move(peers), group_->failure());
  }

  /// A channel for many messages at once between the ranks of this group, with connections of its own; collective.
  /// Errors: those of `split`.
  [[nodiscard]] std::unique_ptr<detail::message_channel> tagged_messages() {
    TcpTransport own = split(0, rank());
    return std::make_unique<detail::tcp_messages>(own.group_->take_peers(), group_->label());
  }

  /// n elements of this rank, zero at first, in private memory. It exists so that programs run on every transport.
  /// Errors: no_memory.
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    return detail::private_array<T>(n, group_->label());
  }

  /// The measured costs of this group and the user's choices, for `automatic`: see Selecting.
  [[nodiscard]] selector& selection() noexcept { return selection_; }

 private:
  using channel = detail::tcp_header::channel;
  using connections = std::vector<detail::tcp_peer>;

  /// The way to the ranks of a group.
  struct address_book {
    std::shared_ptr<detail::tcp_listener> listener;
    std::vector<detail::tcp_address> addresses;  // of their listeners
  };

  TcpTransport(std::shared_ptr<address_book> at, int rank, connections connected, const options& opts)
      : book_(std::move(at)), group_(std::make_unique<detail::tcp_group>(rank, std::move(connected), opts)) {}

  /// Connects `mine` to the other ranks of a group, from rank `first` on: first to those before it, then it accepts the
  /// others, so that no two wait for each other.
  /// `still_whole()` throws if one of them is lost.
  template <class Check>
  static void connect(const address_book& at, int mine, std::uint64_t number, connections& connected, int first,
                      const std::string& who, detail::tcp_clock::time_point until, const Check& still_whole) {
    const int size = static_cast<int>(at.addresses.size());
    detail::tcp_introduction own;
    own.group = number;
    own.rank = mine;
    own.size = size;
    for (int q = first; q < mine; ++q) {
      const auto to = static_cast<std::size_t>(q);
      own.to = q;
      connected[to] =
          detail::tcp_peer(detail::tcp_connect(at.addresses[to], at.listener->key(), own, who, false, until));
    }
    for (int missing = size - std::max(mine + 1, first); missing > 0;) {
      const auto now = detail::tcp_clock::now();
      auto arrival = at.listener->next(number, std::min(until, now + std::chrono::milliseconds(100)));
      if (!arrival && now < until) {
        still_whole();
        continue;
      }
      if (!arrival) {
        int q = std::max(mine + 1, first);
        while (connected[static_cast<std::size_t>(q)].connection()) ++q;
        detail::fail(error_kind::timeout, {who, ": rank ", q, " did not connect in time"}, q);
      }
      const int q = arrival->who.rank;
      if (arrival->who.to != mine || q < first || q <= mine || q >= size ||
          connected[static_cast<std::size_t>(q)].connection())
        continue;
      connected[static_cast<std::size_t>(q)] = detail::tcp_peer(std::move(arrival->socket));
      --missing;
    }
  }

  /// The answer of rank 0 to those that have come: the addresses of all follow, or what is wrong.
  struct answer {
    std::uint64_t number = 0;
    std::array<char, 256> problem{};
    std::uint64_t kind = 0;
  };
  struct address_text {
    std::array<char, 64> text{};
  };

  static TcpTransport join(int rank, int size, std::string_view address, std::string_view secret,
                           std::shared_ptr<detail::tcp_listener> listener, const options& opts) {
    if (size < 1 || rank < 0 || rank >= size) {
      detail::fail(error_kind::invalid_argument,
                   {"TcpTransport: rank ", rank, " of ", size, "; allowed: at least one rank, numbered from 0"});
    }
    detail::check_limit("failure_policy::timeout", opts.timeout);
    detail::check_limit("failure_policy::start_timeout", opts.start_timeout);
    const std::string who = detail::joined({"TcpTransport on rank ", rank, " of ", size});
    auto at = std::make_shared<address_book>();
    connections connected(static_cast<std::size_t>(size));
    if (size == 1) {
      at->addresses.resize(1);
      return TcpTransport(std::move(at), 0, std::move(connected), opts);
    }
    const auto until = detail::deadline_after(opts.start_timeout);
    const std::uint64_t number = rank == 0
                                     ? accept_all(*at, size, address, secret, std::move(listener), connected, until)
                                     : introduce(*at, rank, size, address, secret, connected, who, until);
    if (rank != 0) connect(*at, rank, number, connected, 1, who, until, [] {});
    return TcpTransport(std::move(at), rank, std::move(connected), opts);
  }

  /// Rank 0: waits for the others, and sends all of them the addresses. Returns the number of the group.
  static std::uint64_t accept_all(address_book& at, int size, std::string_view address, std::string_view secret,
                                  std::shared_ptr<detail::tcp_listener> listener, connections& connected,
                                  detail::tcp_clock::time_point until) {
    at.listener = listener
                      ? std::move(listener)
                      : std::make_shared<detail::tcp_listener>(detail::tcp_address(address), detail::tcp_key(secret));
    at.addresses.resize(connected.size());
    std::vector<detail::tcp_socket> come(connected.size()), others;
    answer said;
    said.number = detail::random_word() | 1;  // 0 is that of the job
    const auto problem = [&](error_kind kind, std::initializer_list<detail::piece> what) {
      if (said.problem[0] != '\0') return;
      detail::joined(what).copy(said.problem.data(), said.problem.size() - 1);
      said.kind = static_cast<std::uint64_t>(kind);
    };
    for (int missing = size - 1; missing > 0 && said.problem[0] == '\0'; --missing) {
      auto arrival = at.listener->next(0, until);
      if (!arrival) {
        std::string who;
        for (int q = 1; q != size; ++q) {
          if (!come[static_cast<std::size_t>(q)]) who += (who.empty() ? "" : ", ") + std::to_string(q);
        }
        problem(error_kind::timeout,
                {"rank(s) ", who, " of ", size, " did not connect in time (HOROVOD_START_TIMEOUT)"});
        break;
      }
      const detail::tcp_introduction& g = arrival->who;
      std::array<char, 24> own_version{};
      version.copy(own_version.data(), own_version.size() - 1);
      if (g.version != own_version) {
        problem(error_kind::mismatch, {"ranks 0 and ", g.rank, " run different versions of hvd: ", version, " and ",
                                       std::string(g.version.data(), ::strnlen(g.version.data(), g.version.size())),
                                       "; build both from the same headers"});
      } else if (g.size != size) {
        problem(error_kind::mismatch, {"rank 0 is of ", size, " ranks and rank ", g.rank, " of ", g.size,
                                       "; give all ranks the same number"});
      } else if (g.rank < 1 || g.rank >= size || come[static_cast<std::size_t>(g.rank)]) {
        problem(error_kind::mismatch, {"two processes claim rank ", g.rank, "; each rank needs its own number"});
      } else {
        const auto q = static_cast<std::size_t>(g.rank);
        at.addresses[q] = detail::tcp_address::of(arrival->socket.fd(), ::getpeername).with_port(g.port);
        if (at.addresses[q].size() == 0) {
          problem(error_kind::peer_lost, {"rank ", g.rank, detail::is_lost});
          break;
        }
        come[q] = std::move(arrival->socket);
        continue;
      }
      others.push_back(std::move(arrival->socket));
    }
    std::vector<address_text> texts(connected.size());
    for (std::size_t q = 1; q != texts.size(); ++q) at.addresses[q].text().copy(texts[q].text.data(), 63);
    const auto soon = detail::tcp_clock::now() + std::chrono::seconds(5);
    for (const auto* list : {&come, &others}) {
      for (const detail::tcp_socket& s : *list) {
        if (!s || !s.write_all(&said, sizeof said, soon) || said.problem[0] != '\0') continue;
        static_cast<void>(s.write_all(texts.data(), texts.size() * sizeof texts.front(), soon));
      }
    }
    if (said.problem[0] != '\0') detail::fail(detail::kind_of(said.kind), {"TcpTransport: ", said.problem.data()});
    for (std::size_t q = 1; q != come.size(); ++q) connected[q] = detail::tcp_peer(std::move(come[q]));
    return said.number;
  }
  /// Another rank: connects to rank 0, and gets the addresses.
  static std::uint64_t introduce(address_book& at, int rank, int size, std::string_view address,
                                 std::string_view secret, connections& connected, const std::string& who,
                                 detail::tcp_clock::time_point until) {
    const detail::tcp_address first(address);
    const detail::secret_key key = detail::tcp_key(secret);
    // Its listener is on the network by which rank 0 is reached, which a connected socket tells.
    detail::tcp_socket probe = detail::tcp_socket::open(first.family(), SOCK_DGRAM);
    if (!probe || ::connect(probe.fd(), first.data(), first.size()) != 0) {
      const int why = errno;
      detail::fail(error_kind::system, {who, ": no way to ", first.text(), ": ", std::strerror(why)});
    }
    at.listener = std::make_shared<detail::tcp_listener>(detail::tcp_address::of(probe.fd()).with_port(0), key);
    detail::tcp_introduction own;
    own.rank = rank;
    own.size = size;
    own.port = at.listener->address().port();
    detail::tcp_socket s = detail::tcp_connect(first, key, own, who, true, until);
    // Rank 0 waits for others as long as this one does, and then says who is missing.
    const auto answer_until = until == detail::tcp_clock::time_point::max() ? until : until + std::chrono::seconds(5);
    answer said;
    std::vector<address_text> texts(static_cast<std::size_t>(size));
    const bool answered = s.read_all(&said, sizeof said, answer_until);
    if (answered && said.problem[0] != '\0') {
      detail::fail(detail::kind_of(said.kind), {"TcpTransport: ", said.problem.data()});
    }
    if (!answered || !s.read_all(texts.data(), texts.size() * sizeof texts.front(), answer_until)) {
      const int why = errno;
      detail::fail(why == ETIMEDOUT ? error_kind::timeout : error_kind::peer_lost,
                   {who, ": no answer from rank 0 at ", first.text(), ": ", detail::tcp_problem(why)}, 0);
    }
    at.addresses.push_back(first);
    for (std::size_t q = 1; q != texts.size(); ++q) at.addresses.emplace_back(texts[q].text.data());
    connected[0] = detail::tcp_peer(std::move(s));
    return said.number;
  }

  std::shared_ptr<address_book> book_;
  std::unique_ptr<detail::tcp_group> group_;
  selector selection_;
};

static_assert(Transport<TcpTransport> && Splitting<TcpTransport> && Probing<TcpTransport> && Selecting<TcpTransport> &&
              !PeerMemory<TcpTransport>);

}  // namespace hvd::inline HVD_ABI
