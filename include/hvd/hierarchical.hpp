// hvd/hierarchical.hpp: a transport made of two: shared memory within a host, messages between hosts.
#pragma once

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/error.hpp>
#include <hvd/hierarchical/calls.hpp>
#include <hvd/hierarchical/host_map.hpp>
#include <hvd/hierarchical/hosts.hpp>
#include <hvd/policy.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The ranks of `Cross`, with a `Local` group for the ranks of each host: for example MpiTransport and ShmTransport.
/// Collectives run on both levels, so that each byte crosses between hosts once per host and not once per rank. With S
/// the bytes of the vector, N hosts and L ranks on each, one host sends
///
/// | call                          | bytes                        | instead of, without levels |
/// |-------------------------------|------------------------------|----------------------------|
/// | allreduce (ring in the lanes) | 2 S (N-1)/N                  | up to L times as much      |
/// | reduce, broadcast             | S on the way of the lanes    | up to L S                  |
/// | reduce_scatter, allgather     | S (N-1)/N                    | up to L times as much      |
/// | gather, scatter               | its ranks' blocks            | the same, in L messages    |
/// | alltoall                      | its ranks' blocks for others | the same                   |
/// | scan, exscan                  | as by `Cross` alone          | the same                   |
///
/// The number of lanes is the smallest number of ranks on any host; all lanes carry their slices of the data at the
/// same time. Small messages go through one rank of each host (hierarchy_sizes). With one rank on each host everything
/// goes to `Cross`, on a single host to `Local`. Reduce-scatter, allgather, gather and scatter, and operations that do
/// not commute, use both levels if hosts have consecutive ranks (the default of launchers), and `Cross` alone
/// otherwise. 16-bit floats are rounded once on each level.
///
/// rank() of an error is a rank of the whole group. The error's text is that of the level: in it, "rank 1 of 2" is a
/// rank of a local group or of a lane; the rank at fault among all ranks is at the end. Results have the same bits on
/// all ranks, and in every run with the same ranks on the same hosts and the same sizes.
///
/// (Two levels for MPI on clusters of shared-memory machines: S. Sistare, R. vandeVaart, E. Loh, "Optimization of MPI
/// collectives on clusters of large-scale SMPs", 1999; lanes: J. L. Traeff, S. Hunold, "Decomposing MPI collectives for
/// exploiting multi-lane communication", 2020.)
///
/// `Local` may be an NcclTransport (hvd/gpu.hpp). Then buffers lie on GPUs, NCCL connects the GPUs of a host, and data
/// for other hosts is copied to the host's memory and back. (NCCL alone can connect GPUs of several hosts; this is for
/// networks that only the MPI can use.)
template <Splitting Local, PointToPoint Cross>
  requires Splitting<Cross>
class Hierarchical {
 public:
  static constexpr std::string_view timeline_name = timeline_name_of<Cross>;
  static constexpr memory_kind memory = memory_of<Local>;
  struct options {
    hierarchy_sizes sizes{};    ///< sizes at which collectives change their protocol
    sharing_options sharing{};  ///< of the local groups

    static options from_environment() { return {.sizes = {}, .sharing = sharing_options::from_environment()}; }
  };

  /// Finds out which ranks of `world` can share memory, and builds the local groups; collective. If ranks of one host
  /// cannot share memory, for example because they are in separate containers, each counts as a host; a line on
  /// standard error reports this if HOROVOD_LOG_LEVEL is info, debug or trace. Cost: some messages, and the cost of
  /// joining a local group. Errors: mismatch, on all ranks, if they run different versions of hvd or have different
  /// HVD_JOB; those of `Local`'s constructor, on the ranks of that host, and aborted on all others; those of messages.
  static Hierarchical over(Cross world, const options& opts = options::from_environment())
    requires Bootstrap<Cross> && std::constructible_from<Local, Cross&, const sharing_options&>
  {
    detail::introduce(world);
    Cross neighbours = world.split(detail::neighbourhood(world), world.rank());
    if (!detail::share_memory(neighbours, opts.sharing.memory.directory))
      neighbours = neighbours.split(neighbours.rank(), 0);
    std::optional<Local> local;
    std::exception_ptr problem;
    try {
      local.emplace(neighbours, opts.sharing);
    } catch (const error&) {
      problem = std::current_exception();
    }
    const auto joined = detail::share_by_messages(world, static_cast<std::uint8_t>(local ? 1 : 0));
    if (problem) std::rethrow_exception(problem);
    if (const auto other = std::find(joined.begin(), joined.end(), 0); other != joined.end()) {
      const auto who = static_cast<int>(other - joined.begin());
      detail::fail(error_kind::aborted,
                   {"Hierarchical: rank ", who, " could not join the ranks of its host (see its own error)"}, who);
    }
    return Hierarchical(std::move(world), *std::move(local), opts.sizes);
  }

  /// Over the ranks of `Cross::from_environment()`. Errors: its own, and those of `over`.
  static Hierarchical from_environment()
    requires requires { Cross::from_environment(); }
  {
    return over(Cross::from_environment());
  }

  /// From two groups: all ranks, and those of this rank's host; collective. Errors: invalid_argument if the local
  /// groups are not a partition of the ranks.
  Hierarchical(Cross world, Local local, const hierarchy_sizes& sizes = {})
      : state_(std::make_unique<state>(std::move(world), std::move(local), sizes)) {}

  /// This rank, in the whole group.
  [[nodiscard]] int rank() const noexcept { return state_->world.rank(); }
  [[nodiscard]] int size() const noexcept { return state_->world.size(); }
  /// The number of hosts, and of lanes between them.
  [[nodiscard]] int hosts() const noexcept { return state_->map.hosts(); }
  [[nodiscard]] int lanes() const noexcept { return state_->map.lanes; }
  /// The host of each rank, from 0; hosts are numbered in the order of their local ranks 0.
  [[nodiscard]] const std::vector<int>& host_of() const noexcept { return state_->map.host_of; }
  /// The group of this host's ranks.
  [[nodiscard]] Local& local() noexcept { return state_->local; }

  /// No rank leaves before all have come. Errors: those of both transports.
  void barrier() { levels().barrier(); }

  /// All messages go through `Cross`, also to ranks of the same host: with one channel they arrive in order. See
  /// PointToPoint.
  void send(const std::byte* data, std::size_t bytes, int peer)
    requires(memory_of<Local> == memory_kind::host)
  {
    state_->world.send(data, bytes, peer);
  }
  /// See `send`.
  void recv(std::byte* data, std::size_t bytes, int peer)
    requires(memory_of<Local> == memory_kind::host)
  {
    state_->world.recv(data, bytes, peer);
  }
  /// See `send`.
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from)
    requires(memory_of<Local> == memory_kind::host)
  {
    state_->world.exchange(out, out_bytes, to, in, in_bytes, from);
  }

  /// See Probing. `check` looks at all levels.
  [[nodiscard]] bool arrived(int peer)
    requires Probing<Cross>
  {
    return state_->world.arrived(peer);
  }
  void check()
    requires Probing<Cross>
  {
    if constexpr (Probing<Local>) on_host([&] { state_->local.check(); });
    if (state_->lane) state_->lane->check();
    state_->world.check();
  }
  /// See TcpTransport::abort.
  void abort(error_kind kind, int rank) noexcept
    requires requires(Cross& c) { c.abort(kind, rank); }
  {
    state_->world.abort(kind, rank);
  }
  /// The rank of the whole group for which this rank's thread currently waits, on any level, or -1. Any thread may call
  /// this, as long as the transport is neither moved nor destroyed.
  [[nodiscard]] int waiting_for() const noexcept
    requires requires(const Local& l, const Cross& c) { l.waiting_for(), c.waiting_for(); }
  {
    const state& s = *state_;
    if (const int r = s.world.waiting_for(); r >= 0) return r;
    const auto me = static_cast<std::size_t>(s.world.rank());
    if (const int r = s.local.waiting_for(); r >= 0) return s.map.rank_of(s.map.host_of[me], r);
    const int host = s.lane ? s.lane->waiting_for() : -1;  // a lane has one rank of each host
    return host < 0 ? -1 : s.map.rank_of(host, s.map.local_of[me]);
  }

  /// Any collective, on both levels. See Native.
  template <class Call>
    requires std::invocable<detail::two_levels<Local, Cross>, const Call&>
  bool native(const Call& call) {
    levels()(call);
    return true;
  }

  /// The timeouts of the two transports, and sets them: each, or both to one.
  struct timeouts {
    failure_policy::seconds local, cross;
    friend bool operator==(const timeouts&, const timeouts&) = default;
  };
  [[nodiscard]] timeouts timeout() const noexcept
    requires requires(const Local& l, const Cross& c) {
      timeouts{l.timeout(), c.timeout()};
    }
  {
    return {state_->local.timeout(), state_->world.timeout()};
  }
  void set_timeout(const timeouts& both) noexcept
    requires requires(Local& l, Cross& c) { l.set_timeout(both.local), c.set_timeout(both.cross); }
  {
    state_->local.set_timeout(both.local);
    state_->world.set_timeout(both.cross);
    if (state_->lane) state_->lane->set_timeout(both.cross);
  }
  void set_timeout(failure_policy::seconds timeout) noexcept
    requires requires(Local& l, Cross& c) { l.set_timeout(timeout), c.set_timeout(timeout); }
  {
    set_timeout(timeouts{timeout, timeout});
  }
  void set_interruption(const interruption& by) noexcept
    requires requires(Local& l, Cross& c) { l.set_interruption(by), c.set_interruption(by); }
  {
    state_->local.set_interruption(by);
    state_->world.set_interruption(by);
    if (state_->lane) state_->lane->set_interruption(by);
  }

  /// See MpiTransport::require_threads.
  static void require_threads(std::string_view who)
    requires requires { Cross::require_threads(who); }
  {
    Cross::require_threads(who);
  }

  /// Collective: ranks with the same color form a group, ordered by key and then by rank here; see no_group.
  [[nodiscard]] Hierarchical split(int color, int key) {
    Cross world = state_->world.split(color, key);
    Local local = on_host([&] { return state_->local.split(color, world.rank()); });
    return Hierarchical(std::move(world), std::move(local), state_->sizes);
  }

  /// n elements on every rank, zero at first, which all ranks of the same host can access; collective.
  template <class T>
  [[nodiscard]] auto alloc_shared(std::size_t n) {
    return on_host([&] { return state_->local.template alloc_shared<T>(n); });
  }
  /// See MpiTransport.
  [[nodiscard]] auto tagged_messages()
    requires requires(Cross& c) { c.tagged_messages(); }
  {
    return state_->world.tagged_messages();
  }

  /// Like ShmTransport::map_shared, among the ranks of a host.
  template <class T>
  [[nodiscard]] auto map_shared(int fd, std::size_t n)
    requires requires(Local& l) { l.template map_shared<T>(fd, n); }
  {
    return on_host([&] { return state_->local.template map_shared<T>(fd, n); });
  }

 private:
  struct state {
    Cross world;
    Local local;
    hierarchy_sizes sizes;
    std::vector<detail::host_place> all_places;
    detail::host_map map;
    std::optional<Cross> lane;

    state(Cross w, Local l, const hierarchy_sizes& s)
        : world(std::move(w)), local(std::move(l)), sizes(s), all_places(places(world, local)), map(all_places) {
      const auto me = static_cast<std::size_t>(world.rank());
      const int host = map.host_of[me], place = map.local_of[me];
      Cross group = world.split(std::min(place, map.lanes), host);
      if (place < map.lanes) lane.emplace(std::move(group));
    }
  };

  [[nodiscard]] detail::two_levels<Local, Cross> levels() noexcept {
    state& s = *state_;
    return {s.local, s.lane ? &*s.lane : nullptr, s.world, s.map, s.sizes};
  }

  /// Runs f on the local group: errors name the rank at fault by its rank in the whole group.
  template <class F>
  auto on_host(const F& f) const -> decltype(f()) {
    const state& s = *state_;
    const int host = s.map.host_of[static_cast<std::size_t>(s.world.rank())];
    return detail::host_map::on_level(f, [&](int local) { return s.map.rank_of(host, local); });
  }

  static std::vector<detail::host_place> places(Cross& world, Local& local) {
    detail::host_place mine{world.rank(), local.rank(), local.size()};
    if constexpr (memory_of<Local> == memory_kind::host) {
      auto* const bytes = reinterpret_cast<std::byte*>(&mine.leader);
      detail::run(local, broadcast_call{bytes, bytes, sizeof mine.leader, 0}, automatic<>{});
    } else {
      auto there = local.template alloc_shared<int>(1);
      auto* const bytes = reinterpret_cast<std::byte*>(there.data());
      local.template copy_to_device<int>({&mine.leader, 1}, there.data());
      detail::run(local, broadcast_call{bytes, bytes, sizeof mine.leader, 0}, automatic<>{});
      local.template copy_to_host<int>(there.data(), {&mine.leader, 1});
    }
    auto all = detail::share_by_messages(world, mine);
    detail::check_places(all, world.rank());
    return all;
  }

  std::unique_ptr<state> state_;
};

}  // namespace hvd::inline HVD_ABI
