// device_group.hpp: collectives of a group of ranks on their GPUs, by NCCL, in the order in which the program calls
// them.
#pragma once

#include "group.hpp"
#include "streams.hpp"

#include <hvd/any_transport.hpp>
#include <hvd/cuda/device.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/nccl.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace hvd_python {

/// Collectives that were called together, queued on a GPU or done.
struct device_pending {
  std::string what;  ///< the program's name for it
  std::vector<collective> calls;
  hvd::detail::cu_stream called_on = nullptr;
  std::shared_ptr<void> keep;  ///< kept alive until the GPU is done, or until `called_on` waits for it
  seconds timeout{0};
  std::chrono::steady_clock::time_point since{};  ///< it was queued, and those before it were done
  std::uint64_t number = 0;                       ///< in its group, from 1
  std::shared_ptr<void> end;                      ///< the event after its work; the group guards it and all below
  hvd::detail::cuda_marks::place mark{};          ///< behind the event
  bool open = false;                              ///< `complete` will be called
  enum class state : unsigned char { queued, done, failed } now = state::queued;
};

/// A program's tensors are read after the work on its stream, and the collectives run on a stream of the group. The
/// host never waits for other ranks or for the GPU. All ranks make the same calls in the same order.
///
/// NCCL does not notice lost ranks of its host. So while collectives are in flight, a thread of the group looks for
/// lost ranks over a transport on the host, and for collectives that take too long; it then ends them, on all ranks.
///
/// Any thread may call any function. See `group` for `interrupted`.
class device_group {
 public:
  using interrupted = bool (*)();

  /// `check`: ranks compare their calls, and so wait for each other.
  device_group(std::shared_ptr<group> host, hvd::nccl_options options, bool check);
  device_group(const device_group&) = delete;
  device_group& operator=(const device_group&) = delete;
  ~device_group();

  /// Connects the ranks, this one on this GPU. Collective, in the order of the group on the host; waits at most
  /// `timeout` for other ranks to call it. If they cannot be connected, all ranks throw, and may call it again. Errors:
  /// those of hvd::NcclTransport.
  void connect(int device, seconds timeout);
  /// The stream on which collectives run.
  [[nodiscard]] hvd::detail::cu_stream stream() const noexcept;

  /// Queues its collectives, in one launch of NCCL, after the work on the stream `called_on`. Errors: invalid_argument
  /// and unsupported for calls that NCCL cannot do, with `check` also mismatch; all others end the group.
  void queue(const std::shared_ptr<device_pending>& p);
  /// For one that is `open`: the work that was queued on `stream` meanwhile belongs to it.
  void complete(device_pending& p);

  /// True if the GPU is done, or it has failed.
  [[nodiscard]] bool poll(device_pending& p);
  /// Throws its error.
  void check(const device_pending& p);
  /// Waits until `poll`; returns false if that is not before `limit`. Throws its error, or `aborted` if interrupted.
  bool wait(device_pending& p, std::optional<seconds> limit, interrupted by_signal);
  /// Work queued on the stream from now on begins after it. Throws its error.
  void make_wait(device_pending& p, const framework_stream& stream);
  /// Waits for all. Throws the error that has ended the group.
  void settle(interrupted by_signal);

  /// Ends all collectives in flight, here and on all other ranks.
  void abort() noexcept;
  /// Leaves the group when all collectives in flight have ended. Aborts those that have not within `limit`.
  void close(seconds limit) noexcept;

 private:
  using lock = std::unique_lock<std::mutex>;
  using clock = std::chrono::steady_clock;
  struct connected;

  void compare(const std::vector<collective>& calls, seconds timeout);
  void compare_lengths(hvd::detail::erased_transport& ranks, const collective& c) const;
  void mark_end(device_pending& p);
  [[nodiscard]] std::shared_ptr<device_pending> oldest() const;
  void retire();
  void throw_problem() const;

  void watch();
  void look();
  void ask_driver(const std::shared_ptr<void>& end);
  void look_for_lost_ranks(std::uint64_t first);
  bool has_called(int rank, std::uint64_t number);
  void say_goodbye() noexcept;

  void fail(const hvd::error& why) noexcept;
  bool drain(seconds limit, bool failed) noexcept;

  const std::shared_ptr<group> host_;
  const hvd::nccl_options options_;
  const bool checks_;
  const int rank_, size_;

  std::mutex calling_;  // of NCCL, by one thread at a time; locked before the others
  std::unique_ptr<connected> connected_;
  std::uint64_t calls_ = 0;

  std::mutex control_mutex_;
  std::optional<hvd::any_transport> control_;  // made and destroyed under state_, too
  std::vector<std::uint64_t> called_by_;       // collectives that a rank had called when it left; 0: it has not

  std::mutex ending_;  // no thread ends the communicator while another one frees it
  mutable std::mutex state_;
  std::deque<std::shared_ptr<device_pending>> in_flight_;
  std::shared_ptr<device_pending> in_call_;  // a thread queues it
  std::optional<hvd::error> problem_;        // has ended the group
  clock::time_point last_end_{};
  bool closing_ = false;
  bool asleep_ = false;  // the thread
  std::condition_variable wake_;
  std::thread watch_;
};

}  // namespace hvd_python
