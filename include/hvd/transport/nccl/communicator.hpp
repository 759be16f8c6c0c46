// hvd/transport/nccl/communicator.hpp: one communicator of NCCL, non-blocking, with hvd's deadline.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/error.hpp>
#include <hvd/pin.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_memory/futex.hpp>
#include <hvd/transport/nccl/library.hpp>
#include <hvd/transport/nccl/windows.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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
  /// The time limit for the ranks to connect.
  seconds start_timeout = failure_policy{}.start_timeout;
  nccl_average average = nccl_average::automatic;
  /// The most thread blocks that NCCL uses; 0: NCCL decides.
  int max_ctas = 0;
};

namespace detail {

/// The kind of an error of NCCL. NCCL does not know which rank is lost.
constexpr error_kind nccl_error_kind(nccl_result code) noexcept {
  switch (code) {
    case nccl_invalid_argument:
    case nccl_invalid_usage: return error_kind::invalid_argument;
    case nccl_remote_error: return error_kind::peer_lost;
    default: return error_kind::system;
  }
}

/// Owns an ncclComm_t. One thread at a time uses it. After an error of the communicator itself, or an abort, every call
/// throws the same error again.
class nccl_communicator {
 public:
  using clock = std::chrono::steady_clock;

  nccl_communicator(std::shared_ptr<cuda_device> device, nccl_options options, int rank, int size)
      : device_(std::move(device)), options_(options), rank_(rank), size_(size), nccl_(get_nccl()),
        poison_(cuda_host_memory(device_, sizeof(std::uint32_t))) {}
  nccl_communicator(const nccl_communicator&) = delete;
  nccl_communicator& operator=(const nccl_communicator&) = delete;
  ~nccl_communicator() { close(); }
  /// Ends the communicator. Call it before freeing memory that NCCL uses: work that is stuck on a stream ends here at
  /// the latest.
  void close() noexcept {
    if (comm_ == nullptr) return;
    try {
      const cuda_device::scope current(*device_);
      // NCCL may wait here for the other ranks, which may never come. Some versions report the end although one of
      // their threads still works on it.
      nccl_result state = lost_ ? nccl_remote_error : nccl_.comm_finalize(comm_);
      if (state == nccl_success) nccl_.comm_async_error(comm_, &state);
      for (const auto until = clock::now() + std::chrono::seconds(2); state == nccl_in_progress;) {
        nccl_.comm_async_error(comm_, &state);
        if (clock::now() >= until) break;
        nap(std::chrono::microseconds(100));
      }
      const nccl_comm ended = std::exchange(comm_, nullptr);
      if (state == nccl_success) {
        nccl_.comm_destroy(ended);
      } else {
        nccl_.comm_abort(ended);
      }
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
  void usable() const {
    if (lost_) throw again(*lost_);
    if (comm_ == nullptr) fail(error_kind::aborted, {"the NCCL communicator of ", label(), " is not connected"});
  }
  /// True if `comm` is still the communicator; false after an abort.
  [[nodiscard]] bool has(nccl_comm comm) const noexcept { return comm_ != nullptr && comm_ == comm; }
  /// "rank 0 of 4", for messages.
  [[nodiscard]] std::string label() const { return joined({"rank ", rank_, " of ", size_}); }

  /// Starts to connect the ranks; within a scope of the device, like all calls of NCCL.
  void connect(const nccl_unique_id& id) {
    nccl_config config = configuration();
    begun("connecting", nccl_.comm_init(&comm_, size_, id, rank_, &config));
    finish_start("connecting");
  }
  /// The same as a part of another communicator. `color` is not negative.
  void connect(nccl_communicator& whole, int color, int key) {
    nccl_config config = configuration();
    // NCCL makes the part in a thread of the whole communicator, which writes `comm_` when it is done.
    whole.begun("split", nccl_.comm_split(whole.get(), color, key, &comm_, &config));
    whole.await_ready("split", options_.start_timeout);  // aborts the whole if it fails, and so joins the thread
    finish_start("split");
  }
  /// The same with the remaining ranks of another communicator. Calls under way there end, with unspecified outputs.
  void connect(nccl_communicator& whole, std::span<int> lost) {
    if (nccl_.comm_shrink == nullptr || whole.comm_ == nullptr) {
      fail(error_kind::unsupported,
           {"without: NCCL ", nccl_version_text(nccl_search::result().version),
            whole.comm_ == nullptr ? " has aborted the communicator" : " cannot leave ranks out (2.27 can)",
            "; make a new NcclTransport over a transport of the ranks that are left"});
    }
    nccl_config config = configuration();
    const nccl_result code =
        nccl_.comm_shrink(whole.comm_, lost.data(), static_cast<int>(lost.size()), &comm_, &config, nccl_shrink_abort);
    if (!whole.lost_) {
      whole.lost_.emplace(error_kind::aborted, joined({"the ranks of ", whole.label(), " go on without others"}));
    }
    begun("without", code);
    // NCCL's thread writes it. The state of the whole communicator no longer shows the progress.
    const auto until = clock::now() + options_.start_timeout;
    for (; __atomic_load_n(&comm_, __ATOMIC_ACQUIRE) == nullptr; nap(std::chrono::microseconds(100))) {
      if (clock::now() < until) continue;
      whole.abort();  // joins the thread
      fail(error_kind::timeout, {"without on ", label(), ": the ranks that are left did not come within ",
                                 options_.start_timeout.count(), " s"});
    }
    finish_start("without");
  }

  /// Handles the result of a call of NCCL. True if its work is on the stream; false if `ready` must be polled before
  /// anything else is called. Throws if the call has failed.
  [[nodiscard]] bool queued(std::string_view what, nccl_result code) {
    if (code == nccl_success) [[likely]]
      return true;
    if (code != nccl_in_progress) refuse(what, code);
    return ready(what);
  }
  /// The same for calls other than collectives: some versions return success although one of their threads still works
  /// on it.
  void begun(std::string_view what, nccl_result code) {
    if (code != nccl_success && code != nccl_in_progress) refuse(what, code);
  }
  /// True if the work of all calls is on its streams.
  [[nodiscard]] bool ready(std::string_view what) {
    usable();
    nccl_result state = nccl_success;
    const nccl_result code = nccl_.comm_async_error(comm_, &state);
    if (code != nccl_success) state = code;
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

  /// Ends a registration. Without the communicator there are no windows.
  void deregister(nccl_window window) noexcept {
    if (comm_ != nullptr) static_cast<void>(nccl_.window_deregister(comm_, window));
  }

  /// A word in memory of the host that streams can copy: all bits are set before NCCL is told to end its work. To a
  /// stream an aborted collective looks like one that has ended, so the work behind it has to look here.
  [[nodiscard]] const std::byte* poison_word() const noexcept { return poison_.get(); }
  /// Sets it; any thread, and without a call of the driver, in which another thread may be stuck.
  void poison() noexcept { __atomic_store_n(reinterpret_cast<std::uint32_t*>(poison_.get()), ~0U, __ATOMIC_SEQ_CST); }

  /// Ends all work under way after an error. If NCCL supports it, the communicator stays, so that the remaining ranks
  /// can go on from it.
  void stop() noexcept {
    if (comm_ == nullptr) return;
    poison();
    if (nccl_.comm_revoke == nullptr) return abort();
    try {
      const cuda_device::scope current(*device_);
      const nccl_result code = nccl_.comm_revoke(comm_, 0);
      if (code != nccl_success && code != nccl_in_progress) abort();
    } catch (const error&) {  // the driver has shut down
      comm_ = nullptr;
    }
  }

  /// Ends all work under way, on this rank alone; no call works afterwards.
  void abort() noexcept {
    if (comm_ == nullptr) return;
    poison();
    try {
      if (!lost_) lost_.emplace(error_kind::aborted, joined({"the NCCL communicator of ", label(), " was aborted"}));
      const cuda_device::scope current(*device_);
      nccl_.comm_abort(std::exchange(comm_, nullptr));
    } catch (const std::exception&) {  // the driver has shut down
      comm_ = nullptr;
    }
  }

 private:
  [[nodiscard]] nccl_config configuration() const noexcept {
    nccl_config config;
    config.blocking = 0;  // in a blocking one, a missing rank would leave the others in NCCL for ever
    config.comm_name = "hvd";
    if (options_.max_ctas > 0) config.max_ctas = options_.max_ctas;
    return config;
  }
  void finish_start(std::string_view what) {
    if (comm_ == nullptr) fail(error_kind::system, {"NCCL gave ", label(), " no communicator"});
    await_ready(what, options_.start_timeout);
  }
  [[nodiscard]] std::string text(std::string_view what, nccl_result code) const {
    const char* const last = nccl_.last_error != nullptr && comm_ != nullptr ? nccl_.last_error(comm_) : nullptr;
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
  nccl_comm comm_ = nullptr;
  nccl_windows windows_;
  std::shared_ptr<std::byte> poison_;
  std::optional<error> lost_;
};

}  // namespace detail

}  // namespace hvd::inline HVD_ABI
