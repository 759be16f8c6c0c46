// hvd/collective/front_door.hpp: the common part of all collectives' functions: checks of arguments, and the way to an
// algorithm.
#pragma once

#include <hvd/algorithm/automatic.hpp>
#include <hvd/buffer.hpp>
#include <hvd/call.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/agree.hpp>
#include <hvd/transport.hpp>
#if HVD_COMPILED
#include <hvd/transport/shm.hpp>
#endif

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

template <class T>
const std::byte* bytes_of(std::span<T> s) noexcept {
  return reinterpret_cast<const std::byte*>(s.data());
}
template <class T>
std::byte* writable_bytes_of(std::span<T> s) noexcept {
  return reinterpret_cast<std::byte*>(s.data());
}

inline bool overlap(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) noexcept {
  const auto at_a = reinterpret_cast<std::uintptr_t>(a), at_b = reinterpret_cast<std::uintptr_t>(b);
  return a_bytes != 0 && b_bytes != 0 && at_a < at_b + b_bytes && at_b < at_a + a_bytes;
}

/// True if p is `offset` bytes after `base`. Also defined if that is too far for a pointer, which `arguments` refuses.
inline bool lies_at(const std::byte* p, const std::byte* base, std::size_t offset) noexcept {
  return reinterpret_cast<std::uintptr_t>(p) == reinterpret_cast<std::uintptr_t>(base) + offset;
}

/// The elements of `ranks` blocks of `each`; on overflow the largest number, which `arguments` refuses.
inline std::size_t blocks_of(std::size_t each, int ranks) noexcept {
  std::size_t all = 0;
  const bool wraps = __builtin_mul_overflow(each, static_cast<std::size_t>(ranks), &all);
  return wraps ? std::numeric_limits<std::size_t>::max() : all;
}

/// True if ranks without common memory, which would hold this setting for all, compare their calls: HVD_CHECK, which
/// must be the same on all ranks. False in a simulation whose messages carry no bytes.
template <class T>
bool checks_messages(T& comm) {
  static const bool on = [] {
    bool set = HVD_CHECK != 0;
    read_variable(variable_of_environment, "HVD_CHECK", set, parse_boolean);
    return set;
  }();
  if constexpr (requires { bool{comm.payload()}; }) {
    return on && comm.payload();
  } else {
    return on;
  }
}

/// True if ranks compare their calls before they move data.
template <class T>
bool checks(T& comm) {
  if constexpr (requires { comm.compare(descriptor{}); }) {
    return comm.checks();
  } else if constexpr (PeerMemory<T>) {
    return comm.peers().checks();
  } else if constexpr (PointToPoint<T>) {
    return checks_messages(comm);
  } else {
    return false;
  }
}

/// The values of all ranks, in rank order; by log p messages, whatever else the transport can do.
template <PointToPoint T, class Value>
std::vector<Value> share_by_messages(T& comm, const Value& own) {
  std::vector<Value> all(static_cast<std::size_t>(comm.size()));
  const partition blocks(comm.size(), 1, sizeof own);
  recursive_doubling{}(
      comm, allgather_call{reinterpret_cast<const std::byte*>(&own), reinterpret_cast<std::byte*>(all.data()), blocks});
  return all;
}

/// The equivalent of `agree` in common memory, by messages. Throws on all ranks if calls differ; the transport stays
/// usable.
template <class T>
void agree_by_messages(T& comm, const descriptor& own) {
  const std::vector<descriptor> all = share_by_messages(comm, own);
  const std::string label = joined({"rank ", comm.rank(), " of ", comm.size()});
  if (const auto why = disagreement(all, name(own.kind), label)) throw error(*why);
}

/// Compares the ranks' calls. Throws on all ranks if they differ; the transport stays usable.
template <class T>
void compare(T& comm, const descriptor& own) {
  if constexpr (requires { comm.compare(own); }) {
    comm.compare(own);
  } else if constexpr (PeerMemory<T>) {
    peer_memory::scope scope(comm.peers(), name(own.kind));
    agree(comm.peers(), own, scope);
    scope.leave();
  } else {
    agree_by_messages(comm, own);
  }
}

/// Checks the arguments of one call on one rank; the first problem counts.
class arguments {
 public:
  /// `suffix` completes the name of the called function, such as in allgather_v.
  arguments(operation kind, int rank, int size, const char* suffix = "")
      : kind_(kind), rank_(rank), size_(size), suffix_(suffix) {}

  template <class S>
  arguments& buffer(const char* name, const S& s) {
    return buffer(name, s.data(), s.size(), sizeof(typename S::value_type));
  }
  arguments& buffer(const char* name, const void* data, std::size_t count, std::size_t element_bytes) {
    if (count > most(element_bytes)) [[unlikely]]
      addressable(name, count, element_bytes);
    if (data == nullptr && count != 0) [[unlikely]]
      refuse({name, " is null but has ", count, " elements"});
    return *this;
  }
  /// Called before anything is computed from the number of elements: products with it, and pointers, could wrap around.
  [[gnu::noinline]] arguments& addressable(const char* name, std::size_t count, std::size_t element_bytes) {
    if (count > most(element_bytes)) {
      refuse({name, " has ", count, " elements of ", element_bytes, element_bytes == 1 ? " byte" : " bytes",
              ", more than can be addressed (a negative count?)"});
    }
    return *this;
  }
  arguments& equal(const char* what, std::size_t got, const char* wanted_what, std::size_t wanted) {
    if (got != wanted) {
      refuse({what, " has ", got, " elements; allowed: ", wanted, " (", wanted_what, ")"});
    }
    return *this;
  }
  /// The same number of elements for each rank.
  arguments& multiple(const char* what, std::size_t got) {
    if (got % static_cast<std::size_t>(size_) != 0) {
      refuse({what, " has ", got, " elements; allowed: a multiple of ", size_, ", the number of ranks"});
    }
    return *this;
  }
  arguments& root(int r) { return rank_of("root", r); }
  arguments& rank_of(const char* what, int r) {
    if (r < 0 || r >= size_) {
      refuse({what, " ", r, " is out of range; allowed: 0 to ", size_ - 1});
    }
    return *this;
  }
  [[gnu::noinline]] arguments& counts(const char* what, std::span<const std::size_t> c, std::size_t element_bytes) {
    if (c.size() != static_cast<std::size_t>(size_)) {
      refuse({what, " has ", c.size(), " entries; allowed: one for each of the ", size_, " ranks"});
    }
    std::size_t total = 0;
    for (const std::size_t n : c) {  // one by one: a sum that wraps around could fit
      if (n > most(element_bytes) - total) {
        refuse({what, " add up to more than ", most(element_bytes), " elements of ", element_bytes,
                element_bytes == 1 ? " byte" : " bytes", ", the most that can be addressed (a negative count?)"});
        break;
      }
      total += n;
    }
    return *this;
  }
  /// Input and output may overlap only if `in_place`: if the collective documents it.
  arguments& apart(const std::byte* in, std::size_t in_bytes, const std::byte* out, std::size_t out_bytes,
                   bool in_place) {
    if (!in_place && overlap(in, in_bytes, out, out_bytes)) {
      refuse({"input and output overlap; allowed: no common element, or in place as the collective documents"});
    }
    return *this;
  }
  [[gnu::noinline]] void refuse(std::initializer_list<piece> why) {
    if (problem_.empty()) problem_ = joined(why);
  }

  /// True if no problem was found.
  [[nodiscard]] bool valid() const noexcept { return problem_.empty(); }
  /// Throws if a problem was found. With HVD_CHECK the other ranks are informed and throw, too.
  template <class T>
  void check(T& comm) const {
    if (problem_.empty()) [[likely]]
      return;
    if constexpr (requires { comm.check_arguments(*this); }) {
      comm.check_arguments(*this);
    } else if constexpr (PeerMemory<T>) {
      if (comm.peers().checks() && comm.size() > 1) tell(comm.peers());
    } else if constexpr (PointToPoint<T>) {
      if (checks_messages(comm) && comm.size() > 1) tell_by_messages(comm);
    }
    check_alone();
  }
  /// The same for operations that not all ranks call.
  void check_alone() const {
    if (problem_.empty()) [[likely]]
      return;
    fail(error_kind::invalid_argument, {name(kind_), suffix_, " on rank ", rank_, " of ", size_, ": ", problem_},
         rank_);
  }

 private:
  static constexpr std::size_t most(std::size_t element_bytes) noexcept {
    return std::size_t{PTRDIFF_MAX} / element_bytes;
  }
  [[nodiscard]] descriptor invalid_call() const noexcept {
    descriptor d;
    d.kind = kind_;
    d.invalid = 1;
    if (*suffix_ != '\0') d.flags |= descriptor::with_counts;
    return d;
  }
  template <class T>
  void tell_by_messages(T& comm) const {
    try {
      agree_by_messages(comm, invalid_call());
    } catch (const error& e) {
      if (e.kind() != error_kind::invalid_argument) throw;  // such as a lost peer
    }
  }
  void tell(peer_memory& m) const {
    peer_memory::scope scope(m, name(kind_));
    try {
      agree(m, invalid_call(), scope);
    } catch (const error&) {
      if (m.failed()) throw;
    }
    scope.leave();
  }

  operation kind_;
  int rank_;
  int size_;
  const char* suffix_;
  std::string problem_;
};

// ---- a group of one on the host: nothing to communicate ------------------------------------------------------

inline void move(std::byte* out, const std::byte* in, std::size_t bytes) noexcept {
  if (out != in) copy_bytes(out, in, bytes);
}
template <class Call>
void run_alone(const Call& c) {
  const extent all = extent_of(c);
  if constexpr (Call::kind == operation::exscan) {
    // rank 0 has no ranks before it
  } else if constexpr (Reducing<Call>) {
    if (all.count != 0 && (c.in != c.out || c.op.scales())) c.op.complete(&c.out, 1, &c.in, 1, all.count);
  } else if constexpr (requires { c.send; }) {
    move(c.out, c.in, c.send.bytes(0));
  } else {
    move(c.out, c.in, all.bytes());
  }
}

template <class A>
inline constexpr bool is_automatic = false;
template <class Tuning>
inline constexpr bool is_automatic<automatic<Tuning>> = true;

template <class A>
constexpr bool keeps_rank_order() {
  if constexpr (requires { bool{A::rank_ordered}; }) {
    return A::rank_ordered;
  } else {
    return false;
  }
}

/// A hash of the algorithm and its tunables, so that ranks can compare them; 0 for the default on common memory. For an
/// algorithm without a `name` the hash is that of its type.
template <class T, class A>
std::uint16_t algorithm_hash(const A& how) {
  if constexpr (is_automatic<A> && PeerMemory<T>) {
    return 0;  // `direct`
  } else {
    if constexpr (std::is_same_v<A, direct>) {
      if (how == direct{}) return 0;
    }
    std::uint64_t h = 0;
    if constexpr (requires {
                    { name(how) } -> std::convertible_to<std::string_view>;
                  }) {
      h = text_hash(name(how));
    } else {
      h = text_hash(__PRETTY_FUNCTION__);
    }
    return static_cast<std::uint16_t>(h >> 48);
  }
}

/// Runs a checked call by this algorithm.
template <class T, class Call, class A>
void run_by(T& comm, const Call& call, const A& how) {
  if constexpr (memory_of<T> == memory_kind::host) {
    if (comm.size() == 1) return run_alone(call);
  }
  if constexpr (Reducing<Call>) {
    if (!keeps_rank_order<A>() && !call.op.commutative) {
      fail(error_kind::unsupported,
           {name(Call::kind), " on rank ", comm.rank(), " of ", comm.size(),
            ": this algorithm does not combine ranks in order, which a non-commutative reduction needs; use "
            "automatic, direct, native, tree, double_tree, recursive_doubling or halving_doubling"});
    }
  }
  if constexpr (PointToPoint<T> || PeerMemory<T>) {
    if (checks(comm)) [[unlikely]] {
      descriptor d = describe(call);
      d.algorithm = algorithm_hash<T>(how);
      compare(comm, d);
    }
  }
  if constexpr (requires { comm.charged(call.op); }) {  // in a simulation, reductions take time
    const reduction charged = comm.charged(call.op);
    how(comm, call.with(charged));
  } else {
    how(comm, call);
  }
}

/// Runs a checked call.
template <class T, class Call, class A>
void run(T& comm, const Call& call, const A& how) {
  static_assert(
      Answers<A, T, Call>,
      "hvd: this algorithm cannot do this collective on this transport: it needs a capability that the "
      "transport lacks (direct needs PeerMemory; native a collective of the transport's own; within a timeout; all "
      "others need PointToPoint), or has no such collective");
  if constexpr (requires { how.limit_waits(comm, Call::kind); }) {  // see hvd::within
    const auto limited = how.limit_waits(comm, Call::kind);
    run(comm, call, how.algorithm);
  } else if constexpr (Choosing<T, Call> && std::is_same_v<A, automatic<>>) {
    comm.run(call);
  } else {
    run_by(comm, call, how);
  }
}

#if HVD_COMPILED
extern template void run(ShmTransport&, const allreduce_call&, const automatic<>&);
extern template void run(ShmTransport&, const reduce_call&, const automatic<>&);
extern template void run(ShmTransport&, const reduce_scatter_call&, const automatic<>&);
extern template void run(ShmTransport&, const broadcast_call&, const automatic<>&);
extern template void run(ShmTransport&, const allgather_call&, const automatic<>&);
#endif

/// The span of a pointer whose length results from counts: the blocks of all ranks, or one of them. (The number of
/// counts is checked later.)
template <class E>
std::span<E> all_blocks(E* data, std::span<const std::size_t> counts) {
  return {data, partition(counts, 1).total_count()};
}
template <class E>
std::span<E> one_block(E* data, std::span<const std::size_t> counts, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return {data, r < counts.size() ? counts[r] : 0};
}

/// The element type that input and output share.
template <class In, class Out>
constexpr void same_elements() {
  static_assert(std::is_same_v<element_of<In>, element_of<Out>>,
                "hvd: input and output must have the same element type; convert one of them first");
}

/// Checks and runs a reduction of whole vectors that every rank receives.
template <class Call, class T, class In, class Out, class Op, class Algorithm>
void reduce_vector(T& comm, const In& in, Out&& out, const Op& op, const Algorithm& how) {
  same_elements<In, Out>();
  const auto from = as_span(in);
  const auto to = as_output(out);
  const std::byte* const in_bytes = bytes_of(from);
  std::byte* const out_bytes = writable_bytes_of(to);
  arguments(Call::kind, comm.rank(), comm.size())
      .buffer("input", from)
      .buffer("output", to)
      .equal("output", to.size(), "as the input", from.size())
      .apart(in_bytes, from.size_bytes(), out_bytes, to.size_bytes(), in_bytes == out_bytes)
      .check(comm);
  const reduction r = make_reduction<element_of<In>>(op, comm.size());
  run(comm, Call{in_bytes, out_bytes, from.size(), r}, how);
}

}  // namespace hvd::inline HVD_ABI::detail
