// hvd/detail/blocks.hpp: the common parts of algorithms that send messages: blocks, pairs of ranks, temporary memory.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <memory>
#include <new>

namespace hvd::inline HVD_ABI::detail {

/// The default chunk sizes of ring and tree. The measurements are in their headers; the cost model uses the same
/// numbers.
inline constexpr std::size_t ring_chunk_bytes = std::size_t{256} << 10;
inline constexpr std::size_t tree_chunk_bytes = std::size_t{64} << 10;

/// Uninitialised bytes, aligned to a cache line. Pages that are never written cost nothing. An `error` of kind
/// no_memory if they cannot be allocated; algorithms allocate before their first message if they can.
class temporary {
 public:
  temporary() = default;
  explicit temporary(std::size_t bytes) {
    if (bytes == 0) return;
    data_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{cache_line}, std::nothrow)));
    if (data_ == nullptr) fail(error_kind::no_memory, {"cannot allocate ", bytes, " bytes of temporary memory"});
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_.get(); }

 private:
  struct aligned_delete {
    void operator()(std::byte* p) const noexcept { ::operator delete[](p, std::align_val_t{cache_line}); }
  };
  std::unique_ptr<std::byte[], aligned_delete> data_;
};

/// The number of elements in a chunk of `bytes`: at most `count`, and at least one so that loops advance.
constexpr std::size_t chunk_elements(std::size_t bytes, std::size_t element_bytes, std::size_t count) noexcept {
  return std::max<std::size_t>(1, std::min(bytes / element_bytes, count));
}

/// `i` counted around a group of `size` ranks; -size <= i < 2 * size.
constexpr int around(int i, int size) noexcept { return i < 0 ? i + size : i < size ? i : i - size; }

/// `count` elements cut into near-equal blocks; named as in `partition`. Block i starts at floor(count * i /
/// parts), so not only single blocks but all runs of equally many blocks differ by at most one element.
class even_blocks {
 public:
  constexpr even_blocks(int parts, std::size_t count, std::size_t element_bytes) noexcept
      : parts_(static_cast<std::size_t>(parts)), count_(count), element_bytes_(element_bytes) {}

  /// Elements before block i; all of them for i == parts.
  [[nodiscard]] constexpr std::size_t start(int i) const noexcept {
    const auto k = static_cast<std::size_t>(i);
    return count_ / parts_ * k + count_ % parts_ * k / parts_;
  }
  [[nodiscard]] constexpr std::size_t count(int i) const noexcept { return start(i + 1) - start(i); }
  [[nodiscard]] constexpr std::size_t bytes(int i) const noexcept { return count(i) * element_bytes_; }
  [[nodiscard]] constexpr std::size_t offset(int i) const noexcept { return start(i) * element_bytes_; }
  [[nodiscard]] constexpr std::size_t max_bytes() const noexcept {
    return (count_ / parts_ + (count_ % parts_ != 0 ? 1 : 0)) * element_bytes_;
  }

 private:
  std::size_t parts_;
  std::size_t count_;
  std::size_t element_bytes_;
};

/// Neighbouring blocks of a partition, where the first follows the last: one contiguous piece, or two.
struct block_run {
  std::size_t offset;   ///< of the first piece in the partitioned buffer; the second one starts at 0
  std::size_t bytes;    ///< of the first piece
  std::size_t wrapped;  ///< bytes of the second piece, often 0

  [[nodiscard]] std::size_t total() const noexcept { return bytes + wrapped; }
};

/// The `n` blocks from `first` on; 0 <= n <= blocks.ranks().
template <class Partition>
block_run run_of(const Partition& blocks, int first, int n) {
  const int ranks = blocks.ranks();
  const auto offset = [&](int r) { return r == ranks ? blocks.total_bytes() : blocks.offset(r); };
  const int end = std::min(first + n, ranks);
  return {offset(first), offset(end) - offset(first), offset(first + n - end)};
}

/// Sends and receives the messages that are not empty. For the second and later messages of a step: a peer knows the
/// lengths and does not expect empty ones. A step's first message is always sent, so that a disagreement on counts is
/// detected.
template <class T>
void exchange_rest(T& t, const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes,
                   int from) {
  if (out_bytes != 0 && in_bytes != 0) {
    t.exchange(out, out_bytes, to, in, in_bytes, from);
  } else if (out_bytes != 0) {
    t.send(out, out_bytes, to);
  } else if (in_bytes != 0) {
    t.recv(in, in_bytes, from);
  }
}

/// Reduces any number of ranks to a power of two: the first ranks form pairs (2i, 2i+1) of which only one acts, so that
/// the acting ranks, numbered in rank order by their index, are a power of two. (R. Thakur, R. Rabenseifner, W. Gropp,
/// "Optimization of collective communication operations in MPICH", 2005.)
class pairing {
 public:
  /// In each pair the lower rank acts, unless the other one is `must_act`.
  explicit constexpr pairing(int size, int must_act = 0) noexcept
      : acting_(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))), pairs_(size - acting_),
        must_act_(must_act) {}

  [[nodiscard]] constexpr int acting() const noexcept { return acting_; }
  [[nodiscard]] constexpr bool paired(int rank) const noexcept { return rank < 2 * pairs_; }
  [[nodiscard]] constexpr int index(int rank) const noexcept { return paired(rank) ? rank / 2 : rank - pairs_; }
  [[nodiscard]] constexpr bool acts(int rank) const noexcept { return rank_of(index(rank)) == rank; }
  [[nodiscard]] constexpr int rank_of(int index) const noexcept {
    if (index >= pairs_) return index + pairs_;
    return must_act_ == 2 * index + 1 ? must_act_ : 2 * index;
  }
  /// The lowest rank that `index` stands for: it stands for the ranks below lowest(index + 1).
  [[nodiscard]] constexpr int lowest(int index) const noexcept { return index < pairs_ ? 2 * index : index + pairs_; }

 private:
  int acting_;
  int pairs_;
  int must_act_;
};

}  // namespace hvd::inline HVD_ABI::detail
