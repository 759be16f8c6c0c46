#include "group.hpp"

#include "callbacks.hpp"
#include "group_timeline.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace hvd_python {
namespace {

constexpr std::size_t small = 64 << 10;  // up to this size in bytes, an operation takes no longer than a wake-up

bool is_small(const pending& p) {
  if (p.message) return p.message->bytes <= small;
  return p.what.count * hvd::size_of(p.what.type) <= small && !p.what.may_share;
}

hvd::operation kind_of(const hvd::detail::tagged_message& m) {
  return m.sends ? hvd::operation::send : hvd::operation::recv;
}

constexpr seconds slice(0.05);  // between checks for signals while another thread does the work

/// Called by the transport while this thread waits in it.
thread_local group::interrupted by_signal_here = nullptr;

class asks_for_signals {
 public:
  explicit asks_for_signals(group::interrupted by_signal) : before_(std::exchange(by_signal_here, by_signal)) {}
  asks_for_signals(const asks_for_signals&) = delete;
  asks_for_signals& operator=(const asks_for_signals&) = delete;
  ~asks_for_signals() { by_signal_here = before_; }

 private:
  group::interrupted before_;
};

hvd::error interrupted_error() { return {hvd::error_kind::aborted, "hvd: interrupted"}; }
hvd::error left() { return {hvd::error_kind::aborted, "hvd: this process has left the group, or is about to"}; }

}  // namespace

group::group(std::unique_ptr<connection> c) : connection_(std::move(c)) {
  connection_->set_interruption({&group::wants_out, this});
}

bool group::wants_out(void* self) {
  if (static_cast<group*>(self)->aborting_.load(std::memory_order_relaxed)) return true;
  return by_signal_here != nullptr && by_signal_here();
}

// ---- collectives ---------------------------------------------------------------------------------------------------

void group::perform(pending& p) {
  collective& c = p.what;
  timeline_entry shown(c, connection_->timeline_name(), size(), set_.load());
  if (c.may_share) {
    p.shared = connection_->map_shared(c.file, c.count * hvd::size_of(c.type));
    if (p.shared) c.in = c.out = p.shared.get();
  }
  connection_->run(c, p.timeout);
  shown.succeeded();
}

template <class F>
auto group::exclusively(interrupted by_signal, const F& f) {
  struct turn {
    group& g;
    ~turn() {
      const lock held(g.mutex_);
      g.running_ = false;
      g.ended_.notify_all();
      if (!g.queue_.empty()) g.driver_.left();
    }
  };
  lock held(mutex_);
  while (running_ || !queue_.empty()) {
    if (closing_) throw left();
    if (!running_) {
      const asks_for_signals asks(by_signal);
      run_next(held);
      continue;
    }
    ended_.wait_for(held, slice);
    if (!running_ && queue_.empty()) break;
    held.unlock();
    const bool out = by_signal != nullptr && by_signal();
    held.lock();
    if (out) throw interrupted_error();
  }
  if (closing_) throw left();
  running_ = true;
  held.unlock();
  const turn mine{*this};
  const asks_for_signals asks(by_signal);
  return f();
}

void group::run(pending& p, interrupted by_signal) {
  const auto since = std::chrono::steady_clock::now();
  exclusively(by_signal, [&] { perform(p); });
  timeline_entry::waited(p.what, set_.load(), since);
}

std::shared_ptr<std::byte> group::alloc_shared(std::size_t bytes, interrupted by_signal) {
  return exclusively(by_signal, [&] { return connection_->alloc_shared(bytes); });
}
std::shared_ptr<std::byte> group::map_shared(int fd, std::size_t bytes, interrupted by_signal) {
  return exclusively(by_signal, [&] { return connection_->map_shared(fd, bytes); });
}
void group::start_timeline(const std::string& path, interrupted by_signal) {
  exclusively(by_signal, [&] { timeline_entry::start(path, rank(), size(), connection_->agree_on_clock()); });
}

void group::describe(int set, const std::vector<int>& ranks) {
  set_ = set;
  timeline_entry::describe(set, ranks);
}

std::shared_ptr<pending> group::submit(std::shared_ptr<pending> p) {
  const lock held(mutex_);
  if (closing_) throw left();
  p->submitted = std::chrono::steady_clock::now();
  queue_.push_back(p);
  driver_.added(is_small(*p), [this] { drive(); });
  return p;
}

/// Runs the first collective of the queue. The caller holds the lock, and no other collective runs.
void group::run_next(lock& held) {
  const std::shared_ptr<pending> next = queue_.front();
  queue_.pop_front();
  running_ = true;
  held.unlock();
  std::optional<hvd::error> problem;
  try {
    perform(*next);
  } catch (const hvd::error& e) {
    problem = e;
  } catch (const std::exception& e) {
    problem.emplace(hvd::error_kind::no_memory, std::string("hvd: ") + e.what());
  }
  held.lock();
  running_ = false;
  finish(*next, problem);
}

void group::finish(pending& p, const std::optional<hvd::error>& problem) {
  p.problem = problem;
  p.done = true;
  p.keep.reset();
  if (p.then) callbacks::of_groups().add(std::exchange(p.then, nullptr));
  ended_.notify_all();
}

void group::drive() {
  lock held(mutex_);
  const auto ready = [this] { return !running_ && !queue_.empty(); };
  const auto urgent = [this](auto now) {
    const pending& next = *queue_.front();
    return closing_ || !is_small(next) || now - next.submitted >= helper_thread::look_every;
  };
  while (driver_.wait(held, ready, urgent, [this] { return closing_ && queue_.empty(); })) run_next(held);
}

// ---- messages ------------------------------------------------------------------------------------------------------

std::shared_ptr<pending> group::post(std::shared_ptr<pending> p, bool at_once) {
  lock held(mutex_);
  if (closing_) throw left();
  if (broken_) throw hvd::error(*broken_);
  p->submitted = std::chrono::steady_clock::now();
  posted_.push_back(p);
  woken_.store(true, std::memory_order_release);
  if (carrying_) {
    connection_->wake();
    return p;
  }
  move_messages(held, false);  // messages that fit between ranks or have arrived need no thread
  if (!p->done && !at_once) {
    carrier_.added(is_small(*p), [this] { drive_messages(); });
  } else if (!posted_.empty() || !in_flight_.empty()) {
    carrier_.left();  // it may have arrived while this thread moved messages, and be asleep
  }
  return p;
}

/// Moves messages as far as possible. The caller holds the lock, and no other thread moves any. `waits`: wait until a
/// message can be moved.
void group::move_messages(lock& held, bool waits) {
  carrying_ = true;
  const std::deque<std::shared_ptr<pending>> fresh = std::exchange(posted_, {});
  in_flight_.insert(in_flight_.end(), fresh.begin(), fresh.end());
  woken_.store(false, std::memory_order_release);
  held.unlock();
  std::optional<hvd::error> problem;
  try {
    for (const auto& p : fresh) {
      try {
        connection_->post(p->message);
      } catch (const hvd::error& e) {
        p->message->fail(e);
      }
    }
    if (!connection_->progress() && waits && fresh.empty() && !connection_->idle()) connection_->wait(woken_);
  } catch (const hvd::error& e) {
    problem = e;
  } catch (const std::exception& e) {
    problem.emplace(hvd::error_kind::no_memory, std::string("hvd: ") + e.what());
  }
  if (problem) connection_->fail_all(*problem);
  held.lock();
  carrying_ = false;
  if (problem) {
    broken_ = problem;
    in_flight_.insert(in_flight_.end(), posted_.begin(), posted_.end());
    posted_.clear();
    for (const auto& p : in_flight_) {
      if (!p->message->done) p->message->fail(*problem);
    }
  }
  std::erase_if(in_flight_, [this](const auto& p) {
    if (p->message->done) {
      const hvd::detail::tagged_message& m = *p->message;
      timeline_entry::counters().ended(kind_of(m), m.bytes, m.problem.has_value());
      finish(*p, m.problem);
    }
    return p->done;
  });
}

/// Moves messages until `until` is done, or all are. Returns early if another thread takes over.
void group::carry(lock& held, const pending* until) {
  while (until != nullptr ? !until->done : !(posted_.empty() && in_flight_.empty())) {
    move_messages(held, true);
    if (until == nullptr || until->done || by_signal_here == nullptr) continue;
    held.unlock();
    const bool out = by_signal_here();
    held.lock();
    if (carrying_ && !out) return;  // another thread does it now
    if (!out) continue;
    ended_.notify_all();
    carrier_.added(false, [this] { drive_messages(); });  // the message is still in flight
    throw interrupted_error();
  }
  ended_.notify_all();  // another thread may continue
}

void group::drive_messages() {
  lock held(mutex_);
  const auto any = [this] { return !(posted_.empty() && in_flight_.empty()); };
  const auto urgent = [&](auto now) {
    const pending& first = in_flight_.empty() ? *posted_.front() : *in_flight_.front();
    return closing_ || !is_small(first) || now - first.submitted >= helper_thread::look_every;
  };
  while (carrier_.wait(
      held, [&] { return !carrying_ && any(); }, urgent, [&] { return closing_ && !carrying_ && !any(); })) {
    carry(held, nullptr);
  }
}

// ---- waiting, and the end ------------------------------------------------------------------------------------------

bool group::wait(pending& p, std::optional<seconds> limit, interrupted by_signal) {
  const auto started = std::chrono::steady_clock::now();
  lock held(mutex_);
  const bool exposed = !p.done;
  while (!p.done) {
    const bool alone = !limit;  // with a limit, another thread does the work
    if (alone && !p.message && !running_ && !queue_.empty()) {
      const asks_for_signals asks(by_signal);
      if (queue_.front().get() == &p && is_small(p)) driver_.not_needed();
      run_next(held);
      if (!queue_.empty()) driver_.left();
      continue;
    }
    if (alone && p.message && !carrying_) {
      const asks_for_signals asks(by_signal);
      if (is_small(p)) carrier_.not_needed();
      carry(held, &p);
      if (!posted_.empty() || !in_flight_.empty()) carrier_.added(false, [this] { drive_messages(); });
      continue;
    }
    seconds next = slice;
    if (limit) {
      const seconds left = *limit - seconds(std::chrono::steady_clock::now() - started);
      if (left <= seconds(0)) return false;
      next = std::min(next, left);
    }
    ended_.wait_for(held, next);
    if (p.done) break;
    held.unlock();
    const bool out = by_signal != nullptr && by_signal();
    held.lock();
    if (out) throw interrupted_error();
  }
  held.unlock();
  if (exposed && p.message) {
    timeline_entry::counters().waited(kind_of(*p.message), std::chrono::steady_clock::now() - started, true);
  } else if (exposed) {
    timeline_entry::waited(p.what, set_.load(), started);
  }
  p.throw_problem();
  return true;
}

bool group::poll(const pending& p) {
  const lock held(mutex_);
  return p.done;
}

void group::when_done(pending& p, std::shared_ptr<void> function) {
  const lock held(mutex_);
  if (p.done) {
    callbacks::of_groups().add(std::move(function));
  } else {
    p.then = std::move(function);
  }
}

void group::abort() noexcept {
  aborting_ = true;
  connection_->abort();
}

void group::close(seconds limit) noexcept {
  {
    lock held(mutex_);
    if (std::exchange(closing_, true)) return;
    ended_.notify_all();
    driver_.end();
    carrier_.end();
    const auto ended = [this] { return !running_ && queue_.empty() && posted_.empty() && in_flight_.empty(); };
    if (!ended_.wait_for(held, limit, ended)) {
      held.unlock();
      abort();
    }
  }
  driver_.join();
  carrier_.join();
  lock held(mutex_);
  ended_.wait(held, [this] { return !running_ && !carrying_; });
}

}  // namespace hvd_python
