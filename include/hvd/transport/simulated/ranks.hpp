// hvd/transport/simulated/ranks.hpp: runs ranks as fibers of one thread, in virtual time; a part of simulated.hpp.
//
// A discrete-event simulation. A rank runs, ahead of the others, until it has to wait: until then it only puts events
// with later times into a queue. A rank that waits takes the earliest events out of the queue, until one of them wakes
// a rank. So shared resources (uplinks, a rank's way in) are assigned in the order of virtual time, and every run is
// the same.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/detail/kernel.hpp>
#include <hvd/transport/simulated/events.hpp>
#include <hvd/transport/simulated/fiber.hpp>
#include <hvd/transport/simulated/network.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

class simulated_ranks {
 public:
  using message = simulated_message;

  simulated_ranks(int size, const network& net, const simulation_options& opts)
      : size_(size), net_(net), wires_(size, net), stacks_(static_cast<std::size_t>(size), opts.stack_bytes),
        ranks_(std::make_unique<state[]>(static_cast<std::size_t>(size))) {
    for (int r = 0; r != size; ++r) of(r).payload = opts.payload;
  }

  /// The simulation that this thread runs.
  static simulated_ranks*& current() noexcept {
    static thread_local simulated_ranks* here = nullptr;
    return here;
  }

  /// Runs body(rank) on each rank to its end; throws what the first rank that failed has thrown.
  simulation run(std::function<void(int)> body) {
    body_ = std::move(body);
    for (int r = 0; r != size_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      ranks_[i].context.prepare(stacks_.at(i), stacks_.bytes(i), &start);
      wake(r, 0);
    }
    simulated_ranks* const outer = std::exchange(current(), this);
    while (state* const next = next_awake()) resume(main_, *next);
    for (int r = 0; r != size_; ++r) {
      // A rank that has not ended now waits in vain, and gets an error.
      if (state& s = of(r); !s.ended) {
        if (stuck_.empty()) stuck_ = report();
        resume(main_, s);
      }
    }
    current() = outer;
    if (first_failure_) std::rethrow_exception(first_failure_);
    simulation result;
    result.inside = traffic_[0];
    result.between = traffic_[1];
    for (int r = 0; r != size_; ++r) result.rank_seconds.push_back(of(r).clock);
    result.seconds = *std::max_element(result.rank_seconds.begin(), result.rank_seconds.end());
    return result;
  }

  [[nodiscard]] const network& net() const noexcept { return net_; }
  [[nodiscard]] int host(int rank) const noexcept { return wires_.host(rank); }
  [[nodiscard]] double now() const noexcept { return running_->clock; }
  void spend(double seconds) noexcept { running_->clock += seconds; }
  [[nodiscard]] std::uint32_t new_context() noexcept { return ++contexts_; }
  [[nodiscard]] bool& payload() noexcept { return running_->payload; }

  /// Sends from the running rank to rank `peer` of its group. Returns when the message has left this rank.
  void send(const simulated_place& at, const std::byte* data, std::size_t bytes, int peer) {
    check(at);
    message& m = events_.fresh();
    m.from = index_of(*running_);
    m.to = at.world(peer);
    m.context = at.context;
    m.bytes = bytes;
    m.crossing = wires_.crosses(m.from, m.to);
    traffic_[m.crossing].messages += 1;
    traffic_[m.crossing].bytes += bytes;
    m.carries = running_->payload;
    if (m.carries && bytes != 0) {
      if (m.room < bytes) m.payload = std::make_unique_for_overwrite<std::byte[]>(m.room = bytes);
      copy_bytes(m.payload.get(), data, bytes);
    }
    if (wires_.shares(m.crossing)) {
      m.next_is = message::stage::departs;
      events_.add(running_->clock, m);
      suspend();
    } else {
      m.next_is = message::stage::arrives;
      events_.add(running_->clock + wires_.latency(m.crossing), m);
      running_->clock += wires_.busy(m.crossing, bytes);
      if (++running_->ahead == most_ahead) {
        running_->ahead = 0;
        wake(index_of(*running_), running_->clock);
        suspend();
      }
    }
  }

  /// Waits until a message from rank `peer` of the group has arrived, takes it and returns its length. A message of
  /// another length than `bytes` is dropped.
  std::size_t receive(const simulated_place& at, std::byte* data, std::size_t bytes, int peer) {
    state& self = *running_;
    const std::uint64_t key = key_of(at.context, at.world(peer));
    auto found = find(self, key);
    if (found == self.arrived.end()) {
      await(at, {&key, 1});
      found = find(self, key);
    }
    message& m = *found->first;
    if ((found->first = m.behind) == nullptr) {
      *found = self.arrived.back();
      self.arrived.pop_back();
    }
    self.clock = std::max(self.clock, m.done);
    const std::size_t sent = m.bytes;
    if (m.carries && sent == bytes) copy_bytes(data, m.payload.get(), bytes);
    events_.drop(m);
    return sent;
  }

  /// True if a message from rank `peer` of the group, or its beginning, has arrived. Takes no virtual time.
  bool arrived(const simulated_place& at, int peer) {
    state& self = *running_;
    const std::uint64_t key = key_of(at.context, at.world(peer));
    const auto there = [&] { return find(self, key) != self.arrived.end(); };
    if (there()) return true;
    if (!stuck_.empty()) fail(at, {&key, 1});
    if (events_.empty() || events_.first_time() > self.clock) return false;
    self.ahead = 0;
    wake(index_of(self), self.clock);  // the others catch up first
    suspend();
    return there();
  }

  /// Waits until a message from one of these ranks of the group has arrived; takes none.
  void await_arrival(const simulated_place& at, std::span<const int> peers) {
    state& self = *running_;
    std::vector<std::uint64_t> keys;
    for (const int peer : peers) keys.push_back(key_of(at.context, at.world(peer)));
    std::sort(keys.begin(), keys.end());
    constexpr double never = std::numeric_limits<double>::infinity();
    const auto first = [&] {
      double done = never;
      for (const channel& c : self.arrived) {
        if (std::binary_search(keys.begin(), keys.end(), c.key)) done = std::min(done, c.first->done);
      }
      return done;
    };
    if (first() == never) await(at, keys);
    self.clock = std::max(self.clock, first());
  }

  /// Throws if no rank can go on.
  void check(const simulated_place& at) {
    if (!stuck_.empty()) fail(at, {});
  }

  // ---- kernels that take virtual time --------------------------------------------------------------------------

  /// A kernel that `charging<Place>` replaces, and the bytes of one of its elements.
  struct priced {
    kernel fold;
    std::size_t unit;
    friend bool operator==(const priced&, const priced&) = default;
  };
  static constexpr std::size_t most_priced = 64;

  /// The index of this kernel; most_priced if there is no room for another one.
  std::size_t price(const priced& what) {
    const auto found = std::find(priced_.begin(), priced_.end(), what);
    if (found == priced_.end() && priced_.size() != most_priced) return priced_.push_back(what), priced_.size() - 1;
    return static_cast<std::size_t>(found - priced_.begin());
  }
  template <std::size_t Place>
  static void charging(std::byte* const* outs, int nouts, const std::byte* const* ins, int nins, std::size_t count,
                       const scaling* scale) {
    simulated_ranks& here = *current();
    const priced& what = here.priced_[Place];
    if (here.payload()) what.fold(outs, nouts, ins, nins, count, scale);
    here.spend(static_cast<double>(count) * static_cast<double>(what.unit) * std::max(1, nins - 1) /
               here.net_.reduction_rate);
  }

 private:
  /// The messages from one rank in one group that have come and are not yet taken.
  struct channel {
    std::uint64_t key;
    message *first, *last;
  };
  static constexpr int nobody = -1;
  // A rank that has sent this many messages lets the others catch up, otherwise millions of events would wait in the
  // queue. (Reduce of 64 MiB by a tree of 1,024 ranks: 2.4 times faster. A ring, whose ranks are never ahead: the
  // same.)
  static constexpr int most_ahead = 16;
  struct state {
    fiber context;
    double clock = 0;
    std::vector<channel> arrived;
    std::span<const std::uint64_t> awaited;  // keys, in order: a message of any of them wakes this rank
    int ahead = 0;                           // messages sent since it let the others catch up
    bool ended = false;
    bool payload = true;
    std::string_view operation;
  };

  [[nodiscard]] state& of(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int index_of(const state& s) const noexcept { return static_cast<int>(&s - ranks_.get()); }
  static std::uint64_t key_of(std::uint32_t context, int from) noexcept {
    return std::uint64_t{context} << 32 | static_cast<std::uint32_t>(from);
  }
  static int writer(std::uint64_t key) noexcept { return static_cast<int>(key & 0xffffffff); }
  static std::vector<channel>::iterator find(state& s, std::uint64_t key) {
    return std::find_if(s.arrived.begin(), s.arrived.end(), [&](const channel& c) { return c.key == key; });
  }

  /// Makes a rank continue at this time.
  void wake(int rank, double time) {
    message& m = events_.fresh();
    m.to = rank;
    m.next_is = message::stage::wakes;
    events_.add(time, m);
  }

  /// Lets time pass until an event wakes a rank. Returns that rank, or null if no event will.
  state* next_awake() {
    while (!events_.empty()) {
      const simulated_events::event e = events_.take();
      message& m = *e.what;
      switch (m.next_is) {
        case message::stage::wakes: events_.drop(m); return &of(m.to);
        case message::stage::departs: {
          const double start = wires_.depart(e.time, m.from, m.bytes);
          state& sender = of(m.from);
          sender.clock = start + wires_.busy(true, m.bytes);
          m.next_is = message::stage::arrives;
          events_.add(start + wires_.latency(true), m);
          return &sender;
        }
        case message::stage::arrives: {
          m.done = wires_.arrive(e.time, m.to, m.crossing, m.bytes);
          state& receiver = of(m.to);
          const std::uint64_t key = key_of(m.context, m.from);
          if (const auto found = find(receiver, key); found != receiver.arrived.end()) {
            found->last->behind = &m;
            found->last = &m;
          } else {
            receiver.arrived.push_back({key, &m, &m});
          }
          if (std::binary_search(receiver.awaited.begin(), receiver.awaited.end(), key)) return &receiver;
        }
      }
    }
    return nullptr;
  }

  /// Waits until there is a message of one of these keys.
  void await(const simulated_place& at, std::span<const std::uint64_t> keys) {
    state& self = *running_;
    if (stuck_.empty()) {
      self.awaited = keys;
      self.operation = at.operation;
      suspend();
      self.awaited = {};
    }
    if (!stuck_.empty()) fail(at, keys);
  }

  /// The running rank waits; returns when it has been woken.
  void suspend() {
    state& self = *running_;
    state* const next = next_awake();
    if (next == &self) return;
    if (next != nullptr) return resume(self.context, *next);
    self.context.switch_to(main_);
    running_ = &self;
  }
  void resume(fiber& from, state& next) {
    state* const self = running_;
    running_ = &next;
    from.switch_to(next.context);
    running_ = self;
  }

  /// The function that runs on a rank's stack.
  static void start() {
    simulated_ranks& here = *current();
    state& self = *here.running_;
    self.context.arrived();
    here.run_body(self);
    state* const next = here.next_awake();
    if (next != nullptr) here.running_ = next;
    self.context.leave_to(next != nullptr ? next->context : here.main_);
  }
  void run_body(state& self) noexcept {
    try {
      body_(index_of(self));
    } catch (...) {
      if (!first_failure_) {
        first_failure_ = std::current_exception();
        if (stuck_.empty()) culprit_ = index_of(self);
      }
    }
    self.ended = true;
  }

  /// The reason why no rank can go on.
  std::string report() {
    constexpr int most = 16;
    int listed = 0, waiting = 0;
    std::string text = "no rank can go on: ";
    for (int r = 0; r != size_; ++r) {
      const state& s = of(r);
      if (s.ended) continue;
      if (++waiting > most) continue;
      text += (listed++ == 0 ? "rank " : ", rank ") + std::to_string(r) + " waits in " + std::string(s.operation);
      const auto named = s.awaited.first(std::min<std::size_t>(s.awaited.size(), most));
      for (const std::uint64_t& key : named) {
        const int from = writer(key);
        text += (&key == named.data() ? " for rank " : " or rank ") + std::to_string(from);
        text += from == culprit_ ? ", which has failed" : of(from).ended ? ", which has returned" : "";
      }
      if (named.size() != s.awaited.size()) {
        text += " or " + std::to_string(s.awaited.size() - named.size()) + " more";
      }
    }
    if (waiting > most) text += ", and " + std::to_string(waiting - most) + " more wait";
    return text;
  }
  /// Throws: the running rank waits in vain, for a message of one of these keys if there are any.
  [[noreturn]] void fail(const simulated_place& at, std::span<const std::uint64_t> keys) {
    const auto ended = std::find_if(keys.begin(), keys.end(), [&](std::uint64_t k) { return of(writer(k)).ended; });
    const bool lost = culprit_ != nobody || ended != keys.end();
    const int from = ended != keys.end() ? writer(*ended) : keys.empty() ? nobody : writer(keys.front());
    const std::string who =
        culprit_ != nobody ? "rank " + std::to_string(culprit_) + " of the simulation has failed, and " : "";
    throw error(lost ? error_kind::peer_lost : error_kind::timeout, at.text() + ": " + who + stuck_,
                at.counted(culprit_ != nobody ? culprit_ : from));
  }

  int size_;
  network net_;
  wires wires_;
  fiber_stacks stacks_;
  std::unique_ptr<state[]> ranks_;
  simulated_events events_;
  std::uint32_t contexts_ = 0;
  std::vector<priced> priced_;
  simulation::traffic traffic_[2];  // inside, between
  fiber main_;
  state* running_ = nullptr;
  std::function<void(int)> body_;
  std::exception_ptr first_failure_;
  int culprit_ = nobody;  // the rank that failed before others waited in vain
  std::string stuck_;     // the reason, when no rank can go on
};

template <std::size_t... Place>
constexpr std::array<kernel, sizeof...(Place)> make_charging_kernels(std::index_sequence<Place...> /*places*/) {
  return {&simulated_ranks::charging<Place>...};
}
inline constexpr auto charging_kernels =
    make_charging_kernels(std::make_index_sequence<simulated_ranks::most_priced>());

}  // namespace hvd::inline HVD_ABI::detail
