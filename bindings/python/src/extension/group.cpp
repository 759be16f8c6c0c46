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

// How often the group's thread looks for small collectives that nobody has waited for, and how long after the last one.
constexpr std::chrono::microseconds look_every(100), look_for(2000);

bool is_small(const pending& p) { return p.what.count * hvd::size_of(p.what.type) <= (64 << 10) && !p.what.may_share; }

constexpr seconds slice(0.05);  // between looks for signals while another thread does the work

/// Asked by the transport while this thread waits in it.
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

hvd::error left() { return {hvd::error_kind::aborted, "hvd: this process has left the group, or is about to"}; }

}  // namespace

group::group(std::unique_ptr<connection> c) : connection_(std::move(c)) {
  connection_->set_interruption({&group::wants_out, this});
}

bool group::wants_out(void* self) {
  if (static_cast<group*>(self)->aborting_.load(std::memory_order_relaxed)) return true;
  return by_signal_here != nullptr && by_signal_here();
}

// ---- collectives
// ------------------------------------------------------------------------------------------------------

void group::perform(pending& p) {
  collective& c = p.what;
  const timeline_entry shown(c, connection_->timeline_name());
  if (c.may_share) {
    p.shared = connection_->map_shared(c.file, c.count * hvd::size_of(c.type));
    if (p.shared) c.in = c.out = p.shared.get();
  }
  connection_->run(c, p.timeout);
}

template <class F>
auto group::exclusively(interrupted by_signal, const F& f) {
  struct turn {
    group& g;
    ~turn() {
      const lock held(g.mutex_);
      g.running_ = false;
      g.ended_.notify_all();
      if (!g.queue_.empty() || g.closing_) g.wake_driver();
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
    if (out) throw hvd::error(hvd::error_kind::aborted, "hvd: interrupted");
  }
  if (closing_) throw left();
  running_ = true;
  held.unlock();
  const turn mine{*this};
  const asks_for_signals asks(by_signal);
  return f();
}

void group::run(pending& p, interrupted by_signal) {
  exclusively(by_signal, [&] { perform(p); });
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

std::shared_ptr<pending> group::submit(std::shared_ptr<pending> p) {
  const lock held(mutex_);
  if (closing_) throw left();
  if (!driver_.joinable()) driver_ = std::thread([this] { drive(); });
  p->submitted = last_submit_ = std::chrono::steady_clock::now();
  queue_.push_back(p);
  if (!(is_small(*p) && waited_at_once_ && looks_)) work_.notify_one();
  return p;
}

void group::wake_driver() {
  if (!looks_ || closing_) work_.notify_one();
}

/// Runs the first of the queue; the caller holds the lock, and no other collective runs.
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
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    const bool ready = !running_ && !queue_.empty();
    if (ready &&
        (closing_ || !waited_at_once_ || !is_small(*queue_.front()) || now - queue_.front()->submitted >= look_every)) {
      waited_at_once_ = false;
      run_next(held);
    } else if (closing_ && queue_.empty()) {
      return;
    } else if (waited_at_once_ && now - last_submit_ < look_for) {
      looks_ = true;
      work_.wait_for(held, look_every);
      looks_ = false;
    } else {
      work_.wait(held);
    }
  }
}

// ---- messages
// ---------------------------------------------------------------------------------------------------------

std::shared_ptr<pending> group::post(std::shared_ptr<pending> p, bool at_once) {
  const lock held(mutex_);
  if (closing_) throw left();
  if (broken_) throw hvd::error(*broken_);
  posted_.push_back(p);
  woken_.store(true, std::memory_order_release);
  if (carrying_) {
    connection_->wake();
  } else if (!at_once) {
    if (!carrier_.joinable()) carrier_ = std::thread([this] { exchange_messages(); });
    mail_.notify_all();
  }
  return p;
}

/// Moves messages until `until` is done, or all are; the caller holds the lock, and no other thread moves any.
void group::carry(lock& held, const pending* until) {
  carrying_ = true;
  while (until != nullptr ? !until->done : !(posted_.empty() && in_flight_.empty())) {
    const std::deque<std::shared_ptr<pending>> fresh = std::exchange(posted_, {});
    in_flight_.insert(in_flight_.end(), fresh.begin(), fresh.end());
    woken_.store(false, std::memory_order_release);
    held.unlock();
    std::optional<hvd::error> problem;
    try {
      for (const auto& p : fresh) connection_->post(p->message);
      if (!connection_->progress() && fresh.empty() && !connection_->idle()) connection_->wait(woken_);
    } catch (const hvd::error& e) {
      problem = e;
    } catch (const std::exception& e) {
      problem.emplace(hvd::error_kind::no_memory, std::string("hvd: ") + e.what());
    }
    if (problem) connection_->fail_all(*problem);
    held.lock();
    if (problem) {
      broken_ = problem;
      for (const auto& p : posted_) p->message->fail(*problem);
      in_flight_.insert(in_flight_.end(), posted_.begin(), posted_.end());
      posted_.clear();
      for (const auto& p : in_flight_) {
        if (!p->message->done) p->message->fail(*problem);
      }
    }
    std::erase_if(in_flight_, [this](const auto& p) {
      if (p->message->done) finish(*p, p->message->problem);
      return p->done;
    });
  }
  carrying_ = false;
  ended_.notify_all();
}

void group::exchange_messages() {
  lock held(mutex_);
  while (true) {
    mail_.wait(held,
               [this] { return (!carrying_ && !(posted_.empty() && in_flight_.empty())) || (closing_ && !carrying_); });
    if (posted_.empty() && in_flight_.empty()) return;
    carry(held, nullptr);
  }
}

// ---- waiting, and the end
// ---------------------------------------------------------------------------------------------

bool group::wait(pending& p, std::optional<seconds> limit, interrupted by_signal) {
  const auto started = std::chrono::steady_clock::now();
  lock held(mutex_);
  while (!p.done) {
    const bool alone = !limit;  // with a limit another thread does the work
    if (alone && !p.message && !running_ && !queue_.empty()) {
      const asks_for_signals asks(by_signal);
      if (queue_.front().get() == &p && is_small(p)) waited_at_once_ = true;
      run_next(held);
      if (!queue_.empty()) wake_driver();
      continue;
    }
    if (alone && p.message && !carrying_) {
      const asks_for_signals asks(by_signal);
      carry(held, &p);
      if (!posted_.empty() || !in_flight_.empty()) {
        if (!carrier_.joinable()) carrier_ = std::thread([this] { exchange_messages(); });
      }
      mail_.notify_all();
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
    if (out) throw hvd::error(hvd::error_kind::aborted, "hvd: interrupted");
  }
  held.unlock();
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
    work_.notify_all();
    mail_.notify_all();
    const auto ended = [this] { return !running_ && queue_.empty() && posted_.empty() && in_flight_.empty(); };
    if (!ended_.wait_for(held, limit, ended)) {
      held.unlock();
      abort();
    }
  }
  if (driver_.joinable()) driver_.join();
  if (carrier_.joinable()) carrier_.join();
  lock held(mutex_);
  ended_.wait(held, [this] { return !running_ && !carrying_; });
}

}  // namespace hvd_python
