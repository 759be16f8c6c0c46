// c/objects.hpp: the numbers by which C programs know communicators, engines and handles.
//
// A number consists of a kind, a generation and a slot. Slots are never freed, and a reused slot has another
// generation. So any number can be looked up, and only the number of a living object finds something. No lock is taken,
// which keeps the path of a collective short and lets a forked child make objects of its own, whatever threads its
// parent had.
#pragma once

#include "errors.hpp"

#include <hvd/error.hpp>

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

#include <pthread.h>

namespace hvd::inline HVD_ABI::c {

enum class kind : std::uint8_t { none, communicator, engine, handle };

constexpr std::string_view name(kind k) noexcept {
  constexpr std::string_view names[] = {"object", "communicator", "engine", "handle"};
  return names[static_cast<std::size_t>(k)];
}
constexpr std::string_view origin(kind k) noexcept {
  return k == kind::communicator ? "hvd_init, hvd_split or hvd_fork_run"
         : k == kind::engine     ? "hvd_engine_init"
                                 : "an hvd_engine function";
}

/// The base of objects in slots.
class object {
 public:
  object() = default;
  object(const object&) = delete;
  object& operator=(const object&) = delete;
  virtual ~object() = default;
};

class table {
 public:
  /// The table of this process. Constant-initialised and never destroyed, so it can be used before main and during
  /// exit.
  static table& all() noexcept;

  /// Makes a number for an object. `rank` and `size` are the results of `place`.
  std::int64_t add(kind k, std::unique_ptr<object> what, int rank = 0, int size = 0) {
    static const int counts_forks =
        ::pthread_atfork(nullptr, nullptr, [] { forks_.fetch_add(1, std::memory_order_relaxed); });
    static_cast<void>(counts_forks);
    const std::uint64_t index = reserve();
    slot& s = *find(index);
    s.what = what.release();
    s.epoch.store(forks_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    s.place.store(std::uint64_t{static_cast<std::uint32_t>(rank)} << 32 | static_cast<std::uint32_t>(size),
                  std::memory_order_release);
    const std::uint64_t owner = std::uint64_t{static_cast<std::uint8_t>(k)} << kind_shift |
                                (s.state.load(std::memory_order_relaxed) & generations);
    s.state.store(owner, std::memory_order_release);
    return static_cast<std::int64_t>(owner | index);
  }

  /// An object that one caller has for itself while this exists.
  class taken;
  /// An object that others may use at the same time, but that is not destroyed while this exists.
  class pinned;

  struct rank_and_size {
    int rank, size;
  };
  /// Of a communicator, also while a thread is in a call on it.
  rank_and_size place(std::int64_t number, std::string_view function) {
    const slot& s = *find_alive(number, kind::communicator, function);
    const bool before = (s.state.load(std::memory_order_acquire) & ~users) == owner_of(number);
    const std::uint64_t both = s.place.load(std::memory_order_acquire);
    const bool after = (s.state.load(std::memory_order_relaxed) & ~users) == owner_of(number);
    if (!before || !after) refuse_unknown(number, kind::communicator, function);
    return {static_cast<int>(both >> 32), static_cast<int>(both & 0xffff'ffff)};
  }

  /// Removes an object that others may have pinned; waits until they release it, which is soon.
  std::unique_ptr<object> remove(std::int64_t number, kind k, std::string_view function) {
    slot* const s = find_alive(number, k, function);
    for (std::uint64_t seen = owner_of(number);
         !s->state.compare_exchange_weak(seen, seen & generations, std::memory_order_acquire);
         seen = owner_of(number)) {
      if ((seen & ~users) != owner_of(number)) refuse_unknown(number, k, function);
      std::this_thread::yield();
    }
    return retire(*s, number);
  }

  /// Calls f(number) for each object that this process has made, and not its parents.
  template <class F>
  void each(kind k, const F& f) {
    const std::uint64_t end = fresh_.load(std::memory_order_acquire);
    for (std::uint64_t i = 0; i != end; ++i) {
      const slot* const s = find(i);
      if (s == nullptr) continue;
      const std::uint64_t state = s->state.load(std::memory_order_acquire);
      if (state >> kind_shift != static_cast<std::uint8_t>(k) || inherited(*s)) continue;
      f(static_cast<std::int64_t>((state & ~users) | i));
    }
  }

 private:
  // A number: kind, generation, slot. A slot's state: kind, generation, how many use it.
  static constexpr int kind_shift = 56, generation_shift = 24;
  static constexpr std::uint64_t users = (std::uint64_t{1} << generation_shift) - 1;
  static constexpr std::uint64_t generations = (std::uint64_t{1} << kind_shift) - 1 - users;

  struct slot {
    std::atomic<std::uint64_t> state{std::uint64_t{1} << generation_shift};
    std::atomic<std::uint64_t> place{0};
    std::atomic<std::uint32_t> epoch{0};
    std::atomic<std::uint32_t> next{0};  // of the unused ones: the index of the one below it, plus 1
    object* what = nullptr;
  };

  // Block b has 64 << b slots, so that finding one takes no search and none ever moves.
  static constexpr int blocks = 18;
  static constexpr std::uint64_t first_block = 64;
  static constexpr std::uint64_t most = first_block * ((std::uint64_t{1} << blocks) - 1);

  static std::uint64_t owner_of(std::int64_t number) noexcept { return static_cast<std::uint64_t>(number) & ~users; }
  static bool inherited(const slot& s) noexcept {
    return s.epoch.load(std::memory_order_relaxed) != forks_.load(std::memory_order_relaxed);
  }

  slot* find(std::uint64_t index) noexcept {
    const std::uint64_t shifted = index + first_block;
    const auto block = static_cast<std::size_t>(std::bit_width(shifted)) - 7;
    if (block >= blocks) return nullptr;
    slot* const start = blocks_[block].load(std::memory_order_acquire);
    return start == nullptr ? nullptr : start + (shifted - (first_block << block));
  }
  /// Throws if the number cannot belong to an object of this kind in this process.
  slot* find_alive(std::int64_t number, kind k, std::string_view function) {
    const bool right_kind = static_cast<std::uint64_t>(number) >> kind_shift == static_cast<std::uint8_t>(k);
    slot* const s = right_kind ? find(static_cast<std::uint64_t>(number) & users) : nullptr;
    if (s == nullptr) [[unlikely]]
      refuse_unknown(number, k, function);
    if (inherited(*s)) [[unlikely]] {
      if ((s->state.load(std::memory_order_relaxed) & ~users) != owner_of(number)) refuse_unknown(number, k, function);
      refuse(function, {"this process was forked from the one that has ", name(k), " ", number,
                        "; only that one may use it, call hvd_init here for a group of its own"});
    }
    return s;
  }
  [[noreturn, gnu::cold, gnu::noinline]] static void refuse_unknown(std::int64_t number, kind k,
                                                                    std::string_view function) {
    const std::uint64_t given = static_cast<std::uint64_t>(number) >> kind_shift;
    if (number == 0) {
      refuse(function, {"the ", name(k), " is 0, which is never valid; pass one from ", origin(k)});
    }
    if (given != 0 && given <= static_cast<std::uint8_t>(kind::handle) && given != static_cast<std::uint8_t>(k)) {
      const auto with_article = [](kind some) {
        return some == kind::engine ? "an engine" : some == kind::handle ? "a handle" : "a communicator";
      };
      refuse(function, {number, " is the number of ", with_article(static_cast<kind>(given)), "; pass ",
                        with_article(k), " from ", origin(k)});
    }
    refuse(function,
           {"there is no ", name(k), " ", number, ": it was freed, or never made; pass one from ", origin(k)});
  }

  std::uint64_t reserve() {
    for (std::uint64_t top = unused_.load(std::memory_order_acquire); (top & 0xffff'ffff) != 0;) {
      const std::uint64_t index = (top & 0xffff'ffff) - 1;
      // The upper half counts changes: the same slot may have come back with another one below it.
      const std::uint64_t below = ((top >> 32) + 1) << 32 | find(index)->next.load(std::memory_order_relaxed);
      if (unused_.compare_exchange_weak(top, below, std::memory_order_acq_rel)) return index;
    }
    std::uint64_t index = fresh_.load(std::memory_order_relaxed);
    do {
      if (index == most)
        detail::fail(error_kind::no_memory,
                     {"there are ", most, " objects, which is the limit; free those that are done"});
      make_block(index);
    } while (!fresh_.compare_exchange_weak(index, index + 1, std::memory_order_acq_rel));
    return index;
  }
  void make_block(std::uint64_t index) {
    if (find(index) != nullptr) return;
    const auto block = static_cast<std::size_t>(std::bit_width(index + first_block)) - 7;
    auto made = std::make_unique<slot[]>(first_block << block);
    slot* none = nullptr;
    if (blocks_[block].compare_exchange_strong(none, made.get(), std::memory_order_acq_rel)) made.release();
  }
  /// Called by the thread that has changed the state so that no other thread finds the slot.
  std::unique_ptr<object> retire(slot& s, std::int64_t number) noexcept {
    std::unique_ptr<object> what(std::exchange(s.what, nullptr));
    const std::uint64_t index = static_cast<std::uint64_t>(number) & users;
    s.state.store((owner_of(number) + users + 1) & generations, std::memory_order_release);
    std::uint64_t top = unused_.load(std::memory_order_relaxed), pushed = 0;
    do {
      s.next.store(static_cast<std::uint32_t>(top), std::memory_order_relaxed);
      pushed = ((top >> 32) + 1) << 32 | (index + 1);
    } while (!unused_.compare_exchange_weak(top, pushed, std::memory_order_acq_rel));
    return what;
  }

  static constinit inline std::atomic<std::uint32_t> forks_{0};  // between the first process and this one
  std::array<std::atomic<slot*>, blocks> blocks_{};
  std::atomic<std::uint64_t> fresh_{0};   // slots that have ever been used
  std::atomic<std::uint64_t> unused_{0};  // a stack: changes, and the index of its top plus 1
};

inline constinit table the_table;
inline table& table::all() noexcept { return the_table; }

class table::taken {
 public:
  taken(std::int64_t number, kind k, std::string_view function)
      : slot_(*all().find_alive(number, k, function)), number_(number) {
    std::uint64_t seen = owner_of(number);
    if (slot_.state.compare_exchange_strong(seen, seen + 1, std::memory_order_acquire)) [[likely]]
      return;
    if ((seen & ~users) != owner_of(number)) refuse_unknown(number, k, function);
    refuse(function, {"another thread is in a call on this ", name(k),
                      "; let one thread at a time call, or give each thread a communicator from hvd_split"});
  }
  taken(const taken&) = delete;
  taken& operator=(const taken&) = delete;
  ~taken() {
    if (!removed_) slot_.state.store(owner_of(number_), std::memory_order_release);
  }

  [[nodiscard]] object& what() const noexcept { return *slot_.what; }
  /// From now on the number is invalid.
  std::unique_ptr<object> remove() noexcept {
    removed_ = true;
    return all().retire(slot_, number_);
  }

 private:
  slot& slot_;
  std::int64_t number_;
  bool removed_ = false;
};

class table::pinned {
 public:
  pinned(std::int64_t number, kind k, std::string_view function) : slot_(*all().find_alive(number, k, function)) {
    for (std::uint64_t seen = owner_of(number);
         !slot_.state.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire);) {
      if ((seen & ~users) != owner_of(number)) refuse_unknown(number, k, function);
    }
  }
  pinned(const pinned&) = delete;
  pinned& operator=(const pinned&) = delete;
  ~pinned() { slot_.state.fetch_sub(1, std::memory_order_release); }

  [[nodiscard]] object& what() const noexcept { return *slot_.what; }

 private:
  slot& slot_;
};

}  // namespace hvd::inline HVD_ABI::c
