// hvd/engine/cause.hpp: why drivers end, passed from rank to rank, so that all name the rank that was lost first.
//
// A rank that is killed takes others with it: they get an error, their programs end, and the ranks that waited for
// those see them gone. So before a rank visibly ends, it writes the reason into memory that it shares with the ranks of
// each of its process sets. A rank that finds another one gone reads that reason, and names the rank that is named
// there.
#pragma once

#include <hvd/call.hpp>
#include <hvd/engine/agreement.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// What has ended a driver. The rank is one of the engine's whole group.
struct cause {
  error_kind kind = error_kind::aborted;
  int rank = 0;

  /// Not 0.
  [[nodiscard]] std::uint64_t packed() const noexcept {
    return (static_cast<std::uint64_t>(kind) + 1) | static_cast<std::uint64_t>(rank) << 8;
  }
  /// Nothing for 0, and for a value that no rank of `size` writes.
  static std::optional<cause> from(std::uint64_t value, int size) noexcept {
    const std::uint64_t kind = value & 0xff, rank = value >> 8;
    if (kind == 0 || kind > static_cast<std::uint64_t>(error_kind::aborted) + 1) return std::nullopt;
    if (rank >= static_cast<std::uint64_t>(size)) return std::nullopt;
    return cause{static_cast<error_kind>(kind - 1), static_cast<int>(rank)};
  }
};

/// The causes that one engine writes on this rank, one word for each of its drivers. Any thread may use it.
class cause_board {
 public:
  void add(word& place) {
    const std::lock_guard lock(mutex_);
    words_.push_back(&place);
    if (lost_) say(place, *lost_);
  }
  void remove(word& place) {
    const std::lock_guard lock(mutex_);
    std::erase(words_, &place);
  }
  /// The first cause in a word stays.
  static void say(word& place, const cause& c) noexcept {
    std::uint64_t nothing = 0;
    place.compare_exchange_strong(nothing, c.packed());
  }
  /// Records a cause. If a rank was lost, writes that into all words: it is lost to all drivers. (A rank that gives up
  /// in one driver may go on in another.)
  void tell(const cause& c) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = c;
    if (c.kind != error_kind::peer_lost) return;
    if (!lost_) lost_ = c;
    for (word* const place : words_) say(*place, *lost_);
  }
  /// The cause that was recorded first.
  [[nodiscard]] std::optional<cause> first() {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  std::mutex mutex_;
  std::vector<word*> words_;
  std::optional<cause> first_, lost_;
};

/// Throws the error that has ended the start of an engine over `comm`. With that the other ranks lose this one, and
/// they may be elsewhere in the start, or have finished it. So this rank first writes the reason into the group that
/// all of them have. If several ranks write one, the first counts.
template <class T>
[[noreturn]] void fail_at_start(T& comm, const error& e, cause_board& board) {
  if constexpr (PeerMemory<T>) {
    if (e.kind() == error_kind::peer_lost && e.rank() >= 0) {
      comm.peers().set_abort(e.kind(), e.rank());
      try {
        comm.peers().check_abort(-1, phase::answer);
      } catch (const error& first) {
        board.tell({first.kind(), first.rank()});
        throw;
      }
    }
  }
  throw error(e);
}

/// The ranks of a driver.
struct driver_members {
  int set = 0;               ///< the process set
  std::vector<int> ranks{};  ///< its ranks, of the engine's whole group
  int whole = 1;             ///< the size of the whole group
};

/// Finds the cause that ends one driver, and passes it on.
template <class T>
class driver_cause {
 public:
  driver_cause(T& control, T& data, agreement<T>& agreed, driver_members members, std::shared_ptr<cause_board> board)
      : control_(control), data_(data), rank_(control.rank()), words_(agreed), members_(std::move(members)),
        board_(std::move(board)) {
    board_->add(words_.own_cause());
    if constexpr (PeerMemory<T>) data_.peers().show_waits_with(control_.peers());  // one thread waits in both
  }
  driver_cause(const driver_cause&) = delete;
  driver_cause& operator=(const driver_cause&) = delete;
  ~driver_cause() { board_->remove(words_.own_cause()); }

  /// After an error on a transport of the driver: finds the cause, and passes it on to the other ranks. Returns the
  /// error to report here, with a rank of the whole group.
  error settle(const error& e) {
    if (e.rank() < 0 || e.rank() >= static_cast<int>(members_.ranks.size())) {
      abandon();
      return e;
    }
    cause c{e.kind(), members_.ranks[static_cast<std::size_t>(e.rank())]};
    std::optional<cause> said;
    if (e.rank() != rank_) said = cause::from(words_.cause(e.rank()), members_.whole);
    if (said) c = *said;
    cause_board::say(words_.own_cause(), c);
    board_->tell(c);
    abandon(e.kind(), e.rank());
    if (!said && members_.set == 0) return e;
    return with_memory(e, [&] {
      if (!said) return error(c.kind, joined({sentence(e), "; that is ", name_of(c.rank)}), c.rank);
      return error(c.kind,
                   joined({name_of(c.rank), c.kind == error_kind::timeout ? " did not answer in time" : " has given up",
                           "; see what it has said itself"}),
                   c.rank);
    });
  }
  /// This rank may end because another was lost, as its program has learned elsewhere: then that is the cause.
  void look_around() noexcept {
    if constexpr (PeerMemory<T>) {
      try {
        control_.check();
      } catch (const error& e) {
        settle(e);
      } catch (const std::exception&) {  // no memory to describe it: then this rank is the cause that the others see
      }
    }
  }
  /// Called in a handler: the error for an exception that is no hvd::error.
  [[nodiscard]] error unexpected() const {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return no_memory_;
    } catch (const std::exception& e) {
      return with_memory(no_memory_, [&] { return error(error_kind::system, joined({label_, e.what()})); });
    }
  }
  [[nodiscard]] const error& shut_down() const noexcept { return shut_down_; }

  /// Shows ranks with common memory that this one gives up, and the cause if one of its drivers has failed before.
  void abandon() noexcept {
    if (const auto c = board_->first()) cause_board::say(words_.own_cause(), *c);
    abandon(error_kind::aborted, rank_);
  }
  /// Before `abandon`: records the reason if it is no error of a transport; its rank is one of the whole group.
  void announce(const error& why) noexcept {
    if (why.rank() >= 0 && why.rank() < members_.whole) {
      board_->tell({why.kind(), why.rank()});
    } else if (!board_->first()) {  // this rank gives up: the others must not take it for a crash
      retire();
    }
  }

  /// The rank that holds up this one, which waits for `peer` of the driver: a rank of the whole group, or -1.
  [[nodiscard]] int behind(int peer) const noexcept {
    if (peer < 0 || peer >= static_cast<int>(members_.ranks.size())) return -1;
    if constexpr (PeerMemory<T>) peer = control_.peers().waits().responsible(peer);
    return members_.ranks[static_cast<std::size_t>(peer)];
  }

  /// Before this rank leaves for a reason of its own: no rank was lost.
  void retire() noexcept {
    cause_board::say(words_.own_cause(), {error_kind::aborted, members_.ranks[static_cast<std::size_t>(rank_)]});
  }

  /// What has failed one batch, as the error of one of its operations. Made anew for each: copies of an exception share
  /// its text, with a count that ThreadSanitizer does not see.
  [[nodiscard]] error failed(const completion& end, const error& why) const {
    const bool member = why.rank() >= 0 && why.rank() < static_cast<int>(members_.ranks.size());
    const int rank = member ? members_.ranks[static_cast<std::size_t>(why.rank())] : -1;
    return with_memory(why, [&] { return error(why.kind(), joined({end.label(), ": ", sentence(why)}), rank); });
  }

  /// What has stopped the driver, as the error of one operation: without the step and the group in which it was
  /// noticed.
  [[nodiscard]] error told(const completion& end, const error& why) const {
    if (why.kind() != error_kind::peer_lost || why.rank() < 0) return why;
    return with_memory(why, [&] {
      return error(why.kind(),
                   joined({end.label(), ": ", name_of(why.rank()), is_lost,
                           ", or has shut its engine down; its own output says why, unless it just ended before",
                           " the others"}),
                   why.rank());
    });
  }

 private:
  /// What f returns, or `otherwise` where there is no memory for it: drivers end on threads and in destructors, which
  /// must not throw.
  template <class F>
  static error with_memory(const error& otherwise, const F& f) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return otherwise;
    }
  }
  void abandon(error_kind kind, int rank) noexcept {
    if constexpr (PeerMemory<T>) {
      control_.peers().set_abort(kind, rank);
      data_.peers().set_abort(kind, rank);
    }
  }
  /// In a process set, whose ranks have numbers of their own, it adds the size of the whole group.
  [[nodiscard]] std::string name_of(int rank) const {
    return members_.set == 0 ? joined({"rank ", rank}) : joined({"rank ", rank, " of all ", members_.whole});
  }

  T& control_;
  T& data_;
  const int rank_;  // a driver that has ended may have given its transports away
  agreement<T>& words_;
  const driver_members members_;
  const std::shared_ptr<cause_board> board_;
  // Made while there is memory.
  const std::string label_ = joined({"the engine on rank ", rank_, " of ", members_.ranks.size(), ": "});
  const error shut_down_{error_kind::aborted, "the engine was shut down"};
  const error no_memory_{error_kind::no_memory, label_ + "there is no memory"};
};

}  // namespace hvd::inline HVD_ABI::detail
