// hvd/selection/choice.hpp: the algorithms to choose from, and the choice by rule.
#pragma once

#include <hvd/call.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hvd::inline HVD_ABI {

/// The values that a choice may depend on. All are the same on all ranks; otherwise ranks would choose differently.
struct workload {
  operation kind{};
  std::size_t bytes = 0;    ///< of the whole vector, or of all blocks together
  int ranks = 1;            ///< of the group
  bool commutative = true;  ///< whether a reduction may combine ranks in any order
  bool uniform = true;      ///< whether all blocks have one length
  bool native = false;      ///< whether the transport has this collective of its own
};

/// The algorithms that can be chosen, by name.
enum class choice : unsigned char {
  ring,
  tree,
  recursive_doubling,
  halving_doubling,
  double_tree,
  bruck,
  native,
};
inline constexpr std::array all_choices{
    choice::ring,  choice::tree,  choice::recursive_doubling, choice::halving_doubling, choice::double_tree,
    choice::bruck, choice::native};

/// The name of the algorithm: "ring".
constexpr std::string_view name(choice c) noexcept {
  constexpr std::string_view names[] = {"ring",  "tree",  "recursive_doubling", "halving_doubling", "double_tree",
                                        "bruck", "native"};
  return names[static_cast<unsigned char>(c)];
}

namespace detail {

template <class... Kinds>
constexpr std::uint32_t bits_of(Kinds... kinds) noexcept {
  return (std::uint32_t{0} | ... | (std::uint32_t{1} << static_cast<unsigned>(kinds)));
}
/// The operations of each choice, in the order of all_choices: those for which the algorithm has a call operator.
inline constexpr std::array operations_of{
    bits_of(operation::allreduce, operation::reduce_scatter, operation::allgather, operation::broadcast,
            operation::alltoall),  // ring
    bits_of(operation::allreduce, operation::reduce, operation::broadcast, operation::gather,
            operation::scatter),                                                              // tree
    bits_of(operation::allreduce, operation::allgather, operation::scan, operation::exscan),  // recursive_doubling
    bits_of(operation::allreduce, operation::reduce, operation::reduce_scatter,
            operation::broadcast),                                           // halving_doubling
    bits_of(operation::allreduce, operation::reduce, operation::broadcast),  // double_tree
    bits_of(operation::allgather, operation::alltoall),                      // bruck
    std::uint32_t{0},                                                        // native: the transport decides
};
static_assert(operations_of.size() == all_choices.size());

}  // namespace detail

/// True if the algorithm supports the workload.
constexpr bool possible(choice c, const workload& w) noexcept {
  if (c == choice::native) return w.native;
  if ((detail::operations_of[static_cast<std::size_t>(c)] & detail::bits_of(w.kind)) == 0) return false;
  if (c == choice::ring && (w.kind == operation::allreduce || w.kind == operation::reduce_scatter))
    return w.commutative;
  return c != choice::bruck || w.kind != operation::alltoall || w.uniform;
}

/// The choice by rule, without measurements. To use another rule, write a struct with the same call operator. The
/// crossovers are those of Thakur, Rabenseifner and Gropp (2005) for short and long messages. Ranks with common memory
/// do not use it: they run `direct`.
struct default_tuning {
  /// Up to this size latency dominates: log p messages of the whole vector.
  std::size_t short_bytes = std::size_t{8} << 10;
  /// Above this size bandwidth dominates: p - 1 messages of a p-th each, between neighbours only.
  std::size_t long_bytes = std::size_t{512} << 10;

  [[nodiscard]] constexpr choice operator()(const workload& w) const noexcept {
    if (w.native) return choice::native;
    switch (w.kind) {
      case operation::allreduce:
        if (w.bytes <= short_bytes) return choice::recursive_doubling;
        return w.bytes <= long_bytes || !w.commutative ? choice::halving_doubling : choice::ring;
      case operation::reduce_scatter:
        return w.bytes <= long_bytes || !w.commutative ? choice::halving_doubling : choice::ring;
      case operation::allgather: return w.bytes <= long_bytes ? choice::recursive_doubling : choice::ring;
      case operation::broadcast: return w.bytes <= long_bytes ? choice::tree : choice::ring;
      case operation::alltoall: return choice::ring;
      case operation::scan:
      case operation::exscan: return choice::recursive_doubling;
      default: return choice::tree;
    }
  }
  friend constexpr bool operator==(const default_tuning&, const default_tuning&) = default;
};

}  // namespace hvd::inline HVD_ABI
