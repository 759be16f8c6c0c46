// hvd/call.hpp: the operations, blocks, and one struct for each collective, which the collective's function passes to
// an algorithm.
#pragma once

#include <hvd/op.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>

namespace hvd::inline HVD_ABI {

/// The collective operations, for messages and for the comparison of calls between ranks. The numbers travel: append.
enum class operation : unsigned char {
  barrier,         ///< no rank leaves before all have come
  allreduce,       ///< the reduction of all inputs, to all ranks
  reduce,          ///< the same, to the root
  reduce_scatter,  ///< the same, a block to each rank
  allgather,       ///< all inputs, to all ranks
  broadcast,       ///< the root's input, to all ranks
  alltoall,        ///< a block from each rank to each
  gather,          ///< all inputs, to the root
  scatter,         ///< a block of the root's input to each rank
  split,           ///< a smaller group
  alloc_shared,    ///< memory that all ranks reach
  send,            ///< a message to one rank
  recv,            ///< a message from one rank
  scan,            ///< the reduction of the inputs of all ranks up to this one
  exscan,          ///< the same, without this one
};

/// The name of the function, such as "reduce_scatter"; "unknown" for an invalid value.
constexpr std::string_view name(operation op) noexcept {
  constexpr std::string_view names[] = {"barrier",      "allreduce", "reduce", "reduce_scatter", "allgather",
                                        "broadcast",    "alltoall",  "gather", "scatter",        "split",
                                        "alloc_shared", "send",      "recv",   "scan",           "exscan"};
  static_assert(std::size(names) == static_cast<std::size_t>(operation::exscan) + 1, "a name for each operation");
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(names) ? names[index] : "unknown";
}

/// A buffer cut into one contiguous block per rank, in rank order.
class partition {
 public:
  /// `ranks` blocks of `each` elements.
  partition(int ranks, std::size_t each, std::size_t element_bytes)
      : ranks_(ranks), each_(each), element_bytes_(element_bytes), total_(static_cast<std::size_t>(ranks) * each) {}

  /// Block r has counts[r] elements.
  partition(std::span<const std::size_t> counts, std::size_t element_bytes)
      : ranks_(static_cast<int>(counts.size())), element_bytes_(element_bytes), counts_(counts.data()) {
    std::size_t* starts = few_.data();
    if (counts.size() > few_.size()) {
      many_ = std::make_unique<std::size_t[]>(counts.size());
      starts = many_.get();
    }
    for (std::size_t r = 0; r != counts.size(); ++r) {
      starts[r] = total_;
      total_ += counts[r];
    }
  }

  /// The number of blocks.
  [[nodiscard]] int ranks() const noexcept { return ranks_; }
  /// Elements of block r.
  [[nodiscard]] std::size_t count(int r) const noexcept { return counts_ == nullptr ? each_ : counts_[r]; }
  /// The length of block r in bytes.
  [[nodiscard]] std::size_t bytes(int r) const noexcept { return count(r) * element_bytes_; }
  /// The start of block r, in bytes.
  [[nodiscard]] std::size_t offset(int r) const noexcept {
    if (counts_ == nullptr) return static_cast<std::size_t>(r) * each_ * element_bytes_;
    return (many_ ? many_[static_cast<std::size_t>(r)] : few_[static_cast<std::size_t>(r)]) * element_bytes_;
  }
  /// Elements, and bytes, of all blocks together.
  [[nodiscard]] std::size_t total_count() const noexcept { return total_; }
  [[nodiscard]] std::size_t total_bytes() const noexcept { return total_ * element_bytes_; }
  [[nodiscard]] std::size_t element_bytes() const noexcept { return element_bytes_; }
  /// True if the partition was made from one length for all blocks.
  [[nodiscard]] bool uniform() const noexcept { return counts_ == nullptr; }
  /// Of the longest block, elements and bytes.
  [[nodiscard]] std::size_t max_count() const noexcept {
    std::size_t most = 0;
    for (int r = 0; r != (uniform() ? 1 : ranks_); ++r) most = count(r) > most ? count(r) : most;
    return most;
  }
  [[nodiscard]] std::size_t max_bytes() const noexcept { return max_count() * element_bytes_; }

 private:
  int ranks_;
  std::size_t each_ = 0;
  std::size_t element_bytes_;
  std::size_t total_ = 0;
  const std::size_t* counts_ = nullptr;
  std::array<std::size_t, 32> few_;  // start of each block, in elements; no allocation for usual groups
  std::unique_ptr<std::size_t[]> many_;
};

// ---- the calls ----------------------------------------------------------------------------------------------
// `in` and `out` are valid for the lengths in the call. They are the same memory (in place) or do not overlap, except
// that a rank's own block may be in place if the collective allows it. The collectives' functions check this.

/// out[i] = op over ranks of in[i], on every rank; `count` elements.
struct allreduce_call {
  static constexpr operation kind = operation::allreduce;
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  const reduction& op;
  std::uint64_t list = 0;  ///< of a list of tensors that are packed: a hash of their lengths, equal on all ranks
  [[nodiscard]] allreduce_call with(const reduction& other) const noexcept { return {in, out, count, other, list}; }
};

/// Like allreduce, on `root` alone; elsewhere `out` is not touched.
struct reduce_call {
  static constexpr operation kind = operation::reduce;
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  const reduction& op;
  int root;
  [[nodiscard]] reduce_call with(const reduction& other) const noexcept { return {in, out, count, other, root}; }
};

/// `in` holds all of `blocks`; `out` receives the reduction of this rank's block.
struct reduce_scatter_call {
  static constexpr operation kind = operation::reduce_scatter;
  const std::byte* in;
  std::byte* out;
  const partition& blocks;
  const reduction& op;
  [[nodiscard]] reduce_scatter_call with(const reduction& other) const noexcept { return {in, out, blocks, other}; }
};

/// `in` is this rank's block; `out` receives all of `blocks`.
struct allgather_call {
  static constexpr operation kind = operation::allgather;
  const std::byte* in;
  std::byte* out;
  const partition& blocks;
};

/// `bytes` from `in` on root to `out` on every rank (on root, `in` and `out` may be the same).
struct broadcast_call {
  static constexpr operation kind = operation::broadcast;
  const std::byte* in;
  std::byte* out;
  std::size_t bytes;
  int root;
  std::uint64_t list = 0;  ///< as in allreduce_call
};

/// Block r of `in` (cut by `send`) goes to rank r; block r of `out` (cut by `recv`) comes from rank r.
/// In place (`in` == `out`) only with uniform blocks.
struct alltoall_call {
  static constexpr operation kind = operation::alltoall;
  const std::byte* in;
  std::byte* out;
  const partition& send;
  const partition& recv;
};

/// `in` is this rank's block; `out` receives all of `blocks` on root.
struct gather_call {
  static constexpr operation kind = operation::gather;
  const std::byte* in;
  std::byte* out;
  const partition& blocks;
  int root;
};

/// `in` holds all of `blocks` on root; `out` receives this rank's.
struct scatter_call {
  static constexpr operation kind = operation::scatter;
  const std::byte* in;
  std::byte* out;
  const partition& blocks;
  int root;
};

/// out[i] = op over ranks 0 to this one of in[i], in their order; `count` elements.
struct scan_call {
  static constexpr operation kind = operation::scan;
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  const reduction& op;
  [[nodiscard]] scan_call with(const reduction& other) const noexcept { return {in, out, count, other}; }
};

/// Like scan, of the ranks before this one: on rank 0 `out` is not touched.
struct exscan_call {
  static constexpr operation kind = operation::exscan;
  const std::byte* in;
  std::byte* out;
  std::size_t count;
  const reduction& op;
  [[nodiscard]] exscan_call with(const reduction& other) const noexcept { return {in, out, count, other}; }
};

// ---- what the calls have in common: nothing below names one of them ----------------------------------------------

/// A call that reduces. `with` makes the same call with another reduction.
template <class Call>
concept Reducing = requires(const Call& c) {
  { c.op } -> std::convertible_to<const reduction&>;
};
/// A call with a root.
template <class Call>
concept Rooted = requires(const Call& c) {
  { c.root } -> std::convertible_to<int>;
};

namespace detail {

/// The size of a call: `count` elements of `element_bytes` in the whole vector, or in all blocks together.
struct extent {
  std::size_t count = 0;
  std::size_t element_bytes = 1;
  const partition* blocks = nullptr;  ///< how the vector is cut, if it is
  bool uniform = true;                ///< false for an alltoall whose blocks differ in length

  [[nodiscard]] std::size_t bytes() const noexcept { return count * element_bytes; }
};

template <class Call>
extent extent_of(const Call& c) noexcept {
  if constexpr (requires { c.blocks; }) {
    return {c.blocks.total_count(), c.blocks.element_bytes(), &c.blocks};
  } else if constexpr (requires { c.send; }) {
    // Each pair of ranks has its own block length: totals differ between ranks although their calls match.
    const bool uniform = c.send.uniform() && c.recv.uniform();
    return {uniform ? c.send.total_count() : 0, c.send.element_bytes(), nullptr, c.send.uniform()};
  } else if constexpr (Reducing<Call>) {
    return {c.count, c.op.element_bytes};
  } else {
    return {c.bytes, 1};
  }
}

/// Bytes that a rank gives to a call, and that it receives.
template <class Call>
std::size_t input_bytes(const Call& c, int rank) noexcept {
  if constexpr (requires { c.send; }) {
    return c.send.total_bytes();
  } else if constexpr (Call::kind == operation::allgather || Call::kind == operation::gather) {
    return c.blocks.bytes(rank);
  } else {
    if constexpr (Rooted<Call> && !Reducing<Call>) {
      if (rank != c.root) return 0;
    }
    return extent_of(c).bytes();
  }
}
template <class Call>
std::size_t output_bytes(const Call& c, int rank) noexcept {
  if constexpr (requires { c.recv; }) {
    return c.recv.total_bytes();
  } else if constexpr (Call::kind == operation::reduce_scatter || Call::kind == operation::scatter) {
    return c.blocks.bytes(rank);
  } else {
    if constexpr (Call::kind == operation::reduce || Call::kind == operation::gather) {
      if (rank != c.root) return 0;
    } else if constexpr (Call::kind == operation::exscan) {
      if (rank == 0) return 0;
    }
    return extent_of(c).bytes();
  }
}

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
