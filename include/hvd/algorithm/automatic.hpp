// hvd/algorithm/automatic.hpp: chooses the algorithm from what is to be done, the same on all ranks.
#pragma once

#include <hvd/algorithm/direct.hpp>
#include <hvd/algorithm/halving_doubling.hpp>
#include <hvd/algorithm/recursive_doubling.hpp>
#include <hvd/algorithm/ring.hpp>
#include <hvd/algorithm/tree.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <string>

namespace hvd::inline HVD_ABI {

/// What a choice may depend on: nothing but what is the same on all ranks, or they would choose differently.
struct workload {
  operation kind{};
  std::size_t bytes = 0;    ///< of the longest message that the collective is about: the whole vector, or all blocks
  int ranks = 1;            ///< of the group
  bool commutative = true;  ///< whether a reduction may combine ranks in any order
};

/// What a tuning can choose, each named as the algorithm.
enum class choice : unsigned char { ring, tree, recursive_doubling, halving_doubling };

/// The choice between algorithms over point-to-point messages. A pure function: a tuning of your own is a struct with
/// the same member. The crossovers are those of Thakur, Rabenseifner and Gropp (2005) for short and long messages;
/// ranks with common memory never come here, they use `direct`.
struct default_tuning {
  /// Up to here latency counts: log p messages of the whole vector.
  std::size_t short_bytes = std::size_t{8} << 10;
  /// From here bandwidth counts, and neighbours only: p - 1 messages of a p-th each.
  std::size_t long_bytes = std::size_t{512} << 10;

  [[nodiscard]] constexpr choice operator()(const workload& w) const noexcept {
    switch (w.kind) {
      case operation::allreduce:
        if (w.bytes <= short_bytes) return choice::recursive_doubling;
        return w.bytes <= long_bytes || !w.commutative ? choice::halving_doubling : choice::ring;
      case operation::reduce_scatter:
        return w.bytes <= long_bytes || !w.commutative ? choice::halving_doubling : choice::ring;
      case operation::allgather: return w.bytes <= long_bytes ? choice::recursive_doubling : choice::ring;
      case operation::broadcast: return w.bytes <= long_bytes ? choice::tree : choice::ring;
      case operation::alltoall: return choice::ring;
      default: return choice::tree;
    }
  }
  friend constexpr bool operator==(const default_tuning&, const default_tuning&) = default;
};

/// The default of every collective: `direct` where ranks have common memory, else the transport's own collective where
/// it has one, else what the tuning says.
template <class Tuning = default_tuning>
struct automatic {
  static constexpr bool rank_ordered = true;
  [[no_unique_address]] Tuning tuning{};

  friend constexpr bool operator==(const automatic&, const automatic&) = default;

  template <Transport T, class Call>
    requires PeerMemory<T> || PointToPoint<T>
  void operator()(T& t, const Call& call) const {
    if constexpr (Answers<direct, T, Call>) {
      direct{}(t, call);
    } else {
      if constexpr (Native<T, Call>) {
        if (t.native(call)) return;
      }
      switch (tuning(describe(t, call))) {
        case choice::ring: return attempt<ring>(t, call);
        case choice::tree: return attempt<tree>(t, call);
        case choice::recursive_doubling: return attempt<recursive_doubling>(t, call);
        case choice::halving_doubling: return attempt<halving_doubling>(t, call);
      }
    }
  }

 private:
  template <class T, class Call>
  static workload describe(T& t, const Call& call) {
    workload w{.kind = Call::kind, .ranks = t.size()};
    if constexpr (requires { call.op.commutative; }) w.commutative = call.op.commutative;
    if constexpr (requires { call.count; }) {
      w.bytes = call.count * call.op.element_bytes;
    } else if constexpr (requires { call.blocks; }) {
      w.bytes = call.blocks.total_bytes();
    } else if constexpr (requires { call.bytes; }) {
      w.bytes = call.bytes;
    }
    return w;
  }
  template <class A, class T, class Call>
  static void attempt(T& t, const Call& call) {
    if constexpr (Answers<A, T, Call>) {
      if constexpr (requires { call.op.commutative; }) {
        if (!A::rank_ordered && !call.op.commutative) {
          throw error(error_kind::unsupported, std::string("the tuning chose an algorithm that does not combine ranks "
                                                           "in order for a non-commutative ") +
                                                   std::string(name(Call::kind)));
        }
      }
      A{}(t, call);
    } else {
      throw error(error_kind::unsupported,
                  std::string("the tuning chose an algorithm that cannot do ") + std::string(name(Call::kind)));
    }
  }
};

}  // namespace hvd::inline HVD_ABI
