// hvd/shared_memory/peer_memory.hpp: the words, lines and staging rings by which ranks with common memory synchronise.
//
// This is the interface of a PeerMemory transport for algorithms. It works with memory from any source: a mapped
// segment between processes, or private memory between threads. Rules for its users:
//  * one writer at a time for a cache line; a word only grows; loads acquire and stores release, and there is no
//    read-modify-write and no fence on the data path;
//  * every wait names the peer it waits for. It fails, with an hvd::error on every rank, if that peer is lost, if a
//    rank has failed, or at the deadline.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_memory/abort.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/shared_memory/lost_ranks.hpp>
#include <hvd/shared_memory/shared_block.hpp>
#include <hvd/shared_memory/staging.hpp>
#include <hvd/shared_memory/wait_board.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hvd::inline HVD_ABI::detail {

class peer_memory {
 public:
  /// Checks that the process or thread behind a rank still exists; called only while waiting.
  struct liveness {
    bool (*alive)(void* context, int peer) = nullptr;
    /// The rank to blame if `peer` is lost: it may have left because another rank was killed.
    int (*blame)(void* context, int peer) = nullptr;
    void* context = nullptr;
  };

  /// `size` and `shape` are values that the caller has checked: the header's may change.
  peer_memory(group_header& header, int size, const geometry& shape, int rank, std::string label,
              const waiting_policy& waiting, const failure_policy& failure, liveness live)
      : header_(header), geometry_(shape), caches_(header.caches), checks_(header.check != 0), rank_(rank), size_(size),
        label_(std::move(label)), waiting_(waiting), failure_(failure), live_(live),
        staging_(ring_size(geometry_, caches_, size)), sent_(std::make_unique<std::uint64_t[]>(ranks())),
        taken_(std::make_unique<std::uint64_t[]>(ranks())), inputs_(std::make_unique<const std::byte*[]>(ranks())),
        outputs_(std::make_unique<std::byte*[]>(ranks())) {}
  peer_memory(const peer_memory&) = delete;
  peer_memory& operator=(const peer_memory&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const geometry& shape() const noexcept { return geometry_; }
  [[nodiscard]] bool oversubscribed() const noexcept {
    return oversubscribed_;
  }  ///< more ranks than CPUs; the same on all ranks
  [[nodiscard]] const cache_sizes& caches() const noexcept { return caches_; }
  [[nodiscard]] const line_costs& costs() const noexcept { return costs_; }
  [[nodiscard]] bool checks() const noexcept { return checks_; }
  void set_oversubscribed(bool more_ranks_than_cpus) noexcept {
    oversubscribed_ = more_ranks_than_cpus;
    pace_ = pace_of(waiting_, more_ranks_than_cpus);
  }
  void set_costs(const line_costs& all_ranks_agree_on) noexcept { costs_ = all_ranks_agree_on; }
  /// These apply to waits that begin from now on; see failure_policy::timeout and hvd::interruption.
  void set_timeout(failure_policy::seconds timeout) noexcept { failure_.timeout = timeout; }
  [[nodiscard]] failure_policy::seconds timeout() const noexcept { return failure_.timeout; }
  void set_interruption(const interruption& by) noexcept { interruption_ = by; }
  /// For a group split off a named one, whose abort word this is: a second claim of a rank there ends this group, too.
  void look_for_claims(const word& abort_word) noexcept { claims_ = &abort_word; }

  [[nodiscard]] std::byte* window(int r) const noexcept {
    return reinterpret_cast<std::byte*>(&header_ + 1) + static_cast<std::size_t>(r) * geometry_.window_bytes;
  }
  [[nodiscard]] control& of(int r) const noexcept { return *reinterpret_cast<control*>(window(r)); }
  [[nodiscard]] control& mine() const noexcept { return of(rank_); }
  /// The address of `p` in the staging ring of rank r's window.
  [[nodiscard]] std::byte* at(int r, const staging_place& p) const noexcept {
    return window(r) + geometry_.ring_at + p.at;
  }
  [[nodiscard]] staging_ring& staging() noexcept { return staging_; }
  [[nodiscard]] const staging_ring& staging() const noexcept { return staging_; }

  // ---- words ------------------------------------------------------------------------------------------------

  /// Publishes all earlier stores of this rank together with `value`.
  void store(word& w, std::uint64_t value) noexcept {
    w.store(value, std::memory_order_release);
    ring();
  }

  /// Waits until a word written by `peer` has grown to `at_least`; returns its value.
  std::uint64_t await(const word& w, std::uint64_t at_least, int peer, phase what) {
    const std::uint64_t value = w.load(std::memory_order_acquire);
    if (value >= at_least) [[likely]]
      return value;
    await_until(peer, what, [&] { return w.load(std::memory_order_acquire) >= at_least; });
    return w.load(std::memory_order_acquire);
  }

  /// Waits for a condition that `peer` makes true (or `other`, if it is not -1, by receiving).
  template <class Ready>
  [[gnu::noinline]] void await_until(int peer, phase what, Ready ready, int other = -1) {
    if (spin(pace_, ready)) return;
    waits_->begin(peer);
    const auto started = clock::now();
    auto next_look = started + failure_.look_every;
    for (backoff rest(pace_);;) {
      if (!rest.yield()) {
        auto& doorbell = of(peer).doorbell;
        doorbell.sleepers.fetch_add(1);
        const std::uint32_t rings = doorbell.rings.load();
        if (!ready()) futex_wait(doorbell.rings, rings, rest.sleep());
        doorbell.sleepers.fetch_sub(1);
      }
      if (ready()) return waits_->end();
      const auto now = clock::now();
      // With more ranks than CPUs each wait of an operation may end before the time of the next check, and the
      // operation would go on long after the group has ended.
      if (now < next_look && !aborted()) continue;
      next_look = now + failure_.look_every;
      waits_->look();
      if (interruption_) give_up(error_kind::aborted, rank_, what, peer);
      for (const int p : {peer, other}) {
        const std::optional<error_kind> trouble = p < 0 ? std::nullopt : look(p, now - started);
        // The peer may have stored what we need just before it left.
        if (!trouble || ready()) continue;
        const int culprit = *trouble == error_kind::peer_lost ? blamed(p)
                            : *trouble == error_kind::timeout ? waits_->responsible(p)
                                                              : p;
        give_up(*trouble, culprit, p == peer ? what : phase::receive, p);
      }
    }
  }
  /// The board that shows the rank for which this rank waits.
  [[nodiscard]] wait_board& waits() noexcept { return *waits_; }
  /// From now on this group's waits appear on the board of `other`, a group of the same ranks in the same order. So the
  /// board has the waits of a thread in either group. `other` must live longer.
  void show_waits_with(peer_memory& other) noexcept { waits_ = other.waits_; }

  // ---- exchanges: small payloads -----------------------------------------------------------------------------------
  // Exchanges are numbered. Even and odd ones use different mailboxes, so no rank waits at the exit: publishing
  // exchange s+1 proves that this rank has read all it wanted of s, hence a rank that has read s+1 of all ranks may
  // overwrite the mailboxes of s in s+2. An exchange in which a rank does not read all others proves less; then
  // `payload` waits for the peers' `done` words instead.

  /// Starts the next exchange. `signature` is equal on ranks in the same call.
  void begin(std::uint16_t signature) noexcept {
    stamp_ = ++sequence_ << 16 | signature;
    if (sequence_ % 2 == 0 && ++turn_ == size_) turn_ = 0;
  }

  /// Memory for this rank's payload: mailbox::capacity bytes.
  std::byte* payload() {
    if (known_ + 2 < sequence_) [[unlikely]]
      await_done(sequence_ - 2);
    return mailbox_of(rank_).payload;
  }
  /// Publishes the payload: the other ranks can read it, and see all that this rank has stored before.
  void publish() noexcept {
    mailbox_of(rank_).stamp.store(stamp_, std::memory_order_release);
    ring();
  }
  /// Copies `bytes` from `data` into the payload, and publishes it.
  void publish(const std::byte* data, std::size_t bytes) {
    copy_bytes(payload(), data, bytes);
    publish();
  }

  /// Waits for the peer's payload, and returns its address.
  const std::byte* read(int peer) {
    const mailbox& box = mailbox_of(peer);
    const std::uint64_t seen = await(box.stamp, stamp_ & ~std::uint64_t{0xffff}, peer, phase::enter);
    if (seen != stamp_) [[unlikely]]
      give_up(error_kind::mismatch, peer, phase::enter);
    return box.payload;
  }

  /// Marks that this rank has read the payloads of all others in this exchange.
  void mark_all_read() noexcept {
    known_ = sequence_ - 1;
    staging_.all_began();
  }
  /// Ends the exchange for this rank: it no longer needs its peers.
  void end() noexcept { store(mine().done.value, sequence_); }

  /// Waits until every peer has ended exchange `sequence` (by default the current one).
  void await_done(std::uint64_t sequence) {
    for (int q = 0; q != size_; ++q) {
      if (q != rank_) await(of(q).done.value, sequence, q, phase::finish);
    }
    known_ = sequence;
  }
  void await_done() { await_done(sequence_); }

  // ---- shared blocks --------------------------------------------------------------------------------------------

  void add_block(const shared_block& b) { blocks_.add(b); }
  void remove_block(std::uint32_t id) noexcept { blocks_.remove(id); }
  /// The block whose part of this rank contains [p, p + bytes), or null.
  [[nodiscard]] const shared_block* find_block(const std::byte* p, std::size_t bytes) const noexcept {
    return blocks_.find(p, bytes, rank_);
  }
  [[nodiscard]] const shared_block* block(std::uint32_t id) const noexcept { return blocks_.find(id); }

  // ---- failure --------------------------------------------------------------------------------------------------

  /// Between `enter` and `leave` an exception ends the group: peers may be waiting for data that never comes.
  class scope {
   public:
    scope(peer_memory& m, std::string_view operation) : m_(m) { m.enter(operation); }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;
    ~scope() {
      if (!left_ && !m_.failed_) m_.set_abort(error_kind::aborted, m_.rank_);
    }
    void leave() noexcept { left_ = true; }

   private:
    peer_memory& m_;
    bool left_ = false;
  };

  /// Sets the operation's name for messages; throws if the group has failed or this process may not use it.
  void enter(std::string_view operation) {
    operation_ = operation;
    if (orphaned_) [[unlikely]] {
      fail(error_kind::invalid_argument,
           {operation, " on ", label_,
            ": this process was forked from the one that joined the group; only that one may use it"});
    }
    // A process of another launch has claimed one of these ranks: stop before data of both launches mix.
    if (second_claim(*claims_) != 0) [[unlikely]]
      give_up(error_kind::mismatch, -1, phase::join);
    if (failed_) [[unlikely]] {
      fail(failed_->kind(),
           {operation, " on ", label_, ": the group failed before and cannot be used: ", sentence(*failed_)},
           failed_->rank());
    }
  }
  /// In a forked child: refuses all further use.
  void orphan() noexcept { orphaned_ = true; }
  [[nodiscard]] bool orphaned() const noexcept { return orphaned_; }
  [[nodiscard]] bool failed() const noexcept { return failed_.has_value(); }
  [[nodiscard]] std::string_view operation_name() const noexcept { return operation_; }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }

  /// Ends the group for all ranks and throws. If another rank was first, its reason is reported.
  [[noreturn]] void give_up(error_kind kind, int culprit, phase what, int waited_for = -1) {
    set_abort(kind, culprit, what);
    fail_with(header_.abort.value.load(std::memory_order_acquire), waited_for < 0 ? culprit : waited_for, what);
  }
  void set_abort(error_kind kind, int culprit, phase what = phase::answer) noexcept {
    std::uint64_t none = 0;
    header_.abort.value.compare_exchange_strong(none, abort_reason(kind, culprit, rank_, what));
  }
  /// Records that this rank knows of the failure, and may end because of it: see shm_group::blame.
  void inform() noexcept { mine().self.informed.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool aborted() const noexcept { return header_.abort.value.load(std::memory_order_acquire) != 0; }
  /// Reports a lost rank to hvdrun. A rank's window may be read once the rank is ready.
  void report_lost(int culprit, phase what) const noexcept {
    if (culprit < 0 || !header_.ready.has(culprit)) return;
    lost_ranks::file().add(of(culprit).self.job_rank.load(std::memory_order_relaxed), name(what));
  }
  /// Throws if a rank has failed.
  void check_abort(int waited_for, phase what) {
    if (const auto reason = header_.abort.value.load(std::memory_order_acquire); reason != 0)
      fail_with(reason, waited_for, what);
  }

  /// Throws the error that a wait would throw, if a rank is lost or has failed. Does not wait.
  void check_all() {
    for (int q = 0; q != size_; ++q) check_alive(q, [] { return false; });
  }
  /// The same for one rank, unless the awaited data is `there()`: the rank may have sent it and left.
  template <class There>
  void check_alive(int peer, const There& there) {
    enter("check");
    const bool lost = peer != rank_ && gone(peer);  // read first: stores from before it left are then visible
    if ((!lost && !aborted()) || there()) return;
    if (lost) set_abort(error_kind::peer_lost, blamed(peer));
    check_abort(-1, phase::answer);
  }

  /// The state of messages between this rank and `peer` (hvd/shared_memory/messages.hpp).
  [[nodiscard]] std::uint64_t& sent(int peer) noexcept { return sent_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] std::uint64_t& taken(int peer) noexcept { return taken_[static_cast<std::size_t>(peer)]; }

  /// Private memory for algorithms, kept between calls to save allocations.
  std::byte* scratch(std::size_t bytes) {
    if (bytes > scratch_bytes_) {
      scratch_.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{cache_line})));
      scratch_bytes_ = bytes;
    }
    return scratch_.get();
  }
  /// size() pointers each, for the inputs and outputs of a kernel.
  [[nodiscard]] const std::byte** inputs() noexcept { return inputs_.get(); }
  [[nodiscard]] std::byte** outputs() noexcept { return outputs_.get(); }

 private:
  using clock = std::chrono::steady_clock;

  static pace pace_of(const waiting_policy& w, bool oversubscribed) noexcept {
    return {.looks = oversubscribed ? w.oversubscribed_loads : w.loads,
            .pauses = oversubscribed ? 0 : w.pauses,
            .yields = w.yields,
            .sleep = w.sleep};
  }
  [[nodiscard]] std::size_t ranks() const noexcept { return static_cast<std::size_t>(size_); }

  /// The mailbox of rank r in this exchange. They rotate through the windows, so that with two ranks each writes a
  /// mailbox that it has read. A store into a line that only another rank has read costs several times as much
  /// (algorithm/direct/staged.hpp).
  [[nodiscard]] mailbox& mailbox_of(int r) const noexcept {
    const int home = r + turn_ < size_ ? r + turn_ : r + turn_ - size_;
    return reinterpret_cast<mailbox*>(window(home) + geometry_.mailboxes_at)[sequence_ & 1];
  }

  /// Wakes the ranks that sleep until this one stores. The load may be reordered before the preceding store, and then
  /// misses a sleeper that registers at that moment; its sleep is limited. This saves a fence at every store.
  void ring() noexcept {
    auto& doorbell = mine().doorbell;
    if (doorbell.sleepers.load(std::memory_order_relaxed) == 0) [[likely]]
      return;
    doorbell.rings.fetch_add(1);
    futex_wake_all(doorbell.rings);
  }

  [[nodiscard]] bool gone(int peer) const {
    if (of(peer).self.state.load(std::memory_order_acquire) == presence::left) return true;
    return live_.alive != nullptr && !live_.alive(live_.context, peer);
  }
  [[nodiscard]] int blamed(int lost) const { return live_.blame != nullptr ? live_.blame(live_.context, lost) : lost; }
  [[nodiscard]] std::optional<error_kind> look(int peer, clock::duration waited) {
    if (aborted() || second_claim(*claims_) != 0) return error_kind::aborted;
    if (gone(peer)) return error_kind::peer_lost;
    if (failure_.timeout.count() > 0 && waited > failure_.timeout) return error_kind::timeout;
    return std::nullopt;
  }

  [[noreturn]] void fail_with(std::uint64_t reason, int waited_for, phase what) {
    waits_->end();
    inform();
    // After a second claim ranks end one after the other: the claim is the reason, not the rank that ended first.
    if (const std::uint64_t why = second_claim(*claims_); why != 0) reason = why;
    const bool elsewhere = claimed_twice(reason) && claims_ != &header_.abort.value;
    const abort_reader reader{operation_, label_, rank_, size_, waited_for, what, failure_.timeout.count()};
    if (abort_kind(reason) == error_kind::peer_lost) report_lost(abort_culprit(reason, size_), what);
    failed_.emplace(abort_kind(reason), abort_sentence(reason, reader), elsewhere ? -1 : abort_culprit(reason, size_));
    throw *failed_;
  }

  group_header& header_;
  const geometry geometry_;  // a copy: nothing another process writes can move our accesses
  const cache_sizes caches_;
  const bool checks_;  // a copy: a forked child, which does not map the memory, may ask
  const int rank_;
  const int size_;
  std::string label_;
  waiting_policy waiting_;
  pace pace_ = pace_of(waiting_, false);
  failure_policy failure_;
  interruption interruption_;
  liveness live_;
  wait_board own_waits_{window(0), geometry_.window_bytes, rank_, size_};
  wait_board* waits_ = &own_waits_;
  line_costs costs_;
  const word* claims_ = &header_.abort.value;
  bool oversubscribed_ = false;
  bool orphaned_ = false;
  std::string_view operation_ = "join";
  std::uint64_t sequence_ = 0;  // exchanges begun
  int turn_ = 0;                // rank r writes the mailbox in window r + turn_
  std::uint64_t stamp_ = 0;     // of the current exchange
  std::uint64_t known_ = 0;     // every peer has ended exchange known_
  staging_ring staging_;
  shared_blocks blocks_;
  std::unique_ptr<std::uint64_t[]> sent_, taken_;
  std::unique_ptr<const std::byte*[]> inputs_;
  std::unique_ptr<std::byte*[]> outputs_;
  struct aligned_delete {
    void operator()(std::byte* p) const noexcept { ::operator delete[](p, std::align_val_t{cache_line}); }
  };
  std::unique_ptr<std::byte[], aligned_delete> scratch_;
  std::size_t scratch_bytes_ = 0;
  std::optional<error> failed_;
};

}  // namespace hvd::inline HVD_ABI::detail
