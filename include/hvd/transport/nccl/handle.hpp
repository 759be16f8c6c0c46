// hvd/transport/nccl/handle.hpp: a communicator of NCCL, and how it ends.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/call_watch.hpp>
#include <hvd/transport/nccl/ending.hpp>
#include <hvd/transport/nccl/library.hpp>
#include <hvd/transport/nccl/options.hpp>
#include <hvd/transport/nccl/windows.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// An ncclComm_t, and how it ends. One thread at a time uses it, except where a function says so. After an error of the
/// communicator itself, or an abort, every call throws the same error again.
class nccl_handle {
 public:
  using clock = std::chrono::steady_clock;
  /// The time for NCCL to end work that is under way.
  static constexpr std::chrono::seconds end_limit{10};

  nccl_handle(std::shared_ptr<cuda_device> device, nccl_options options, int rank, int size)
      : device_(std::move(device)), options_(std::move(options)), rank_(rank), size_(size), nccl_(get_nccl()),
        poison_(cuda_host_memory(device_, sizeof(std::uint32_t))) {}
  nccl_handle(const nccl_handle&) = delete;
  nccl_handle& operator=(const nccl_handle&) = delete;
  ~nccl_handle() { close(); }

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
  void usable(std::string_view what = "a collective") {
    if (!lost_ && interrupted_.load() == cause::late) out_of_time(what, options_.timeout);
    if (!lost_ && interrupted_.load() == cause::lost) {
      lost_.emplace(error_kind::peer_lost, joined({"a collective on ", label(),
                                                   " was ended, because a thread waited for the GPU of a lost rank, ",
                                                   "or of one that has shut its engine down"}));
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

  [[noreturn]] void out_of_time(std::string_view what, nccl_options::seconds limit) {
    lost_.emplace(
        error_kind::timeout,
        joined({what, " on ", label(), " has waited ", limit.count(), " s for other ranks, on ", device_->label(),
                ", and given up; NCCL does not report which one is missing: look for a rank "
                "that has ended or is in another call (HVD_TIMEOUT sets the limit)"}));
    throw again(*lost_);
  }

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
      backoff rest(paces::gpu_end);
      for (; now == nccl_in_progress && clock::now() < until; now = state()) rest.step();
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
      const nccl_comm ended = __atomic_exchange_n(&comm_, nullptr, __ATOMIC_ACQ_REL);  // as in `interrupt`
      if (ended == nullptr) return;
      bounded(end_limit, [ended, abort = nccl_.comm_abort] { return abort(ended); });
    } catch (const std::exception&) {  // the driver has shut down
      comm_ = nullptr;
    }
  }
  /// True if work of this communicator may never end, so that the memory that it uses must not be freed.
  [[nodiscard]] bool stuck() const noexcept { return stuck_; }
  /// Called if streams may use memory for ever.
  void keep() noexcept { stuck_ = true; }

 protected:
  enum class cause { none, lost, late };
  void interrupt(cause why) noexcept {
    if (cause none = cause::none; !interrupted_.compare_exchange_strong(none, why)) return;
    poison();
    const bool revokes = nccl_.comm_revoke != nullptr;
    const nccl_comm comm =
        revokes ? __atomic_load_n(&comm_, __ATOMIC_ACQUIRE) : __atomic_exchange_n(&comm_, nullptr, __ATOMIC_ACQ_REL);
    if (comm == nullptr) return;
    const auto end = [comm, revokes, revoke = nccl_.comm_revoke, abort = nccl_.comm_abort] {
      return revokes ? revoke(comm, 0) : abort(comm);
    };
    bounded(end_limit, end, false);  // within no scope, which is a call of the driver
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
    nccl_result now = nccl_success;
    if (blocking()) {
      const auto finalize = [comm = comm_, finalize = nccl_.comm_finalize] { return finalize(comm); };
      const auto code = detail::bounded(device_, limit, finalize, []() noexcept {});
      if (!code) return false;
      now = *code;
    } else {
      now = nccl_.comm_finalize(comm_);
    }
    // Some versions return success although one of their threads still works on it.
    if (now == nccl_success) now = state();
    backoff rest(paces::gpu_end);
    for (const auto start = clock::now(); now == nccl_in_progress; now = state()) {
      if (limit.count() > 0 && clock::now() - start >= limit) break;
      rest.step();
    }
    return now == nccl_success;
  }
  /// Calls a function of NCCL that ends or frees the communicator; see detail::bounded.
  template <class Call>
  nccl_result bounded(nccl_options::seconds limit, const Call& call, bool in_scope = true) noexcept {
    if (const auto code = detail::bounded(in_scope ? device_ : nullptr, limit, call, []() noexcept {})) return *code;
    stuck_ = true;
    __atomic_store_n(&comm_, nullptr, __ATOMIC_RELEASE);
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
    return all + "; set NCCL_DEBUG=WARN for more";
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
