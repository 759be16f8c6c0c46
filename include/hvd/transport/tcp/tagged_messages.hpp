// hvd/transport/tcp/tagged_messages.hpp: tagged messages over TCP, with connections of their own.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/detail/socket_descriptor.hpp>
#include <hvd/detail/tagged_message.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/fork_guard.hpp>
#include <hvd/transport/tcp/group.hpp>
#include <hvd/transport/tcp/socket.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// A message travels as a header, its tag and its bytes. One that nobody has asked for yet waits in this rank's memory.
class tcp_messages final : public message_channel {
 public:
  using message = tagged_message;
  using channel = tcp_header::channel;
  using clock = message::clock;

  /// `peers`: connections that have no other user, by rank.
  tcp_messages(std::vector<tcp_peer> peers, std::string label)
      : label_(std::move(label)), lanes_(peers.size()), bell_(event_descriptor(), nullptr, nullptr) {
    if (bell_.fd() < 0) fail(error_kind::system, {"messages on ", label_, ": no eventfd: ", std::strerror(errno)});
    for (std::size_t q = 0; q != peers.size(); ++q) lanes_[q].peer = std::move(peers[q]);
  }
  ~tcp_messages() override {
    const tcp_header left(channel::left, 0);
    std::vector<tcp_peer> peers;
    for (lane& l : lanes_) {
      if (l.peer.connection() && !l.writing) static_cast<void>(l.peer.connection().write(&left, sizeof left));
      peers.push_back(std::move(l.peer));
    }
    finish_sending(peers, std::chrono::milliseconds(2000));
  }

  void post(std::shared_ptr<message> m) override {
    if (m->sends) {
      lane& l = lanes_[static_cast<std::size_t>(m->peer)];
      if (l.deaf || l.left()) return m->fail(gone(m->peer));
      const prefix head{tcp_header(channel::user, m->bytes), m->tag};
      l.out.push_back({m, head, m->data, m->bytes});
    } else {
      const auto come =
          std::find_if(come_.begin(), come_.end(), [&](const letter& c) { return m->takes(c.from, c.tag); });
      if (come != come_.end()) {
        deliver(*m, come->from, come->bytes.size(), come->bytes.data());
        come_.erase(come);
        return;
      }
      if (m->peer >= 0 && lanes_[static_cast<std::size_t>(m->peer)].left()) return m->fail(gone(m->peer));
      wanted_.push_back(std::move(m));
      fail_from_any();
    }
  }
  [[nodiscard]] bool idle() const noexcept override {
    return wanted_.empty() &&
           std::all_of(lanes_.begin(), lanes_.end(), [](const lane& l) { return l.out.empty() && !l.into; });
  }
  bool progress() override {
    if (aborted_) throw error(error_kind::aborted, "messages on " + label_ + ": this rank has given up");
    bool moved = false;
    for (std::size_t q = 0; q != lanes_.size(); ++q) {
      if (!lanes_[q].peer.connection()) continue;
      moved |= pull(q);
      moved |= push(q);
    }
    if (const auto now = clock::now(); now >= next_look_) {
      next_look_ = now + std::chrono::seconds(1);
      for (std::size_t q = 0; q != lanes_.size(); ++q) {
        if (lanes_[q].peer.connection() && lanes_[q].peer.connection().silent()) lost(q);
      }
    }
    return expire() || moved;
  }
  void wait(function_ref<bool()> woken) override {
    std::vector<pollfd> ready{{bell_.fd(), POLLIN, 0}};
    for (const lane& l : lanes_) {
      const auto events = static_cast<short>((l.left() ? 0 : POLLIN) | (l.out.empty() ? 0 : POLLOUT));
      if (l.peer.connection() && events != 0) ready.push_back({l.peer.connection().fd(), events, 0});
    }
    clock::time_point until = clock::now() + std::chrono::milliseconds(100);
    for (const auto& m : wanted_) until = std::min(until, m->deadline);
    if (!woken()) tcp_socket::poll_until(ready.data(), ready.size(), until);
    eventfd_t rung = 0;
    static_cast<void>(::eventfd_read(bell_.fd(), &rung));
  }
  void wake() noexcept override { static_cast<void>(::eventfd_write(bell_.fd(), 1)); }
  void abort() noexcept override {
    aborted_ = true;
    wake();
  }
  void fail_all(const error& why) override {
    for (const auto& m : wanted_) m->fail(why);
    wanted_.clear();
    for (lane& l : lanes_) {
      end_out(l, why);
      if (l.into) std::exchange(l.into, nullptr)->fail(why);
    }
  }

 private:
  struct prefix {
    tcp_header header;
    std::int64_t tag = 0;
  };
  /// A message on its way out.
  struct parcel {
    std::shared_ptr<message> what;  // none if its sender does not wait any more
    prefix head;
    const std::byte* data;
    std::size_t bytes;
    std::size_t done = 0;  // with its head
    std::vector<std::byte> rest{};
    void fail(const error& why) {
      if (what) what->fail(why);
    }
  };
  /// A message that has come.
  struct letter {
    int from;
    std::int64_t tag;
    std::vector<std::byte> bytes;
  };
  struct lane {
    tcp_peer peer;
    std::deque<parcel> out;
    bool writing = false;  // a part of the first one has left
    bool deaf = false;     // it does not read any more
    // The message that is coming: with its tag, into the memory of who wants it, or into `spare`.
    bool begun = false, tagged = false;
    std::int64_t tag = 0;
    std::size_t bytes = 0, got = 0;
    std::shared_ptr<message> into;
    std::vector<std::byte> spare;
    [[nodiscard]] bool left() const { return !begun && peer.has_header() && peer.header().what() != channel::user; }
  };

  [[nodiscard]] error gone(int q) const {
    return {error_kind::peer_lost, joined({"messages on ", label_, ": rank ", q, " has left"}), q};
  }
  [[noreturn]] void lost(std::size_t q) const {
    fail(error_kind::peer_lost, {"messages on ", label_, ": rank ", q, is_lost}, static_cast<int>(q));
  }
  static void deliver(message& m, int from, std::size_t bytes, const std::byte* data) {
    m.source = from;
    if (bytes != m.bytes) {
      return m.fail({error_kind::mismatch,
                     joined({"recv: expected ", m.bytes, " bytes from rank ", from, " but it sent ", bytes,
                             "; the message was dropped"}),
                     from});
    }
    if (data != nullptr) copy_bytes(m.data, data, bytes);
    m.end();
  }

  bool push(std::size_t q) {
    lane& l = lanes_[q];
    bool moved = false;
    while (!l.out.empty()) {
      parcel& p = l.out.front();
      const auto sent = l.peer.connection().write(&p.head, sizeof p.head, p.data, p.bytes, p.done);
      if (!sent) {  // `pull` finds out whether it has left or is lost
        l.deaf = true;
        end_out(l, gone(static_cast<int>(q)));
        return true;
      }
      if (*sent == 0) break;
      moved = true;
      p.done += *sent;
      l.writing = p.done != sizeof p.head + p.bytes;
      if (p.done != sizeof p.head + p.bytes) continue;
      if (p.what) p.what->end();
      l.out.pop_front();
    }
    return moved;
  }
  bool pull(std::size_t q) {
    lane& l = lanes_[q];
    std::size_t taken = 0;  // so that other ranks and deadlines get their turn
    for (bool moved = false; taken < (std::size_t{1} << 20); moved = true) {
      if (!l.begun) {
        if (!l.peer.look()) {
          if (l.peer.ended) lost(q);
          return moved;
        }
        if (l.left()) {
          leave(q);
          return moved;
        }
        l.bytes = l.peer.header().bytes();
        l.peer.take_header();
        l.begun = true;
        l.tagged = false;
        l.got = 0;
      }
      if (!l.tagged) {
        l.got += l.peer.take(reinterpret_cast<std::byte*>(&l.tag) + l.got, sizeof l.tag - l.got);
        if (l.got != sizeof l.tag) return stopped(q, moved);
        l.tagged = true;
        l.got = 0;
        l.into = wanted(q, l.tag);
        const bool fits = l.into && l.into->bytes == l.bytes;
        l.spare.resize(fits ? 0 : l.bytes);
      }
      const bool elsewhere = !l.into || l.into->bytes != l.bytes;
      const std::size_t n = l.peer.take((elsewhere ? l.spare.data() : l.into->data) + l.got, l.bytes - l.got);
      l.got += n;
      taken += n + 1;
      if (l.got != l.bytes) return stopped(q, moved);
      l.begun = false;
      if (l.into) {
        deliver(*std::exchange(l.into, nullptr), static_cast<int>(q), l.bytes, nullptr);
      } else if (const auto asked = wanted(q, l.tag)) {  // since it began
        deliver(*asked, static_cast<int>(q), l.bytes, l.spare.data());
      } else {
        come_.push_back({static_cast<int>(q), l.tag, std::exchange(l.spare, {})});
      }
    }
    return true;
  }
  /// The first message that is waiting for this one, which it leaves; or null.
  std::shared_ptr<message> wanted(std::size_t q, std::int64_t tag) {
    const auto found =
        std::find_if(wanted_.begin(), wanted_.end(), [&](const auto& m) { return m->takes(static_cast<int>(q), tag); });
    if (found == wanted_.end()) return nullptr;
    std::shared_ptr<message> first = std::move(*found);
    wanted_.erase(found);
    return first;
  }
  bool stopped(std::size_t q, bool moved) const {
    if (lanes_[q].peer.ended) lost(q);
    return moved;
  }
  /// This rank has said that it leaves: nothing comes from it any more, and nothing reaches it.
  void leave(std::size_t q) {
    end_out(lanes_[q], gone(static_cast<int>(q)));
    std::erase_if(wanted_, [&](const auto& m) {
      if (m->peer != static_cast<int>(q)) return false;
      m->fail(gone(m->peer));
      return true;
    });
    fail_from_any();
  }
  /// No rank is left that could send to a message from any rank.
  void fail_from_any() {
    const auto silent = [](const lane& l) { return !l.peer.connection() || l.left(); };
    if (lanes_.size() == 1 || !std::all_of(lanes_.begin(), lanes_.end(), silent)) return;
    for (const auto& m : std::exchange(wanted_, {})) {
      m->fail({error_kind::peer_lost, joined({"messages on ", label_, ": all other ranks have left"})});
    }
  }
  static void end_out(lane& l, const error& why) {
    for (parcel& p : l.out) p.fail(why);
    l.out.clear();
  }
  /// Ends messages beyond their deadlines. The rest of one that has begun to move still moves, from a copy.
  bool expire() {
    const clock::time_point now = clock::now();
    bool any = false;
    const auto over = [&](const message& m) {
      if (m.deadline > now) return false;
      any = true;
      return true;
    };
    const auto end = [](message& m) {
      const std::string who = m.peer < 0 ? std::string("any rank") : joined({"rank ", m.peer});
      m.fail({error_kind::timeout,
              joined({m.sends ? "send" : "recv", ": Timed out waiting for ", m.sends ? "" : "a message from ", who,
                      m.sends ? " to receive" : "", " with tag ", m.tag}),
              m.peer});
    };
    std::erase_if(wanted_, [&](const auto& m) {
      const bool late = over(*m);
      if (late) end(*m);
      return late;
    });
    for (lane& l : lanes_) {
      if (l.into && over(*l.into)) {
        if (l.into->bytes == l.bytes) l.spare.resize(l.bytes);
        end(*std::exchange(l.into, nullptr));
        dropped(l);
      }
      for (auto p = l.out.begin(); p != l.out.end();) {
        if (!p->what || !over(*p->what)) {
          ++p;
          continue;
        }
        if (p->done == 0) {
          end(*p->what);
          p = l.out.erase(p);
          continue;
        }
        p->rest.assign(p->data, p->data + p->bytes);
        p->data = p->rest.data();
        end(*std::exchange(p->what, nullptr));
        ++p;
      }
    }
    return any;
  }
  /// The message that is coming belongs to nobody: the rest of it is read, and forgotten.
  static void dropped(lane& l) {
    l.into = std::make_shared<message>();
    l.into->data = l.spare.data();
    l.into->bytes = l.bytes;
  }

  const std::string label_;
  std::vector<lane> lanes_;
  std::deque<std::shared_ptr<message>> wanted_;  // to be received, in posting order
  std::list<letter> come_;                       // not yet asked for, in order of their arrival
  fork_guard bell_;
  std::atomic<bool> aborted_{false};
  clock::time_point next_look_ = clock::now();
};

}  // namespace hvd::inline HVD_ABI::detail
