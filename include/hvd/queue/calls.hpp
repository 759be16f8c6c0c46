// hvd/queue/calls.hpp: the calls of a queue, one after another.
#pragma once

#include <hvd/any_transport.hpp>
#include <hvd/queue/waiting.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

class queued_calls final : public queued_work {
 public:
  struct call {
    std::function<void(any_transport&)> work;
    std::shared_ptr<void> keep;
    bool quick = false;
    clock::time_point submitted{};
    completion end{};
  };

  queued_calls(any_transport& comm, const interruption& by, const std::atomic<bool>& forked)
      : queued_work(by, forked), comm_(comm) {}

  void submit(std::shared_ptr<call> c) {
    refuse_fork();
    const lock held(mutex_);
    refuse_if_closing();
    c->submitted = clock::now();
    helper_.added(c->quick, [this] { drive(); });  // may throw
    calls_.push_back(std::move(c));
  }

  /// Runs f() alone on this thread, after all calls submitted before.
  template <class F>
  auto exclusively(const F& f) {
    struct turn {
      queued_calls& q;
      ~turn() {
        const lock held(q.mutex_);
        q.stop_running();
        if (!q.calls_.empty()) q.helper_.left();
      }
    };
    refuse_fork();
    lock held(mutex_);
    while (running_ || !calls_.empty()) {
      refuse_if_closing();
      if (!running_) {
        const waits_in_queue_scope asks;
        run_next(held);
        continue;
      }
      sleep(held, clock::time_point::max(), [this] { return idle(); });
    }
    refuse_if_closing();
    running_ = true;
    held.unlock();
    const turn mine{*this};
    const waits_in_queue_scope asks;
    return f();
  }

  void await(const completion& end, clock::time_point until, bool /*only_queued*/) override {
    refuse_fork();
    lock held(mutex_);
    while (!end.finished()) {
      if (until == clock::time_point::max() && !running_ && !calls_.empty()) {  // with a limit, another thread works
        const waits_in_queue_scope asks;
        if (&calls_.front()->end == &end && calls_.front()->quick) helper_.not_needed();
        run_next(held);
        if (!calls_.empty()) helper_.left();
      } else if (!sleep(held, until, [&] { return end.finished(); })) {
        return;
      }
    }
  }

 private:
  [[nodiscard]] bool idle() const noexcept override { return !running_ && calls_.empty(); }

  /// Runs the first call. The caller holds the lock, and no other call runs.
  void run_next(lock& held) {
    const std::shared_ptr<call> next = std::move(calls_.front());
    calls_.pop_front();
    running_ = true;
    held.unlock();
    const std::optional<error> problem = attempt([&] { next->work(comm_); });
    next->work = nullptr;
    next->keep.reset();
    next->end.finish(problem);
    held.lock();
    stop_running();
  }
  void drive() {
    lock held(mutex_);
    const auto ready = [this] { return !running_ && !calls_.empty(); };
    const auto urgent = [this](auto now) {
      const call& next = *calls_.front();
      return closing_ || !next.quick || now - next.submitted >= helper_thread::look_every;
    };
    while (helper_.wait(held, ready, urgent, [this] { return closing_ && calls_.empty(); })) run_next(held);
  }

  any_transport& comm_;
  std::deque<std::shared_ptr<call>> calls_;
};

}  // namespace hvd::inline HVD_ABI::detail
