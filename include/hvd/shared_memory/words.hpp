// hvd/shared_memory/words.hpp: words that one rank stores and others wait for.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_memory/failure.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/shared_memory/layout.hpp>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// Stores that wake, and waits with a deadline that notice lost ranks.
class peer_words : public peer_failure {
 public:
  peer_words(group_header& header, int size, const geometry& shape, int rank, std::string label,
             const waiting_policy& waiting, const failure_policy& failure, liveness live)
      : peer_failure(header, size, shape, rank, std::move(label), failure, live), waiting_(waiting) {}

  /// True if there are more ranks than CPUs; the same on all ranks.
  [[nodiscard]] bool oversubscribed() const noexcept { return oversubscribed_; }
  void set_oversubscribed(bool more_ranks_than_cpus) noexcept {
    oversubscribed_ = more_ranks_than_cpus;
    pace_ = pace_of(waiting_, more_ranks_than_cpus);
  }

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

 protected:
  ~peer_words() = default;

  /// Wakes the ranks that sleep until this one stores. The load may be reordered before the preceding store, and then
  /// misses a sleeper that registers at that moment; its sleep is limited. This saves a fence at every store.
  void ring() noexcept {
    auto& doorbell = mine().doorbell;
    if (doorbell.sleepers.load(std::memory_order_relaxed) == 0) [[likely]]
      return;
    doorbell.rings.fetch_add(1);
    futex_wake_all(doorbell.rings);
  }

 private:
  static pace pace_of(const waiting_policy& w, bool oversubscribed) noexcept {
    return {.looks = oversubscribed ? w.oversubscribed_loads : w.loads,
            .pauses = oversubscribed ? 0 : w.pauses,
            .yields = w.yields,
            .sleep = w.sleep};
  }

  waiting_policy waiting_;
  pace pace_ = pace_of(waiting_, false);
  bool oversubscribed_ = false;
};

}  // namespace hvd::inline HVD_ABI::detail
