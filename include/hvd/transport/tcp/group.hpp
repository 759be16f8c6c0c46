// hvd/transport/tcp/group.hpp: one rank's membership of a group connected by TCP: messages, waiting, failing.
#pragma once

#include <hvd/buffer.hpp>
#include <hvd/call.hpp>
#include <hvd/detail/deadline.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/policy.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/tcp/socket.hpp>
#include <hvd/transport/tcp/stream.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

class tcp_group {
 public:
  using channel = tcp_header::channel;
  using seconds = failure_policy::seconds;

  /// `peers`: the connections, by rank; none to itself.
  tcp_group(int rank, std::vector<tcp_peer> peers, const failure_policy& failure)
      : rank_(rank), peers_(std::move(peers)), failure_(failure),
        label_(joined({"rank ", rank, " of ", peers_.size(), " (TCP)"})) {}
  tcp_group(const tcp_group&) = delete;
  tcp_group& operator=(const tcp_group&) = delete;
  ~tcp_group() { leave(); }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(peers_.size()); }
  [[nodiscard]] const std::string& label() const noexcept { return label_; }
  [[nodiscard]] const failure_policy& failure() const noexcept { return failure_; }
  void set_timeout(seconds timeout) noexcept { failure_.timeout = timeout; }
  void set_interruption(const interruption& by) noexcept { interruption_ = by; }
  /// The rank for which `transfer` waits, or -1. Any thread.
  [[nodiscard]] int waiting_for() const noexcept { return waiting_for_.load(std::memory_order_relaxed); }
  void abort() noexcept { aborted_.store(true); }
  void abort(error_kind kind, int culprit) noexcept {
    try {
      begin("abort");
      end(kind, culprit, {"ended because of rank ", culprit});
    } catch (const std::exception&) {  // this one's, or that of a group that has ended before
    }
  }
  /// The connections, for another use; this has none then.
  [[nodiscard]] std::vector<tcp_peer> take_peers() noexcept { return std::exchange(peers_, {}); }

  /// Errors: invalid_argument if there is no such rank.
  void check_peer(std::string_view operation, int peer) const {
    if (peer >= 0 && peer < size()) return;
    fail(error_kind::invalid_argument,
         {operation, " on ", label_, ": there is no rank ", peer, "; allowed: 0 to ", size() - 1});
  }
  /// Sends unless `to` is -1, receives unless `from` is, both at once.
  void transfer(std::string_view operation, channel way, const std::byte* out, std::size_t out_bytes, int to,
                std::byte* in, std::size_t in_bytes, int from) {
    begin(operation);
    if (to == rank_) keep(way, out, out_bytes);
    if (from == rank_ && peers_[static_cast<std::size_t>(rank_)].kept[static_cast<std::size_t>(way)].empty()) {
      fail(error_kind::invalid_argument,
           {operation, " on ", label_, ": no message to itself was sent before, and nobody else can send one"});
    }
    outgoing o{to == rank_ ? -1 : to, out, out_bytes, tcp_header(way, out_bytes)};
    incoming i{from, way, in, in_bytes};
    const sending_scope sends(sending_, o);
    if (!step(o, i)) await(o, i);
    if (i.mismatch()) {
      fail(error_kind::mismatch,
           {operation, " on ", label_, ": expected ", in_bytes, " bytes from rank ", from, " but it sent ", i.sent,
            "; the message was dropped"},
           from);
    }
  }
  /// Dissemination: in step k an empty message comes from the rank 2^k before this one. (D. Hensgen, R. Finkel, U.
  /// Manber, "Two algorithms for barrier synchronization", 1988.)
  void barrier(std::string_view operation) {
    begin(operation);
    for (int distance = 1; distance < size(); distance *= 2) {
      transfer(operation, channel::own, nullptr, 0, (rank_ + distance) % size(), nullptr, 0,
               (rank_ + size() - distance) % size());
    }
  }
  /// An allgather of one value, in log p steps. (See algorithm/bruck.hpp.)
  template <class T>
  std::vector<T> share(std::string_view operation, const T& mine) {
    const auto n = static_cast<std::size_t>(size()), self = static_cast<std::size_t>(rank_);
    std::vector<T> all(n);  // that of rank r at (r - rank) mod n, until it is rotated
    all[0] = mine;
    begin(operation);
    for (std::size_t have = 1; have < n; have *= 2) {
      const std::size_t more = std::min(have, n - have);
      transfer(operation, channel::own, reinterpret_cast<const std::byte*>(all.data()), more * sizeof(T),
               static_cast<int>((self + n - have) % n), reinterpret_cast<std::byte*>(all.data() + have),
               more * sizeof(T), static_cast<int>((self + have) % n));
    }
    std::rotate(all.begin(), all.end() - rank_, all.end());
    return all;
  }
  bool arrived(int from) {
    begin("arrived");
    check_peer("arrived", from);
    tcp_peer& p = peers_[static_cast<std::size_t>(from)];
    if (!p.kept[0].empty()) return true;
    if (from == rank_) return false;
    if (!p.look()) {
      ended(from);
      return false;
    }
    judge(from);
    return p.header().what() == channel::user;
  }
  /// Throws if the group has ended, or a rank is known to be lost or to have left.
  void check() {
    begin("check");
    watch(-1, -1, {});
    find_silent();
    for (int q = 0; q != size(); ++q) {
      const tcp_peer& p = peers_[static_cast<std::size_t>(q)];
      if (p.has_header() && p.header().what() == channel::left) lost(q);
    }
  }

 private:
  /// A message on its way out.
  struct outgoing {
    int to;
    const std::byte* data;
    std::size_t bytes;
    tcp_header header;
    std::size_t done = 0;  // with the header
    [[nodiscard]] bool complete() const noexcept { return to < 0 || done == sizeof header + bytes; }
    /// Writes on, without waiting; nothing after an error.
    std::optional<std::size_t> write(tcp_peer& p) {
      const auto sent = p.connection().write(&header, sizeof header, data, bytes, done);
      if (sent) done += *sent;
      p.writing = done != 0 && !complete();
      return sent;
    }
  };
  /// The message on its way out during a transfer, for `end`.
  struct sending_scope {
    sending_scope(outgoing*& now, outgoing& o) : now_(now) { now_ = &o; }
    ~sending_scope() { now_ = nullptr; }
    outgoing*& now_;
  };
  /// A message on its way in; one of another length, or of the other channel, is read elsewhere.
  struct incoming {
    int from;
    channel way;
    std::byte* data;
    std::size_t bytes;
    bool begun = false;
    channel what{};
    std::size_t sent = 0, got = 0;
    std::vector<std::byte> other{};  // one of the other channel
    bool complete = from < 0;
    [[nodiscard]] bool mismatch() const noexcept { return from >= 0 && sent != bytes; }
  };

  void begin(std::string_view operation) {
    operation_ = operation;
    if (size() > 1 && !peers_[rank_ == 0 ? 1 : 0].connection()) [[unlikely]] {
      fail(error_kind::invalid_argument,
           {operation, " on ", label_,
            ": this process was forked from the one that joined the group; only that one may use it"});
    }
    if (failed_) [[unlikely]] {
      fail(failed_->kind(),
           {operation, " on ", label_, ": the group failed before and cannot be used: ", sentence(*failed_)},
           failed_->rank());
    }
    if (aborted_.load(std::memory_order_relaxed)) [[unlikely]]
      end(error_kind::aborted, rank_, {"this rank has given up"});
  }
  bool step(outgoing& o, incoming& i) {
    if (!o.complete()) push(o);
    if (!i.complete) pull(i);
    return o.complete() && i.complete;
  }
  void push(outgoing& o) {
    tcp_peer& p = peers_[static_cast<std::size_t>(o.to)];
    while (!o.complete()) {
      const auto sent = o.write(p);
      if (!sent) {
        if (!p.ended) p.why = errno;
        p.writing = false;
        lost(o.to);
      }
      if (*sent == 0) return;
    }
  }
  void pull(incoming& i) {
    tcp_peer& p = peers_[static_cast<std::size_t>(i.from)];
    if (auto& kept = p.kept[static_cast<std::size_t>(i.way)]; !i.begun && !kept.empty()) {
      i.sent = kept.front().size();
      if (i.sent == i.bytes) copy_bytes(i.data, kept.front().data(), i.bytes);
      kept.pop_front();
      i.complete = true;
      return;
    }
    while (!i.complete) {
      if (!i.begun) {
        if (!p.look()) return ended(i.from);
        judge(i.from);
        if (p.header().what() == channel::left) lost(i.from);
        i.begun = true;
        i.what = p.header().what();
        i.sent = p.header().bytes();
        i.got = 0;
        p.take_header();
        if (i.what != i.way) reserve(i.other, i.sent);
      }
      const bool own = i.what == i.way;
      if (own && i.sent != i.bytes) {  // dropped
        if (!p.skip()) return ended(i.from);
      } else {
        i.got += p.take((own ? i.data : i.other.data()) + i.got, i.sent - i.got);
        if (i.got != i.sent) return ended(i.from);
      }
      i.complete = own;
      if (own) return;
      p.kept[static_cast<std::size_t>(i.what)].push_back(std::move(i.other));
      i.begun = false;
    }
  }
  void reserve(std::vector<std::byte>& memory, std::size_t bytes) {
    try {
      memory.resize(bytes);
    } catch (const std::exception&) {
      end(error_kind::no_memory, rank_, {"no memory for a message of ", bytes, " bytes"});
    }
  }
  void keep(channel way, const std::byte* data, std::size_t bytes) {
    peers_[static_cast<std::size_t>(rank_)].kept[static_cast<std::size_t>(way)].emplace_back(data, data + bytes);
  }

  void await(outgoing& o, incoming& i) {
    struct clearing {
      std::atomic<int>& what;
      ~clearing() { what.store(-1, std::memory_order_relaxed); }
    } const at_end{waiting_for_};
    if (spin(paces::tcp, [&] { return step(o, i); })) return;
    const auto until = failure_.timeout.count() > 0 ? deadline_after(failure_.timeout) : tcp_clock::time_point::max();
    for (auto next_look = tcp_clock::now() + look_for_hosts;;) {
      const int peer = i.complete ? o.to : i.from;
      waiting_for_.store(peer, std::memory_order_relaxed);
      watch(o.complete() ? -1 : o.to, i.complete ? -1 : i.from,
            std::min(until, tcp_clock::now() + failure_.look_every));
      if (step(o, i)) return;
      if (interruption_ || aborted_.load()) end(error_kind::aborted, rank_, {"this rank has given up"});
      const auto now = tcp_clock::now();
      if (now >= next_look) {
        next_look = now + look_for_hosts;
        find_silent();
      }
      if (now < until) continue;
      const char* const hint = operation_ == "send" && peer == o.to
                                   ? "; a send may wait for its recv: if two ranks both send first, use exchange"
                                   : "";
      end(error_kind::timeout, peer,
          {"rank ", peer, " did not answer within ", failure_.timeout.count(),
           " s (raise HVD_TIMEOUT or failure_policy::timeout if it is only slow)", hint});
    }
  }
  /// Waits until a time for these two ranks, and looks at all others: their ends, and what they say of the group's.
  void watch(int to, int from, tcp_clock::time_point until) {
    ready_.clear();
    watched_.clear();
    for (int q = 0; q != size(); ++q) {
      const tcp_peer& p = peers_[static_cast<std::size_t>(q)];
      const bool reads = q == from || !p.has_header();  // else its next message is for later
      const auto events = static_cast<short>((reads ? POLLIN : 0) | (q == to ? POLLOUT : 0));
      if (q == rank_ || p.ended || events == 0) continue;
      ready_.push_back({p.connection().fd(), events, 0});
      watched_.push_back(q);
    }
    tcp_socket::poll_until(ready_.data(), ready_.size(), until);
    for (std::size_t k = 0; k != ready_.size(); ++k) {
      if (ready_[k].revents != 0 && watched_[k] != from) peers_[static_cast<std::size_t>(watched_[k])].look();
    }
    for (int q = 0; q != size(); ++q) {
      if (q == rank_ || q == from) continue;
      if (peers_[static_cast<std::size_t>(q)].has_header()) {
        judge(q);
      } else {
        ended(q);
      }
    }
  }
  /// Throws if a host does not answer any more. (The kernel reports only that of an idle connection.)
  void find_silent() {
    for (int q = 0; q != size(); ++q) {
      tcp_peer& p = peers_[static_cast<std::size_t>(q)];
      if (q == rank_ || p.ended || !p.connection().silent()) continue;
      p.why = ETIMEDOUT;
      lost(q);
    }
  }
  /// Throws if the next that comes from this rank says that the group has failed.
  void judge(int q) {
    const tcp_header h = peers_[static_cast<std::size_t>(q)].header();
    if (h.what() != channel::failed) return;
    const int culprit = h.culprit() < size() ? h.culprit() : -1;
    switch (h.kind()) {
      case error_kind::peer_lost: end(h.kind(), culprit, {"rank ", culprit, is_lost, ", as rank ", q, " found"});
      case error_kind::timeout:
        if (culprit == rank_) end(h.kind(), culprit, {"rank ", q, " waited for this rank until its time limit"});
        end(h.kind(), culprit, {"rank ", culprit, " did not answer in time, as rank ", q, " found"});
      default: end(h.kind(), culprit, {"rank ", culprit, " failed in the middle of an operation"});
    }
  }
  /// Throws if this rank's stream has ended. (That of a rank that has left is not read to its end.)
  void ended(int q) {
    if (peers_[static_cast<std::size_t>(q)].ended) lost(q);
  }
  /// The connection to this rank has ended. It may have ended because of another one: then it has said so, or others
  /// have; and if it could not, in the middle of a message, another one has ended as well.
  [[noreturn]] void lost(int q) {
    const auto stream = [&](int r) -> tcp_peer& { return peers_[static_cast<std::size_t>(r)]; };
    for (tcp_peer& p = stream(q); p.skip() && p.look();) {
      judge(q);
      if (p.header().what() == channel::left) break;
      p.take_header();
    }
    const bool cut = stream(q).unread() != 0;
    int other = -1;
    for (int r = 0; r != size(); ++r) {
      if (r == rank_ || r == q) continue;
      if (stream(r).skip() && stream(r).look()) judge(r);
      if (stream(r).ended && stream(r).unread() == 0 && other < 0) other = r;
    }
    if (cut && other >= 0) q = other;
    const int why = stream(q).why;
    const bool silent = why == ETIMEDOUT || why == EHOSTUNREACH || why == ENETUNREACH;
    end(error_kind::peer_lost, q, {"rank ", q, is_lost, silent ? ", or its host is gone: it does not answer" : ""});
  }
  /// Ends the group, here and on the other ranks, and throws. The message on its way out is finished if that takes no
  /// time, because nothing can be said in the middle of it.
  [[noreturn]] void end(error_kind kind, int culprit, std::initializer_list<piece> what) {
    failed_.emplace(kind, joined({operation_, " on ", label_, ": ", joined(what)}), culprit);
    if (sending_ != nullptr && sending_->to >= 0) {
      tcp_peer& p = peers_[static_cast<std::size_t>(sending_->to)];
      const auto until = tcp_clock::now() + std::chrono::milliseconds(100);
      while (p.writing && p.connection().await(POLLOUT, until) && sending_->write(p)) continue;
      if (p.writing) ::shutdown(p.connection().fd(), SHUT_WR);
    }
    say(tcp_header::failure(kind, culprit));
    throw *failed_;
  }
  /// The last word to the other ranks.
  void say(tcp_header last) noexcept {
    const auto until = tcp_clock::now() + std::chrono::milliseconds(500);
    for (const tcp_peer& p : peers_) {
      if (p.connection() && !p.writing) static_cast<void>(p.connection().write_all(&last, sizeof last, until));
    }
  }
  void leave() noexcept {
    if (!failed_) {
      say(aborted_.load() ? tcp_header::failure(error_kind::aborted, rank_) : tcp_header(channel::left, 0));
    }
    finish_sending(peers_, failed_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(2000));
  }

  static constexpr std::chrono::seconds look_for_hosts{1};

  const int rank_;
  std::vector<tcp_peer> peers_;
  failure_policy failure_;
  const std::string label_;
  interruption interruption_;
  std::string_view operation_ = "join";
  std::optional<error> failed_;
  std::atomic<bool> aborted_{false};
  std::atomic<int> waiting_for_{-1};
  outgoing* sending_ = nullptr;
  std::vector<pollfd> ready_;
  std::vector<int> watched_;
};

}  // namespace hvd::inline HVD_ABI::detail
