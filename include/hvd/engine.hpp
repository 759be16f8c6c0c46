// hvd/engine.hpp: named tensors, submitted in any order by each rank, reduced in one agreed order, fused.
#pragma once

#include <hvd/buffer.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/engine/clock.hpp>
#include <hvd/engine/driver.hpp>
#include <hvd/engine/options.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/engine/validate.hpp>
#include <hvd/engine/watch.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

namespace hvd::inline HVD_ABI {

/// Runs named operations in the background. Each rank submits them in any order; they run in one order on all ranks,
/// each as soon as all ranks have submitted it, many small ones as one. Names and signatures (type, shape, operation)
/// are negotiated once; from then on ranks agree with one exchange of bits for all that is ready. An idle engine sends
/// nothing and, except for the watch's look each second, uses no CPU. (The contract is Horovod's: A. Sergeev, M. Del
/// Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018.)
///
/// Any thread may call any function, except that all ranks must call the collective ones in the same order. The rank of
/// an error (`error::rank`) is one of the whole group, also for operations in a process set. Where ranks end because
/// another one was lost, errors name the one that was lost. In a forked child, shutdown and stop_timeline do nothing,
/// and every other call that uses the engine throws invalid_argument at once.
template <Probing T>
class Engine {
 public:
  /// Collective over the group of `comm`, which stays the caller's. Errors: those of `split`; unsupported over an MPI
  /// that does not run at MPI_THREAD_MULTIPLE; mismatch, on all ranks, if they give different options.
  explicit Engine(T& comm, engine_options opts = engine_options::from_environment())
      : opts_(std::move(opts)), rank_(comm.rank()), size_(comm.size()),
        clock_(detail::agree_on_clock(comm, detail::random_word())) {
    if constexpr (requires { T::require_threads(""); }) T::require_threads("Engine");
    if (comm.size() > 1) detail::agree_on_options(comm, opts_);
    if (!opts_.timeline.empty()) start_timeline(opts_.timeline, opts_.mark_cycles);
    for (int r = 0; r != comm.size(); ++r) in_->sets[0].push_back(r);
    try {
      T control = comm.split(0, comm.rank());
      T data = comm.split(0, comm.rank());
      in_->drivers[0] = make_driver(std::move(control), std::move(data), 0, in_->sets[0]);
      if (opts_.watch && opts_.thread && comm.size() > 1) start_watch(comm.split(0, comm.rank()));
    } catch (const error& e) {
      detail::fail_at_start(comm, e, *in_->causes);
    }
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// What is in flight on this rank ends with an error of kind aborted; other ranks that wait for this one get an
  /// error.
  ~Engine() {
    shutdown();
    // A forked child leaks it: threads that it does not have may have been changing it, or hold its locks.
    if (forked()) in_.release();
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// Submits, and returns at once; the tensors' memory belongs to the engine until the handle is done. Errors thrown
  /// here, without any effect: invalid_argument for a name in flight, for an operation, type, shape or splits that can
  /// never work, and for a process set that is unknown or that this rank is not in; unsupported for reduce_scatter with
  /// adasum; aborted after shutdown. Errors of the handle: mismatch, on all ranks, if they submit different things
  /// under one name; peer_lost, timeout or aborted if the group has failed, for all that is in flight and all that is
  /// submitted later.
  /// With `wake` false no thread is woken, because the caller is about to wait and then does the work itself.
  handle submit(request r, int process_set = 0, bool wake = true) { return start(std::move(r), process_set, wake); }
  /// Submits and waits: the calling thread does the work where it can. Errors: as of `submit` and the handle.
  handle run(request r, int process_set = 0) {
    handle h = start(std::move(r), process_set, false);
    h.wait();
    return h;
  }

  // ---- by buffers of one type ---------------------------------------------------------------------------------

  /// inout[i] = op over all ranks, by name. The buffer must live until the handle is done.
  template <Buffer B>
  handle allreduce(std::string name, B&& inout, reduce_op op = reduce_op::sum, double prescale = 1.0,
                   double postscale = 1.0, int process_set = 0) {
    request r = asked(operation::allreduce, std::move(name), of(as_output(inout)));
    r.op = op;
    r.prescale = prescale;
    r.postscale = postscale;
    return submit(std::move(r), process_set);
  }
  /// The root's elements, to all ranks, in place.
  template <Buffer B>
  handle broadcast(std::string name, B&& inout, int root, int process_set = 0) {
    request r = asked(operation::broadcast, std::move(name), of(as_output(inout)));
    r.root = root;
    return submit(std::move(r), process_set);
  }
  /// The elements of all ranks, which may have different numbers of them; the result is the handle's `output`.
  template <Buffer B>
  handle allgather(std::string name, const B& in, int process_set = 0) {
    return submit(asked(operation::allgather, std::move(name), from(as_span(in))), process_set);
  }
  /// This rank's part of the reduction; if the elements do not divide evenly, the first ranks get one more. The result
  /// is the handle's `output`.
  template <Buffer B>
  handle reduce_scatter(std::string name, const B& in, reduce_op op = reduce_op::sum, int process_set = 0) {
    request r = asked(operation::reduce_scatter, std::move(name), from(as_span(in)));
    r.op = op;
    return submit(std::move(r), process_set);
  }
  /// splits[r] elements to rank r; the result is the handle's `output`, with the number of elements from each rank.
  template <Buffer B>
  handle alltoall(std::string name, const B& in, std::vector<std::size_t> splits = {}, int process_set = 0) {
    request r = asked(operation::alltoall, std::move(name), from(as_span(in)));
    r.tensors.back().splits = std::move(splits);
    return submit(std::move(r), process_set);
  }
  /// Done when all ranks of the process set have submitted it.
  handle barrier(std::string name = "barrier", int process_set = 0) {
    request r;
    r.kind = operation::barrier;
    r.name = std::move(name);
    return submit(std::move(r), process_set);
  }

  // ---- ranks that have no more data ---------------------------------------------------------------------------

  /// This rank has nothing more to submit until all ranks have joined. Until then it gives zeros to every allreduce
  /// with sum, average (which divides by the number of all ranks) or adasum, and takes part in barriers; other
  /// operations end with an error (unsupported) on the ranks that submit them. The handle's `last_joined` is the rank
  /// that joined last.
  handle join() {
    const auto l = driver(0);
    return {l->join(), l};
  }

  // ---- process sets -------------------------------------------------------------------------------------------

  /// A group of some ranks, with operations and names of its own, which runs beside all others. Collective over all
  /// ranks, also those that are not in it; waits. Returns its number, from 1. Errors: mismatch if ranks give different
  /// lists; invalid_argument for an empty list, and for ranks that do not exist or are listed twice.
  int add_process_set(std::vector<int> ranks) {
    refuse_fork();
    detail::check_members(ranks, rank(), size());
    const std::lock_guard one(in_->managing);
    return manage(detail::about("add_process_set", {ranks.begin(), ranks.end()}));
  }
  /// Ends a process set; collective over all ranks; waits. What is in flight in it ends with an error. Errors:
  /// invalid_argument for 0, and for a set that does not exist.
  void remove_process_set(int id) {
    refuse_fork();
    {
      const std::lock_guard lock(in_->mutex);
      // After shutdown there are no sets: manage reports that.
      if (!in_->sets.empty() && (id == 0 || in_->sets.find(id) == in_->sets.end())) {
        detail::fail(error_kind::invalid_argument,
                     {"remove_process_set: there is no process set ", id, " that could be removed"});
      }
    }
    const std::lock_guard one(in_->managing);
    manage(detail::about("remove_process_set", {static_cast<std::size_t>(id)}));
  }
  /// The ranks of a process set. Errors: invalid_argument if no set has this number.
  [[nodiscard]] std::vector<int> process_set(int id) const {
    refuse_fork();
    const std::lock_guard lock(in_->mutex);
    const auto found = in_->sets.find(id);
    if (found == in_->sets.end()) detail::no_such_set(id);
    return found->second;
  }

  // ---- memory -------------------------------------------------------------------------------------------------

  /// Memory for gradients that are not copied: where ranks have common memory, an allreduce reduces tensors in it where
  /// they lie, if they are in place and at the same offset on all ranks. Zero at first. Collective over all ranks;
  /// waits. It lives until both the pointer and the engine are gone. Errors: no_memory, which ends the engine; mismatch
  /// if ranks want different sizes.
  [[nodiscard]] std::shared_ptr<std::byte> alloc_bucket(std::size_t bytes) {
    const auto l = driver(0);
    const std::lock_guard one(in_->managing);
    manage(detail::about("alloc_bucket", {bytes}));
    return {l, in_->last_bucket};
  }

  // ---- the timeline -------------------------------------------------------------------------------------------

  /// Records what this rank does from now on in a file (hvd/timeline.hpp). Each rank may start at any time,
  /// independently of the others, and all may name the same file. Errors: those of Timeline::start.
  void start_timeline(const std::string& path, bool mark_cycles = false) {
    refuse_fork();
    in_->timeline.start(path, {.rank = rank_,
                               .size = size_,
                               .mark_cycles = mark_cycles,
                               .job = detail::hex(clock_.job),
                               .clock_offset = std::chrono::nanoseconds(clock_.offset_ns),
                               .start_steady_ns = clock_.steady_ns,
                               .start_epoch_us = clock_.epoch_us});
  }
  /// Stops it. The file is strict JSON when this returns, as it was after every append.
  void stop_timeline() {
    if (!forked()) in_->timeline.stop();
  }
  /// To see whether it records, and how many events were dropped.
  [[nodiscard]] const Timeline& timeline() const noexcept { return in_->timeline; }

  /// Ends the engine, as the destructor does; later submissions throw aborted. Does nothing in a forked child.
  void shutdown() {
    if (forked()) return;
    std::map<int, std::shared_ptr<driver_type>> all;
    {
      const std::lock_guard lock(in_->mutex);
      all.swap(in_->drivers);
      in_->sets.clear();
    }
    for (const auto& [id, l] : all) l->close();
    all.clear();
    in_->watch.reset();  // its thread asks drivers, which takes the lock: so not under it
  }

 private:
  using driver_type = detail::driver<T>;

  [[nodiscard]] bool forked() const noexcept { return ::getpid() != pid_; }
  void refuse_fork() const { detail::refuse_fork(pid_, rank_, size_); }

  /// Ranks are those of the whole group.
  std::shared_ptr<driver_type> make_driver(T control, T data, int set, const std::vector<int>& ranks) {
    // An `alloc_bucket` pointer keeps the driver alive, also in a forked child, where nothing of it can be destroyed.
    std::shared_ptr<driver_type> made(
        new driver_type(std::move(control), std::move(data), opts_, in_->timeline, {set, ranks, size_}, in_->causes),
        [owner = pid_](const driver_type* l) {
          if (::getpid() == owner) delete l;
        });
    made->start([this](const request& r) { return managed(r); });
    return made;
  }
  [[nodiscard]] std::shared_ptr<driver_type> driver(int process_set) const {
    refuse_fork();
    const std::lock_guard lock(in_->mutex);
    const auto found = in_->drivers.find(process_set);
    if (found != in_->drivers.end()) return found->second;
    if (in_->sets.empty()) detail::fail(error_kind::aborted, {"the engine was shut down"});
    if (in_->sets.find(process_set) == in_->sets.end()) detail::no_such_set(process_set);
    detail::fail(error_kind::invalid_argument, {"this rank is not in process set ", process_set});
  }
  handle start(request r, int process_set, bool wake) {
    const auto l = driver(process_set);
    detail::validate(r, l->rank(), l->size());
    return {l->submit(std::move(r), wake), l};
  }

  void start_watch(T comm) {
    detail::watched what;
    what.list = [this] {
      std::vector<detail::pending_operation> all;
      const std::lock_guard lock(in_->mutex);
      for (const auto& [id, l] : in_->drivers) {
        for (detail::pending_operation& f : l->snapshot()) {
          f.set = id;
          all.push_back(std::move(f));
        }
      }
      return all;
    };
    what.state = [this](int set) {
      const std::lock_guard lock(in_->mutex);
      const auto found = in_->drivers.find(set);
      detail::driver_state s = found == in_->drivers.end() ? detail::driver_state{} : found->second->state();
      if (s.waiting_for >= 0) s.waiting_for = in_->sets.at(set)[static_cast<std::size_t>(s.waiting_for)];
      return s;
    };
    what.blame = [this](int set) {
      std::shared_ptr<driver_type> l;
      {
        const std::lock_guard lock(in_->mutex);
        if (const auto found = in_->drivers.find(set); found != in_->drivers.end()) l = found->second;
      }
      return l ? l->held_up_by() : -1;
    };
    what.ranks = [this](int set) {
      const std::lock_guard lock(in_->mutex);
      const auto found = in_->sets.find(set);
      return found == in_->sets.end() ? std::vector<int>() : found->second;
    };
    what.give_up = [this](const error& why) {
      const std::lock_guard lock(in_->mutex);
      for (const auto& [id, l] : in_->drivers) l->give_up(why);
    };
    in_->watch = std::make_unique<detail::stall_watch<T>>(std::move(comm), opts_, std::move(what));
  }

  /// A request to the engine itself, one at a time on this rank (`managing`); returns its answer.
  int manage(request r) {
    const auto l = driver(0);
    const auto end = l->submit(std::move(r), false);
    handle(end, l).wait();
    return end->answer;
  }
  /// Runs such a request, on the thread that drives driver 0, at the same point of the order on all ranks.
  int managed(const request& r) {
    if (r.name == "engine: alloc_bucket") {
      in_->last_bucket = driver(0)->add_bucket(r.tensors.front().shape.front());
      return 0;
    }
    std::vector<int> listed(r.tensors.front().shape.begin(), r.tensors.front().shape.end());
    return r.name == "engine: add_process_set" ? add_set(std::move(listed)) : remove_set(listed.front());
  }
  int add_set(std::vector<int> ranks) {
    const auto world = driver(0);
    const auto place = std::find(ranks.begin(), ranks.end(), world->rank());
    const bool member = place != ranks.end();
    const int id = ++in_->last_set;  // used only by the thread that drives driver 0
    const int color = member ? 0 : 1, key = static_cast<int>(place - ranks.begin());
    T control = world->data().split(color, key);
    T data = world->data().split(color, key);
    std::shared_ptr<driver_type> made;
    try {
      if (member) made = make_driver(std::move(control), std::move(data), id, ranks);
    } catch (const error& e) {  // its rank counts in the new group
      if (e.rank() < 0 || e.rank() >= static_cast<int>(ranks.size())) throw;
      const int culprit = ranks[static_cast<std::size_t>(e.rank())];
      detail::fail(e.kind(),
                   {"rank ", culprit, " is rank ", e.rank(), " of process set ", id, ": ", detail::sentence(e)},
                   culprit);
    }
    const std::lock_guard lock(in_->mutex);
    if (in_->sets.empty()) return id;  // shut down meanwhile
    in_->sets[id] = std::move(ranks);
    if (member) in_->drivers[id] = std::move(made);
    return id;
  }
  int remove_set(int id) {
    std::shared_ptr<driver_type> gone;
    {
      const std::lock_guard lock(in_->mutex);
      if (const auto found = in_->drivers.find(id); found != in_->drivers.end()) {
        gone = std::move(found->second);
        in_->drivers.erase(found);
      }
      in_->sets.erase(id);
    }
    if (gone) gone->retire();
    return id;
  }

  static request asked(operation kind, std::string name, tensor t) {
    request r;
    r.kind = kind;
    r.name = std::move(name);
    r.tensors.push_back(std::move(t));
    return r;
  }
  template <class E>
  static tensor of(std::span<E> s) {
    tensor t = from(std::span<const E>(s));
    t.out = reinterpret_cast<std::byte*>(s.data());
    return t;
  }
  template <class E>
  static tensor from(std::span<E> s) {
    using element = std::remove_const_t<E>;
    static_assert(dtype_of<element> != dtype::user,
                  "hvd: the engine takes numbers and bool: other types have no name that ranks could compare");
    tensor t;
    t.in = reinterpret_cast<const std::byte*>(s.data());
    t.type = dtype_of<element>;
    t.shape = {s.size()};
    return t;
  }

  /// State that the engine's threads use.
  struct inner {
    Timeline timeline;  // outlives the drivers
    std::shared_ptr<detail::cause_board> causes = std::make_shared<detail::cause_board>();
    std::mutex mutex;  // guards drivers and sets
    std::map<int, std::shared_ptr<driver_type>> drivers;
    std::map<int, std::vector<int>> sets;
    int last_set = 0;
    std::mutex managing;
    std::byte* last_bucket = nullptr;  // written by the thread that drives, read by the one that waits
    std::unique_ptr<detail::stall_watch<T>> watch;
  };

  const engine_options opts_;
  const int rank_, size_;
  const detail::job_clock clock_;
  const pid_t pid_ = ::getpid();
  std::unique_ptr<inner> in_ = std::make_unique<inner>();
};

}  // namespace hvd::inline HVD_ABI
