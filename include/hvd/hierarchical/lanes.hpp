// hvd/hierarchical/lanes.hpp: collectives and slices of the lanes between hosts; a part of hierarchical.hpp.
#pragma once

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/hierarchical/host_map.hpp>
#include <hvd/selection.hpp>
#include <hvd/transport.hpp>

#include <bit>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The sizes at which `Hierarchical` changes its protocol; equal on all ranks.
struct hierarchy_sizes {
  /// Up to this size one rank of each host sends for all to other hosts: fewer messages, and no slices to put together.
  std::size_t leader_bytes = std::size_t{16} << 10;
  /// Bytes that a lane carries at a time, while the host works on the chunks before and after.
  std::size_t chunk_bytes = std::size_t{1} << 20;

  friend constexpr bool operator==(const hierarchy_sizes&, const hierarchy_sizes&) = default;
};

namespace detail {

/// A collective in a lane. With `overlap` it goes on in the background, if the transport can start its own collective
/// and the lane would run that; else the constructor runs it to its end.
template <class Cross, class Call>
class in_flight {
 public:
  in_flight(Cross& lane, const Call& call, bool overlap) {
    if constexpr (startable) {
      if (automatic<>{}.choose(lane, call) == choice::native) {
        if constexpr (Call::kind == operation::allreduce) {
          // If the number of hosts is not a power of two, libraries pair some hosts with others, which then send up to
          // 2 S; a ring is even. Not for short vectors, because a ring has more steps, and not if the user chose the
          // library (HVD_TUNING).
          const bool even = std::has_single_bit(static_cast<unsigned>(lane.size()));
          const bool long_enough = call.count * call.op.element_bytes > default_tuning{}.long_bytes;
          if (!even && long_enough && call.op.commutative && !has_table(lane)) {
            run(lane, call, ring{});
            return;
          }
        }
        if (overlap) request_.emplace(lane.start(call));
        if (request_ && *request_) return;
        request_.reset();  // not for this type or operation
      }
    }
    run(lane, call, automatic<>{});
  }
  void wait() {
    if constexpr (startable) {
      if (request_) request_->wait();
    }
  }

 private:
  static bool has_table(Cross& lane) {
    if constexpr (Selecting<Cross>) {
      return !lane.selection().table.empty();
    } else {
      return false;
    }
  }
  static constexpr bool startable = requires(Cross& lane, const Call& call) { lane.start(call).wait(); };
  template <class C, bool>
  struct request_of {
    using type = bool;
  };
  template <class C>
  struct request_of<C, true> {
    using type = decltype(std::declval<C&>().start(std::declval<const Call&>()));
  };
  std::optional<typename request_of<Cross, startable>::type> request_;
};

/// Blocks of `count` elements for the local ranks of one host: equal slices for those that have a lane, none for
/// others.
class slices {
 public:
  slices(const host_map& map, int locals, std::size_t count, std::size_t element_bytes)
      : counts_(static_cast<std::size_t>(locals)), blocks_(cut(map.lanes, count, counts_), element_bytes) {}
  slices(const slices&) = delete;
  slices& operator=(const slices&) = delete;

  [[nodiscard]] const partition& blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::size_t count(int local_rank) const noexcept { return blocks_.count(local_rank); }
  [[nodiscard]] std::size_t offset(int local_rank) const noexcept { return blocks_.offset(local_rank); }

 private:
  static std::vector<std::size_t>& cut(int lanes, std::size_t count, std::vector<std::size_t>& counts) {
    const even_blocks even(lanes, count, 1);
    for (int l = 0; l != lanes; ++l) counts[static_cast<std::size_t>(l)] = even.count(l);
    return counts;
  }
  std::vector<std::size_t> counts_;
  partition blocks_;
};

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
