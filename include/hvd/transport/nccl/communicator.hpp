// hvd/transport/nccl/communicator.hpp: one communicator of NCCL, non-blocking, with hvd's deadline.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/detail/call_watch.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/transport/nccl/ending.hpp>
#include <hvd/transport/nccl/library.hpp>
#include <hvd/transport/nccl/options.hpp>
#include <hvd/transport/nccl/windows.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sched.h>

namespace hvd::inline HVD_ABI::detail {

/// Owns an ncclComm_t. One thread at a time uses it. After an error of the communicator itself, or an abort, every call
/// throws the same error again.
class nccl_communicator {
 public:
  using clock = std::chrono::steady_clock;
  /// The time for NCCL to end work that is under way.
  static constexpr std::chrono::seconds end_limit{10};

  nccl_communicator(std::shared_ptr<cuda_device> device, nccl_options options, int rank, int size)
      : device_(std::move(device)), options_(std::move(options)), rank_(rank), size_(size), nccl_(get_nccl()),
        poison_(cuda_host_memory(device_, sizeof(std::uint32_t))) {}
  nccl_communicator(const nccl_communicator&) = delete;
  nccl_communicator& operator=(const nccl_communicator&) = delete;
  ~nccl_communicator() { close(); }
  /// Ends the communicator. Call it before freeing memory that NCCL uses: work that is stuck on a stream ends here at
  /// the latest, unless the communicator is `stuck`.
  void close() noexcept {
    try {
      const cuda_device::scope current(*device_);
      // NCCL waits here for the program's work on the streams, and for the other ranks. They may never come if this is
      // a consequence of an exception.
      const auto limit = std::uncaught_exceptions() == 0 ? options_.timeout : nccl_options::seconds(2);
      const auto memory = dropped_.all(false);
      if (comm_ != nullptr && (lost_ || !finalized(memory, limit))) abort();
      if (comm_ != nullptr) {
        const nccl_comm ended = std::exchange(comm_, nullptr);
        bounded(limit, [ended, destroy = nccl_.comm_destroy] { return destroy(ended); });
      }
      if (stuck_) return;
      for (const auto& m : memory) nccl_.free(m.address);
      for (const auto& m : dropped_.all(true)) nccl_.free(m.address);
    } catch (const error&) {  // the driver has shut down
      comm_ = nullptr;
    }
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] const std::shared_ptr<cuda_device>& device() const noexcept { return device_; }
  [[nodiscard]] const nccl_options& options() const noexcept { return options_; }
  [[nodiscard]] const nccl_library& library() const noexcept { return nccl_; }
  [[nodiscard]] nccl_windows& windows() noexcept { return windows_; }
  /// The communicator, for calls of NCCL.
  [[nodiscard]] nccl_comm get() {
    usable();
    return comm_;
  }
  /// Throws the error that has ended the communicator, if any.
  void usable() {
    if (!lost_ && interrupted_.load() == cause::late) out_of_time("a collective", options_.timeout);
    if (!lost_ && interrupted_.load() == cause::lost) {
      lost_.emplace(error_kind::peer_lost,
                    joined({"a collective on ", label(), " was ended, because a thread waited for the GPU of a rank ",
                            "that is lost, or that has shut its engine down"}));
    }
    if (lost_) throw again(*lost_);
    if (comm_ == nullptr) fail(error_kind::aborted, {"the NCCL communicator of ", label(), " is not connected"});
  }
  [[nodiscard]] bool lost() const noexcept { return lost_.has_value(); }
  /// True if `comm` is still the communicator; false after an abort.
  [[nodiscard]] bool has(nccl_comm comm) const noexcept { return comm_ != nullptr && comm_ == comm; }
  /// "rank 0 of 4", for messages.
  [[nodiscard]] std::string label() const { return joined({"rank ", rank_, " of ", size_}); }

  /// True if calls return when their work is on its stream, or after the deadline. They need a way to end a call from
  /// another thread that frees nothing: ncclCommRevoke. Before it, calls return at once, at the price of a thread of
  /// NCCL for each: a group of calls takes 130 us of the host instead of 20 (2 ranks on an H100).
  [[nodiscard]] bool blocking() const noexcept { return nccl_search::result().version >= nccl_revokes; }
  /// To be told of a blocking call; null if calls do not block.
  [[nodiscard]] call_watch* watch() noexcept { return blocking() && size_ > 1 ? &watch_ : nullptr; }

  /// Connects the ranks; within a scope of the device, like all calls of NCCL. `look()` throws if a rank is lost.
  template <class Look>
  void connect(const nccl_unique_id& id, const Look& look) {
    start("connecting", nullptr, look, [id, size = size_, rank = rank_, init = nccl_.comm_init](auto* made, auto* how) {
      return init(made, size, id, rank, how);
    });
  }
  /// The same as a part of another communicator. `color` is not negative.
  void connect(nccl_communicator& whole, int color, int key) {
    start("split", &whole, [] {}, [from = whole.get(), color, key, split = nccl_.comm_split](auto* made, auto* how) {
      return split(from, color, key, made, how);
    });
  }
  /// The same with the remaining ranks of another communicator. Calls under way there end, with unspecified outputs.
  void connect(nccl_communicator& whole, std::vector<int> lost) {
    if (nccl_.comm_shrink != nullptr && whole.comm_ != nullptr) {
      if (!whole.lost_) {
        whole.lost_.emplace(error_kind::aborted, joined({"the ranks of ", whole.label(), " go on without others"}));
      }
      if (nccl_.comm_revoke != nullptr) whole.stop();
    }
    if (nccl_.comm_shrink == nullptr || whole.comm_ == nullptr) {
      fail(error_kind::unsupported,
           {"without: NCCL ", nccl_version_text(nccl_search::result().version),
            whole.comm_ == nullptr ? " has aborted the communicator" : " cannot leave ranks out (2.27 can)", remedy});
    }
    auto shrink = [from = whole.comm_, lost, flags = whole.revoked_ ? 0 : nccl_shrink_abort,
                         shrink = nccl_.comm_shrink](auto* made, auto* how) mutable {
      return shrink(from, lost.data(), static_cast<int>(lost.size()), made, how, flags);
    };
    if (blocking()) return start("without", &whole, [] {}, shrink);
    nccl_config config = configuration();
    const nccl_result code = shrink(&comm_, &config);
    // A thread of NCCL writes `comm_` before the state of the whole communicator shows that it is done.
    nccl_result state = code == nccl_success ? nccl_in_progress : code;
    for (const auto until = clock::now() + options_.start_timeout; state == nccl_in_progress && clock::now() < until;) {
      nap(std::chrono::microseconds(100));
      state = whole.state();
    }
    if (state == nccl_success) return finish_start("without", [] {});
    if (state == nccl_in_progress) {
      lost_.emplace(error_kind::timeout,
                    joined({"without on ", label(), ": the ranks that are left did not come within ",
                            options_.start_timeout.count(), " s"}));
    } else {
      lost_.emplace(nccl_error_kind(state), joined({whole.text("without", state), remedy}));
    }
    whole.abort();  // joins the thread
    throw again(*lost_);
  }

  /// Handles the result of a call of NCCL. True if its work is on the stream; false if `ready` must be polled before
  /// anything else is called. Throws if the call has failed.
  [[nodiscard]] bool queued(std::string_view what, nccl_result code) {
    if (code == nccl_success) [[likely]]
      return true;
    if (code != nccl_in_progress) refuse(what, code);
    if (!joins_) return ready(what);
    await_ready(what, options_.timeout);  // another thread must not go on with it
    return true;
  }
  /// The same for calls other than collectives: some versions return success although one of their threads still works
  /// on it.
  void begun(std::string_view what, nccl_result code) {
    if (code != nccl_success && code != nccl_in_progress) refuse(what, code);
  }
  /// True if the work of all calls is on its streams.
  [[nodiscard]] bool ready(std::string_view what) {
    usable();
    const nccl_result state = this->state();
    if (state == nccl_success) return true;
    if (state == nccl_in_progress) return false;
    lose(what, state);
  }
  /// Waits for `ready`. Errors: timeout.
  void await_ready(std::string_view what, nccl_options::seconds limit) {
    await(what, limit, [&] { return ready(what); });
  }
  /// Throws if the communicator has failed.
  void check() { static_cast<void>(ready("a collective")); }

  /// Polls until `done`, and for errors; yields the CPU first, and then sleeps. Errors: timeout, and those of `check`;
  /// after either, no work is under way.
  template <class Done>
  void await(std::string_view what, nccl_options::seconds limit, const Done& done) {
    abort_if_lost([&] {
      const auto start = clock::now();
      for (int looks = 0; !done(); ++looks) {
        if (looks % 16 == 0) {
          static_cast<void>(ready(what));
          if (limit.count() > 0 && clock::now() - start >= limit) out_of_time(what, limit);
        }
        if (looks < 1000) {
          ::sched_yield();
        } else {
          nap(std::chrono::microseconds(50));
        }
      }
      return true;
    });
  }
  /// Returns the result of f. If the communicator is lost in f, aborts it: work under way would never end, and freeing
  /// memory or waiting for a stream would hang. (An engine aborts by itself; until then, a failed call does not count
  /// as complete.)
  template <class F>
  bool abort_if_lost(const F& f) {
    try {
      return f();
    } catch (const error&) {
      if (lost_) stop();
      throw;
    }
  }
  [[noreturn]] void out_of_time(std::string_view what, nccl_options::seconds limit) {
    lost_.emplace(
        error_kind::timeout,
        joined({what, " on ", label(), " has waited ", limit.count(), " s for other ranks, on ", device_->label(),
                ", and given up; NCCL does not tell which one is missing: look for a rank "
                "that has ended or is in another call (HVD_TIMEOUT sets the limit)"}));
    throw again(*lost_);
  }

  /// Makes every later call throw. Called if a group of calls was launched only in part, so that other ranks wait for
  /// the rest.
  void condemn(std::string_view what) noexcept {
    try {
      if (!lost_) lost_.emplace(error_kind::aborted, joined({what, " on ", label(), " was begun and not completed"}));
    } catch (const std::exception&) {  // no memory for the sentence
      abort();
    }
  }

  /// Frees memory of NCCL's, with its window or null; see nccl_dropped.
  void free(std::byte* address, nccl_window window) noexcept {
    if (dropped_.take({address, window}) || stuck_) return;
    if (comm_ != nullptr && window != nullptr) nccl_.window_deregister(comm_, window);
    nccl_.free(address);
  }
  void share() noexcept { dropped_.share(); }

  /// A word in memory of the host that streams can copy: all bits are set before NCCL is told to end its work. To a
  /// stream an aborted collective looks like one that has ended, so the work behind it has to look here.
  [[nodiscard]] const std::byte* poison_word() const noexcept { return poison_.get(); }
  /// Sets it; any thread, and without a call of the driver, in which another thread may be stuck.
  void poison() noexcept { __atomic_store_n(reinterpret_cast<std::uint32_t*>(poison_.get()), ~0U, __ATOMIC_SEQ_CST); }

  /// Ends all work under way after an error. If NCCL supports it, the communicator stays, so that the remaining ranks
  /// can go on from it, and no memory is freed that other ranks may still use.
  void stop() noexcept {
    if (comm_ == nullptr || revoked_) return;
    if (nccl_.comm_revoke == nullptr || !connected_) return abort();
    try {
      mark_aborted();
      const cuda_device::scope current(*device_);
      const auto until = clock::now() + end_limit;
      revoked_ = true;
      nccl_result now =
          interrupted_.load() != cause::none
              ? state()
              : bounded(end_limit, [comm = comm_, revoke = nccl_.comm_revoke] { return revoke(comm, 0); });
      if (stuck_) return;
      const bool refused = now == nccl_invalid_argument;
      for (; now == nccl_in_progress && clock::now() < until; now = state()) nap(std::chrono::microseconds(100));
      if (refused || now == nccl_in_progress) abort();
    } catch (const std::exception&) {  // the driver has shut down
      comm_ = nullptr;
    }
  }

  /// Ends all work under way although another thread is in a call of this class, which waits for that work or for other
  /// ranks; later calls throw peer_lost. Calls no driver: NCCL first sets the flag that its kernels look at.
  void interrupt() noexcept { interrupt(cause::lost); }

  /// Ends all work under way, on this rank alone; no call works afterwards.
  void abort() noexcept {
    if (comm_ == nullptr) return;
    try {
      mark_aborted();
      const cuda_device::scope current(*device_);
      const nccl_comm ended = std::exchange(comm_, nullptr);
      bounded(end_limit, [ended, abort = nccl_.comm_abort] { return abort(ended); });
    } catch (const std::exception&) {  // the driver has shut down
      comm_ = nullptr;
    }
  }
  /// True if work of this communicator may never end, so that the memory that it uses must not be freed.
  [[nodiscard]] bool stuck() const noexcept { return stuck_; }

 private:
  static constexpr std::string_view remedy = "; make a new NcclTransport over a transport of the ranks that are left";

  enum class cause { none, lost, late };
  void interrupt(cause why) noexcept {
    if (cause none = cause::none; !interrupted_.compare_exchange_strong(none, why)) return;
    poison();
    if (nccl_.comm_revoke != nullptr) {
      if (const nccl_comm comm = __atomic_load_n(&comm_, __ATOMIC_ACQUIRE); comm != nullptr) nccl_.comm_revoke(comm, 0);
    } else if (const nccl_comm comm = __atomic_exchange_n(&comm_, nullptr, __ATOMIC_ACQ_REL); comm != nullptr) {
      nccl_.comm_abort(comm);
    }
  }

  [[nodiscard]] nccl_config configuration() const noexcept {
    nccl_config config;
    config.blocking = blocking() ? 1 : 0;
    config.comm_name = "hvd";
    if (options_.min_ctas > 0) config.min_ctas = options_.min_ctas;
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    if (!options_.network.empty()) config.net_name = options_.network.c_str();
    return config;
  }
  /// Makes the communicator by `call(&made, &config)`, of itself or of another communicator.
  template <class Look, class Call>
  void start(std::string_view what, nccl_communicator* from, const Look& look, Call call) {
    nccl_config config = configuration();
    nccl_communicator& caller = from != nullptr ? *from : *this;
    if (!blocking()) {
      // NCCL makes a part in a thread of the whole communicator, which writes `comm_` when it is done.
      caller.begun(what, call(&comm_, &config));
      if (from != nullptr) from->await_ready(what, options_.start_timeout);  // ends it if it fails: joins the thread
      return finish_start(what, look);
    }
    const auto made = std::make_shared<nccl_comm>(nullptr);
    std::optional<nccl_result> code;
    const auto leave = [&] {  // a thread may use it for ever
      if (from == nullptr) return;
      from->stop();
      from->stuck_ = true;
      from->comm_ = nullptr;
    };
    try {
      code = detail::bounded(
          device_, options_.start_timeout, [=]() mutable { return call(made.get(), &config); }, look);
      if (!code) out_of_time(what, options_.start_timeout);
    } catch (const error& e) {
      if (!lost_) lost_.emplace(e);
      if (from != nullptr && !from->lost_) from->lost_.emplace(e);
      leave();
      throw;
    }
    if (*code != nccl_success) throw error(nccl_error_kind(*code), text(what, *code));
    comm_ = *made;
    connected_ = true;
  }
  template <class Look>
  void finish_start(std::string_view what, const Look& look) {
    if (comm_ == nullptr) fail(error_kind::system, {"NCCL gave ", label(), " no communicator"});
    try {
      await(what, options_.start_timeout, [&] {
        look();
        return ready(what);
      });
    } catch (const error&) {
      abort();  // also after an error of `look`
      throw;
    }
    connected_ = true;
  }
  void mark_aborted() {
    poison();
    if (!lost_) lost_.emplace(error_kind::aborted, joined({"the NCCL communicator of ", label(), " was aborted"}));
  }
  /// The state of the calls, as NCCL reports it.
  [[nodiscard]] nccl_result state() noexcept {
    nccl_result state = nccl_success;
    const nccl_result code = nccl_.comm_async_error(comm_, &state);
    if (code != nccl_success) return code;
    int ranks = 0;  // not needed: this call joins NCCL's thread
    return state == nccl_success && joins_ ? nccl_.comm_count(comm_, &ranks) : state;
  }
  /// True if all work is done, and NCCL is ready to free the communicator.
  [[nodiscard]] bool finalized(const std::vector<nccl_dropped::memory>& registered,
                               nccl_options::seconds limit) noexcept {
    for (const auto& m : registered) {
      if (m.window != nullptr) nccl_.window_deregister(comm_, m.window);
    }
    // Some versions return success although one of their threads still works on it.
    nccl_result now = blocking() ? bounded(limit, [comm = comm_, finalize = nccl_.comm_finalize] { return finalize(comm); })
                                 : nccl_.comm_finalize(comm_);
    if (now == nccl_success) now = state();
    for (const auto start = clock::now(); now == nccl_in_progress; now = state()) {
      if (limit.count() > 0 && clock::now() - start >= limit) break;
      nap(std::chrono::microseconds(100));
    }
    return now == nccl_success;
  }
  /// Calls a function of NCCL that ends or frees the communicator; see detail::bounded.
  template <class Call>
  nccl_result bounded(nccl_options::seconds limit, const Call& call) noexcept {
    if (const auto code = detail::bounded(device_, limit, call, []() noexcept {})) return *code;
    stuck_ = true;
    comm_ = nullptr;
    static_cast<void>(
        std::fprintf(stderr,
                     "hvd: NCCL on rank %d of %d has not ended its communicator within %g s, on GPU %s: a kernel on "
                     "this GPU, perhaps "
                     "of another communicator, does not end. Memory that it may use is kept; start a new process\n",
                     rank_, size_, limit.count(), device_->uuid().c_str()));
    return nccl_internal_error;
  }
  [[nodiscard]] std::string text(std::string_view what, nccl_result code) const {
    const char* const last = comm_ != nullptr ? nccl_.last_error(comm_) : nullptr;
    std::string all = joined({what, " on ", label(), ": NCCL ", nccl_version_text(nccl_search::result().version),
                              " says ", nccl_.error_text(code)});
    if (last != nullptr && *last != '\0') all += joined({" (", last, ")"});
    return all + "; NCCL_DEBUG=WARN tells more";
  }
  /// Throws an error of one call, which NCCL may treat as an error of the communicator.
  [[noreturn]] void refuse(std::string_view what, nccl_result code) {
    if (!lost_ && interrupted_.load() == cause::late) out_of_time(what, options_.timeout);
    if (interrupted_.load() != cause::none) usable();
    nccl_result state = nccl_success;
    if (comm_ != nullptr && nccl_.comm_async_error(comm_, &state) != nccl_success) state = code;
    if (state != nccl_success && state != nccl_in_progress) lose(what, code);
    throw error(nccl_error_kind(code), text(what, code));
  }
  /// Throws an error that ends the communicator.
  [[noreturn]] void lose(std::string_view what, nccl_result code) {
    lost_.emplace(nccl_error_kind(code), text(what, code));
    throw again(*lost_);
  }

  std::shared_ptr<cuda_device> device_;
  nccl_options options_;
  int rank_, size_;
  const nccl_library& nccl_;
  const bool joins_ = nccl_search::result().version < nccl_free_threaded;
  nccl_comm comm_ = nullptr;
  nccl_windows windows_;
  std::shared_ptr<std::byte> poison_;
  std::optional<error> lost_;
  bool connected_ = false, revoked_ = false;
  std::atomic<bool> stuck_ = false;
  nccl_dropped dropped_;
  std::atomic<cause> interrupted_{cause::none};
  call_watch watch_{[this](call_watch::duration lasting) {
    if (options_.timeout.count() > 0 && lasting >= options_.timeout) interrupt(cause::late);
  }};
};

}  // namespace hvd::inline HVD_ABI::detail
