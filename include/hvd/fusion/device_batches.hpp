// hvd/fusion/device_batches.hpp: batches of work on a GPU: pack, collectives, unpack, each on a stream of its own.
//
// Nothing here waits for the GPU. Events order the work: packing waits for the tensors and for the buffer to be free,
// the collective for the packing, unpacking for the collective. There are two buffers, so that the next batch is packed
// while one is reduced.
#pragma once

#include <hvd/cuda/copy.hpp>
#include <hvd/cuda/device.hpp>
#include <hvd/detail/keep_for_ever.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/transport/nccl.hpp>

#include <hvd/dtype.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Many parts that one kernel copies: out[i] = in[i] * factor / divisor, converted.
struct device_copy {
  dtype from{}, to{};
  double factor = 1.0;
  std::uint32_t divisor = 1;
  std::vector<device_part> parts{};
};

/// One batch, from its start to its end.
struct device_batch {
  std::string_view what{};
  std::vector<void*> ready{};                      ///< events after which it begins
  std::size_t buffer_bytes = 0;                    ///< needed size of the buffer
  std::function<void(std::byte* buffer)> place{};  ///< fills in the next members, which depend on the buffer's address
  std::vector<std::pair<std::byte*, std::size_t>> zeros{};
  std::vector<device_copy> before{}, after{};
  std::function<void(nccl_group_call&)> calls{};
  std::vector<std::shared_ptr<void>> kept{};            ///< memory that it uses
  std::function<void(std::shared_ptr<void>)> queued{};  ///< gets the event after which all is done, once it exists
  /// Gets the time from the beginning to the end of its work on the GPU, including waits for other ranks. If empty,
  /// nothing is measured.
  std::function<void(std::chrono::nanoseconds)> took{};

  std::uint64_t number = 0;  ///< of its launch in hvd/transport/nccl/launch_order.hpp; 0: in no order

  std::shared_ptr<void> first{};  ///< the event at which its work begins, if that is measured
  cuda_marks::place begun{};      ///< from here on it waits only for other ranks
  std::shared_ptr<void> done{};
  cuda_marks::place end{};  ///< behind `done`
  std::chrono::steady_clock::time_point asked{};
  std::optional<error> problem{};
  std::optional<std::chrono::steady_clock::time_point> waiting_since{};
};

/// Runs batches in the order in which they are started. One thread at a time, within no scope of the device.
class device_batches {
 public:
  explicit device_batches(std::shared_ptr<nccl_group> group)
      : group_(std::move(group)), order_(group_->order()), marks_(group_->device(), streams_.size()),
        timed_(std::make_shared<cuda_events>(group_->device(), 0)) {
    const cuda_device::scope current(*group_->device());
    const bool high_priority = group_->communicator().options().high_priority;
    for (cuda_stream& s : streams_) s = cuda_stream(group_->driver(), high_priority);
    poison_ = cuda_memory(group_->device(), sizeof(std::uint32_t));
  }
  device_batches(const device_batches&) = delete;
  device_batches& operator=(const device_batches&) = delete;
  ~device_batches() {
    order_.forget(group_->id());
    // The program's work before a collective may only be late, unless something is known to be lost.
    const nccl_communicator& comm = group_->communicator();
    if (stuck_ || (!drain(comm.lost() ? while_lost : comm.options().timeout) && !abort())) {
      keep_for_ever(std::move(slots_), std::move(retired_), std::move(streams_), std::move(marks_), std::move(poison_),
                    std::move(timed_), group_);
      return;
    }
    try {
      const cuda_device::scope current(*group_->device());
      for (slot& s : slots_) s = {};
      retired_.clear();
      for (cuda_stream& s : streams_) s = {};
    } catch (const error&) {  // the driver has shut down
    }
  }

  [[nodiscard]] nccl_group& group() noexcept { return *group_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return slots_[0].bytes + slots_[1].bytes; }
  /// Frees the buffers, also those that were too short. No batch is under way.
  void release() {
    for (slot& s : slots_) s = {};
    retired_.clear();
  }

  /// Takes a place for the next batch in the order of all groups on the GPU; `largest` gives the largest of all ranks'
  /// numbers.
  template <class Largest>
  void order(const Largest& largest) {
    number_ = largest(order_.propose(group_->id()));
    order_.decide(group_->id(), number_);
  }
  /// The next batch does not come.
  void withdraw() { order_.leave(group_->id(), std::exchange(number_, 0)); }

  /// Calls f, which uses NCCL and waits for it, in such a place.
  template <class Largest, class F>
  auto in_order(const Largest& largest, const F& f) {
    order(largest);
    const std::shared_ptr<void> leaving(nullptr, [&](void*) { withdraw(); });
    nccl_communicator& comm = group_->communicator();
    comm.await("another group's turn", comm.options().timeout, [&] { return order_.turn(group_->id(), number_); });
    return f();
  }

  /// Queues a batch: now, or in a later `poll` if NCCL still connects ranks, or if it is another group's turn. If calls
  /// of NCCL block, then now: another rank may be in such a call, waiting for this one, and can do nothing else.
  void start(std::shared_ptr<device_batch> batch) {
    batch->number = std::exchange(number_, 0);
    waiting_.push_back(std::move(batch));
    backoff rest(paces::gpu_turn);
    for (advance(); !waiting_.empty() && group_->communicator().watch() != nullptr; advance()) rest.step();
  }
  /// True if the batch is done. Throws the batch's error if it has failed.
  [[nodiscard]] bool poll(device_batch& batch) {
    advance();
    if (batch.problem) throw again(*batch.problem);
    if (!batch.done) return false;
    try {
      if (marks_.reached(batch.end)) {
        group_->communicator().usable();  // or else it was interrupted, perhaps in this batch
        if (batch.took) measure(batch);
        return true;
      }
      watch(batch);
    } catch (const error& e) {
      throw lose(e);
    }
    return false;
  }
  /// Throws if the group or this device is lost.
  void check() {
    if (lost_) throw again(*lost_);
    group_->communicator().check();
  }
  /// Called after an error of this rank alone: no batch can be started any more, and `check` throws. Returns the error
  /// with this rank as the rank at fault.
  error lose(const error& e) {
    const bool own = e.rank() < 0 && e.kind() != error_kind::peer_lost && e.kind() != error_kind::timeout;
    error mine = again(e, own ? group_->rank() : e.rank());
    if (!lost_) lost_.emplace(mine);
    return mine;
  }
  /// Ends everything on this rank. True if no stream uses memory of a batch any more; if not, it must never be freed.
  [[nodiscard]] bool abort() noexcept {
    order_.forget(group_->id());  // other groups wait for no launch of this one
    nccl_communicator& comm = group_->communicator();
    comm.stop();  // first, because freeing memory waits for NCCL
    stuck_ = comm.stuck() || !drain(while_lost);
    if (stuck_) {
      comm.keep();
      keep_for_ever(std::move(waiting_), std::move(given_up_), std::move(growth_));
    }
    waiting_.clear();
    given_up_.clear();
    restart();
    return !stuck_;
  }

 private:
  enum : std::size_t { packing, reducing, unpacking };
  static constexpr std::chrono::seconds while_lost{5};
  struct slot {
    std::shared_ptr<std::byte> memory{};
    std::size_t bytes = 0;
    std::shared_ptr<void> free{};  ///< the event after which it may be written
  };

  /// After an error of the GPU the end of a batch is never reached, so the driver is asked now and then: seldom,
  /// because this call waits while another thread holds the context.
  void ask(device_batch& batch, std::chrono::steady_clock::time_point now) const {
    if (now - batch.asked < std::chrono::seconds(5)) return;
    batch.asked = now;
    const cuda_device::scope current(*group_->device());
    const cu_result code = group_->driver().event_query(batch.done.get());
    if (code != cu_not_ready) group_->driver().check(code, batch.what);
  }
  void measure(device_batch& batch) const {
    const cuda_device::scope current(*group_->device());
    float milliseconds = 0;
    const cuda_driver& driver = group_->driver();
    driver.check(driver.event_elapsed(&milliseconds, batch.first.get(), batch.done.get()), "cuEventElapsedTime");
    batch.took(std::chrono::nanoseconds(std::llround(static_cast<double>(milliseconds) * 1e6)));
  }
  /// Throws if this rank has waited too long for other ranks. The time of the program's work before the tensors are
  /// ready does not count.
  void watch(device_batch& batch) {
    const auto now = std::chrono::steady_clock::now();
    ask(batch, now);
    const auto limit = group_->communicator().options().timeout;
    if (limit.count() <= 0) return;
    if (!batch.waiting_since && marks_.reached(batch.begun)) batch.waiting_since = now;
    if (batch.waiting_since && now - *batch.waiting_since >= limit) {
      group_->communicator().out_of_time(batch.what, limit);
    }
  }
  [[nodiscard]] cu_stream stream(std::size_t which) const noexcept { return streams_[which].get(); }

  void advance() {
    while (!waiting_.empty()) {
      device_batch& batch = *waiting_.front();
      try {
        const cuda_device::scope current(*group_->device());
        if (step_ == step::fresh) {
          since_ = std::chrono::steady_clock::now();
          step_ = step::queued;
        }
        if (step_ == step::queued) {
          if (batch.number != 0 && !order_.turn(group_->id(), batch.number)) return watch_start(batch);
          select(batch);
          step_ = step::growing;
        }
        if (step_ == step::growing) {
          if (!grown()) return watch_start(batch);
          step_ = step::issued;
          if (!issue(batch)) return watch_start(batch);
        } else if (!group_->communicator().ready(batch.what)) {
          return watch_start(batch);
        }
        finish(batch);
      } catch (const error& e) {
        // Errors common to all ranks fail only this batch; after other errors ranks have different batches.
        const bool alike = e.kind() == error_kind::unsupported || (growth_ && growth_->refused());
        batch.problem.emplace(alike ? e : lose(e));
        if (!alike && growth_) given_up_.push_back(std::move(*growth_));
      }
      order_.leave(group_->id(), batch.number);
      restart();
      waiting_.pop_front();
    }
  }
  /// The same while NCCL still connects ranks, or memory grows.
  void watch_start(const device_batch& batch) {
    group_->communicator().usable();
    const auto limit = group_->communicator().options().timeout;
    if (limit.count() > 0 && std::chrono::steady_clock::now() - since_ >= limit) {
      group_->communicator().out_of_time(batch.what, limit);
    }
  }
  void restart() noexcept {
    step_ = step::fresh;
    growth_.reset();
  }
  /// Chooses the buffer. If it is too short, it begins to grow, to at least twice its length.
  void select(const device_batch& batch) {
    used_ = nullptr;
    if (batch.buffer_bytes == 0) return;
    used_ = &slots_[turn_ ^= 1];
    if (used_->bytes >= batch.buffer_bytes) return;
    grows_to_ = round_up(std::max(batch.buffer_bytes, 2 * used_->bytes), nccl_window_alignment);
    growth_.emplace(group_->grow(grows_to_, stream(reducing), nccl_window_symmetric));
  }
  /// True once the buffer is long enough.
  bool grown() {
    if (!growth_) return true;
    if (!growth_->advance()) return false;
    retired_.push_back(std::exchange(*used_, {growth_->memory(), grows_to_, nullptr}));
    used_->free = group_->events()->record(stream(reducing));  // on which it is zeroed
    return true;
  }
  /// True if NCCL has put its work on the stream.
  bool issue(device_batch& batch) {
    const cuda_driver& driver = group_->driver();
    std::byte* buffer = nullptr;
    if (used_ != nullptr) {
      buffer = used_->memory.get();
      group_->await_event(stream(packing), used_->free.get());
    }
    if (batch.place) batch.place(buffer);
    for (void* const event : batch.ready) group_->await_event(stream(packing), event);
    for (const auto& [address, bytes] : batch.zeros) {
      if (bytes == 0) continue;
      driver.check(driver.fill_bytes(to_device(address), 0, bytes, stream(packing)), "cuMemsetD8Async");
    }
    if (batch.took) batch.first = timed_->record(stream(packing));
    run(batch.before, stream(packing), nullptr);
    group_->await_event(stream(reducing), group_->events()->record(stream(packing)).get());
    batch.begun = marks_.record(packing, stream(packing));
    if (!batch.calls) return true;
    nccl_group_call calls(group_->communicator(), stream(reducing), batch.what);
    batch.calls(calls);
    return calls.close();
  }
  void finish(device_batch& batch) {
    cuda_events& events = batch.took ? *timed_ : *group_->events();
    batch.done = events.record(stream(reducing));
    std::size_t last = reducing;
    if (!batch.after.empty()) {
      group_->await_event(stream(unpacking), batch.done.get());
      // Behind the collective: if that was aborted, the kernels write NaN.
      const cuda_driver& driver = group_->driver();
      driver.check(driver.copy_to_device(to_device(poison_.get()), group_->communicator().poison_word(),
                                         sizeof(std::uint32_t), stream(unpacking)),
                   "cuMemcpyHtoDAsync");
      run(batch.after, stream(unpacking), reinterpret_cast<const std::uint32_t*>(poison_.get()));
      batch.done = events.record(stream(unpacking));
      last = unpacking;
    }
    batch.end = marks_.record(last, stream(last));
    batch.asked = std::chrono::steady_clock::now();
    if (used_ != nullptr) used_->free = batch.done;
    if (batch.queued) batch.queued(batch.done);
  }
  void run(const std::vector<device_copy>& copies, cu_stream on, const std::uint32_t* poison) {
    for (const device_copy& c : copies) {
      if (!c.parts.empty()) group_->copies()(c.parts, c.from, c.to, c.factor, c.divisor, on, poison);
    }
  }

  /// Waits until the streams are idle, but no longer than the limit (0: none): the program's earlier work on them may
  /// never end.
  bool drain(nccl_options::seconds limit) noexcept {
    using clock = std::chrono::steady_clock;
    const auto start = clock::now();
    try {
      const cuda_device::scope current(*group_->device());
      backoff rest(paces::gpu_end);
      for (const cuda_stream& s : streams_) {
        while (s.get() != nullptr && group_->driver().stream_query(s.get()) == cu_not_ready) {
          if (limit.count() > 0 && clock::now() - start >= limit) return false;
          rest.step();
        }
      }
    } catch (const error&) {  // the driver has shut down
    }
    return true;
  }

  std::shared_ptr<nccl_group> group_;
  launch_order& order_;
  std::uint64_t number_ = 0;  // of the next batch
  std::array<cuda_stream, 3> streams_;
  cuda_marks marks_;
  std::shared_ptr<cuda_events> timed_;
  std::array<slot, 2> slots_;
  std::shared_ptr<std::byte> poison_;  // what the unpacking kernels read: see copy_parameters
  std::vector<slot> retired_;          // freed later: that waits for all work of the device
  std::size_t turn_ = 0;
  std::deque<std::shared_ptr<device_batch>> waiting_;
  enum class step { fresh, queued, growing, issued };
  step step_ = step::fresh;  // of the first of them
  slot* used_ = nullptr;     // by it
  std::optional<nccl_growth> growth_;
  std::vector<nccl_growth> given_up_;  // their memory may be in use until the communicator has ended
  std::size_t grows_to_ = 0;
  std::chrono::steady_clock::time_point since_{};  // its first step
  std::optional<error> lost_;
  bool stuck_ = false;  // streams may use memory of batches for ever
};

}  // namespace hvd::inline HVD_ABI::detail
