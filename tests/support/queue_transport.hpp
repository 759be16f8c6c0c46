// tests/support/queue_transport.hpp: the least transport that algorithms over messages may ask for.
//
// Ranks are threads; a message is a pointer in a queue. It buffers nothing: `send` returns when the receiver
// has taken the message, so an algorithm that relies on buffers stops here and is reported by a deadline.
#pragma once

#include <hvd/error.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hvd::test {

class QueueTransport {
 public:
  struct traffic {
    std::size_t messages = 0;
    std::size_t bytes = 0;
  };

  class group {
   public:
    explicit group(int size) : size_(static_cast<std::size_t>(size)), queues_(size_ * size_), wake_(size_) {}

    /// Everybody who waits, now or later, gets an error.
    void fail() {
      const std::lock_guard lock(mutex_);
      failed_ = true;
      for (auto& w : wake_) w.notify_all();
    }

   private:
    friend class QueueTransport;
    struct message {
      const std::byte* data;
      std::size_t bytes;
      bool taken = false;
    };
    std::deque<message*>& queue(int from, int to) {
      return queues_[static_cast<std::size_t>(from) * size_ + static_cast<std::size_t>(to)];
    }

    std::size_t size_;
    std::mutex mutex_;
    std::vector<std::deque<message*>> queues_;
    std::vector<std::condition_variable> wake_;  // one for each rank
    bool failed_ = false;
  };

  QueueTransport(std::shared_ptr<group> g, int rank) : group_(std::move(g)), rank_(rank) {}

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(group_->size_); }
  /// What this rank has sent since the last call.
  traffic sent() { return std::exchange(sent_, {}); }

  void send(const std::byte* data, std::size_t bytes, int peer) {
    std::unique_lock lock(group_->mutex_);
    group::message m{data, bytes};
    post(m, peer);
    await(lock, "the receiver", peer, [&] { return m.taken; });
  }
  void recv(std::byte* data, std::size_t bytes, int peer) {
    std::unique_lock lock(group_->mutex_);
    take(lock, data, bytes, peer);
  }
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    std::unique_lock lock(group_->mutex_);
    group::message m{out, out_bytes};
    post(m, to);
    take(lock, in, in_bytes, from);
    await(lock, "the receiver", to, [&] { return m.taken; });
  }
  void barrier() {
    for (int peer = 1; rank_ == 0 && peer < size(); ++peer) recv(nullptr, 0, peer);
    if (rank_ != 0) send(nullptr, 0, 0);
    for (int peer = 1; rank_ == 0 && peer < size(); ++peer) send(nullptr, 0, peer);
    if (rank_ != 0) recv(nullptr, 0, 0);
  }
  [[nodiscard]] QueueTransport split(int color, int key) {
    struct wish {
      int color, key, rank;
    };
    const wish mine{color, key, rank_};
    std::vector<wish> members{mine};
    for (int step = 1; step < size(); ++step) {
      wish theirs{};
      exchange(reinterpret_cast<const std::byte*>(&mine), sizeof(wish), (rank_ + step) % size(),
               reinterpret_cast<std::byte*>(&theirs), sizeof(wish), (rank_ + size() - step) % size());
      if (detail::same_group(color, rank_, theirs.color, theirs.rank)) members.push_back(theirs);
    }
    std::sort(members.begin(), members.end(),
              [](const wish& a, const wish& b) { return std::pair(a.key, a.rank) < std::pair(b.key, b.rank); });
    const auto self = std::find_if(members.begin(), members.end(), [&](const wish& w) { return w.rank == rank_; });
    std::shared_ptr<group> next;
    if (self == members.begin()) {
      next = std::make_shared<group>(static_cast<int>(members.size()));
      const auto* address = &next;
      for (const wish& w : members) {
        if (w.rank != rank_) send(reinterpret_cast<const std::byte*>(&address), sizeof(address), w.rank);
      }
      for (const wish& w : members) {
        if (w.rank != rank_) recv(nullptr, 0, w.rank);  // it has copied
      }
    } else {
      const std::shared_ptr<group>* address = nullptr;
      recv(reinterpret_cast<std::byte*>(&address), sizeof(address), members.front().rank);
      next = *address;
      send(nullptr, 0, members.front().rank);
    }
    return {std::move(next), static_cast<int>(self - members.begin())};
  }

 private:
  static constexpr std::chrono::seconds deadline{30};

  void post(group::message& m, int to) {
    sent_.messages += 1;
    sent_.bytes += m.bytes;
    group_->queue(rank_, to).push_back(&m);
    group_->wake_[static_cast<std::size_t>(to)].notify_all();
  }
  void take(std::unique_lock<std::mutex>& lock, std::byte* data, std::size_t bytes, int from) {
    auto& queue = group_->queue(from, rank_);
    await(lock, "a message", from, [&] { return !queue.empty(); });
    group::message& m = *queue.front();
    queue.pop_front();
    const std::size_t sent = m.bytes;
    if (sent == bytes && bytes != 0) std::memcpy(data, m.data, bytes);
    m.taken = true;
    group_->wake_[static_cast<std::size_t>(from)].notify_all();
    if (sent == bytes) return;
    throw error(error_kind::mismatch,
                "rank " + std::to_string(rank_) + " expected " + std::to_string(bytes) + " bytes from rank " +
                    std::to_string(from) + " but it sent " + std::to_string(sent),
                from);
  }
  template <class Done>
  void await(std::unique_lock<std::mutex>& lock, const char* what, int peer, Done done) {
    const auto until = std::chrono::steady_clock::now() + deadline;
    auto& wake = group_->wake_[static_cast<std::size_t>(rank_)];
    while (!done()) {
      if (group_->failed_) throw error(error_kind::aborted, "another rank failed");
      if (wake.wait_until(lock, until) == std::cv_status::timeout && !done()) {
        throw error(error_kind::timeout,
                    "rank " + std::to_string(rank_) + " waited in vain for " + what + ", rank " + std::to_string(peer),
                    peer);
      }
    }
  }

  std::shared_ptr<group> group_;
  int rank_;
  traffic sent_;
};

static_assert(PointToPoint<QueueTransport> && !PeerMemory<QueueTransport>);

/// Runs f(transport) on `size` ranks, each a thread; rethrows what the first rank that failed has thrown.
template <class F>
void on_ranks(int size, const F& f) {
  const auto g = std::make_shared<QueueTransport::group>(size);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank != size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        QueueTransport t(g, rank);
        f(t);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        g->fail();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace hvd::test
