// hvd/hierarchical/calls.hpp: collectives on two levels, ranks of one host and hosts; a part of hierarchical.hpp.
//
// A lane is the group of the ranks that have one local rank, one of each host. All lanes work at once, each on a slice
// of the data: every byte crosses between hosts once, and no single rank sends all data of its host.
#pragma once

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/hierarchical/host_map.hpp>
#include <hvd/hierarchical/lanes.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Temporary memory of the kind of a local group's buffers: on the host, unless hvd/gpu.hpp specialises it.
template <class Local>
struct level_memory {
  static temporary take(Local& /*local*/, std::size_t bytes) { return temporary(bytes); }
  static void copy(Local& /*local*/, std::byte* to, const std::byte* from, std::size_t bytes) {
    copy_bytes(to, from, bytes);
  }
};

/// Runs a call between hosts, whose messages come from the host's memory: buffers on a device are copied.
template <class Local, class Cross, class Call>
void run_across(Local& local, Cross& cross, const Call& c) {
  if constexpr (memory_of<Local> == memory_kind::host) {
    run(cross, c, automatic<>{});
  } else {
    const std::size_t in_bytes = input_bytes(c, cross.rank()), out_bytes = output_bytes(c, cross.rank());
    const temporary in(in_bytes), out(out_bytes);
    local.template copy_to_host<std::byte>(c.in, {in.data(), in_bytes});
    Call on_host = c;
    on_host.in = in.data();
    on_host.out = out.data();
    run(cross, on_host, automatic<>{});
    local.template copy_to_device<std::byte>({out.data(), out_bytes}, c.out);
  }
}

/// One rank's two levels, and the collectives on them. `lane` is null if this rank is in no lane.
template <class Local, class Cross>
class two_levels {
 public:
  two_levels(Local& local, Cross* lane, Cross& world, const host_map& map, const hierarchy_sizes& sizes)
      : local_(local), lane_(lane), world_(world), map_(map), sizes_(sizes),
        host_(map.host_of[static_cast<std::size_t>(world.rank())]) {}

  /// Reduce-scatter on each host, allreduce in each lane, allgather on each host; in chunks.
  void operator()(const allreduce_call& c) const {
    if (flat(c, c.op.commutative || map_.consecutive)) return;
    const auto [before, after] = stages(c.op);
    const std::size_t unit = c.op.element_bytes;
    if (c.count * unit <= sizes_.leader_bytes) {
      here(reduce_call{c.in, c.out, c.count, before, 0});
      if (local_.rank() == 0) there(allreduce_call{c.out, c.out, c.count, after});
      return here(broadcast_call{c.out, c.out, c.count * unit, 0});
    }
    in_chunks<allreduce_call>(
        c.count, unit,
        [&](std::size_t at, const slices& s, int) {
          std::byte* const mine = c.out + at * unit + s.offset(local_.rank());
          here(reduce_scatter_call{c.in + at * unit, mine, s.blocks(), before});
          return allreduce_call{mine, mine, s.count(local_.rank()), after};
        },
        [&](std::size_t at, const slices& s, int) { join(c.out + at * unit, s); });
  }

  /// Like allreduce, but the lanes reduce to the root's host, where the root gathers.
  void operator()(const reduce_call& c) const {
    if (flat(c, c.op.commutative || map_.consecutive)) return;
    const auto [before, after] = stages(c.op);
    const std::size_t unit = c.op.element_bytes;
    const int root_host = host_of(c.root), root = local_of(c.root);
    if (c.count * unit <= sizes_.leader_bytes && root < map_.lanes) {
      const bool leads = local_.rank() == root, at_root = world_.rank() == c.root;
      const auto sum = temporary_of(leads && !at_root ? c.count * unit : 0);
      std::byte* const mine = at_root ? c.out : sum.data();
      here(reduce_call{c.in, mine, c.count, before, root});
      if (leads) there(reduce_call{mine, mine, c.count, after, root_host});
      return;
    }
    const std::size_t room = even_blocks(map_.lanes, chunk(c.count, unit), unit).max_bytes();
    const auto sums = temporary_of(has_lane() ? 2 * room : 0);
    const auto part = [&](int turn) { return has_lane() && turn != 0 ? sums.data() + room : sums.data(); };
    in_chunks<reduce_call>(
        c.count, unit,
        [&](std::size_t at, const slices& s, int turn) {
          std::byte* const mine = part(turn);
          here(reduce_scatter_call{c.in + at * unit, mine, s.blocks(), before});
          return reduce_call{mine, mine, s.count(local_.rank()), after, root_host};
        },
        [&](std::size_t at, const slices& s, int turn) {
          if (host_ != root_host) return;
          std::byte* const out = world_.rank() == c.root ? c.out + at * unit : nullptr;
          here(gather_call{part(turn), out, s.blocks(), root});
        });
  }

  /// A broadcast on the root's host, whose ranks then send their slices in the lanes; elsewhere then an allgather.
  void operator()(const broadcast_call& c) const {
    if (flat(c, true)) return;
    const int root_host = host_of(c.root), root = local_of(c.root);
    const auto from_root = [&](std::size_t at, std::size_t n) {
      here(broadcast_call{(world_.rank() == c.root ? c.in : c.out) + at, c.out + at, n, root});
    };
    if (c.bytes <= sizes_.leader_bytes) {
      const int leader = root < map_.lanes ? root : 0;
      const bool first = root >= map_.lanes;  // the root has no lane, a neighbour must send for it
      if (first && host_ == root_host) from_root(0, c.bytes);
      const bool at_root = world_.rank() == c.root;
      if (local_.rank() == leader) there(broadcast_call{at_root ? c.in : c.out, c.out, c.bytes, root_host});
      if (!first || host_ != root_host) here(broadcast_call{c.out, c.out, c.bytes, leader});
      return;
    }
    in_chunks<broadcast_call>(
        c.bytes, 1,
        [&](std::size_t at, const slices& s, int) {
          if (host_ == root_host) from_root(at, s.blocks().total_bytes());
          std::byte* const mine = c.out + at + s.offset(local_.rank());
          return broadcast_call{mine, mine, s.count(local_.rank()), root_host};
        },
        [&](std::size_t at, const slices& s, int) {
          if (host_ != root_host) join(c.out + at, s);
        });
  }

  /// Each host reduces slices of every host's part of the vector; then each lane reduces them to the host they are for.
  void operator()(const reduce_scatter_call& c) const {
    if (flat(c, map_.consecutive)) return;
    const auto [before, after] = stages(c.op);
    const std::size_t unit = c.op.element_bytes;
    const regions hosts(map_, c.blocks, host_);
    const partition mine(hosts.own(), unit);
    if (c.blocks.total_bytes() <= sizes_.leader_bytes) {
      const bool leads = local_.rank() == 0;
      const auto all = temporary_of(leads ? c.blocks.total_bytes() : 0);
      const auto ours = temporary_of(leads ? mine.total_bytes() : 0);
      here(reduce_call{c.in, all.data(), c.blocks.total_count(), before, 0});
      if (leads) there(reduce_scatter_call{all.data(), ours.data(), partition(hosts.counts(), unit), after});
      return here(scatter_call{ours.data(), c.out, mine, 0});
    }
    const std::vector<std::size_t> counts = lane_counts(hosts.counts());
    const partition pieces(counts, unit);
    const auto sums = temporary_of(has_lane() ? pieces.total_bytes() : 0);
    const auto sum = temporary_of(has_lane() ? pieces.bytes(host_) : 0);
    const auto ours = temporary_of(mine.total_bytes());
    for (int h = 0; h != map_.hosts(); ++h) {
      const slices s(map_, local_.size(), hosts.count(h), unit);
      std::byte* const piece = has_lane() ? sums.data() + pieces.offset(h) : nullptr;
      here(reduce_scatter_call{c.in + hosts.offset(h), piece, s.blocks(), before});
    }
    if (has_lane()) there(reduce_scatter_call{sums.data(), sum.data(), pieces, after});
    const slices s(map_, local_.size(), mine.total_count(), unit);
    here(allgather_call{sum.data(), ours.data(), s.blocks()});
    level_memory<Local>::copy(local_, c.out, ours.data() + mine.offset(local_.rank()), mine.bytes(local_.rank()));
  }

  /// An allgather on each host, then of slices of it in the lanes, then again on each host.
  void operator()(const allgather_call& c) const {
    if (flat(c, map_.consecutive)) return;
    const regions hosts(map_, c.blocks, host_);
    const partition mine(hosts.own(), c.blocks.element_bytes());
    std::byte* const ours = c.out + hosts.offset(host_);
    here(allgather_call{c.in, ours, mine});
    if (c.blocks.total_bytes() <= sizes_.leader_bytes) {
      const partition all(hosts.counts(), c.blocks.element_bytes());
      if (local_.rank() == 0) there(allgather_call{ours, c.out, all});
      return here(broadcast_call{c.out, c.out, c.blocks.total_bytes(), 0});
    }
    std::vector<std::size_t> bytes = hosts.counts();
    for (std::size_t& n : bytes) n *= c.blocks.element_bytes();
    const std::vector<std::size_t> counts = lane_counts(bytes);
    const partition pieces(counts, 1);
    const auto got = temporary_of(has_lane() ? pieces.total_bytes() : 0);
    if (has_lane()) {
      const slices s(map_, local_.size(), bytes[static_cast<std::size_t>(host_)], 1);
      there(allgather_call{ours + s.offset(local_.rank()), got.data(), pieces});
    }
    for (int h = 0; h != map_.hosts(); ++h) {
      if (h == host_) continue;
      const slices s(map_, local_.size(), bytes[static_cast<std::size_t>(h)], 1);
      here(allgather_call{has_lane() ? got.data() + pieces.offset(h) : nullptr, c.out + hosts.offset(h), s.blocks()});
    }
  }

  /// A gather on each host to the rank in the root's lane, then in that lane.
  void operator()(const gather_call& c) const {
    if (flat(c, map_.consecutive && local_of(c.root) < map_.lanes)) return;
    const regions hosts(map_, c.blocks, host_);
    const partition mine(hosts.own(), c.blocks.element_bytes());
    const int leader = local_of(c.root);
    const bool leads = local_.rank() == leader, at_root = world_.rank() == c.root;
    const auto collected = temporary_of(leads && !at_root ? mine.total_bytes() : 0);
    std::byte* const ours = at_root ? c.out + hosts.offset(host_) : collected.data();
    here(gather_call{c.in, ours, mine, leader});
    if (leads) there(gather_call{ours, c.out, partition(hosts.counts(), c.blocks.element_bytes()), host_of(c.root)});
  }

  /// A scatter in the root's lane, then on each host.
  void operator()(const scatter_call& c) const {
    if (flat(c, map_.consecutive && local_of(c.root) < map_.lanes)) return;
    const regions hosts(map_, c.blocks, host_);
    const partition mine(hosts.own(), c.blocks.element_bytes());
    const int leader = local_of(c.root);
    const bool leads = local_.rank() == leader;
    const auto ours = temporary_of(leads ? mine.total_bytes() : 0);
    if (leads) {
      there(scatter_call{c.in, ours.data(), partition(hosts.counts(), c.blocks.element_bytes()), host_of(c.root)});
    }
    here(scatter_call{ours.data(), c.out, mine, leader});
  }

  /// Runs on one level: every pair of ranks has its own block, so two levels would not send less between hosts.
  void operator()(const alltoall_call& c) const { flat(c, false); }

  /// Runs on one level: a rank waits for all ranks below it, so two levels would take more steps and not save bytes.
  void operator()(const scan_call& c) const { flat(c, false); }
  void operator()(const exscan_call& c) const { flat(c, false); }

  void barrier() const {
    on_host([&] { local_.barrier(); });
    if (local_.rank() == 0 && map_.hosts() > 1) on_lane([&] { lane_->barrier(); });
    on_host([&] { local_.barrier(); });
  }

 private:
  /// The blocks of all ranks as one block for each host, whose ranks are consecutive.
  class regions {
   public:
    regions(const host_map& map, const partition& blocks, int own) : map_(map), blocks_(blocks) {
      for (int h = 0; h != map.hosts(); ++h) {
        std::size_t n = 0;
        for (int r = 0; r != ranks(h); ++r) n += blocks.count(first(h) + r);
        counts_.push_back(n);
      }
      for (int r = 0; r != ranks(own); ++r) own_.push_back(blocks.count(first(own) + r));
    }
    [[nodiscard]] const std::vector<std::size_t>& counts() const noexcept { return counts_; }
    [[nodiscard]] std::size_t count(int h) const noexcept { return counts_[static_cast<std::size_t>(h)]; }
    [[nodiscard]] std::size_t offset(int h) const noexcept { return blocks_.offset(first(h)); }
    /// The counts of the ranks of host `own`.
    [[nodiscard]] const std::vector<std::size_t>& own() const noexcept { return own_; }

   private:
    [[nodiscard]] int first(int h) const noexcept { return map_.first[static_cast<std::size_t>(h)]; }
    [[nodiscard]] int ranks(int h) const noexcept { return map_.ranks[static_cast<std::size_t>(h)]; }
    const host_map& map_;
    const partition& blocks_;
    std::vector<std::size_t> counts_, own_;
  };

  [[nodiscard]] int host_of(int rank) const noexcept { return map_.host_of[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int local_of(int rank) const noexcept { return map_.local_of[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] bool has_lane() const noexcept { return lane_ != nullptr; }

  template <class Call>
  void here(const Call& c) const {
    on_host([&] { run(local_, c, automatic<>{}); });
  }
  template <class Call>
  void there(const Call& c) const {
    on_lane([&] { run_across(local_, *lane_, c); });
  }
  /// Errors of the levels name the rank at fault by its rank in the whole group.
  template <class F>
  void on_host(const F& f) const {
    on_level(f, [&](int local) { return map_.rank_of(host_, local); });
  }
  template <class F>
  void on_lane(const F& f) const {
    on_level(f, [&](int host) { return map_.rank_of(host, local_.rank()); });
  }
  /// A rank may end because another one was lost, which only the whole group shows.
  template <class F, class Whole>
  void on_level(const F& f, const Whole& whole) const {
    try {
      host_map::on_level(f, whole);
    } catch (const error& e) {
      const bool ended = e.kind() == error_kind::peer_lost || e.kind() == error_kind::aborted;
      const int lost = ended ? first_lost() : -1;
      if (lost >= 0 && lost != e.rank()) {
        throw error(error_kind::peer_lost, joined({sentence(e), ", after rank ", lost, is_lost}), lost);
      }
      // The others may see this rank's end before that of the rank at fault, so this one names it to them.
      if constexpr (requires { world_.abort(e.kind(), e.rank()); }) {
        if ((ended || e.kind() == error_kind::timeout) && e.rank() >= 0) world_.abort(e.kind(), e.rank());
      }
      throw;
    }
  }
  int first_lost() const {
    if constexpr (Probing<Cross>) {
      try {
        world_.check();
      } catch (const error& e) {
        if (e.kind() == error_kind::peer_lost) return e.rank();
      }
    }
    return -1;
  }

  /// If there is only one level, or two do not help the call, runs the call on one level and returns true.
  template <class Call>
  bool flat(const Call& c, bool helped) const {
    const bool one_host = map_.hosts() == 1 && map_.consecutive;
    const bool one_each = map_.hosts() == world_.size();
    if (!one_host && !one_each && helped) return false;
    if (one_host) {
      here(c);
    } else {
      run_across(local_, world_, c);
    }
    return true;
  }

  [[nodiscard]] auto temporary_of(std::size_t bytes) const { return level_memory<Local>::take(local_, bytes); }

  /// The reduction before data leaves a host, and after.
  static std::pair<reduction, reduction> stages(const reduction& op) {
    reduction before = op, after = op;
    before.scale = {op.scale.pre, 1.0, 1};
    after.scale = {1.0, op.scale.post, op.scale.divisor};
    return {before, after};
  }

  /// The slice of each count that this rank's lane carries.
  [[nodiscard]] std::vector<std::size_t> lane_counts(const std::vector<std::size_t>& counts) const {
    std::vector<std::size_t> mine;
    for (const std::size_t n : counts) {
      mine.push_back(has_lane() ? even_blocks(map_.lanes, n, 1).count(local_.rank()) : 0);
    }
    return mine;
  }

  /// Elements of all lanes' slices together that are on their way at a time.
  [[nodiscard]] std::size_t chunk(std::size_t count, std::size_t unit) const noexcept {
    const auto lanes = static_cast<std::size_t>(map_.lanes);
    return chunk_elements(std::min(sizes_.chunk_bytes, SIZE_MAX / lanes) * lanes, unit, count);
  }
  /// Gathers the slices of all local ranks on each of them.
  void join(std::byte* out, const slices& s) const {
    here(allgather_call{out + s.offset(local_.rank()), out, s.blocks()});
  }

  /// For each chunk: `begin` on the host returns the call for the lane, and `end` on the host follows it; the next
  /// chunk begins while one is on its way. Both get the start of the chunk, its slices, and 0 and 1 in turn.
  template <class Call, class Begin, class End>
  void in_chunks(std::size_t count, std::size_t unit, const Begin& begin, const End& end) const {
    const std::size_t each = chunk(count, unit);
    const std::size_t chunks = std::max<std::size_t>(1, (count + each - 1) / each);
    const slices whole(map_, local_.size(), std::min(each, count), unit);
    const slices last(map_, local_.size(), count - (chunks - 1) * each, unit);
    const auto of = [&](std::size_t k) -> const slices& { return k + 1 == chunks ? last : whole; };
    std::optional<Call> calls[2];
    std::optional<in_flight<Cross, Call>> flights[2];
    const auto finish = [&](std::size_t k) {
      if (flights[k % 2]) on_lane([&] { flights[k % 2]->wait(); });
      flights[k % 2].reset();
      end(k * each, of(k), static_cast<int>(k % 2));
    };
    for (std::size_t k = 0; k != chunks; ++k) {
      calls[k % 2].emplace(begin(k * each, of(k), static_cast<int>(k % 2)));
      if constexpr (memory_of<Local> == memory_kind::host) {
        if (has_lane()) on_lane([&] { flights[k % 2].emplace(*lane_, *calls[k % 2], chunks > 1); });
      } else if (has_lane()) {
        there(*calls[k % 2]);
      }
      if (k != 0) finish(k - 1);
    }
    finish(chunks - 1);
  }

  Local& local_;
  Cross* lane_;
  Cross& world_;
  const host_map& map_;
  const hierarchy_sizes& sizes_;
  int host_;
};

}  // namespace hvd::inline HVD_ABI::detail
