// hvd/transport/nccl/communicator.hpp: one communicator of NCCL, non-blocking, with hvd's deadline.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/error.hpp>
#include <hvd/pin.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/transport/nccl/ending.hpp>
#include <hvd/transport/nccl/library.hpp>
#include <hvd/transport/nccl/windows.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sched.h>

namespace hvd::inline HVD_ABI {

namespace detail {

/// The number of ranks that the policy allows on one GPU; 0: any number.
inline int ranks_of_pin() { return pinned() ? pinned()->max_ranks : pin_of_environment().max_ranks; }

}  // namespace detail

/// The methods of NCCL to form an average. The results differ in the last bits.
enum class nccl_average {
  /// hvd decides: post_scale.
  automatic,
  /// Sums, and then divides; for fused tensors, in the kernel that unpacks. As on the host; NVLink's switches can do
  /// the additions.
  post_scale,
  /// Multiplies each input by 1/n, rounded to the element type, before it adds: for 16-bit floats whose sum overflows.
  pre_mul,
  /// ncclAvg: as pre_mul for floating-point types; sums and divides for integers.
  nccl_avg,
};

/// The options of an NcclTransport.
struct nccl_options {
  using seconds = std::chrono::duration<double>;
  /// The GPU, by its ordinal among those that the process sees; -1: the calling thread's current GPU, which hvd::pin
  /// chooses.
  int device = -1;
  /// The number of ranks that may use one GPU; 0: any number. The default is that of this thread's pinning (`shared`),
  /// or of HVD_PIN. More than one needs NCCL 2.30, or a NCCL_HOSTID that differs between ranks.
  int ranks_per_device = detail::ranks_of_pin();
  /// The time limit for every wait for other ranks; 0 waits as long as no error is known.
  seconds timeout = failure_policy{}.timeout;
  /// The time limit for the ranks to connect. Longer than on the host: each rank may have to load NCCL's 250 MB from a
  /// cold disk.
  seconds start_timeout = detail::from_variable("HOROVOD_START_TIMEOUT", seconds(120),
                                                [](auto name, auto text) { return parse_seconds(name, text); });
  nccl_average average = nccl_average::automatic;
  /// The most thread blocks that NCCL uses; 0: NCCL decides.
  int max_ctas = 0;
};

namespace detail {

/// Owns an ncclComm_t. One thread at a time uses it. After an error of the communicator itself, or an abort, every call
/// throws the same error again.
class nccl_communicator {
 public:
  using clock = std::chrono::steady_clock;
  /// The time for NCCL to end work that is under way.
  static constexpr std::chrono::seconds end_limit{10};

  nccl_communicator(std::shared_ptr<cuda_device> device, nccl_options options, int rank, int size)
      : device_(std::move(device)), options_(options), rank_(rank), size_(size), nccl_(get_nccl()) {}
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
    if (!lost_ && interrupted_.load()) {
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

  /// Connects the ranks; within a scope of the device, like all calls of NCCL. `look()` throws if a rank is lost.
  template <class Look>
  void connect(const nccl_unique_id& id, const Look& look) {
    nccl_config config = configuration();
    begun("connecting", nccl_.comm_init(&comm_, size_, id, rank_, &config));
    finish_start("connecting", look);
  }
  /// The same as a part of another communicator. `color` is not negative.
  void connect(nccl_communicator& whole, int color, int key) {
    nccl_config config = configuration();
    // NCCL makes the part in a thread of the whole communicator, which writes `comm_` when it is done.
    whole.begun("split", nccl_.comm_split(whole.get(), color, key, &comm_, &config));
    whole.await_ready("split", options_.start_timeout);  // ends the whole if it fails, and so joins the thread
    finish_start("split", [] {});
  }
  /// The same with the remaining ranks of another communicator. Calls under way there end, with unspecified outputs.
  void connect(nccl_communicator& whole, std::span<int> lost) {
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
    nccl_config config = configuration();
    const nccl_result code = nccl_.comm_shrink(whole.comm_, lost.data(), static_cast<int>(lost.size()), &comm_, &config,
                                               whole.revoked_ ? 0 : nccl_shrink_abort);
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
          interrupted_.load()
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

  /// Ends all work under way although another thread is in a call of this class, which waits in the driver for that
  /// work; later calls throw peer_lost. Calls no driver: NCCL first sets the flag that its kernels look at.
  void interrupt() noexcept {
    if (interrupted_.exchange(true)) return;
    if (nccl_.comm_revoke != nullptr) {
      if (const nccl_comm comm = __atomic_load_n(&comm_, __ATOMIC_ACQUIRE); comm != nullptr) nccl_.comm_revoke(comm, 0);
    } else if (const nccl_comm comm = __atomic_exchange_n(&comm_, nullptr, __ATOMIC_ACQ_REL); comm != nullptr) {
      nccl_.comm_abort(comm);
    }
  }

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

  [[nodiscard]] nccl_config configuration() const noexcept {
    nccl_config config;
    config.blocking = 0;  // in a blocking one, a missing rank would leave the others in NCCL for ever
    config.comm_name = "hvd";
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    return config;
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
    nccl_result now = nccl_.comm_finalize(comm_);
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
    if (const auto code = detail::bounded(device_, limit, call)) return *code;
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
  std::optional<error> lost_;
  bool connected_ = false, revoked_ = false;
  std::atomic<bool> stuck_ = false;
  nccl_dropped dropped_;
  std::atomic<bool> interrupted_{false};
};

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
