// hvd/selection/costs.hpp: the choice by cost: the time of each algorithm as a formula.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/selection/choice.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace hvd::inline HVD_ABI {

/// The costs of messages between the ranks of one group, in integers, so that ranks can agree on them exactly.
struct link_costs {
  std::uint64_t latency_ns = 0;  ///< of an empty message; 0: not measured
  std::uint64_t byte_fs = 0;     ///< each further byte of a message, in femtoseconds (10^-15 s): 10^6 is 1 GB/s
  std::uint64_t reduce_fs = 0;   ///< each byte of the result when two operands are combined
  /// The transport's own collectives: an empty one, and each further byte. 0: not measured.
  struct own {
    std::uint64_t latency_ns = 0, byte_fs = 0;
    friend constexpr bool operator==(const own&, const own&) = default;
  };
  own allreduce{}, reduce_scatter{}, allgather{}, broadcast{};

  [[nodiscard]] constexpr bool known() const noexcept { return latency_ns != 0; }
  friend constexpr bool operator==(const link_costs&, const link_costs&) = default;
};

/// Predicts times by the closed formulas of each algorithm (alpha + beta n: R. Hockney, 1994; Thakur, Rabenseifner and
/// Gropp, 2005), and chooses the least. Ties go to what default_tuning chooses, then to the first of `all_choices`. The
/// transport's own collective is chosen without a prediction if it was not measured.
struct cost_model {
  link_costs costs{};

  /// The predicted time in nanoseconds; infinity if the algorithm does not support the workload.
  [[nodiscard]] double time(choice c, const workload& w) const noexcept;
  [[nodiscard]] choice operator()(const workload& w) const noexcept {
    choice best = default_tuning{}(w);
    if (w.native && own_of(w.kind).latency_ns == 0) return choice::native;
    double least = time(best, w);
    for (const choice c : all_choices) {
      const double t = time(c, w);
      if (t < least) {
        least = t;
        best = c;
      }
    }
    return best;
  }
  friend constexpr bool operator==(const cost_model&, const cost_model&) = default;

 private:
  [[nodiscard]] constexpr link_costs::own own_of(operation kind) const noexcept {
    switch (kind) {
      case operation::allreduce: return costs.allreduce;
      case operation::reduce_scatter: return costs.reduce_scatter;
      case operation::allgather: return costs.allgather;
      case operation::broadcast: return costs.broadcast;
      default: return {};
    }
  }
};

inline double cost_model::time(choice c, const workload& w) const noexcept {
  if (!possible(c, w)) return std::numeric_limits<double>::infinity();
  const double p = w.ranks, S = static_cast<double>(w.bytes);
  const double alpha = static_cast<double>(costs.latency_ns), beta = static_cast<double>(costs.byte_fs) * 1e-6,
               gamma = static_cast<double>(costs.reduce_fs) * 1e-6;
  const auto ranks = static_cast<unsigned>(w.ranks);
  const double down = std::bit_width(ranks) - 1, up = w.ranks > 1 ? std::bit_width(ranks - 1) : 0;  // log2 p, rounded
  const double acting = std::bit_floor(ranks);
  const bool odd = acting != p;
  const double part = (p - 1) / p;  // the share of S that goes around
  switch (c) {
    case choice::ring:
      switch (w.kind) {
        case operation::allreduce: return 2 * (p - 1) * alpha + S * part * (2 * beta + gamma);
        case operation::reduce_scatter: return (p - 1) * alpha + S * part * (beta + gamma);
        case operation::broadcast: {  // a chain of chunks
          const double chunk = std::min(S, double{detail::ring_chunk_bytes});
          return (p - 2) * (alpha + chunk * beta) + std::max(1.0, S / chunk) * alpha + S * beta;
        }
        default: return (p - 1) * alpha + S * part * beta;
      }
    case choice::recursive_doubling:
      if (w.kind == operation::allgather) {  // runs of blocks that wrap around are two messages
        return odd ? 1.5 * up * alpha + 2 * S * part * beta : up * alpha + S * part * beta;
      }
      if (w.kind == operation::scan) return up * (alpha + S * beta + S * gamma);
      if (w.kind == operation::exscan) return up * (alpha + S * beta + 2 * S * gamma);
      return (odd ? down + 2 : down) * (alpha + S * beta) + (odd ? down + 1 : down) * S * gamma;
    case choice::halving_doubling: {
      const double inner = (acting - 1) / acting;
      switch (w.kind) {
        case operation::broadcast: return 2 * up * alpha + 2 * S * part * beta;
        case operation::reduce_scatter:
          return (odd ? down + 3 : down) * alpha + S * (inner + (odd ? 1 : 0)) * beta +
                 S * (inner + (odd ? 0.5 : 0)) * gamma;
        default:
          return (odd ? 2 * down + 3 : 2 * down) * alpha + S * (2 * inner + (odd ? 2 : 0)) * beta +
                 S * (inner + (odd ? 0.5 : 0)) * gamma;
      }
    }
    case choice::tree: {  // a node with all children is the slowest
      const double chunks = std::max(1.0, S / double{detail::tree_chunk_bytes});
      const double hop = alpha + S / chunks * beta;
      switch (w.kind) {
        case operation::broadcast: return chunks * up * hop;
        case operation::reduce: return chunks * up * hop + up * S * gamma;
        case operation::allreduce: return 2 * chunks * up * hop + up * S * gamma;
        default: return up * alpha + S * part * beta;
      }
    }
    case choice::double_tree: {  // chunks of each half of the vector, in steps of one message
      const double chunks = std::max(1.0, std::ceil(S / 2 / double{detail::tree_chunk_bytes}));
      const double chunk = S / 2 / chunks;
      const double once = 2 * (chunks + up) * (alpha + chunk * beta), combine = S * gamma;
      if (w.kind == operation::broadcast) return once;
      return w.kind == operation::reduce ? once + combine : 2 * once + combine;
    }
    case choice::bruck: {
      const double copies = S * gamma / 2;  // into place: one operand less than combining
      if (w.kind == operation::allgather) return up * alpha + S * part * beta + copies;
      return up * (alpha + S / 2 * beta) + up * copies;
    }
    case choice::native: {
      const link_costs::own own = own_of(w.kind);
      return static_cast<double>(own.latency_ns) + S * static_cast<double>(own.byte_fs) * 1e-6;
    }
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace hvd::inline HVD_ABI
