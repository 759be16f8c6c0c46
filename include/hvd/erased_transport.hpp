// hvd/erased_transport.hpp: what an engine needs of a transport on the host, whose type it does not know.
//
// An engine takes microseconds for an operation, so it can call its transport through virtual functions, and is
// compiled once for all transports.
#pragma once

#include <hvd/algorithm/automatic.hpp>
#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/error.hpp>
#include <hvd/fusion.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/tensors.hpp>
#include <hvd/transport.hpp>

#if HVD_COMPILED
#include <hvd/transport/shm.hpp>
#endif

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The name of a collective over the transport or device T, which begins with its `timeline_name`.
template <class T>
class activities_on {
  template <std::size_t N>
  static constexpr auto joined(const char (&rest)[N]) {
    std::array<char, timeline_name_of<T>.size() + N> text{};
    std::copy_n(rest, N, std::copy(timeline_name_of<T>.begin(), timeline_name_of<T>.end(), text.begin()));
    return text;
  }
  static constexpr auto allreduce = joined("_ALLREDUCE"), allgather = joined("_ALLGATHER"),
                        reduce_scatter = joined("_REDUCESCATTER"), alltoall = joined("_ALLTOALL");
  static constexpr auto broadcast = joined("_BCAST");

 public:
  static constexpr const char* name(operation kind) noexcept {
    switch (kind) {
      case operation::allreduce: return allreduce.data();
      case operation::allgather: return allgather.data();
      case operation::broadcast: return broadcast.data();
      case operation::reduce_scatter: return reduce_scatter.data();
      case operation::alltoall: return alltoall.data();
      default: return "RUN";
    }
  }
};

/// A transport on the host. See hvd/transport.hpp for the functions that transports have, and FusionBuffer for those on
/// several tensors. The arguments of all calls have been checked. It satisfies Probing.
class erased_transport {
 public:
  erased_transport(int rank, int size) noexcept : rank_(rank), size_(size) {}
  erased_transport(const erased_transport&) = delete;
  erased_transport& operator=(const erased_transport&) = delete;
  virtual ~erased_transport() = default;

  [[nodiscard]] erased_transport& self() noexcept { return *this; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  virtual void barrier() = 0;
  [[nodiscard]] virtual std::unique_ptr<erased_transport> split(int color, int key) = 0;

  /// Errors: unsupported if an engine cannot use this transport.
  virtual void require_engine() = 0;
  /// The name of a collective in a timeline, such as "SHM_ALLREDUCE".
  [[nodiscard]] virtual const char* activity(operation kind) const noexcept = 0;

  virtual void send(const std::byte* data, std::size_t bytes, int peer) = 0;
  virtual void recv(std::byte* data, std::size_t bytes, int peer) = 0;
  virtual void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes,
                        int from) = 0;
  virtual bool arrived(int peer) = 0;
  virtual void check() = 0;
  /// Tells the other ranks, if the transport can, that the group has ended because of `rank`. See TcpTransport::abort.
  virtual void end(error_kind kind, int rank) noexcept = 0;
  /// The rank that the collective under way waits for, or -1. Any thread.
  [[nodiscard]] virtual int waiting_for() const noexcept = 0;
  /// Null without common memory.
  [[nodiscard]] virtual peer_memory* peers() noexcept = 0;
  /// True in a simulation, where time passes only in `await_arrival`: until one of these ranks has sent a message.
  [[nodiscard]] virtual bool simulated() const noexcept = 0;
  virtual void await_arrival(std::span<const int> peers) = 0;

  virtual void run(const allgather_call& call) = 0;
  virtual void run(const broadcast_call& call) = 0;
  virtual void run(const alltoall_call& call) = 0;

  using counts_of_each = std::span<const std::vector<std::size_t>>;
  virtual void threshold(std::size_t bytes) = 0;
  virtual void allreduce(std::span<const fused> tensors, const dynamic_op& op) = 0;
  virtual void adasum(std::span<const fused> tensors, double prescale, double postscale) = 0;
  virtual void broadcast(std::span<const fused> tensors, int root) = 0;
  virtual void allgather(std::span<const fused> tensors, counts_of_each counts) = 0;
  virtual void reduce_scatter(std::span<const fused> tensors, counts_of_each counts, const dynamic_op& op) = 0;
  [[nodiscard]] virtual shared_array<std::byte> bucket(std::size_t bytes) = 0;

 private:
  const int rank_, size_;
};
static_assert(Probing<erased_transport>);

template <class T>
class erased_transport_of;

/// A T of the caller's, as an erased_transport or as a class that adds to it.
template <class T, class Base = erased_transport>
class erased_transport_on : public Base {
 public:
  explicit erased_transport_on(T& comm) : Base(comm.rank(), comm.size()), comm_(comm) {}

  void barrier() override { comm_.barrier(); }
  [[nodiscard]] std::unique_ptr<erased_transport> split(int color, int key) override {
    if constexpr (Splitting<T>) {
      return std::make_unique<erased_transport_of<T>>(comm_.split(color, key));
    } else {
      refuse("split", lacks_split);
    }
  }
  void require_engine() override {
    if constexpr (requires { T::require_threads(""); }) T::require_threads("Engine");
    if constexpr (!Probing<T>) refuse("Engine", lacks_probing);
    if constexpr (!Splitting<T>) refuse("Engine", lacks_split);
  }
  [[nodiscard]] const char* activity(operation kind) const noexcept override { return activities_on<T>::name(kind); }

  void send(const std::byte* data, std::size_t bytes, int peer) override { comm_.send(data, bytes, peer); }
  void recv(std::byte* data, std::size_t bytes, int peer) override { comm_.recv(data, bytes, peer); }
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes,
                int from) override {
    if constexpr (PointToPoint<T>) {
      comm_.exchange(out, out_bytes, to, in, in_bytes, from);
    } else {
      refuse("exchange", lacks_probing);
    }
  }
  bool arrived(int peer) override {
    if constexpr (Probing<T>) {
      return comm_.arrived(peer);
    } else {
      refuse("arrived", lacks_probing);
    }
  }
  void check() override {
    if constexpr (Probing<T>) comm_.check();
  }
  void end(error_kind kind, int rank) noexcept override {
    if constexpr (requires { comm_.abort(kind, rank); }) comm_.abort(kind, rank);
  }
  [[nodiscard]] int waiting_for() const noexcept override {
    if constexpr (requires { comm_.waiting_for(); }) return comm_.waiting_for();
    return -1;
  }
  [[nodiscard]] peer_memory* peers() noexcept override {
    if constexpr (PeerMemory<T>) return &comm_.peers();
    return nullptr;
  }
  [[nodiscard]] bool simulated() const noexcept override { return waits_in_simulation; }
  void await_arrival(std::span<const int> peers) override {
    if constexpr (waits_in_simulation) {
      comm_.await_arrival(peers);
    } else {
      refuse("await_arrival", lacks_probing);
    }
  }

  using Base::run;
  void run(const allgather_call& call) override { detail::run(comm_, call, automatic<>{}); }
  void run(const broadcast_call& call) override { detail::run(comm_, call, automatic<>{}); }
  void run(const alltoall_call& call) override { detail::run(comm_, call, automatic<>{}); }

  void threshold(std::size_t bytes) override { fusion_.threshold(bytes); }
  void allreduce(std::span<const fused> tensors, const dynamic_op& op) override { fusion_.allreduce(tensors, op); }
  void adasum(std::span<const fused> tensors, double prescale, double postscale) override {
    fusion_.adasum(tensors, prescale, postscale);
  }
  void broadcast(std::span<const fused> tensors, int root) override { fusion_.broadcast(tensors, root); }
  void allgather(std::span<const fused> tensors, typename Base::counts_of_each counts) override {
    fusion_.allgather(tensors, counts);
  }
  void reduce_scatter(std::span<const fused> tensors, typename Base::counts_of_each counts,
                      const dynamic_op& op) override {
    fusion_.reduce_scatter(tensors, counts, op);
  }
  [[nodiscard]] shared_array<std::byte> bucket(std::size_t bytes) override {
    return fusion_.template bucket<std::byte>(bytes);
  }

 protected:
  static constexpr bool waits_in_simulation = requires(T& t) { t.await_arrival(std::span<const int>{}); };

  static constexpr std::string_view lacks_probing = "exchange, arrived or check (see Probing in hvd/transport.hpp)",
                                    lacks_split = "split (see Splitting in hvd/transport.hpp)";
  [[noreturn]] void refuse(std::string_view what, std::string_view lacking) const {
    fail(error_kind::unsupported, {what, " on rank ", this->rank(), " of ", this->size(), ": this transport lacks ",
                                   lacking, ", which this needs"});
  }

  T& comm_;
  FusionBuffer<T> fusion_{comm_};  // kept, because without common memory it has a buffer
};

/// A base that comes before those that refer to `owned`, so that it is made first and destroyed last.
template <class T>
struct owned_transport {
  T owned;
};

/// A T that it owns.
template <class T>
class erased_transport_of final : private owned_transport<T>, public erased_transport_on<T> {
 public:
  explicit erased_transport_of(T comm)
      : owned_transport<T>{std::move(comm)}, erased_transport_on<T>(owned_transport<T>::owned) {}
};

#if HVD_COMPILED
extern template class erased_transport_on<ShmTransport>;
extern template class erased_transport_of<ShmTransport>;
#endif

}  // namespace hvd::inline HVD_ABI::detail

namespace hvd::inline HVD_ABI {

/// The erased_transport, `erase(comm).self()`, on which an engine over `comm` is made; used during the call alone.
template <Probing T>
  requires Splitting<T>
detail::erased_transport_on<T> erase(T& comm) {
  return detail::erased_transport_on<T>(comm);
}
/// A transport of which that function exists, found by its argument, such as any_transport.
template <class T>
concept CarriesEngine = requires(T& comm) {
  { erase(comm).self() } -> std::same_as<detail::erased_transport&>;
};

}  // namespace hvd::inline HVD_ABI
