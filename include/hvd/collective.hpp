// hvd/collective.hpp: what the front doors of all collectives share: checks of arguments, and the way to an algorithm.
#pragma once

#include <hvd/agree.hpp>
#include <hvd/algorithm/automatic.hpp>
#include <hvd/buffer.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

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

/// Collects what is wrong with the arguments of one call on one rank; the first finding counts.
class arguments {
 public:
  arguments(operation kind, int rank, int size) : kind_(kind), rank_(rank), size_(size) {}

  template <class S>
  arguments& buffer(const char* name, const S& s) {
    if (s.data() == nullptr && s.size() != 0) {
      refuse({name, " is null but has ", s.size(), " elements"});
    }
    return *this;
  }
  arguments& equal(const char* what, std::size_t got, const char* wanted_what, std::size_t wanted) {
    if (got != wanted) {
      refuse({what, " has ", got, " elements; allowed: ", wanted, " (", wanted_what, ")"});
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
  arguments& counts(const char* what, std::span<const std::size_t> c) {
    if (c.size() != static_cast<std::size_t>(size_)) {
      refuse({what, " has ", c.size(), " entries; allowed: one for each of the ", size_, " ranks"});
    }
    std::size_t total = 0;
    for (const std::size_t n : c) {  // or blocks with a sum that fits could lie anywhere
      if (n > std::numeric_limits<std::size_t>::max() - total) {
        refuse({what, " add up to more than ", std::numeric_limits<std::size_t>::max()});
      }
      total += n;
    }
    return *this;
  }
  /// Input and output may overlap only `in_place`: as the collective documents it.
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

  /// Throws if anything was found. With HVD_CHECK the other ranks learn it and throw too.
  template <class T>
  void check(T& comm) const {
    if (problem_.empty()) [[likely]]
      return;
    if constexpr (PeerMemory<T>) {
      if (comm.peers().checks() && comm.size() > 1) tell(comm.peers());
    }
    check_alone();
  }
  /// The same for operations that not all ranks call.
  void check_alone() const {
    if (problem_.empty()) [[likely]]
      return;
    fail(error_kind::invalid_argument, {name(kind_), " on rank ", rank_, " of ", size_, ": ", problem_}, rank_);
  }

 private:
  void tell(peer_memory& m) const {
    peer_memory::scope scope(m, name(kind_));
    descriptor d;
    d.kind = kind_;
    d.invalid = true;
    try {
      agree(m, d, scope);
    } catch (const error& e) {
      if (m.failed()) throw;
    }
    scope.leave();
  }

  operation kind_;
  int rank_;
  int size_;
  std::string problem_;
};

// ---- a group of one: nothing to communicate ------------------------------------------------------------------

inline void move(std::byte* out, const std::byte* in, std::size_t bytes) noexcept {
  if (out != in) copy_bytes(out, in, bytes);
}
inline void run_alone(const allreduce_call& c) {
  if (c.count != 0 && (c.in != c.out || c.op.scales())) c.op.complete(&c.out, 1, &c.in, 1, c.count);
}
inline void run_alone(const reduce_call& c) { run_alone(allreduce_call{c.in, c.out, c.count, c.op}); }
inline void run_alone(const reduce_scatter_call& c) { run_alone(allreduce_call{c.in, c.out, c.blocks.count(0), c.op}); }
inline void run_alone(const allgather_call& c) { move(c.out, c.in, c.blocks.bytes(0)); }
inline void run_alone(const broadcast_call& c) { move(c.out, c.in, c.bytes); }
inline void run_alone(const alltoall_call& c) { move(c.out, c.in, c.send.bytes(0)); }
inline void run_alone(const gather_call& c) { move(c.out, c.in, c.blocks.bytes(0)); }
inline void run_alone(const scatter_call& c) { move(c.out, c.in, c.blocks.bytes(0)); }

template <class A>
constexpr bool keeps_rank_order() {
  if constexpr (requires { bool{A::rank_ordered}; }) {
    return A::rank_ordered;
  } else {
    return false;
  }
}

/// Runs a checked call.
template <class T, class Call, class A>
void run(T& comm, const Call& call, const A& how) {
  static_assert(Answers<A, T, Call>,
                "hvd: this algorithm cannot do this collective on this transport: it needs a capability that the "
                "transport lacks (direct needs PeerMemory; ring, tree, recursive_doubling and halving_doubling need "
                "PointToPoint), or has no such collective");
  if (comm.size() == 1) return run_alone(call);
  if constexpr (requires { call.op.commutative; }) {
    if (!keeps_rank_order<A>() && !call.op.commutative) {
      fail(error_kind::unsupported,
           {name(Call::kind), " on rank ", comm.rank(), " of ", comm.size(),
            ": this algorithm does not combine ranks in order, which a non-commutative reduction needs; use "
            "automatic, direct, tree, recursive_doubling or halving_doubling"});
    }
  }
  if constexpr (PeerMemory<T>) {
    peer_memory& m = comm.peers();
    if (m.checks()) [[unlikely]] {
      peer_memory::scope scope(m, name(Call::kind));
      agree(m, describe(call), scope);
      scope.leave();
    }
  }
  how(comm, call);
}

/// What a pointer stands for where counts tell the length: the blocks of all ranks, or one of them. (That there is a
/// count for each rank is checked later.)
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

}  // namespace hvd::inline HVD_ABI::detail
