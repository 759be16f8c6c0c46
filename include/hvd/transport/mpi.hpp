// hvd/transport/mpi.hpp: ranks connected by an MPI, on one host or on many.
#pragma once

#include <hvd/call.hpp>
#include <hvd/detail/inform.hpp>
#include <hvd/error.hpp>
#include <hvd/selection.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/topology.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/mpi/group.hpp>
#include <hvd/transport/mpi/native.hpp>
#include <hvd/transport/mpi/tagged_messages.hpp>

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The ranks of an MPI communicator. Runs with any MPI from 3.1 on; tested with MPICH and Open MPI. Move-only; groups
/// made by `split` may outlive it.
///
/// Effects of MPI's limits:
/// * hvd's algorithms, messages, `barrier` and requests from `start` wait with a deadline, and yield the CPU (sooner if
///   ranks are oversubscribed). `native`, and everything else that uses MPI's collectives, waits inside MPI: without a
///   deadline, and in MPICH without yielding (so oversubscribed ranks use the non-blocking form there).
/// * When a rank is killed, the launcher normally ends the whole job with an exit code other than 0, and no rank gets
///   an error. Otherwise, waits in hvd's loops end with a timeout that names the silent rank.
/// * After a timeout MPI may still read or write the buffers of the call that failed: end the process, or keep them. A
///   process that exits after that, or with a status other than 0, skips MPI_Finalize, which could hang. So does any
///   rank of several hosts in MPICH before 4.2 over UCX, whose MPI_Finalize can hang: hvd tells Hydra that it is done.
/// * HVD_CHECK compares calls of collectives such as hvd::allreduce by messages; `native` and `start` themselves
///   compare nothing.
class MpiTransport {
 public:
  using options = mpi_options;
  static constexpr std::string_view timeline_name = "MPI";  ///< see timeline_name_of
  class request;

  /// A group of the ranks of `over`, which is duplicated: messages and error handler of `over` stay as they are.
  /// Collective over all its ranks. Initialises MPI if it is not yet initialised, with options::thread_level, and then
  /// finalises it when the process exits with 0. With HOROVOD_LOG_LEVEL=info rank 0 logs the name of the MPI.
  ///
  /// Errors: unsupported (MPI runs at a lower thread level than requested, is already finalised, or was started by the
  /// launcher of another MPI), invalid_argument (MPI_COMM_NULL, an intercommunicator), mismatch (ranks with different
  /// versions of hvd, on all ranks), and MPI's own as no_memory or system. Cost: some 100 us, more if ranks outnumber
  /// CPUs.
  explicit MpiTransport(MPI_Comm over = MPI_COMM_WORLD, const options& opts = options::from_environment())
      : group_(join(over, opts)) {}

  /// All processes of the launch. If MPI is not yet initialised, it is with MPI_THREAD_MULTIPLE, which an Engine needs;
  /// a running MPI keeps its level. Errors: those of the constructor.
  static MpiTransport from_environment() {
    options opts = options::from_environment();
    opts.thread_level = MPI_THREAD_MULTIPLE;
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised != 0) MPI_Query_thread(&opts.thread_level);
    return MpiTransport(MPI_COMM_WORLD, opts);
  }

  MpiTransport(MpiTransport&&) noexcept = default;
  MpiTransport& operator=(MpiTransport&&) noexcept = default;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;
  ~MpiTransport() = default;

  /// The rank of this process in the group, from 0; and the number of ranks.
  [[nodiscard]] int rank() const noexcept { return group_->rank(); }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  /// Name and version of the MPI: "Open MPI v4.1.4". Works before MPI is initialised.
  [[nodiscard]] static std::string library() { return detail::mpi_library_name(); }

  /// No rank leaves before all have entered; log p messages. Errors: timeout.
  void barrier() { group_->barrier("barrier"); }

  /// Messages in bytes, as PointToPoint describes them, of any length; `hvd::send` and `hvd::recv` take buffers. A rank
  /// may send to itself, which makes a copy. Errors: invalid_argument (no such rank, or a message to itself that was
  /// never sent), timeout; of `recv` also mismatch, for a message of another length, which is dropped.
  void send(const std::byte* data, std::size_t bytes, int peer) { group_->send(data, bytes, peer); }
  /// See `send`.
  void recv(std::byte* data, std::size_t bytes, int peer) { group_->recv(data, bytes, peer); }
  /// Sends and receives at once, so that neither waits for the other. See `send`.
  void exchange(const std::byte* out, std::size_t out_bytes, int to, std::byte* in, std::size_t in_bytes, int from) {
    group_->exchange(out, out_bytes, to, in, in_bytes, from);
  }

  /// True if a message from `peer`, or its beginning, has arrived; polls MPI. Errors: invalid_argument if there is no
  /// such rank, timeout if one has ended the group.
  [[nodiscard]] bool arrived(int peer) { return group_->arrived(peer); }
  /// Throws the timeout that has ended the group, if one has. MPI does not report lost ranks.
  void check() { group_->usable(); }
  /// The rank for which the thread of this rank currently waits, or -1; also -1 if it waits inside MPI, and in the
  /// first microseconds of a wait. Any thread may call this, as long as the transport is neither moved nor destroyed.
  [[nodiscard]] int waiting_for() const noexcept { return group_->waiting_for(); }

  /// Changes mpi_options::timeout for later operations.
  void set_timeout(options::seconds timeout) noexcept { group_->set_timeout(timeout); }
  [[nodiscard]] options::seconds timeout() const noexcept { return group_->options().timeout; }
  /// Sets a callback that can end later waits in hvd's loops, but not waits inside MPI.
  void set_interruption(const interruption& by) noexcept { group_->set_interruption(by); }

  /// A channel for many messages at once between the ranks of this group, with a communicator of its own; collective.
  [[nodiscard]] std::unique_ptr<detail::message_channel> tagged_messages() {
    detail::mpi_group& g = *group_;
    g.barrier("tagged_messages");  // with a deadline; MPI's own calls have none
    MPI_Comm own = MPI_COMM_NULL;
    g.check(MPI_Comm_dup(g.comm(), &own), "tagged_messages", "MPI_Comm_dup");
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    return std::make_unique<detail::mpi_messages>(own);
  }

  /// Called by code (`who`) that uses groups of this process in several threads at the same time. Errors: unsupported,
  /// unless MPI runs at MPI_THREAD_MULTIPLE.
  static void require_threads(std::string_view who) {
    int given = MPI_THREAD_SINGLE;
    MPI_Query_thread(&given);
    if (given >= MPI_THREAD_MULTIPLE) return;
    throw error(error_kind::unsupported,
                detail::joined({who, " uses MPI in several threads, but MPI was initialised with ",
                                detail::mpi_level_name(given),
                                "; call MPI_Init_thread with MPI_THREAD_MULTIPLE, or give that as thread_level in the "
                                "options of the first MpiTransport"}));
  }

  /// Collective: ranks with the same color form a group, ordered by key and then by rank here; see no_group. Errors:
  /// timeout; MPI's own. MPI allows some 2000 groups at a time.
  [[nodiscard]] MpiTransport split(int color, int key) {
    detail::mpi_group& g = *group_;
    g.barrier("split");  // with a deadline; MPI's own calls have none
    std::vector<int> colors(static_cast<std::size_t>(g.size()));
    g.check(MPI_Allgather(&color, 1, MPI_INT, colors.data(), 1, MPI_INT, g.comm()), "split", "MPI_Allgather");
    const int number = detail::group_number(colors, g.rank());  // MPI takes no negative color
    MPI_Comm part = MPI_COMM_NULL;
    g.check(MPI_Comm_split(g.comm(), number, key, &part), "split", "MPI_Comm_split");
    return MpiTransport(std::make_shared<detail::mpi_group>(part, g.options(), g.agreed()));
  }

  /// n elements of this rank, zero at first, in private memory. It exists so that programs run on every transport.
  /// Errors: no_memory.
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    return detail::private_array<T>(n, group_->label());
  }

  /// Runs MPI's collective for the call, any of the nine. Returns false, on all ranks and with nothing sent, if MPI has
  /// no reduction with the result of hvd's: for 16-bit floats, user types and operations, minimum and maximum of floats
  /// (MPI does not define the result for a NaN), and integer reductions that a test at the start finds wrong in this
  /// library. Waits inside MPI, see above. Results have the same bits on all ranks and in all runs if the MPI follows
  /// the standard's advice. Errors: MPI's own, no_memory, and timeout if ranks are oversubscribed (not with Open MPI).
  ///
  /// Counts and lengths beyond 2^31 go in parts, or as one element of a datatype of many bytes. Blocks of different
  /// sizes that together are longer than that go by messages.
  template <class Call>
    requires requires(detail::mpi_work& work, const Call& c) { work.start(c); }
  bool native(const Call& c) {
    detail::mpi_work work(*group_, group_->blocks());
    if (!work.start(c)) return false;
    work.wait();
    return true;
  }

  /// Starts the same without waiting, so that the caller can go on: any of the nine calls. All ranks start the same
  /// calls in the same order; in between they may call anything else. The call's buffers, reduction and partitions must
  /// live until the request is done. Returns an empty request if `native` would return false.
  template <class Call>
    requires requires(detail::mpi_work& work, const Call& c) { work.start(c); }
  [[nodiscard]] request start(const Call& c);

  /// The measured costs of this group and the user's choices, for `automatic`: see Selecting.
  [[nodiscard]] selector& selection() noexcept { return selection_; }

 private:
  explicit MpiTransport(std::shared_ptr<detail::mpi_group> group) : group_(std::move(group)) {}

  /// The message that each rank sends when it joins. The layout is the same in all versions.
  struct greeting {
    std::array<char, 24> version{};
    std::uint64_t most = 0;
    std::uint64_t sound = 0;
    std::uint64_t oversubscribed = 0;
  };

  /// True if this host has more ranks than CPUs in the union of those that they may use. (A launcher may bind each rank
  /// to a different CPU.)
  static bool is_oversubscribed(MPI_Comm comm) {
    MPI_Comm here = MPI_COMM_NULL;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here) != MPI_SUCCESS) return false;
    std::bitset<4096> mine, all;
    for (const int cpu : host().cpu_ids) mine.set(static_cast<std::size_t>(cpu) % mine.size());
    int ranks = 1;
    MPI_Comm_size(here, &ranks);
    MPI_Allreduce(&mine, &all, sizeof all, MPI_BYTE, MPI_BOR, here);
    MPI_Comm_free(&here);
    const double cpus = all.none() ? host().cpus : static_cast<double>(all.count());
    return ranks > std::min(cpus, host().quota);
  }

  static std::shared_ptr<detail::mpi_group> join(MPI_Comm over, const options& opts) {
    detail::mpi_process::start(opts.thread_level);
    if (over == MPI_COMM_NULL) throw error(error_kind::invalid_argument, "MpiTransport: MPI_COMM_NULL has no ranks");
    const auto check = [](int code, const char* function) {
      if (code == MPI_SUCCESS) return;
      throw error(detail::mpi_error_kind(code),
                  std::string("MpiTransport: ") + function + " failed: " + detail::mpi_text(code));
    };
    int inter = 0, rank = 0;
    check(MPI_Comm_test_inter(over, &inter), "MPI_Comm_test_inter");
    if (inter != 0) {
      throw error(error_kind::invalid_argument,
                  "MpiTransport: an intercommunicator is not one group; MPI_Intercomm_merge makes one of it");
    }
    MPI_Comm own = MPI_COMM_NULL;
    check(MPI_Comm_dup(over, &own), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    int size = 1;
    MPI_Comm_size(own, &size);
    MPI_Comm_rank(own, &rank);

    greeting mine;
    std::copy_n(version.begin(), std::min(version.size(), mine.version.size() - 1), mine.version.begin());
    mine.most = opts.most;
    mine.oversubscribed = is_oversubscribed(own) ? 1 : 0;
    mine.sound = detail::mpi_sound_integers::of_this_library().bits;
    std::vector<greeting> all(static_cast<std::size_t>(size));
    check(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, own), "MPI_Allgather");
    detail::mpi_agreement agreed{false, {mine.sound}};
    for (int q = 0; q != size; ++q) {
      const greeting& first = all.front();
      const greeting& theirs = all[static_cast<std::size_t>(q)];
      if (theirs.version != first.version || theirs.most != first.most) {
        MPI_Comm_free(&own);
        throw error(error_kind::mismatch,
                    "MpiTransport: rank 0 has hvd " + std::string(first.version.data()) + " and takes " +
                        std::to_string(first.most) + " elements at once, rank " + std::to_string(q) + " has hvd " +
                        theirs.version.data() + " and takes " + std::to_string(theirs.most) +
                        "; build all ranks from one version, with the same options",
                    q);
      }
      agreed.oversubscribed |= theirs.oversubscribed != 0;
      agreed.sound.bits &= theirs.sound;
    }
    if (over == MPI_COMM_WORLD && rank == 0) {
      detail::inform({size, " ranks over ", detail::mpi_library_name()});
    }
    return std::make_shared<detail::mpi_group>(own, opts, agreed);
  }

  std::shared_ptr<detail::mpi_group> group_;
  selector selection_;
};

/// A collective that `MpiTransport::start` has started. Move-only. For one thread at a time, like its transport. The
/// destructor waits.
class MpiTransport::request {
 public:
  request() = default;
  request(request&&) noexcept = default;
  request& operator=(request&& other) noexcept {
    end();
    group_ = std::move(other.group_);
    work_ = std::move(other.work_);
    return *this;
  }
  ~request() { end(); }

  /// True if a collective was started; false if MPI has no such collective.
  [[nodiscard]] explicit operator bool() const noexcept { return work_ != nullptr; }
  /// True if it has ended; each call lets MPI make progress. The last step (average, postscale) happens here.
  [[nodiscard]] bool done() { return work_ == nullptr || work_->done(); }
  /// Waits until it has ended. Errors: timeout.
  void wait() {
    if (work_ != nullptr) work_->wait();
  }

 private:
  friend class MpiTransport;
  request(std::shared_ptr<detail::mpi_group> group, std::unique_ptr<detail::mpi_work> work)
      : group_(std::move(group)), work_(std::move(work)) {}
  void end() noexcept {
    try {
      wait();
    } catch (const error&) {
      // The next call on this transport throws it again.
    }
    work_.reset();
  }

  std::shared_ptr<detail::mpi_group> group_;
  std::unique_ptr<detail::mpi_work> work_;
};

template <class Call>
  requires requires(detail::mpi_work& work, const Call& c) { work.start(c); }
MpiTransport::request MpiTransport::start(const Call& c) {
  auto work = std::make_unique<detail::mpi_work>(*group_, false);
  if (!work->start(c)) return {};
  return {group_, std::move(work)};
}

static_assert(Transport<MpiTransport> && Probing<MpiTransport> && Selecting<MpiTransport> && !PeerMemory<MpiTransport>);
static_assert(Native<MpiTransport, allreduce_call> && Native<MpiTransport, reduce_call> &&
              Native<MpiTransport, reduce_scatter_call> && Native<MpiTransport, allgather_call> &&
              Native<MpiTransport, broadcast_call> && Native<MpiTransport, alltoall_call> &&
              Native<MpiTransport, gather_call> && Native<MpiTransport, scatter_call> &&
              Native<MpiTransport, scan_call> && Native<MpiTransport, exscan_call>);

}  // namespace hvd::inline HVD_ABI
