// hvd/queue/messages.hpp: the messages of a queue, which are in flight at the same time.
#pragma once

#include <hvd/detail/tagged_message.hpp>
#include <hvd/queue/waiting.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

class queued_messages final : public queued_work {
 public:
  struct message {
    tagged_message what;
    std::shared_ptr<void> keep;
    clock::time_point submitted{};
    completion end{};

    /// True if it takes no longer than to wake a thread.
    [[nodiscard]] bool quick() const noexcept { return what.bytes <= std::size_t{64} << 10; }
  };

  queued_messages(std::unique_ptr<message_channel> channel, const interruption& by, const std::atomic<bool>& forked)
      : queued_work(by, forked), channel_(std::move(channel)) {}

  void abort() noexcept { channel_->abort(); }

  /// `waits`: the caller waits next, and does the work on its own thread.
  void post(std::shared_ptr<message> m, bool waits) {
    refuse_fork();
    lock held(mutex_);
    refuse_if_closing();
    if (broken_) throw *broken_;
    m->submitted = clock::now();
    posted_.push_back(m);
    woken_.store(true);  // before the channel looks at who waits
    if (running_) {
      channel_->wake();
      return;
    }
    move(held, false);  // messages that fit between ranks or have arrived need no thread
    if (!m->end.finished() && !waits) {
      helper_.added(m->quick(), [this] { drive(); });
    } else if (!posted_.empty()) {
      helper_.added(false, [this] { drive(); });  // of another thread, while this one moved messages
    } else if (!in_flight_.empty()) {
      helper_.left();  // it may have arrived while this thread moved messages, and be asleep
    }
  }

  void await(const completion& end, clock::time_point until, bool /*only_queued*/) override {
    refuse_fork();
    lock held(mutex_);
    while (!end.finished()) {
      if (until == clock::time_point::max() && !running_) {  // with a limit, another thread works
        const waits_in_queue_scope asks;
        helper_.not_needed();
        carry(held, &end);
        if (any()) helper_.added(false, [this] { drive(); });
      } else if (!sleep(held, until, [&] { return end.finished(); })) {
        return;
      }
    }
  }

 private:
  using messages = std::deque<std::shared_ptr<message>>;

  /// True if something can be moved: the channel may still have the rest of a message that nobody waits for any more.
  [[nodiscard]] bool any() const noexcept {
    return !posted_.empty() || !in_flight_.empty() || (!running_ && !broken_ && !channel_->idle());
  }
  [[nodiscard]] bool idle() const noexcept override { return !running_ && !any(); }

  /// Moves messages as far as possible. The caller holds the lock, and no other thread moves any. `waits`: wait until a
  /// message can be moved.
  void move(lock& held, bool waits) {
    running_ = true;
    const messages fresh = std::exchange(posted_, {});
    in_flight_.insert(in_flight_.end(), fresh.begin(), fresh.end());
    woken_.store(false, std::memory_order_release);
    held.unlock();
    const std::optional<error> problem = attempt([&] {
      for (const auto& m : fresh) {
        const std::shared_ptr<tagged_message> what(m, &m->what);
        if (const auto refused = attempt([&] { channel_->post(what); })) what->fail(*refused);
      }
      if (!channel_->progress() && waits && fresh.empty() && !channel_->idle()) {
        channel_->wait([this] { return woken_.load(); });
      }
    });
    if (problem) channel_->fail_all(*problem);
    held.lock();
    if (problem) {
      broken_ = problem;
      in_flight_.insert(in_flight_.end(), posted_.begin(), posted_.end());
      posted_.clear();
      for (const auto& m : in_flight_) {
        if (!m->what.done) m->what.fail(*problem);
      }
    }
    const auto done =
        std::stable_partition(in_flight_.begin(), in_flight_.end(), [](const auto& m) { return !m->what.done; });
    const messages ended(std::make_move_iterator(done), std::make_move_iterator(in_flight_.end()));
    in_flight_.erase(done, in_flight_.end());
    if (!ended.empty()) {
      held.unlock();
      for (const auto& m : ended) {
        m->end.answer = m->what.sends ? -1 : m->what.source;
        m->keep.reset();
        m->end.finish(m->what.problem);
      }
      held.lock();
    }
    stop_running();
  }
  /// Moves messages until `until` has ended, or all have. Returns early if another thread takes over.
  void carry(lock& held, const completion* until) {
    while (until != nullptr ? !until->finished() : any()) {
      move(held, true);
      if (until == nullptr || until->finished() || by_.wanted == nullptr) continue;
      held.unlock();
      const bool out = interrupted();
      held.lock();
      if (running_ && !out) return;  // another thread does it now
      if (!out) continue;
      helper_.added(false, [this] { drive(); });  // the message is still in flight
      end_interrupted();
    }
  }
  void drive() {
    lock held(mutex_);
    const auto urgent = [this](auto now) {
      if (in_flight_.empty() && posted_.empty()) return true;
      const message& first = in_flight_.empty() ? *posted_.front() : *in_flight_.front();
      return closing_ || !first.quick() || now - first.submitted >= helper_thread::look_every;
    };
    const auto ready = [this] { return !running_ && any(); };
    while (helper_.wait(held, ready, urgent, [this] { return closing_ && idle(); })) carry(held, nullptr);
  }

  const std::unique_ptr<message_channel> channel_;
  messages posted_, in_flight_;     // before and after they reach the channel
  std::atomic<bool> woken_{false};  // there are posted messages
  std::optional<error> broken_;     // the error that ended all messages
};

}  // namespace hvd::inline HVD_ABI::detail
