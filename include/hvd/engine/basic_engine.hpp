// hvd/engine/basic_engine.hpp: the functions of every engine.
#pragma once

#include <hvd/engine/metrics.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/tensors.hpp>
#include <hvd/timeline.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

namespace hvd::inline HVD_ABI {

namespace detail {
class driver;
class erased_device;
class process_sets;
}  // namespace detail

/// Runs named operations in the background. Each rank submits them in any order; they run in one order on all ranks,
/// each as soon as all ranks have submitted it; small ones are fused. Names and signatures (type, shape, operation) are
/// negotiated once; from then on, one exchange of bits covers everything that is ready. An idle engine sends nothing
/// and uses no CPU, except for the watch's check each second. (The contract is Horovod's: A. Sergeev, M. Del Balso,
/// "Horovod: fast and easy distributed deep learning in TensorFlow", 2018.)
///
/// Ranks always agree over a transport on the host, which also reduces tensors on the host. An `Engine`
/// (hvd/engine.hpp) is made over that transport. Its functions depend neither on the transport's type nor on the
/// device's, so a function of a program can take any engine as a `BasicEngine&`. A `Device` (hvd/engine/device.hpp)
/// handles tensors on a device: several batches at a time, while the engine goes on. Batches end in the order in which
/// they were started. If a batch fails, the others go on, unless a rank is lost.
///
/// Any thread may call any function, except that all ranks must call the collective ones in the same order. The rank of
/// an error (`error::rank`) is a rank of the whole group, also for operations in a process set. If a rank is lost and
/// others end because of it, errors name the lost rank. In a forked child, shutdown and stop_timeline do nothing, and
/// every other call that uses the engine throws invalid_argument at once.
class BasicEngine {
 public:
  BasicEngine(const BasicEngine&) = delete;
  BasicEngine& operator=(const BasicEngine&) = delete;
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// Submits, and returns at once; the tensors' memory belongs to the engine until the handle is done. Errors thrown
  /// here, without any effect: invalid_argument for a name that a handle holds, for an operation, type, shape or splits
  /// that can never work, and for a process set that is unknown or that this rank is not in; unsupported for
  /// reduce_scatter with adasum, and for device memory if the engine has no device; aborted after shutdown. Errors of
  /// the handle: mismatch, on all ranks, if they submit different operations under one name; peer_lost, timeout or
  /// aborted if the group has failed, for all operations in flight and submitted later. If `wake` is false, no thread
  /// is woken: the caller is about to wait, and then does the work itself.
  handle submit(request r, int process_set = 0, bool wake = true) { return start(std::move(r), process_set, wake); }
  /// Submits and waits; the calling thread does the work if it can. Errors: those of `submit` and of the handle.
  handle run(request r, int process_set = 0) {
    handle h = start(std::move(r), process_set, false);
    h.wait();
    return h;
  }

  // ---- by buffers, and by lists of them -----------------------------------------------------------------------

  // Buffers must live until the handle is done and must not move; temporaries do not compile. `op` is a built-in
  // operation, such as `hvd::average` or `hvd::scaled(hvd::sum, 0.5)`, or a reduce_op.

  /// inout[i] = op over all ranks, by name. The tensors of a list are reduced together, when all ranks have submitted
  /// it.
  template <class B>
  [[nodiscard]] handle allreduce(std::string name, B&& inout, dynamic_op op = {}, submit_options how = {}) {
    return reduce(asked(operation::allreduce, std::move(name), std::forward<B>(inout)), op, std::move(how));
  }
  /// Sends the root's elements to all ranks, in place; also for a list.
  template <class B>
  [[nodiscard]] handle broadcast(std::string name, B&& inout, int root, submit_options how = {}) {
    request r = asked(operation::broadcast, std::move(name), std::forward<B>(inout));
    r.root = root;
    return submit(std::move(r), std::move(how));
  }
  /// Gathers the elements of all ranks, whose numbers of elements may differ; the result is the handle's `output`.
  template <class B>
  [[nodiscard]] handle allgather(std::string name, B&& in, submit_options how = {}) {
    return submit(asked_input(operation::allgather, std::move(name), std::forward<B>(in)), std::move(how));
  }
  /// This rank's part of the reduction; if the elements do not divide evenly, the first ranks get one more. The result
  /// is the handle's `output`.
  template <class B>
  [[nodiscard]] handle reduce_scatter(std::string name, B&& in, dynamic_op op = {}, submit_options how = {}) {
    return reduce(asked_input(operation::reduce_scatter, std::move(name), std::forward<B>(in)), op, std::move(how));
  }
  /// Sends splits[r] elements to rank r; the result is the handle's `output`, with the number of elements from each
  /// rank.
  template <class B>
  [[nodiscard]] handle alltoall(std::string name, B&& in, std::vector<std::size_t> splits = {},
                                submit_options how = {}) {
    request r = asked_input(operation::alltoall, std::move(name), std::forward<B>(in));
    r.tensors.back().splits = std::move(splits);
    return submit(std::move(r), std::move(how));
  }
  /// Done when all ranks of the process set have submitted it.
  [[nodiscard]] handle barrier(std::string name = "barrier", int process_set = 0) {
    return submit(asked(operation::barrier, std::move(name)), process_set);
  }

  // ---- ranks that have no more data ---------------------------------------------------------------------------

  /// This rank has nothing more to submit until all ranks have joined. Until then it contributes zeros to every
  /// allreduce with sum, average (which divides by the number of all ranks) or adasum, and takes part in barriers.
  /// Other operations end with an error (unsupported) on the ranks that submit them. The handle's `last_joined` is the
  /// rank that joined last.
  [[nodiscard]] handle join();

  // ---- results on a device ------------------------------------------------------------------------------------

  /// Waits until the work queued on this rank's device has ended, in all process sets, and throws if any has ever
  /// failed. Call it before results are saved: when a rank is lost, a collective on a GPU ends early with unusable
  /// results, and the work queued behind it runs as if it had not. Waits for no operation that some rank has yet to
  /// submit; does not throw for a rank that is lost, or has left, while nothing is queued.
  void settle();

  // ---- process sets -------------------------------------------------------------------------------------------

  /// Adds a group of some ranks, with its own operations and names, which runs independently of all others. Collective
  /// over all ranks, including those outside of the set; waits. Returns the number of the set, from 1. Errors: mismatch
  /// if ranks pass different lists; invalid_argument for an empty list, and for ranks that do not exist or are listed
  /// twice.
  int add_process_set(std::vector<int> ranks);
  /// Removes a process set; collective over all ranks; waits. Operations in flight in it end with an error. Errors:
  /// invalid_argument for 0, and for a set that does not exist.
  void remove_process_set(int id);
  /// The ranks of a process set. Errors: invalid_argument if no set has this number.
  [[nodiscard]] std::vector<int> process_set(int id) const;

  // ---- memory -------------------------------------------------------------------------------------------------

  /// Memory for gradients, zero at first. If ranks have common memory, an allreduce of tensors in it, in place and at
  /// the same offset on all ranks, copies nothing. Collective over all ranks; waits. The memory lives until both the
  /// pointer and the engine are gone. Errors: no_memory, which ends the engine; mismatch if ranks request different
  /// sizes.
  [[nodiscard]] std::shared_ptr<std::byte> alloc_bucket(std::size_t bytes);
  /// The same on the engine's device, this rank's `device`: memory that is registered with its library, such as NCCL. A
  /// tensor that fills it, or a long one, is reduced without a copy. Further errors: unsupported if the engine's device
  /// has no such memory; those of connecting the device.
  [[nodiscard]] std::shared_ptr<std::byte> alloc_device_bucket(std::size_t bytes, int device);

  // ---- the timeline -------------------------------------------------------------------------------------------

  /// Starts recording this rank's work in a file (hvd/timeline.hpp). Each rank may start at any time, independently of
  /// the others, and all may name the same file. Errors: those of Timeline::start.
  void start_timeline(const std::string& path, bool mark_cycles = false);
  /// Stops recording. The file is then strict JSON, as it was after every append.
  void stop_timeline();
  /// The timeline, for example to check that it records, or to count dropped events.
  [[nodiscard]] const Timeline& timeline() const noexcept;

  // ---- counters -----------------------------------------------------------------------------------------------

  /// Counts the end of a step of the program, in which this rank has processed `samples` samples (0: unknown), and
  /// marks it in the timeline. Cost: two additions. Does nothing in a forked child.
  void mark_step(std::uint64_t samples = 0) noexcept;
  /// Counters of this rank's work since the engine was made, and its operations in flight. Cost: some microseconds.
  [[nodiscard]] engine_metrics metrics() const;

  /// Ends the engine, as the destructor does; later submissions throw aborted. Does nothing in a forked child.
  void shutdown();

 protected:
  /// An engine without a device gets a null `device`.
  BasicEngine(detail::erased_transport& comm, engine_options opts, std::unique_ptr<detail::erased_device> device);
  ~BasicEngine();
  void continue_over(detail::erased_transport& comm, std::unique_ptr<detail::erased_device> device);

 private:
  [[nodiscard]] bool forked() const noexcept { return ::getpid() != pid_; }
  void refuse_fork() const { detail::refuse_fork(pid_, rank_, size_); }

  [[nodiscard]] std::shared_ptr<detail::driver> driver(int process_set) const;
  handle start(request r, int process_set, bool wake);

  handle submit(request r, submit_options how) {
    r.priority = how.priority;
    r.wire = how.wire;
    r.keep = std::move(how.keep);
    return start(std::move(r), how.process_set, how.wake);
  }
  handle reduce(request r, const dynamic_op& op, submit_options how) {
    r.op = op.op;
    r.prescale = op.prescale;
    r.postscale = op.postscale;
    return submit(std::move(r), std::move(how));
  }

  static request asked(operation kind, std::string name) {
    request r;
    r.kind = kind;
    r.name = std::move(name);
    return r;
  }
  template <class B>
  static request asked(operation kind, std::string name, B&& inout) {
    request r = asked(kind, std::move(name));
    if constexpr (std::same_as<std::remove_cvref_t<B>, tensor_list>) {
      for (const fused& f : std::span<const fused>(inout)) r.tensors.push_back(tensor_of(f));
    } else {
      r.tensors.push_back(tensor_of(fused::of(std::forward<B>(inout))));
    }
    return r;
  }
  template <class B>
  static request asked_input(operation kind, std::string name, B&& in) {
    request r = asked(kind, std::move(name));
    r.tensors.push_back(tensor_of(fused::input(std::forward<B>(in))));
    return r;
  }
  static tensor tensor_of(const fused& f) {
    if (f.wire != f.type) {
      detail::fail(error_kind::invalid_argument,
                   {"a tensor of ", name(f.type), " in a list for the engine has the wire type ", name(f.wire),
                    "; the engine sends all tensors of a list in one type: set submit_options::wire"});
    }
    return detail::tensor_of(f);
  }

  std::atomic<int> rank_, size_;
  const pid_t pid_ = ::getpid();
  std::unique_ptr<detail::process_sets> sets_;
};

}  // namespace hvd::inline HVD_ABI
