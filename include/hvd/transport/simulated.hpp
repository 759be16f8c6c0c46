// hvd/transport/simulated.hpp: any number of ranks in one thread with virtual clocks, to study scaling without a
// cluster.
#pragma once

#include <hvd/call.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/simulated/ranks.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/mman.h>

namespace hvd::inline HVD_ABI {

template <class F>
simulation simulate(int np, const network& net, F&& f, const simulation_options& opts = {});

/// A rank of a simulation: see `simulate`. Messages carry their bytes and take virtual time, by the rules of `network`;
/// everything else takes none, unless the program requests it (`spend`, `charged`). Valid only inside `simulate`.
class SimulatedTransport {
 public:
  using options = simulation_options;

  SimulatedTransport(SimulatedTransport&&) noexcept = default;
  SimulatedTransport& operator=(SimulatedTransport&&) noexcept = default;

  /// The number of this rank in the group, from 0; and the number of ranks.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(group_->members.size()); }
  /// The host of this rank in the network, counted from 0 in the whole simulation. `split(host(), rank())` makes a
  /// group of the ranks of each host.
  [[nodiscard]] int host() const noexcept { return ranks_->host(world()); }
  /// Virtual seconds of this rank since the simulation began.
  [[nodiscard]] double now() const noexcept { return ranks_->now(); }
  /// Advances the clock of this rank, as for work other than messages. Errors: invalid_argument for seconds below 0.
  void spend(double seconds) {
    if (!(seconds >= 0 && std::isfinite(seconds))) {
      throw error(error_kind::invalid_argument,
                  place("spend").text() + ": " + std::to_string(seconds) + " seconds; allowed: 0 or more");
    }
    ranks_->spend(seconds);
  }
  /// True if this rank's messages carry bytes, and its charged kernels compute: see simulation_options. A program may
  /// switch it off after a first part whose messages matter.
  [[nodiscard]] bool payload() const noexcept { return ranks_->payload(); }
  void payload(bool on) noexcept { ranks_->payload() = on; }

  /// The same operation with kernels that also make the calling rank spend (bytes of the result) /
  /// network::reduction_rate, times (inputs - 1) if there are more than two inputs. A charged operation stays as it is.
  /// Valid in this simulation only. Errors: unsupported for more than 64 different kernels.
  [[nodiscard]] reduction charged(const reduction& op) {
    constexpr auto& kernels = detail::charging_kernels;
    if (std::find(kernels.begin(), kernels.end(), op.fold) != kernels.end()) return op;
    const std::size_t i = ranks_->price({op.fold, op.element_bytes / op.components});
    if (i == kernels.size()) {
      throw error(error_kind::unsupported, place("charged").text() + ": a simulation charges for at most " +
                                               std::to_string(i) + " different kernels");
    }
    reduction result = op;
    result.fold = kernels[i];
    return result;
  }

  /// Messages as PointToPoint describes them. `send` returns when the message has left this rank, after its overhead
  /// and its bytes / bandwidth; it never waits for the receiver. Errors: invalid_argument if there is no such rank;
  /// mismatch, of `recv`, for a message of another length, which is dropped. If no rank can go on, every waiting rank
  /// gets an error that lists all waits: peer_lost if the reason is a rank that has failed or returned, otherwise
  /// timeout. Its text has ranks of the whole simulation, error::rank is a rank of this group.
  void send(const std::byte* data, std::size_t bytes, int peer) { send_as("send", data, bytes, peer); }
  /// See `send`.
  void recv(std::byte* data, std::size_t bytes, int peer) { recv_as("recv", data, bytes, peer); }
  /// Both directions at once. See `send`.
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    check_peer("exchange", from);
    send_as("exchange", out, out_bytes, to);
    recv_as("exchange", in, in_bytes, from);
  }
  /// True if a message from `peer`, or its beginning, has arrived: see Probing. Takes no virtual time, so a loop that
  /// only calls this never ends; `await_arrival` or `spend` lets time pass. Errors: those of `recv` if nothing has
  /// arrived.
  [[nodiscard]] bool arrived(int peer) {
    check_peer("arrived", peer);
    return ranks_->arrived(place("arrived"), peer);
  }
  /// Blocks until a message from one of these ranks, itself included, has arrived completely; `recv` then takes no more
  /// time for the first of them. Errors: those of `recv`, and invalid_argument for no ranks.
  void await_arrival(std::span<const int> peers) {
    for (const int peer : peers) check_peer("await_arrival", peer);
    if (peers.empty()) {
      throw error(error_kind::invalid_argument,
                  place("await_arrival").text() + ": no ranks to wait for; name at least one");
    }
    ranks_->await_arrival(place("await_arrival"), peers);
  }
  /// Errors: those of `send` if no rank can go on. See Probing.
  void check() { ranks_->check(place("check")); }
  /// Always -1: while a rank waits, no other thread could ask. See ShmTransport::waiting_for.
  [[nodiscard]] int waiting_for() const noexcept { return -1; }
  /// Without effect: a wait in virtual time ends with an error when no rank can go on.
  void set_timeout(std::chrono::duration<double> /*timeout*/) noexcept {}
  [[nodiscard]] std::chrono::duration<double> timeout() const noexcept { return {}; }  ///< always 0: no limit
  /// No rank leaves before all have entered: ceil(log2 p) messages without bytes from each rank. (D. Hensgen, R.
  /// Finkel, U. Manber, "Two algorithms for barrier synchronization", 1988: dissemination.) Errors: those of `send`.
  void barrier() { meet("barrier"); }

  /// Collective: ranks with the same color form a group, ordered by key and then by rank here; see no_group. Takes the
  /// time of a barrier. Errors: those of `send`.
  [[nodiscard]] SimulatedTransport split(int color, int key) {
    const std::size_t number = splits_++;
    const auto self = static_cast<std::size_t>(rank_);
    splitting& s = group_->splits[number];
    s.wishes.resize(group_->members.size());
    s.wishes[self] = {color, key, rank_};
    meet("split");
    if (s.places.empty()) plan(s);
    SimulatedTransport result(*ranks_, s.places[self].first, s.places[self].second);
    if (++s.taken == s.wishes.size()) group_->splits.erase(number);
    return result;
  }

  /// n elements, zero at first. No other rank can access them, so they bring no advantage here. Errors: no_memory.
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    if (n == 0) return {};
    const std::size_t bytes = n <= std::size_t{PTRDIFF_MAX} / sizeof(T) ? n * sizeof(T) : PTRDIFF_MAX;
    void* const memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw error(error_kind::no_memory, place("alloc_shared").text() + ": no memory for " + std::to_string(n) +
                                             " elements of " + std::to_string(sizeof(T)) +
                                             " bytes: " + std::strerror(errno));
    }
    std::shared_ptr<void> owner(memory, [bytes](void* p) { ::munmap(p, bytes); });
    return {static_cast<T*>(memory), n, std::move(owner)};
  }

 private:
  template <class F>
  friend simulation simulate(int np, const network& net, F&& f, const simulation_options& opts);

  struct group;
  struct splitting {
    struct wish {
      int color, key, rank;
    };
    std::vector<wish> wishes;
    std::vector<std::pair<std::shared_ptr<group>, int>> places;  // by old rank: the new group, and the rank there
    std::size_t taken = 0;
  };
  struct group {
    std::vector<int> members;  // ranks of the whole simulation
    std::uint32_t context;
    std::map<std::size_t, splitting> splits;  // splits in progress
  };

  SimulatedTransport(detail::simulated_ranks& ranks, std::shared_ptr<group> g, int rank)
      : ranks_(&ranks), group_(std::move(g)), rank_(rank) {}

  [[nodiscard]] int world() const noexcept { return group_->members[static_cast<std::size_t>(rank_)]; }
  [[nodiscard]] detail::simulated_place place(std::string_view operation) const noexcept {
    return {operation, group_->members, rank_, group_->context};
  }
  void check_peer(std::string_view operation, int peer) const {
    if (peer >= 0 && peer < size()) return;
    throw error(error_kind::invalid_argument, place(operation).text() + ": there is no rank " + std::to_string(peer) +
                                                  "; allowed: 0 to " + std::to_string(size() - 1));
  }
  void send_as(std::string_view operation, const std::byte* data, std::size_t bytes, int peer) {
    check_peer(operation, peer);
    ranks_->send(place(operation), data, bytes, peer);
  }
  void recv_as(std::string_view operation, std::byte* data, std::size_t bytes, int peer) {
    check_peer(operation, peer);
    const std::size_t sent = ranks_->receive(place(operation), data, bytes, peer);
    if (sent == bytes) return;
    throw error(error_kind::mismatch,
                place(operation).text() + ": expected " + std::to_string(bytes) + " bytes from rank " +
                    std::to_string(peer) + " but it sent " + std::to_string(sent) + "; the message was dropped",
                peer);
  }
  void meet(std::string_view operation) {
    const int p = size();
    for (int distance = 1; distance < p; distance *= 2) {
      send_as(operation, nullptr, 0, (rank_ + distance) % p);
      recv_as(operation, nullptr, 0, (rank_ + p - distance) % p);
    }
  }
  /// Called when all ranks have passed their color and key: makes the new groups of all ranks.
  void plan(splitting& s) {
    std::vector<splitting::wish> order = s.wishes;
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return std::tuple(a.color, a.key, a.rank) < std::tuple(b.color, b.key, b.rank);
    });
    s.places.resize(order.size());
    std::shared_ptr<group> next;
    for (std::size_t i = 0; i != order.size(); ++i) {
      if (i == 0 || !detail::same_group(order[i].color, order[i].rank, order[i - 1].color, order[i - 1].rank)) {
        next = std::make_shared<group>(group{{}, ranks_->new_context(), {}});
      }
      const auto old = static_cast<std::size_t>(order[i].rank);
      s.places[old] = {next, static_cast<int>(next->members.size())};
      next->members.push_back(group_->members[old]);
    }
  }
  detail::simulated_ranks* ranks_;
  std::shared_ptr<group> group_;
  int rank_;
  std::size_t splits_ = 0;
};

static_assert(Transport<SimulatedTransport> && Probing<SimulatedTransport> && !PeerMemory<SimulatedTransport>);

/// Runs f(SimulatedTransport&) on `np` ranks, in virtual time on the network `net`, and returns how long it takes
/// there. All ranks run in the calling thread, one at a time, each on a stack of its own: a rank runs until it waits
/// for a message. Every run gives the same times and the same results.
///
/// If a rank throws, the others run as far as they can without it; then they get errors that name it, and when all have
/// ended its exception is thrown again here. If no rank can go on for another reason, each rank that waits gets an
/// error, and the first of these is thrown here. Ranks must wait for one another by messages only: a wait for a mutex,
/// or for a variable that another rank sets, never ends.
///
/// Errors: invalid_argument for np out of 1 to 65,536, for numbers of the network or of the options out of range;
/// no_memory for the stacks. Cost: about a microsecond a message, a copy in and out of its bytes, and two pages of
/// memory a rank. A stack that overflows ends the program; with more than 16,384 ranks an overflow is not detected.
template <class F>
simulation simulate(int np, const network& net, F&& f, const simulation_options& opts) {
  if (np < 1 || np > 65536) detail::refuse_simulation("the number of ranks", np, "1 to 65536");
  detail::check(net);
  constexpr std::size_t least = std::size_t{16} << 10, most = std::size_t{1} << 30;
  if (opts.stack_bytes < least || opts.stack_bytes > most) {
    detail::refuse_simulation("stack_bytes", static_cast<double>(opts.stack_bytes), "16384 to 1073741824");
  }
  detail::simulated_ranks ranks(np, net, opts);
  const auto all = std::make_shared<SimulatedTransport::group>();
  all->members.resize(static_cast<std::size_t>(np));
  std::iota(all->members.begin(), all->members.end(), 0);
  all->context = ranks.new_context();
  return ranks.run([&](int rank) {
    SimulatedTransport comm(ranks, all, rank);
    f(comm);
  });
}

}  // namespace hvd::inline HVD_ABI
