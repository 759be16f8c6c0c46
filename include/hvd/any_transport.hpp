// hvd/any_transport.hpp: a transport whose type is chosen at run time.
#pragma once

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/config.hpp>
#include <hvd/detail/tagged_message.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/error.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/shared_memory/tagged_messages.hpp>
#include <hvd/tensors.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/shm.hpp>
#include <hvd/within.hpp>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

/// One of the calls in hvd/call.hpp.
using any_call = std::variant<const allreduce_call*, const reduce_call*, const reduce_scatter_call*,
                              const allgather_call*, const broadcast_call*, const alltoall_call*, const gather_call*,
                              const scatter_call*, const scan_call*, const exscan_call*>;

/// The transport in an any_transport: all that engines need of it, and more. The arguments of all calls have been
/// checked.
class any_transport_base : public erased_transport {
 public:
  using erased_transport::erased_transport;

  /// See MpiTransport.
  virtual void require_threads(std::string_view who) = 0;
  /// See arguments::check, and the functions of these names.
  virtual void check_arguments(const arguments& found) = 0;
  virtual bool checks() = 0;
  virtual void compare(const descriptor& own) = 0;
  /// With HVD_CHECK: throws if tensors of a list overlap.
  virtual void check_distinct(std::span<const fused> tensors) = 0;
  /// By the transport's default algorithm.
  virtual void run_any(any_call call) = 0;
  /// By the transport's own collective; see Native.
  virtual bool native(any_call call) = 0;

  [[nodiscard]] virtual std::unique_ptr<any_transport_base> split_any(int color, int key) = 0;
  [[nodiscard]] virtual std::unique_ptr<any_transport_base> without_lost_any() = 0;
  [[nodiscard]] virtual shared_array<std::byte> alloc_shared(std::size_t bytes) = 0;
  [[nodiscard]] virtual shared_array<std::byte> map_shared(int fd, std::size_t bytes) = 0;
  [[nodiscard]] virtual std::vector<int> host_of() const = 0;
  [[nodiscard]] virtual std::string_view timeline_name() const noexcept = 0;
  virtual void set_timeout(std::chrono::duration<double> timeout) = 0;
  virtual void set_interruption(const interruption& by) = 0;
  virtual void abort() noexcept = 0;
  [[nodiscard]] virtual std::unique_ptr<message_channel> tagged_messages() = 0;
  [[nodiscard]] virtual std::shared_ptr<void> limit_waits(wait_limit limit) = 0;
  /// The transport if it is the one that `type` identifies (see type_mark), otherwise null.
  [[nodiscard]] virtual void* target(const char* type) noexcept = 0;
};

/// Its address identifies T, also without RTTI.
template <class T>
inline constexpr char type_mark = 0;

template <class T>
class any_transport_of final : private owned_transport<T>, public erased_transport_on<T, any_transport_base> {
  using on = erased_transport_on<T, any_transport_base>;

 public:
  explicit any_transport_of(T comm) : owned_transport<T>{std::move(comm)}, on(owned_transport<T>::owned) {}

  void require_threads(std::string_view who) override {
    if constexpr (requires { T::require_threads(who); }) T::require_threads(who);
  }
  void check_arguments(const arguments& found) override { found.check(this->comm_); }
  bool checks() override { return detail::checks(this->comm_); }
  void compare(const descriptor& own) override {
    if constexpr (PointToPoint<T> || PeerMemory<T>) detail::compare(this->comm_, own);
  }
  void check_distinct(std::span<const fused> tensors) override { detail::check_distinct(this->comm_, tensors); }
  void run_any(any_call call) override {
    std::visit([this](auto* c) { detail::run(this->comm_, *c, automatic<>{}); }, call);
  }
  bool native(any_call call) override {
    return std::visit([this](auto* c) { return native_on(this->comm_, *c); }, call);
  }

  [[nodiscard]] std::unique_ptr<any_transport_base> split_any(int color, int key) override {
    if constexpr (Splitting<T>) {
      return std::make_unique<any_transport_of>(this->comm_.split(color, key));
    } else {
      this->refuse("split", on::lacks_split);
    }
  }
  [[nodiscard]] std::unique_ptr<any_transport_base> without_lost_any() override {
    if constexpr (requires { this->comm_.without_lost(); }) {
      return std::make_unique<any_transport_of>(this->comm_.without_lost());
    } else {
      this->refuse("without_lost", "without_lost");
    }
  }
  [[nodiscard]] shared_array<std::byte> alloc_shared(std::size_t bytes) override {
    if constexpr (requires { this->comm_.template alloc_shared<std::byte>(bytes); }) {
      return this->comm_.template alloc_shared<std::byte>(bytes);
    } else {
      this->refuse("alloc_shared", "alloc_shared");
    }
  }
  [[nodiscard]] shared_array<std::byte> map_shared(int fd, std::size_t bytes) override {
    if constexpr (requires { this->comm_.template map_shared<std::byte>(fd, bytes); }) {
      return this->comm_.template map_shared<std::byte>(fd, bytes);
    } else {
      return {};
    }
  }
  [[nodiscard]] std::vector<int> host_of() const override {
    if constexpr (requires { this->comm_.host_of(); }) {
      return this->comm_.host_of();
    } else {
      std::vector<int> hosts(static_cast<std::size_t>(this->size()));
      if constexpr (!PeerMemory<T>) std::iota(hosts.begin(), hosts.end(), 0);
      return hosts;
    }
  }
  [[nodiscard]] std::string_view timeline_name() const noexcept override { return timeline_name_of<T>; }
  void set_timeout(std::chrono::duration<double> timeout) override {
    if constexpr (requires { this->comm_.set_timeout(timeout); }) this->comm_.set_timeout(timeout);
  }
  void set_interruption(const interruption& by) override {
    if constexpr (requires { this->comm_.set_interruption(by); }) this->comm_.set_interruption(by);
  }
  void abort() noexcept override {
    if constexpr (requires { this->comm_.abort(); }) this->comm_.abort();
  }
  [[nodiscard]] std::unique_ptr<message_channel> tagged_messages() override {
    if constexpr (PeerMemory<T> && Splitting<T>) {
      return std::make_unique<tagged_messages_of<T>>(this->comm_.split(0, this->rank()));
    } else if constexpr (requires { this->comm_.tagged_messages(); }) {
      return this->comm_.tagged_messages();
    } else {
      fail(error_kind::unsupported,
           {"rank ", this->rank(), " of ", this->size(),
            ": this transport has no tagged messages; those with common memory and MpiTransport "
            "have them"});
    }
  }
  [[nodiscard]] std::shared_ptr<void> limit_waits(wait_limit limit) override {
    return detail::shared_limit(this->comm_, limit);
  }
  [[nodiscard]] void* target(const char* type) noexcept override {
    return type == &type_mark<T> ? &this->comm_ : nullptr;
  }

 private:
  template <class U, class Call>
  static bool native_on(U& comm, const Call& c) {
    if constexpr (Native<U, Call>) {
      return comm.native(c);
    } else {
      return false;
    }
  }
};

/// The transport's name in HVD_TRANSPORT: that of its collectives in a timeline, in lower case.
template <class T>
std::string transport_name() {
  std::string name(timeline_name_of<T>);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

}  // namespace detail

/// A transport on the host whose type is known at run time only: a program that chooses between shared memory and MPI
/// when it starts compiles each collective for both here, and its own code once. Move-only. Every collective, list of
/// tensors, `send`, `recv` and `exchange` work on it, with the results, errors and limits of the transport that it
/// holds; by default they run that transport's default algorithm. Algorithms by name, and an `automatic` with a
/// tuning of your own, run over its messages; `native`
/// is the transport's own collective. For its other functions, use `target`. An Engine over it is one over that
/// transport. One that was moved from can only be assigned to, or destroyed. Cost: one virtual call for each
/// collective, or with an algorithm by name for each message.
class any_transport {
 public:
  static constexpr std::string_view timeline_name = "ANY";  ///< see timeline_name_of

  /// Holds `transport`.
  template <SendRecv T>
    requires(!std::derived_from<T, any_transport> && memory_of<T> == memory_kind::host)
  explicit any_transport(T transport)  // NOLINT(bugprone-forwarding-reference-overload): by value
      : held_(std::make_unique<detail::any_transport_of<T>>(std::move(transport))) {}

  /// Joins the job that the environment describes, over ShmTransport or one of `Others`.
  /// `transport`, or if it is null the variable HVD_TRANSPORT, names it by its timeline_name in lower case: "shm";
  /// "mpi" for MpiTransport or for a Hierarchical between hosts that MPI connects; "tcp" for those of TcpTransport.
  /// "auto", the default, stands for "shm" if all ranks are on one host, otherwise for the first of `Others`. Errors:
  /// invalid_argument for another name; those of the transport's `from_environment`.
  template <class... Others>
  static any_transport from_environment(const char* transport = nullptr) {
    static_assert(((timeline_name_of<Others> != timeline_name_of<ShmTransport>)&&...),
                  "hvd: from_environment<T...>() chooses between ShmTransport and other transports");
    const std::string names[] = {detail::transport_name<ShmTransport>(), detail::transport_name<Others>()...};
    const char* const given = transport != nullptr ? transport : std::getenv("HVD_TRANSPORT");
    std::string wanted = given == nullptr ? "auto" : given;
    if (wanted == "auto") wanted = names[std::size(names) > 1 && spans_hosts() ? 1 : 0];
    std::optional<any_transport> made;
    const auto join = [&]<class T>(std::type_identity<T>) {
      if (!made && wanted == detail::transport_name<T>()) made.emplace(T::from_environment());
    };
    join(std::type_identity<ShmTransport>{});
    (join(std::type_identity<Others>{}), ...);
    if (made) return std::move(*made);
    std::string allowed = "auto";
    for (const std::string& name : names) allowed += ", " + name;
    detail::fail(error_kind::invalid_argument,
                 {detail::assignment(transport != nullptr ? "transport" : "HVD_TRANSPORT", wanted),
                  " is not a transport of this program; allowed: ", allowed});
  }

  /// The rank of the caller in the group, from 0; and the number of ranks.
  [[nodiscard]] int rank() const noexcept { return held_->rank(); }
  [[nodiscard]] int size() const noexcept { return held_->size(); }

  /// See the functions of the transport that it holds.
  void barrier() { held_->barrier(); }
  void send(const std::byte* data, std::size_t bytes, int peer) { held_->send(data, bytes, peer); }
  void recv(std::byte* data, std::size_t bytes, int peer) { held_->recv(data, bytes, peer); }
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    held_->exchange(out, out_bytes, to, in, in_bytes, from);
  }
  /// These do nothing on a transport that has no such function.
  void set_timeout(std::chrono::duration<double> timeout) { held_->set_timeout(timeout); }
  void set_interruption(const interruption& by) { held_->set_interruption(by); }
  void abort() noexcept { held_->abort(); }
  /// See MpiTransport::require_threads; other transports have no such limit.
  void require_threads(std::string_view who) { held_->require_threads(who); }
  /// A number for each rank's host; ranks with common memory have the same one.
  [[nodiscard]] std::vector<int> host_of() const { return held_->host_of(); }
  /// The timeline_name of the transport that it holds.
  [[nodiscard]] std::string_view held_name() const noexcept { return held_->timeline_name(); }
  /// For hvd::queue: many messages at once, with tags; collective. Errors: unsupported.
  [[nodiscard]] std::unique_ptr<detail::message_channel> tagged_messages() { return held_->tagged_messages(); }
  [[nodiscard]] any_transport split(int color, int key) { return any_transport(held_->split_any(color, key)); }
  /// See ShmTransport::without_lost. Errors: unsupported on a transport that has no such function.
  [[nodiscard]] any_transport without_lost() { return any_transport(held_->without_lost_any()); }

  /// n elements of this rank, zero at first, which the ranks share if the transport can; collective.
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    const std::size_t most = std::size_t{PTRDIFF_MAX} / sizeof(T);
    return elements<T>(held_->alloc_shared(n <= most ? n * sizeof(T) : std::size_t{PTRDIFF_MAX}), n);
  }
  /// See ShmTransport::map_shared; empty on a transport that has no such function.
  template <class T>
  [[nodiscard]] shared_array<T> map_shared(int fd, std::size_t n) {
    return elements<T>(held_->map_shared(fd, n * sizeof(T)), n);
  }

  /// The transport itself if it is a T, otherwise null. It lives as long as this object, wherever that is moved.
  template <class T>
  [[nodiscard]] T* target() noexcept {
    return static_cast<T*>(held_->target(&detail::type_mark<T>));
  }

  /// For hvd::within: limits waits until the returned object is destroyed.
  [[nodiscard]] std::shared_ptr<void> limit_waits(detail::wait_limit limit) { return held_->limit_waits(limit); }

  /// For the collectives' functions: a call whose arguments have been checked, by the transport's default algorithm,
  /// or by its own collective (see Native).
  template <class Call>
  void run(const Call& call)
    requires std::constructible_from<detail::any_call, const Call*>
  {
    held_->run_any(&call);
  }
  template <class Call>
  bool native(const Call& call)
    requires std::constructible_from<detail::any_call, const Call*>
  {
    return held_->native(&call);
  }
  /// For the collectives' functions: throws if a problem was found, as on the transport that it holds.
  void check_arguments(const detail::arguments& found) { held_->check_arguments(found); }
  /// For them: whether ranks compare their calls, and the comparison.
  [[nodiscard]] bool checks() { return held_->checks(); }
  void compare(const detail::descriptor& own) { held_->compare(own); }

 private:
  friend void allreduce(any_transport& comm, const tensor_list& list, dynamic_op op);
  friend void broadcast(any_transport& comm, const tensor_list& list, int root);
  friend detail::any_transport_base& erase(any_transport& comm) noexcept { return *comm.held_; }

  explicit any_transport(std::unique_ptr<detail::any_transport_base> held) : held_(std::move(held)) {}

  template <class T>
  static shared_array<T> elements(shared_array<std::byte> bytes, std::size_t n) {
    if (bytes.empty()) return {};
    T* const data = reinterpret_cast<T*>(bytes.data());
    return {data, n, std::make_shared<shared_array<std::byte>>(std::move(bytes))};
  }
  static bool spans_hosts() {
    const config job = config::from_environment();
    return job.local_size != job.size;
  }

  std::unique_ptr<detail::any_transport_base> held_;
};

static_assert(PointToPoint<any_transport> && Native<any_transport, allreduce_call>);

/// Lists of tensors: see the functions in hvd/fusion.hpp. A buffer, if the transport needs one, is kept.
inline void allreduce(any_transport& comm, const tensor_list& list, dynamic_op op = {}) {
  comm.held_->check_distinct(list);
  comm.held_->allreduce(list, op);
}
/// Every rank gets the root's tensors.
inline void broadcast(any_transport& comm, const tensor_list& list, int root = 0) { comm.held_->broadcast(list, root); }

}  // namespace hvd::inline HVD_ABI
