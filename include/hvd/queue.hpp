// hvd/queue.hpp: calls in the background, in the order in which the program makes them.
#pragma once

#include <hvd/any_transport.hpp>
#include <hvd/buffer.hpp>
#include <hvd/detail/deadline.hpp>
#include <hvd/error.hpp>
#include <hvd/handle.hpp>
#include <hvd/policy.hpp>
#include <hvd/queue/calls.hpp>
#include <hvd/queue/messages.hpp>
#include <hvd/shared_memory/fork_guard.hpp>
#include <hvd/transport.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace hvd::inline HVD_ABI {

namespace detail {

struct queue_state {
  queue_state(any_transport c, const interruption& by, bool with_messages)
      : comm(std::move(c)), by_program(by), calls(comm, by, forked) {
    if (comm.size() > 1) comm.require_threads("queue");
    if (with_messages && comm.size() > 1) messages.emplace(comm.tagged_messages(), by, forked);
    comm.set_interruption({&queue_state::ends_waits, this});
  }
  queue_state(const queue_state&) = delete;
  queue_state& operator=(const queue_state&) = delete;
  ~queue_state() { close(std::chrono::seconds(5)); }

  void abort() noexcept {
    aborting.store(true, std::memory_order_relaxed);
    comm.abort();
    if (messages) messages->abort();
  }
  void close(std::chrono::duration<double> limit) noexcept {
    if (closed.exchange(true)) return;
    const auto until = deadline_after(limit);
    bool ended = calls.close_until(until);
    if (messages) ended = messages->close_until(until) && ended;
    if (!ended) abort();
    calls.join();
    if (messages) messages->join();
  }

  any_transport comm;
  const interruption by_program;
  std::atomic<bool> aborting{false};
  std::atomic<bool> forked{false};
  std::atomic<bool> closed{false};
  queued_calls calls;
  std::optional<queued_messages> messages;
  fork_guard guard{-1, [](void* self) { static_cast<queue_state*>(self)->forked = true; }, this};

 private:
  /// Asked by the transport on a waiting thread.
  static bool ends_waits(void* self) {
    const auto& s = *static_cast<const queue_state*>(self);
    return s.aborting.load(std::memory_order_relaxed) || (waits_in_queue && s.by_program);
  }
};

}  // namespace detail

/// How a queue is made; the same on all ranks.
struct queue_options {
  /// Whether it has `send` and `recv`. Cost: another group of the ranks.
  bool messages = false;
  /// Asked on a thread of the program that waits: about every millisecond if it runs a call itself, otherwise every 50
  /// ms. If it is true, the wait ends with an error of kind aborted; if the thread was running a call, the group ends
  /// with it. It replaces the transport's own interruption.
  interruption interrupted{};
};

/// The optional arguments of a call in the background.
struct queued_options {
  /// The call takes no longer than to wake a thread, some 10 us. If the program has waited at once for the last such
  /// call, no thread is woken for the next: a thread that waits runs it, or the queue's own, up to 0.1 ms later.
  bool quick = false;
  std::shared_ptr<void> keep{};  ///< kept alive until the call is done, such as the owner of its memory
};

/// Runs calls on a transport in the background, one after another, in the order in which the program makes them:
/// MPI_Iallreduce, or `async_op=True` in PyTorch. All ranks make the same calls in the same order, as on the transport
/// itself; nothing is negotiated. (An Engine takes tensors by name, in any order on each rank, and fuses them.)
///
///     hvd::queue calls(hvd::ShmTransport::from_environment());
///     hvd::handle done = calls.run([&](auto& comm) { hvd::allreduce(comm, gradients, hvd::average); });
///     ...               // compute; `gradients` belongs to the call until it is done
///     done.wait();      // throws the call's error
///
/// Any thread may call any function; the order is then that of the calls' beginnings. A thread that waits for a call
/// runs it, and those before it, if no other thread does. A queue owns its transport. Move-only. Its end waits for the
/// calls under way, at most 5 s, and then ends the group (see `close`). In a forked child, it does nothing, and every
/// call throws invalid_argument.
///
/// A call, and a handle's callback, must not wait for the queue's other calls, close the queue, or own it.
class queue {
 public:
  /// Collective if `options.messages`. Errors: unsupported for messages over a transport that has none,
  /// and for an MPI below MPI_THREAD_MULTIPLE.
  explicit queue(any_transport comm, const queue_options& options = {})
      : state_(std::make_shared<detail::queue_state>(std::move(comm), options.interrupted, options.messages)) {}
  template <SendRecv T>
    requires(!std::same_as<T, any_transport> && std::constructible_from<any_transport, T>)
  explicit queue(T comm, const queue_options& options = {}) : queue(any_transport(std::move(comm)), options) {}
  queue(queue&&) noexcept = default;
  queue& operator=(queue&& other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  queue(const queue&) = delete;
  queue& operator=(const queue&) = delete;
  ~queue() {
    if (!state_) return;
    if (state_->forked) {
      new std::shared_ptr<detail::queue_state>(std::move(state_));  // its threads do not exist here
    } else {
      state_->close(std::chrono::seconds(5));
    }
  }

  [[nodiscard]] int rank() const noexcept { return state_->comm.rank(); }
  [[nodiscard]] int size() const noexcept { return state_->comm.size(); }

  /// Calls `f(comm)`, where `comm` is the any_transport, after all calls made before; returns at once. What `f` refers
  /// to must live until the handle is done. Errors thrown here: aborted after `close`. Errors of the handle: what `f`
  /// throws (an exception other than hvd::error becomes one of kind no_memory, with its text).
  template <class F>
    requires std::invocable<F&, any_transport&> && std::copy_constructible<F>
  [[nodiscard]] handle run(F f, queued_options how = {}) {
    detail::queue_state& s = *state_;
    auto c = std::make_shared<detail::queued_calls::call>();
    c->work = std::move(f);
    c->keep = std::move(how.keep);
    c->quick = how.quick;
    c->end.describe(operation::barrier, "a call of a queue", {}, rank(), size());
    s.calls.submit(c);
    return {{c, &c->end}, std::shared_ptr<detail::waiting_room>(state_, &s.calls)};
  }
  /// Calls `f(comm)` after all calls made before, on this thread, and returns its result. Errors: what `f` throws; and
  /// those of `run`.
  template <class F>
    requires std::invocable<F&, any_transport&>
  auto call(F&& f) {
    detail::queue_state& s = *state_;
    return s.calls.exclusively([&] { return f(s.comm); });
  }

  /// Sends a message; it is matched by sender and tag, and messages with the same tag by their order. Many messages are
  /// in flight at once, and none waits for a call. Tags from 0 to 32766 work on every transport; MPI has a largest one.
  /// The data belongs to the queue until the handle is done. `timeout`: a limit, in seconds; 0 for none. Errors thrown
  /// here: invalid_argument for a peer that is not another rank, and without queue_options::messages, and for a
  /// negative tag. Errors of the handle: timeout, which leaves the others as they are; peer_lost and aborted, which end
  /// all messages; for `recv` also mismatch, if the message has another length: it is dropped.
  template <Buffer B>
  [[nodiscard]] handle send(const B& data, int peer, std::int64_t tag = 0, std::chrono::duration<double> timeout = {}) {
    const auto bytes = std::as_bytes(as_span(data));
    check_tag("send", tag);
    return post({true, const_cast<std::byte*>(bytes.data()), bytes.size(), peer, tag, until("send", timeout)});
  }
  /// Receives a message from `peer`, or with `any_rank` from any; the handle's `source` is its sender. See `send`.
  template <BorrowedBuffer B>
  [[nodiscard]] handle recv(B&& data, int peer, std::int64_t tag = 0, std::chrono::duration<double> timeout = {}) {
    const auto bytes = std::as_writable_bytes(as_output(data));
    check_tag("recv", tag);
    return post({false, bytes.data(), bytes.size(), peer, tag, until("recv", timeout)});
  }
  static constexpr int any_rank = detail::tagged_message::any_rank;

  /// Ends all calls and messages under way with an error of kind aborted, here and, where the transport can do that, on
  /// the other ranks. The group can no longer be used.
  void abort() noexcept {
    if (state_ && !state_->forked) state_->abort();
  }
  /// Waits until everything under way has ended, and ends the group if that takes longer than `limit`. Later calls
  /// throw aborted. Only the first call waits.
  void close(std::chrono::duration<double> limit) noexcept {
    if (state_ && !state_->forked) state_->close(limit);
  }

  /// For bindings: a message as it is. `waits`: the caller waits next, and does the work on its own thread.
  handle post(detail::tagged_message what, bool waits = false, std::shared_ptr<void> keep = {}) {
    detail::queue_state& s = *state_;
    const char* const name = what.sends ? "send" : "recv";
    if (size() == 1 || what.peer >= size() || what.peer == rank() || what.peer < (what.sends ? 0 : any_rank)) {
      detail::fail(error_kind::invalid_argument,
                   {name, " on rank ", rank(), " of ", size(), ": cannot ", what.sends ? "send to" : "receive from",
                    " rank ", what.peer, " of the group; allowed: another rank of it"});
    }
    if (!s.messages) {
      detail::fail(error_kind::invalid_argument, {name, " on rank ", rank(), " of ", size(),
                                                  ": this queue has no messages; make it with {.messages = true}"});
    }
    auto m = std::make_shared<detail::queued_messages::message>();
    m->what = std::move(what);
    m->keep = std::move(keep);
    m->end.describe(m->what.sends ? operation::send : operation::recv, name, {}, rank(), size());
    s.messages->post(m, waits);
    return {{m, &m->end}, std::shared_ptr<detail::waiting_room>(state_, &*s.messages)};
  }

 private:
  void check_tag(const char* what, std::int64_t tag) const {
    if (tag >= 0) return;
    detail::fail(error_kind::invalid_argument,
                 {what, " on rank ", rank(), " of ", size(), ": tag ", tag, " is negative; allowed: 0 and above"});
  }
  static std::chrono::steady_clock::time_point until(const char* what, std::chrono::duration<double> timeout) {
    detail::check_limit(detail::joined({what, ": the timeout"}), timeout);
    return timeout.count() > 0 ? detail::deadline_after(timeout) : std::chrono::steady_clock::time_point::max();
  }

  std::shared_ptr<detail::queue_state> state_;
};

}  // namespace hvd::inline HVD_ABI
