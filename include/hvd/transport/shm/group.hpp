// hvd/transport/shm/group.hpp: processes join a group in a segment, and leave it.
#pragma once

#include <hvd/detail/deadline.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_memory/agree.hpp>
#include <hvd/shared_memory/lost_ranks.hpp>
#include <hvd/shared_memory/measure_lines.hpp>
#include <hvd/shared_memory/peer_files.hpp>
#include <hvd/shared_memory/segment.hpp>
#include <hvd/shared_memory/survivors.hpp>
#include <hvd/topology.hpp>
#include <hvd/transport/shm/allocate.hpp>
#include <hvd/transport/shm/start.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// One rank's membership of a group of processes.
class shm_group {
  using clock = std::chrono::steady_clock;

 public:
  shm_group(group_name name, int rank, int size, const sharing_options& opts, std::uint64_t nonce,
            const watch& lost = {}, std::shared_ptr<job_claims> claims = {})
      : opts_(opts), name_(std::move(name)), size_(size), keeps_name_(name_.ambiguous() && nonce == 0 && size > 1),
        claims_(std::move(claims)),
        label_(joined({"rank ", rank, " of ", size, " (job ", std::string_view(name_.job).substr(0, 64), ")"})) {
    if (size < 1 || size > max_ranks) refuse({"size ", size, " is out of range; allowed: 1 to 4096"});
    if (rank < 0 || rank >= size) refuse({"rank ", rank, " is out of range; allowed: 0 to ", size - 1});
    if (name_.job.empty()) refuse({"the job has no name; allowed: any text, the same on all ranks"});
    check_limit("failure_policy::timeout", opts.failure.timeout);
    check_limit("failure_policy::start_timeout", opts.failure.start_timeout);
    deadline_ = deadline_after(limit_.time);
    try {
      segment_.emplace(group_finder{name_, rank, size, nonce, opts_, lost, limit_, deadline_}.find(creator_));
      join(rank, lost);
    } catch (const error& e) {
      abandon();
      if (sentence(e).starts_with("join on ")) throw;
      fail(e.kind(), {"join on ", label_, ": ", sentence(e)}, e.rank());
    } catch (...) {
      abandon();
      throw;
    }
    if (!keeps_name_) segment_->unlink();
  }
  shm_group(const shm_group&) = delete;
  shm_group& operator=(const shm_group&) = delete;

  [[nodiscard]] peer_memory& peers() noexcept { return *peers_; }
  [[nodiscard]] const sharing_options& opts() const noexcept { return opts_; }
  [[nodiscard]] const std::string& file() const noexcept { return name_.file; }
  /// How long ranks may take to come to a group that is made from this one.
  [[nodiscard]] join_limit limit_of_parts() const { return join_limit::of(group_name({}, {}, true), opts_.failure); }

  /// The header in which groups made by `split` look for a second claim; null if none can come.
  [[nodiscard]] const std::shared_ptr<job_claims>& claims() const noexcept { return claims_; }

  void leave() noexcept {
    if (!tell_left()) return;
    // Ranks may have been killed while they joined a group without this rank, and have left its name.
    if (somebody_died()) segment::sweep(opts_.memory.directory);
    if (!keeps_name_) return;
    segment_->unlink();
    claims_->forget();
  }

  /// True if a rank has left or died.
  [[nodiscard]] bool gone(int rank) const {
    return peers_->of(rank).self.state.load(std::memory_order_acquire) == presence::left || !segment_->locked(rank);
  }

  /// The rank to blame for the loss of `peer`: preferably a rank that was killed, not one that left, and not one that
  /// knew of a failure before it ended and may have ended because of it. (A process that ends leaves its groups one by
  /// one: another rank may notice this in another group, and leave this group, before it is visible here.)
  [[nodiscard]] int blame(int peer) const {
    backoff rest(paces::other_process);
    for (int attempt = 0; attempt != 3; ++attempt) {
      for (int q = 0; q != peers_->size(); ++q) {
        if (q == peers_->rank() || segment_->locked(q)) continue;
        const auto& self = peers_->of(q).self;
        if (self.state.load(std::memory_order_acquire) == presence::left || self.informed.load()) continue;
        return q;
      }
      rest.step();
    }
    return peer;
  }

  /// Checks one of `members` (ranks of this group), in each call the next one. If it is gone, returns the index of the
  /// member to blame, otherwise -1.
  [[nodiscard]] int find_gone(std::span<const int> members) {
    const std::size_t next = ++checked_ % members.size();
    const int r = members[next];
    if (r == peers_->rank() || !gone(r)) return -1;
    const auto culprit = std::find(members.begin(), members.end(), blame(r)) - members.begin();
    return static_cast<int>(culprit != std::ssize(members) ? culprit : static_cast<std::ptrdiff_t>(next));
  }

  /// See agree_on_survivors, for the next round. This group ends.
  next_members find_survivors(clock::time_point deadline) {
    peers_->retire();
    auto& header = *reinterpret_cast<group_header*>(segment_->data());
    return agree_on_survivors(
        *peers_, header, ++survivor_round_, [&](int q) { return gone(q); }, deadline);
  }

  /// Memory for n elements on each rank; it succeeds on all ranks or throws on all.
  std::shared_ptr<segment> allocate(std::size_t n, std::size_t element_bytes) {
    peer_memory& m = *peers_;
    peer_memory::scope scope(m, "alloc_shared");
    descriptor d;
    d.kind = operation::alloc_shared;
    d.count = n;
    d.element_bytes = static_cast<std::uint32_t>(element_bytes);
    agree(m, d, scope);
    if (n > std::size_t{PTRDIFF_MAX} / element_bytes / static_cast<std::size_t>(m.size()) / 2) {
      scope.leave();
      fail(error_kind::no_memory, {"alloc_shared on ", label_, ": ", n, " elements of ", element_bytes,
                                   " bytes are more than can be addressed"});
    }
    std::shared_ptr<segment> memory;
    if (n != 0) {
      const std::uint64_t nonce = share(m, random_word(), operation::alloc_shared).front();
      try {
        memory = allocate_named(m, opts_.memory.directory, part_name(name_.file, "block", nonce),
                                round_up(n * element_bytes, 4096));
      } catch (const error& e) {
        if (m.failed()) throw;  // a peer is gone: memory is not the reason
        scope.leave();
        fail(e.kind(), {"alloc_shared on ", label_, ": ", sentence(e)}, e.rank());
      }
    }
    scope.leave();
    return memory;
  }

  /// The first `bytes` of each rank's file; null, on all ranks, if they cannot be mapped.
  std::shared_ptr<peer_files> map_files(int fd, std::size_t bytes) {
    peer_memory& m = *peers_;
    peer_memory::scope scope(m, "map_shared");
    descriptor d;
    d.kind = operation::alloc_shared;
    if (m.checks()) agree(m, d, scope);
    std::shared_ptr<peer_files> files = map_peer_files(m, fd, bytes);
    scope.leave();
    return files;
  }

  shared_block add_block(std::byte* base, std::size_t stride, std::size_t bytes) {
    const shared_block b{++blocks_, base, stride, bytes};
    peers_->add_block(b);
    return b;
  }

 private:
  [[noreturn]] void refuse(std::initializer_list<piece> why, error_kind kind = error_kind::invalid_argument) const {
    fail(kind, {"join on ", label_, ": ", joined(why)});
  }

  /// Marks this rank as left. False if this process is not in the group, or not ready.
  bool tell_left() noexcept {
    if (!peers_ || peers_->orphaned() || !ready_) return false;
    peers_->mine().self.state.store(presence::left, std::memory_order_release);
    return true;
  }

  /// True if a rank has ended without leaving.
  [[nodiscard]] bool somebody_died() const noexcept {
    for (int q = 0; q != size_; ++q) {
      const auto left = [&] { return peers_->of(q).self.state.load(std::memory_order_acquire) == presence::left; };
      if (q != peers_->rank() && !left() && !segment_->locked(q) && !left()) return true;
    }
    return false;
  }

  /// Ends a failed join. Living ranks remove the name, but first wait up to 200 ms, so that ranks that come later find
  /// the segment and its error. (If a launcher made the segment, only the launcher removes the name.)
  void abandon() noexcept {
    if (!entered_ && !creator_) return;
    tell_left();
    const auto& header = *reinterpret_cast<const group_header*>(segment_->data());
    if (header.launched != 0) return;
    wait_until(clock::now() + std::chrono::milliseconds(200), paces::other_process, [&, q = 0]() mutable {
      while (q != size_ && header.entered.has(q)) ++q;
      return q == size_;
    });
    segment_->unlink();
  }

  void join(int rank, const watch& lost) {
    auto& header = *reinterpret_cast<group_header*>(segment_->data());
    if (!segment_->lock(rank)) claim_twice(header, rank);
    const bool again = header.entered.has(rank);
    header.entered.add(rank);
    entered_ = true;
    const geometry shape = geometry_of(*segment_, size_);
    peers_.emplace(header, size_, shape, rank, label_, opts_.waiting, opts_.failure,
                   peer_memory::liveness{
                       [](void* self, int peer) { return static_cast<shm_group*>(self)->segment_->locked(peer); },
                       [](void* self, int peer) { return static_cast<shm_group*>(self)->blame(peer); }, this});
    if (claims_) peers_->look_for_claims(claims_->abort_word());
    segment_->on_fork(
        [](void* self) {
          if (auto& peers = static_cast<shm_group*>(self)->peers_) peers->orphan();
        },
        this);
    if (again) {
      peers_->set_abort(error_kind::peer_lost, rank);
      refuse({"an earlier process that was rank ", rank, " of this group is gone; start all ranks again"},
             error_kind::peer_lost);
    }
    try {
      segment_->reserve(static_cast<std::size_t>(peers_->window(rank) - segment_->data()), shape.window_bytes);
      if (keeps_name_) claims_ = std::make_shared<job_claims>(*segment_);
    } catch (...) {
      peers_->set_abort(error_kind::no_memory, rank);
      throw;
    }
    checked_ = static_cast<std::size_t>(rank);
    auto& self = peers_->mine().self;
    for (const int cpu : host().cpu_ids) {
      const auto at = static_cast<std::size_t>(cpu);
      if (at < max_cpus) self.cpus[at / 64].fetch_or(std::uint64_t{1} << at % 64, std::memory_order_relaxed);
    }
    self.cpu_limit.store(static_cast<std::uint32_t>(std::min(std::ceil(host().quota), double{max_cpus})),
                         std::memory_order_relaxed);
    self.nonce.store(header.nonce[1], std::memory_order_relaxed);
    self.process.store(process_identity(), std::memory_order_relaxed);
    self.job_rank.store(lost_ranks::file().own(), std::memory_order_relaxed);
    self.state.store(presence::joined, std::memory_order_release);
    ready_ = true;
    header.ready.add(rank);
    await_all(header, lost);
    if (keeps_name_) await_second_claims(header);
    count_cpus();
    // Groups made by `split` get this group's options, including its costs, if they are known.
    try {
      if (size_ > 1) opts_.lines = agree_on_line_costs(*peers_, opts_.lines);
    } catch (const error&) {
      if (!name_.survivors) throw;  // they are a group already; the next call reports the loss
    }
    peers_->set_costs(opts_.lines);
  }

  /// Whether the group may begin: with all ranks ready, or if one of survivors has begun on another rank.
  [[nodiscard]] bool may_begin(group_header& header, bool all_ready) const noexcept {
    if (name_.survivors) return settle_formed(header, all_ready);
    return all_ready && header.abort.value.load(std::memory_order_acquire) == 0;
  }

  void await_all(group_header& header, const watch& lost) {
    // A check is a system call that goes through the locks of all ranks. All ranks check, so each checks few in a step,
    // the next ones each time, and many ranks sleep longer. They begin with different ranks, and so soon check all; a
    // rank that waits alone does so within 0.7 s.
    const int checks = 1 + size_ / 128;
    pace step = paces::joining;
    step.longest = std::clamp(std::chrono::microseconds(20) * size_, step.longest, 5 * step.longest);
    backoff rest(step);
    int p = peers_->rank();  // the rank that was checked last
    for (int q = 0; q != size_;) {
      if (header.ready.has(q)) {
        ++q;
        continue;
      }
      if (header.abort.value.load(std::memory_order_acquire) != 0) {
        if (may_begin(header, false)) break;
        failed_to_join(header);
      }
      // While rank q is not ready no rank has completed the join, so rank 0 has not left. (When a launcher ends, its
      // ranks end too.)
      const bool creator_gone = !creator_ && header.launched == 0 && !segment_->locked(segment::creator_byte);
      if (creator_gone && !header.ready.has(q)) peers_->set_abort(error_kind::peer_lost, 0);
      for (int i = 0; i != checks; ++i) {
        do p = p + 1 != size_ ? p + 1 : 0;
        while (p != peers_->rank() && !header.entered.has(p));
        // A rank may have joined and left already: it sets its state to left before it frees its lock.
        if (p != peers_->rank() && !segment_->locked(p) &&
            (!header.ready.has(p) || peers_->of(p).self.state.load(std::memory_order_acquire) != presence::left)) {
          peers_->set_abort(error_kind::peer_lost, p);
        }
        const int gone = lost ? lost(q) : -1;
        if (gone >= 0 && !header.entered.has(gone)) peers_->set_abort(error_kind::peer_lost, gone);
        if (gone == group_ended) peers_->set_abort(error_kind::aborted, peers_->rank());
      }
      if (clock::now() > deadline_) peers_->set_abort(error_kind::timeout, q);
      rest.step();
    }
    for (int q = 0; q != size_; ++q) {
      if (peers_->of(q).self.nonce.load(std::memory_order_relaxed) != header.nonce[1]) {
        refuse({"rank ", q, " is not in this group's memory"}, error_kind::mismatch);
      }
    }
    if (!may_begin(header, true)) failed_to_join(header);
  }

  /// Waits for processes of another launch under the same name, which may come a moment later. An error now is better
  /// than results that mix the data of both.
  void await_second_claims(const group_header& header) {
    const auto claimed = [&] { return header.abort.value.load(std::memory_order_acquire) != 0; };
    if (wait_until(clock::now() + std::chrono::milliseconds(20), paces::whole_job, claimed)) failed_to_join(header);
  }

  [[noreturn]] void failed_to_join(const group_header& header) {
    const std::uint64_t reason = header.abort.value.load(std::memory_order_acquire);
    if (abort_kind(reason) == error_kind::timeout) {
      std::string missing;
      int first = -1;
      for (int q = 0; q != size_; ++q) {
        if (header.ready.has(q)) continue;
        if (first < 0) first = q;
        missing += joined({missing.empty() ? "" : ", ", q});
      }
      if (first < 0) missing = joined({first = abort_culprit(reason, size_)});  // they came too late
      fail(error_kind::timeout,
           {"join on ", label_, ": rank(s) ", missing, " did not join", limit_.text(), how_to_meet}, first);
    }
    peers_->check_abort(-1, phase::join);
    // Only a faulty process sets the abort word back to zero.
    peers_->give_up(abort_kind(reason), abort_culprit(reason, size_), phase::join);
  }

  /// Finds out whether the group is oversubscribed: more ranks than CPUs in the union of those that they may use, or
  /// than their largest quota allows.
  void count_cpus() {
    int cpus = 0;
    for (std::size_t w = 0; w != max_cpus / 64; ++w) {
      std::uint64_t any = 0;
      for (int q = 0; q != size_; ++q) any |= peers_->of(q).self.cpus[w].load(std::memory_order_relaxed);
      cpus += std::popcount(any);
    }
    int quota = 0;
    for (int q = 0; q != size_; ++q) {
      quota = std::max(quota, static_cast<int>(peers_->of(q).self.cpu_limit.load(std::memory_order_relaxed)));
    }
    peers_->set_oversubscribed(size_ > std::min(cpus, quota));
  }

  sharing_options opts_;
  const group_name name_;
  const int size_;
  const bool keeps_name_;  // while the group lives: see group_name::ambiguous
  const join_limit limit_ = join_limit::of(name_, opts_.failure);
  std::shared_ptr<job_claims> claims_;
  std::string label_;
  clock::time_point deadline_;
  std::optional<segment> segment_;
  std::optional<peer_memory> peers_;
  bool creator_ = false;  // the lock cannot show it: the system shows no holder its own lock
  bool entered_ = false;  // holds its lock
  bool ready_ = false;    // its window has memory
  std::uint32_t blocks_ = 0;
  std::uint32_t survivor_round_ = 0;
  std::size_t checked_ = 0;  // by find_gone
};

}  // namespace hvd::inline HVD_ABI::detail
