// hvd/shared_memory/tagged_messages.hpp: many messages in flight at once between ranks with common memory.
//
// They use the channels of messages.hpp: one for each ordered pair of ranks, in which messages arrive in order. The
// receiver matches the first message of a channel with its posted messages, by sender and tag, like MPI. A message
// without a match stays in its channel, and the sender waits. It is set aside in private memory only if this rank waits
// for a later message of the same channel. One thread at a time uses an object; the group must not be used for anything
// else.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/detail/tagged_message.hpp>
#include <hvd/shared_memory/messages.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

class tagged_messages : public message_channel {
 public:
  using clock = tagged_message::clock;

  explicit tagged_messages(peer_memory& m) : m_(m), channels_(static_cast<std::size_t>(m.size())) {}

  void post(std::shared_ptr<tagged_message> message) override {
    if (message->sends) {
      channel& c = at(message->peer);
      c.sends.push_back({message, {m_, message->data, message->bytes, message->peer, message->tag}});
      return;
    }
    if (!take_kept(*message)) waiting_.push_back(std::move(message));
  }

  [[nodiscard]] bool idle() const noexcept override {
    return waiting_.empty() && std::all_of(channels_.begin(), channels_.end(), [](const channel& c) {
             return c.sends.empty() && !(c.arriving && c.arriving->into);
           });
  }

  bool progress() override {
    bool moved = false;
    for (int peer = 0; peer != m_.size(); ++peer) {
      if (peer == m_.rank()) continue;
      moved = send_to(peer) || moved;
      moved = receive_from(peer) || moved;
    }
    return expire() || moved;
  }

  void wait(function_ref<bool()> woken) override {
    const int peer = awaited();
    if (peer < 0) return fail_from_any();
    const clock::time_point until = first_deadline();
    const auto next_check = clock::now() + check_every;
    m_.enter(waiting_.empty() ? "send" : "recv");
    m_.set_timeout(failure_policy::seconds(0));  // messages have deadlines of their own
    waiting_for_.store(peer);
    const auto ready = [&] {
      if (woken() || can_move() || (!waits_for(peer) && has_left(peer))) return true;
      const clock::time_point now = clock::now();
      if (now < next_check) return now >= until;
      for (int q = 0; q != m_.size(); ++q) {  // the wait itself looks at one rank only
        if (q != peer && waits_for(q)) m_.check_alive(q, [&] { return can_move(); });
      }
      return true;  // so that the caller can look for signals
    };
    m_.await_until(peer, waiting_.empty() ? phase::receive : phase::send, ready);
    waiting_for_.store(-1, std::memory_order_release);
  }
  void wake() noexcept override {
    const int peer = waiting_for_.load();
    if (peer >= 0) futex_wake_all(m_.of(peer).doorbell.rings);
  }

  void abort() noexcept override { m_.set_abort(error_kind::aborted, m_.rank()); }
  void fail_all(const error& why) override {
    for (const auto& message : waiting_) message->fail(why);
    waiting_.clear();
    for (channel& c : channels_) {
      for (const sending& s : c.sends) s.message->fail(why);
      c.sends.clear();
      if (c.arriving && c.arriving->into) c.arriving->into->fail(why);
      c.arriving.reset();
    }
  }

 private:
  struct sending {
    std::shared_ptr<tagged_message> message;
    outgoing out;
  };
  /// A message of which a fragment has been taken; without `into` it is set aside.
  struct receiving {
    std::shared_ptr<tagged_message> into;
    std::unique_ptr<std::vector<std::byte>> aside;
    std::int64_t tag;
    incoming in;
  };
  struct kept_message {
    std::int64_t tag;
    std::unique_ptr<std::vector<std::byte>> data;
  };
  struct channel {
    std::list<sending> sends;
    std::optional<receiving> arriving;
    std::deque<kept_message> kept;  // in their order
  };

  static constexpr std::chrono::milliseconds check_every{20};

  [[nodiscard]] channel& at(int peer) noexcept { return channels_[static_cast<std::size_t>(peer)]; }

  bool send_to(int peer) {
    channel& c = at(peer);
    bool moved = false;
    while (!c.sends.empty() && c.sends.front().out.room()) {
      sending& s = c.sends.front();
      s.out.step();
      moved = true;
      if (!s.out.finished()) continue;
      s.message->end();
      c.sends.pop_front();
    }
    return moved;
  }

  bool receive_from(int peer) {
    channel& c = at(peer);
    bool moved = false;
    while (c.arriving || begin(peer)) {
      receiving& r = *c.arriving;
      if (!r.in.ready()) return moved;
      r.in.step();
      moved = true;
      if (r.in.finished()) end(peer);
    }
    return moved;
  }

  /// Begins to take the first message of the channel, if it has arrived and is wanted, or blocks a wanted one.
  bool begin(int peer) {
    incoming head(m_, nullptr, 0, peer);
    if (!head.ready()) return false;
    const std::int64_t tag = head.first().tag;
    const std::size_t bytes = head.first().message_bytes;
    const auto wanted =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& w) { return w->takes(peer, tag); });
    if (wanted != waiting_.end()) {
      std::shared_ptr<tagged_message> into = std::move(*wanted);
      waiting_.erase(wanted);
      incoming in(m_, into->data, into->bytes, peer);
      at(peer).arriving.emplace(receiving{std::move(into), nullptr, tag, in});
      return true;
    }
    if (!wants(peer)) return false;
    auto aside = std::make_unique<std::vector<std::byte>>(bytes);
    incoming in(m_, aside->data(), bytes, peer);
    at(peer).arriving.emplace(receiving{nullptr, std::move(aside), tag, in});
    return true;
  }

  void end(int peer) {
    channel& c = at(peer);
    receiving done = *std::exchange(c.arriving, std::nullopt);
    if (done.into) {
      done.into->source = peer;
      try {
        done.in.check();
        done.into->end();
      } catch (const error& of_another_length) {
        done.into->fail(of_another_length);
      }
      return;
    }
    // It may have become wanted meanwhile.
    const auto wanted =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& w) { return w->takes(peer, done.tag); });
    if (wanted == waiting_.end()) {
      c.kept.push_back({done.tag, std::move(done.aside)});
      return;
    }
    give(**wanted, *done.aside, peer);
    waiting_.erase(wanted);
  }

  /// Fills a message from those that were set aside.
  bool take_kept(tagged_message& wanted) {
    for (int peer = 0; peer != m_.size(); ++peer) {
      if (wanted.peer != tagged_message::any_rank && wanted.peer != peer) continue;
      auto& kept = at(peer).kept;
      const auto found = std::find_if(kept.begin(), kept.end(), [&](const auto& k) { return k.tag == wanted.tag; });
      if (found == kept.end()) continue;
      give(wanted, *found->data, peer);
      kept.erase(found);
      return true;
    }
    return false;
  }
  void give(tagged_message& wanted, const std::vector<std::byte>& data, int from) {
    wanted.source = from;
    if (data.size() == wanted.bytes) {
      copy_bytes(wanted.data, data.data(), data.size());
      return wanted.end();
    }
    wanted.fail({error_kind::mismatch,
                 joined({"recv on ", m_.label(), ": expected ", wanted.bytes, " bytes from rank ", from,
                         " but it sent ", data.size(), "; the message was dropped"}),
                 from});
  }

  [[nodiscard]] bool can_move() {
    for (int peer = 0; peer != m_.size(); ++peer) {
      if (peer == m_.rank()) continue;
      channel& c = at(peer);
      if (!c.sends.empty() && c.sends.front().out.room()) return true;
      if (c.arriving ? c.arriving->in.ready() : wants(peer) && incoming(m_, nullptr, 0, peer).ready()) return true;
    }
    return false;
  }
  /// True if a message of this channel is awaited.
  [[nodiscard]] bool wants(int peer) const noexcept {
    return std::any_of(waiting_.begin(), waiting_.end(),
                       [&](const auto& w) { return w->peer == peer || w->peer == tagged_message::any_rank; });
  }
  /// True if this rank waits for `peer` by its number.
  [[nodiscard]] bool waits_for(int peer) const noexcept {
    const channel& c = channels_[static_cast<std::size_t>(peer)];
    if (!c.sends.empty() || c.arriving) return true;
    return std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& w) { return w->peer == peer; });
  }
  [[nodiscard]] bool has_left(int peer) const noexcept {
    return m_.of(peer).self.state.load(std::memory_order_acquire) == presence::left;
  }
  /// A rank for which this one waits; -1 if a message may come from any rank, and all have left.
  [[nodiscard]] int awaited() const noexcept {
    int present = -1;
    for (int q = m_.size() - 1; q >= 0; --q) {
      if (q == m_.rank()) continue;
      if (waits_for(q)) return q;
      if (!has_left(q)) present = q;
    }
    return present;
  }
  void fail_from_any() {
    for (const auto& w : waiting_) {
      w->fail({error_kind::peer_lost,
               joined({"recv on ", m_.label(), ": waiting for a message from any rank, but all others have left"})});
    }
    waiting_.clear();
  }

  [[nodiscard]] clock::time_point first_deadline() const noexcept {
    clock::time_point first = clock::time_point::max();
    for (const auto& w : waiting_) first = std::min(first, w->deadline);
    for (const channel& c : channels_) {
      for (const sending& s : c.sends) first = std::min(first, s.message->deadline);
      if (c.arriving && c.arriving->into) first = std::min(first, c.arriving->into->deadline);
    }
    return first;
  }
  /// Fails messages whose time is over. One that is half sent or half received ends the group: the channel cannot be
  /// used any more.
  bool expire() {
    const clock::time_point now = clock::now();
    bool any = false;
    const auto over = [&](tagged_message& message) {
      if (message.deadline > now) return false;
      const int silent = message.peer;
      message.fail({error_kind::timeout,
                    joined({message.sends ? "send" : "recv", " on ", m_.label(), ": Timed out waiting for ",
                            silent < 0      ? joined({"a message from any rank"})
                            : message.sends ? joined({"rank ", silent, " to receive"})
                                            : joined({"a message from rank ", silent}),
                            " with tag ", message.tag}),
                    silent});
      any = true;
      return true;
    };
    std::erase_if(waiting_, [&](const auto& w) { return over(*w); });
    for (int peer = 0; peer != m_.size(); ++peer) {
      channel& c = at(peer);
      if (!c.sends.empty() && c.sends.front().out.begun() && c.sends.front().message->deadline <= now)
        m_.give_up(error_kind::timeout, peer, phase::receive);
      if (c.arriving && c.arriving->into && c.arriving->into->deadline <= now)
        m_.give_up(error_kind::timeout, peer, phase::send);
      std::erase_if(c.sends, [&](const sending& s) { return !s.out.begun() && over(*s.message); });
    }
    return any;
  }

  peer_memory& m_;
  std::vector<channel> channels_;
  std::list<std::shared_ptr<tagged_message>> waiting_;  // to be received, in the order in which they were posted
  std::atomic<int> waiting_for_{-1};
};

template <class T>
struct tagged_group {
  T group;  // made before, and destroyed after, what refers to it
};

/// Those of a group of its own, a transport with common memory.
template <class T>
class tagged_messages_of final : private tagged_group<T>, public tagged_messages {
 public:
  explicit tagged_messages_of(T comm) : tagged_group<T>{std::move(comm)}, tagged_messages(this->group.peers()) {}
};

}  // namespace hvd::inline HVD_ABI::detail
