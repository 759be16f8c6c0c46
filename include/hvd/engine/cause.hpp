// hvd/engine/cause.hpp: the cause of a driver's end, passed from rank to rank, so that all ranks name the rank that was
// lost first.
//
// When a rank is killed, others follow: they get an error, their programs end, and the ranks that wait for them lose
// them, too. So before a rank visibly ends, it writes the cause into memory that it shares with the ranks of each of
// its process sets. A rank that loses another one reads the cause there, and names the rank in it.
#pragma once

#include <hvd/call.hpp>
#include <hvd/engine/agreement.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

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

/// The cause of a driver's end. `rank` is a rank of the engine's whole group.
struct cause {
  error_kind kind = error_kind::aborted;
  int rank = 0;

  /// The cause as a number other than 0.
  [[nodiscard]] std::uint64_t packed() const noexcept {
    return (static_cast<std::uint64_t>(kind) + 1) | static_cast<std::uint64_t>(rank) << 8;
  }
  /// The cause in a number; nothing for 0, and for an invalid value in a group of `size` ranks.
  static std::optional<cause> from(std::uint64_t value, int size) noexcept {
    const std::uint64_t kind = value & 0xff, rank = value >> 8;
    if (kind == 0 || kind > static_cast<std::uint64_t>(error_kind::aborted) + 1) return std::nullopt;
    if (rank >= static_cast<std::uint64_t>(size)) return std::nullopt;
    return cause{static_cast<error_kind>(kind - 1), static_cast<int>(rank)};
  }
};

/// The causes that an engine writes on this rank: one word for each of its drivers. Any thread may use it.
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
  /// Writes a cause into a word, unless the word already has one.
  static void say(word& place, const cause& c) noexcept {
    std::uint64_t nothing = 0;
    place.compare_exchange_strong(nothing, c.packed());
  }
  /// Records a cause. A lost rank is written into all words, because it is lost to all drivers. (A rank that fails in
  /// one driver may go on in another.)
  void tell(const cause& c) {
    const std::lock_guard lock(mutex_);
    if (!first_) first_ = c;
    if (c.kind != error_kind::peer_lost) return;
    if (!lost_) lost_ = c;
    for (word* const place : words_) say(*place, *lost_);
  }
  /// The first recorded cause.
  [[nodiscard]] std::optional<cause> first() {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  std::mutex mutex_;
  std::vector<word*> words_;
  std::optional<cause> first_, lost_;
};

/// Throws the error that has ended the start of an engine over `comm`. The other ranks then lose this rank, possibly in
/// another part of the start or after it. So this rank first writes the cause into the memory of the group, which all
/// ranks have. If several ranks write one, the first counts.
[[noreturn]] inline void fail_at_start(erased_transport& comm, const error& e, cause_board& board) {
  peer_memory* const peers = comm.peers();
  if (peers != nullptr && e.kind() == error_kind::peer_lost && e.rank() >= 0) {
    peers->set_abort(e.kind(), e.rank());
    try {
      peers->check_abort(-1, phase::answer);
    } catch (const error& first) {
      board.tell({first.kind(), first.rank()});
      throw;
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
class driver_cause {
 public:
  driver_cause(erased_transport& control, erased_transport& data, agreement& agreed, driver_members members,
               std::shared_ptr<cause_board> board)
      : transport_(control), data_transport_(data), control_(control.peers()), data_(data.peers()),
        rank_(control.rank()), words_(agreed), members_(std::move(members)), board_(std::move(board)) {
    board_->add(words_.own_cause());
    if (control_ != nullptr) data_->show_waits_with(*control_);  // one thread waits in both
  }
  driver_cause(const driver_cause&) = delete;
  driver_cause& operator=(const driver_cause&) = delete;
  ~driver_cause() { board_->remove(words_.own_cause()); }

  /// Called after an error on a transport of the driver. Finds the cause, passes it on to the other ranks, and returns
  /// the error to report here, with a rank of the whole group.
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
    if (control_ == nullptr) {  // e is an error of one of the two, and other ranks may wait in the other
      transport_.end(e.kind(), e.rank());
      data_transport_.end(e.kind(), e.rank());
    }
    if (!said && members_.set == 0) return e;
    return with_memory(e, [&] {
      if (!said) return error(c.kind, joined({sentence(e), "; that is ", name_of(c.rank)}), c.rank);
      return error(c.kind,
                   joined({name_of(c.rank), c.kind == error_kind::timeout ? " did not answer in time" : " has given up",
                           "; see its own error message"}),
                   c.rank);
    });
  }
  /// Called before this rank ends. The program may already know of a lost rank from elsewhere; that rank is then the
  /// cause, and this returns its error.
  std::optional<error> look_around() noexcept {
    if (control_ == nullptr) return std::nullopt;
    try {
      transport_.check();
    } catch (const error& e) {
      return settle(e);
    } catch (const std::exception&) {  // no memory to describe it: the others see this rank as the cause
    }
    return std::nullopt;
  }
  /// Called in a handler: the error for an exception other than an hvd::error.
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

  /// Ends the driver's groups for ranks with common memory. Writes the cause if a driver of this rank has failed
  /// before.
  void abandon() noexcept {
    if (const auto c = board_->first()) cause_board::say(words_.own_cause(), *c);
    abandon(error_kind::aborted, rank_);
  }
  /// Called before `abandon`: records a reason other than an error of a transport. Its rank is a rank of the whole
  /// group.
  void announce(const error& why) noexcept {
    if (why.rank() >= 0 && why.rank() < members_.whole) {
      board_->tell({why.kind(), why.rank()});
    } else if (!board_->first()) {  // this rank ends the driver: the others must not report a crash
      retire();
    }
  }

  /// The rank that holds up this rank while it waits for rank `peer` of the driver. A rank of the whole group, or -1.
  [[nodiscard]] int behind(int peer) const noexcept {
    if (peer < 0 || peer >= static_cast<int>(members_.ranks.size())) return -1;
    if (control_ != nullptr) peer = control_->waits().responsible(peer);
    return members_.ranks[static_cast<std::size_t>(peer)];
  }

  /// Called before this rank leaves on its own; no rank was lost.
  void retire() noexcept {
    cause_board::say(words_.own_cause(), {error_kind::aborted, members_.ranks[static_cast<std::size_t>(rank_)]});
  }

  /// The error of a failed batch, as the error of one of its operations. A new error for each operation: copies of an
  /// exception share its text, with a reference count that ThreadSanitizer does not see.
  [[nodiscard]] error failed(const completion& end, const error& why) const {
    const bool member = why.rank() >= 0 && why.rank() < static_cast<int>(members_.ranks.size());
    const int rank = member ? members_.ranks[static_cast<std::size_t>(why.rank())] : -1;
    return with_memory(why, [&] { return error(why.kind(), joined({end.label(), ": ", sentence(why)}), rank); });
  }

  /// The error that has stopped the driver, as the error of one operation: without the step and the group in which it
  /// was noticed.
  [[nodiscard]] error told(const completion& end, const error& why) const {
    if (why.kind() != error_kind::peer_lost || why.rank() < 0) return why;
    return with_memory(why, [&] {
      return error(
          why.kind(),
          joined({end.label(), ": ", name_of(why.rank()), is_lost,
                  ", or has shut its engine down; see its own output, unless it just ended before the others"}),
          why.rank());
    });
  }

 private:
  /// The result of f, or `otherwise` if there is no memory: drivers end on threads and in destructors, which must not
  /// throw.
  template <class F>
  static error with_memory(const error& otherwise, const F& f) {
    try {
      return f();
    } catch (const std::bad_alloc&) {
      return otherwise;
    }
  }
  void abandon(error_kind kind, int rank) noexcept {
    if (control_ == nullptr) return;
    control_->set_abort(kind, rank);
    data_->set_abort(kind, rank);
  }
  /// "rank 3"; in a process set, which numbers its ranks differently, "rank 3 of all 8".
  [[nodiscard]] std::string name_of(int rank) const {
    return members_.set == 0 ? joined({"rank ", rank}) : joined({"rank ", rank, " of all ", members_.whole});
  }

  erased_transport& transport_;  // of the agreement
  erased_transport& data_transport_;
  peer_memory *const control_, *const data_;  // of both transports; null without common memory
  const int rank_;                            // kept, because an ended driver may have given its transports away
  agreement& words_;
  const driver_members members_;
  const std::shared_ptr<cause_board> board_;
  // Made in advance, while there is memory.
  const std::string label_ = joined({"the engine on rank ", rank_, " of ", members_.ranks.size(), ": "});
  const error shut_down_{error_kind::aborted, "the engine was shut down"};
  const error no_memory_{error_kind::no_memory, label_ + "out of memory"};
};

}  // namespace hvd::inline HVD_ABI::detail
