// hvd/engine/agreement.hpp: rounds in which ranks exchange the operations that each has submitted.
//
// A round combines words of all ranks by bitwise or, in ceil(log2 p) steps of one message: in step k a rank sends its
// combination so far to the rank 2^k behind it (D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier
// synchronization", 1988; with `or` it does not matter that some words are combined twice). Any rank may start a round:
// a rank with something new sends its first message, and the ranks that receive one join. So an idle group sends
// nothing, and an arriving message wakes its receiver.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// The word on which the thread that drives an engine sleeps. It lies in shared memory if there is any, so that peers
/// can wake the thread.
struct alignas(64) doorbell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleeping{0};
  std::atomic<std::uint64_t> cause{0};  ///< the reason why its rank ends (cause.hpp), or 0

  void ring() noexcept {
    rings.fetch_add(1);
    if (sleeping.load() != 0) futex_wake_all(rings);
  }
};

class agreement {
 public:
  using clock = std::chrono::steady_clock;

  explicit agreement(erased_transport& comm) : comm_(comm), own_doorbell_(std::make_unique<doorbell>()) {
    for (int distance = 1; distance < comm.size(); distance *= 2) {
      before_.push_back((comm.rank() + distance) % comm.size());
      behind_.push_back((comm.rank() - distance + comm.size()) % comm.size());
    }
    if (peer_memory* const peers = comm.peers()) {
      shared_doorbells_ = comm.bucket(sizeof(doorbell));
      doorbells_ = *peers->find_block(shared_doorbells_.data(), sizeof(doorbell));
      for (int r = 0; r != comm.size(); ++r) {  // zero bytes are a doorbell's first state
        peer_doorbells_.push_back(reinterpret_cast<doorbell*>(doorbells_.part(r)));
      }
    }
  }

  /// Wakes the thread that sleeps here, if any. Any thread of this process may call it.
  void ring() noexcept { mine().ring(); }

  /// The reason why `rank` ends, which that rank writes into common memory; 0 if it has not done so, or if there is no
  /// common memory.
  [[nodiscard]] std::uint64_t cause(int rank) const noexcept {
    return peer_doorbells_.empty() ? 0 : peer_doorbells_[static_cast<std::size_t>(rank)]->cause.load();
  }
  [[nodiscard]] std::atomic<std::uint64_t>& own_cause() noexcept { return mine().cause; }

  /// True while this rank takes part in a round.
  [[nodiscard]] bool under_way() const noexcept { return active_; }
  /// True if another rank has begun a round.
  [[nodiscard]] bool called() {
    return std::any_of(before_.begin(), before_.end(), [&](int peer) { return comm_.arrived(peer); });
  }

  /// Begins a round, or joins it. All ranks pass the same number of words.
  void begin(std::vector<std::uint64_t> words) {
    words_ = std::move(words);
    incoming_.resize(words_.size());
    step_ = 0;
    waits_since_.reset();
    active_ = true;
    if (!before_.empty()) tell();
  }

  /// Continues the round until its end, or until `until`; true if the round has ended. `waited_for` is set to the rank
  /// whose message is missing.
  bool finish(clock::time_point until, const pace& p, std::atomic<int>& waited_for) {
    while (step_ != before_.size()) {
      const int from = before_[step_];
      if (!await(from, until, p, waited_for)) return false;
      comm_.recv(reinterpret_cast<std::byte*>(incoming_.data()), bytes(), from);
      for (std::size_t i = 0; i != words_.size(); ++i) words_[i] |= incoming_[i];
      waits_since_.reset();
      if (++step_ != before_.size()) tell();
    }
    active_ = false;
    return true;
  }
  /// The combined words, after a round.
  [[nodiscard]] const std::vector<std::uint64_t>& words() const noexcept { return words_; }

  /// Sleeps until another thread or a peer rings, a round is called, or `until` (simulated ranks: until a round is
  /// called). `ready` is checked once this thread counts as sleeping, so that no ring is missed.
  template <class Ready>
  void sleep(clock::time_point until, const Ready& ready) {
    if (comm_.simulated()) {
      if (!ready()) comm_.await_arrival(before_);
      return;
    }
    backoff rest(paces::round);
    doze(
        until, [&] { return ready() || called(); }, rest, true);
  }

  /// The largest of all ranks' numbers; waits for all ranks.
  std::uint64_t largest(std::uint64_t number) {
    for (std::size_t i = 0; i != before_.size(); ++i) {
      std::uint64_t other = 0;
      comm_.send(reinterpret_cast<const std::byte*>(&number), sizeof number, behind_[i]);
      comm_.recv(reinterpret_cast<std::byte*>(&other), sizeof other, before_[i]);
      number = std::max(number, other);
    }
    return number;
  }

  /// Merges the texts of all ranks along a binomial tree, and gives the result to all ranks. `join` takes this rank's
  /// text so far and another's.
  std::string merge(std::string text, std::string (*join)(const std::string&, const std::string&)) {
    const int rank = comm_.rank(), size = comm_.size();
    int distance = 1;
    for (; distance < size; distance *= 2) {
      if ((rank & distance) != 0) {
        send_text(text, rank - distance);
        text = receive_text(rank - distance);
        break;
      }
      if (rank + distance < size) text = join(text, receive_text(rank + distance));
    }
    for (distance /= 2; distance != 0; distance /= 2) {
      if (rank + distance < size) send_text(text, rank + distance);
    }
    return text;
  }

 private:
  [[nodiscard]] std::size_t bytes() const noexcept { return words_.size() * sizeof(std::uint64_t); }
  [[nodiscard]] doorbell& mine() noexcept {
    return peer_doorbells_.empty() ? *own_doorbell_ : *peer_doorbells_[static_cast<std::size_t>(comm_.rank())];
  }

  void tell() {
    const int to = behind_[step_];
    comm_.send(reinterpret_cast<const std::byte*>(words_.data()), bytes(), to);
    if (!peer_doorbells_.empty()) peer_doorbells_[static_cast<std::size_t>(to)]->ring();
  }

  bool await(int from, clock::time_point until, const pace& p, std::atomic<int>& waited_for) {
    const auto arrived = [&] { return comm_.arrived(from); };
    if (arrived() || spin(p, arrived)) return true;
    backoff rest(p);
    while (rest.yield()) {
      if (arrived()) return true;
    }
    waited_for.store(from, std::memory_order_relaxed);
    peer_memory* const peers = comm_.peers();
    if (peers != nullptr) peers->waits().begin(from);
    if (!waits_since_) waits_since_ = clock::now();
    bool come = false;
    if (comm_.simulated()) {
      comm_.await_arrival(std::span(&from, 1));
      come = true;
    } else {
      while (!(come = arrived()) && clock::now() < until) {
        doze(until, arrived, rest, false);
        // Only the rank that this one waits for: others may have ended properly, with nothing more to send.
        if (peers != nullptr) {
          peers->waits().look();
          peers->check_alive(from, arrived);
        } else if (clock::now() - *waits_since_ > std::chrono::seconds(5) && !arrived()) {
          comm_.check();  // checks all ranks: one that ended properly may count as lost, so not at once
        }
      }
    }
    waited_for.store(-1, std::memory_order_relaxed);
    if (peers != nullptr) peers->waits().end();
    return come;
  }

  /// One sleep at the doorbell, short enough that peers are checked in time. With `more` it sleeps again until there is
  /// a reason to stop.
  template <class Ready>
  void doze(clock::time_point until, const Ready& ready, backoff& rest, bool more) {
    doorbell& d = mine();
    do {
      const std::uint32_t rings = d.rings.load();
      d.sleeping.store(1);
      const auto left = until - clock::now();
      if (!ready() && left > left.zero()) {
        const std::chrono::nanoseconds most = peer_doorbells_.empty() ? rest.sleep() : paces::doorbell.sleep;
        futex_wait(d.rings, rings, std::min(std::chrono::nanoseconds(left), most));
      }
      d.sleeping.store(0);
      more = more && d.rings.load() == rings && !ready() && clock::now() < until;
      if (more) comm_.check();
    } while (more);
  }

  /// Texts are sent in parts, so that a corrupt length allocates no memory for data that never comes.
  static constexpr std::size_t piece_bytes = std::size_t{1} << 16;

  void send_text(const std::string& text, int to) {
    const std::uint64_t length = text.size();
    comm_.send(reinterpret_cast<const std::byte*>(&length), sizeof length, to);
    for (std::size_t at = 0; at < text.size(); at += piece_bytes) {
      comm_.send(reinterpret_cast<const std::byte*>(text.data() + at), std::min(text.size() - at, piece_bytes), to);
    }
  }
  std::string receive_text(int from) {
    std::uint64_t length = 0;
    comm_.recv(reinterpret_cast<std::byte*>(&length), sizeof length, from);
    // The announcements of all ranks in a round are a few MiB at most.
    constexpr std::uint64_t most = std::uint64_t{1} << 28;
    if (length > most) {
      fail(error_kind::mismatch,
           {"the engine on rank ", comm_.rank(), " of ", comm_.size(), ": rank ", from, " announces a text of ", length,
            " bytes; allowed: up to ", most},
           from);
    }
    std::string text;
    while (text.size() != length) {
      const std::size_t at = text.size(), n = std::min<std::size_t>(length - at, piece_bytes);
      text.resize(at + n);
      comm_.recv(reinterpret_cast<std::byte*>(text.data() + at), n, from);
    }
    return text;
  }

  erased_transport& comm_;
  std::vector<int> before_, behind_;  // the ranks that this one reads from, and sends to, in each step
  std::vector<std::uint64_t> words_, incoming_;
  std::size_t step_ = 0;
  std::optional<clock::time_point> waits_since_;  // in this step, over all calls of finish
  bool active_ = false;
  std::unique_ptr<doorbell> own_doorbell_;
  shared_array<std::byte> shared_doorbells_;
  shared_block doorbells_{};
  std::vector<doorbell*> peer_doorbells_;
};

/// Without common memory, a message that was sent but not received stays in the channel. The backend could give that
/// channel to the next group, so the channel is taken out of `control`, and kept until the program ends.
inline void keep_messages(std::unique_ptr<erased_transport>& control) {
  if (control == nullptr || control->peers() != nullptr) return;
  static std::vector<std::unique_ptr<erased_transport>>& kept =
      *new std::vector<std::unique_ptr<erased_transport>>;  // never destroyed: the backend may end before
  static std::mutex guard;
  const std::lock_guard lock(guard);
  kept.push_back(std::move(control));
}

}  // namespace hvd::inline HVD_ABI::detail
