// hvd/selection.hpp: the choice of an algorithm for a message: by rule, by cost, or by the user's table.
//
// Everything here is a pure function of values that are the same on all ranks, so that all ranks make the same choice.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

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

/// The user's choices in place of the model's: "allreduce:0-4k=recursive_doubling,4k-inf=ring;broadcast:0-inf=tree". A
/// range includes its first number of bytes and excludes its second; k, m and g stand for 2^10, 2^20 and 2^30. If no
/// range matches, or the algorithm does not support the call (such as a ring with an operation that does not commute),
/// the model chooses.
class tuning_table {
 public:
  tuning_table() = default;
  /// Parses `text`. An invalid_argument error names `source`, the first wrong character, and the allowed values.
  explicit tuning_table(std::string_view text, std::string_view source = "HVD_TUNING");

  /// The choice of the first rule that matches, if the algorithm supports the workload; otherwise nullptr.
  [[nodiscard]] const choice* find(const workload& w) const noexcept {
    for (const rule& r : rules_) {
      if (r.kind == w.kind && r.from <= w.bytes && w.bytes < r.to) return possible(r.what, w) ? &r.what : nullptr;
    }
    return nullptr;
  }
  [[nodiscard]] bool empty() const noexcept { return rules_.empty(); }

 private:
  struct rule {
    operation kind{};
    std::size_t from = 0, to = 0;
    choice what{};
  };
  std::vector<rule> rules_;
};

namespace detail {

/// The operations for which an algorithm can be chosen.
inline std::vector<operation> tuned_operations() {
  std::vector<operation> found;
  for (unsigned k = 0; name(static_cast<operation>(k)) != "unknown"; ++k) {
    const auto kind = static_cast<operation>(k);
    const auto does = [&](std::uint32_t operations) { return (operations & bits_of(kind)) != 0; };
    if (std::any_of(operations_of.begin(), operations_of.end(), does)) found.push_back(kind);
  }
  return found;
}

/// Reads the text of a tuning_table from left to right.
class tuning_reader {
 public:
  tuning_reader(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  [[nodiscard]] bool ended() const noexcept { return at_ == text_.size(); }
  bool take(char c) noexcept {
    if (ended() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) refuse(std::string("'") + c + "'");
  }
  /// One of `all` by its name.
  template <class All>
  auto one_of(const All& all) {
    std::size_t end = at_;
    while (end != text_.size() && (text_[end] == '_' || (text_[end] >= 'a' && text_[end] <= 'z'))) ++end;
    for (const auto candidate : all) {
      if (name(candidate) == text_.substr(at_, end - at_)) {
        at_ = end;
        return candidate;
      }
    }
    std::string names;
    for (const auto candidate : all) names += joined({names.empty() ? "" : ", ", name(candidate)});
    refuse(names);
  }
  std::size_t bytes() {
    if (text_.substr(at_).starts_with("inf")) {
      at_ += 3;
      return std::numeric_limits<std::size_t>::max();
    }
    std::size_t n = 0;
    const auto [next, code] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
    if (code != std::errc{} || n > std::numeric_limits<std::size_t>::max() >> 30) refuse("a number of bytes, or inf");
    at_ = static_cast<std::size_t>(next - text_.data());
    return take('k') ? n << 10 : take('m') ? n << 20 : take('g') ? n << 30 : n;
  }
  [[noreturn]] void refuse(const std::string& wanted) const {
    fail(error_kind::invalid_argument, {source_, "=\"", text_, "\", character ", at_ + 1, ": allowed: ", wanted});
  }

 private:
  std::string_view text_, source_;
  std::size_t at_ = 0;
};

}  // namespace detail

inline tuning_table::tuning_table(std::string_view text, std::string_view source) {
  detail::tuning_reader in(text, source);
  while (!in.ended()) {
    rule r;
    r.kind = in.one_of(detail::tuned_operations());
    in.expect(':');
    do {
      r.from = in.bytes();
      in.expect('-');
      r.to = in.bytes();
      if (r.to <= r.from) in.refuse("a range that ends above its start");
      in.expect('=');
      std::vector<choice> able;
      for (const choice c : all_choices) {
        if (possible(c, {.kind = r.kind, .native = true})) able.push_back(c);
      }
      r.what = in.one_of(able);
      rules_.push_back(r);
    } while (in.take(','));
    if (!in.ended()) in.expect(';');
  }
}

/// The state that a transport keeps for `automatic`: the model of its links, and the user's table. It is fixed from the
/// first collective on, so that a program's results do not change while it runs.
struct selector {
  cost_model model{};
  tuning_table table{};
  bool ready = false;

  [[nodiscard]] choice operator()(const workload& w) const noexcept {
    if (const choice* wanted = table.find(w)) return *wanted;
    return model.costs.known() ? model(w) : default_tuning{}(w);
  }
};

/// A transport with a selector.
template <class T>
concept Selecting = PointToPoint<T> && requires(T& t) {
  { t.selection() } -> std::same_as<selector&>;
};

}  // namespace hvd::inline HVD_ABI
