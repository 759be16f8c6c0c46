// hvd/transport/shm.hpp: ranks as processes of one host, through a segment of shared memory.
#pragma once

#include <hvd/config.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/shared_memory/agree.hpp>
#include <hvd/shared_memory/peer_communicator.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/shm/group.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

/// Finds or makes the group, and joins it. (A template, so that HVD_COMPILED can compile it once.)
template <class Group = shm_group>
std::shared_ptr<Group> join_group(group_name name, int rank, int size, const sharing_options& opts, std::uint64_t nonce,
                                  const watch& lost = {}, std::shared_ptr<job_claims> claims = {}) {
  return std::make_shared<Group>(std::move(name), rank, size, opts, nonce, lost, std::move(claims));
}
#if HVD_COMPILED
extern template std::shared_ptr<shm_group> join_group(group_name, int, int, const sharing_options&, std::uint64_t,
                                                      const watch&, std::shared_ptr<job_claims>);
#endif

}  // namespace detail

/// The default transport: nothing to install, no daemon, no port. All ranks run as one user on one host, forked from
/// a common parent or not.
///
/// When a rank ends in any way, SIGKILL included, every rank that waits for it notices within milliseconds; all ranks
/// then throw `hvd::error` of kind peer_lost with its number. One thread at a time may use a transport. After fork,
/// only the process that joined may use it.
class ShmTransport : public detail::peer_communicator {
 public:
  using options = sharing_options;
  static constexpr std::string_view timeline_name = "SHM";  ///< see timeline_name_of

  /// Joins `job` as `rank` of `size` and waits for the others. Jobs of one user are distinguished by name: a launcher
  /// draws a random name, or appends '@' and random text. Without '@' the name stays in the directory while the group
  /// lives, so that a second claim of one of its ranks is detected: that process gets invalid_argument, and the group
  /// ends with mismatch on all ranks. Cost: some 100 us; without '@' 20 ms, a wait for processes of another launch
  /// under the same name. Errors: invalid_argument (rank, size or name out of range, rank taken), timeout with the
  /// missing ranks, peer_lost, no_memory with the amount and the place, mismatch (another size or version of hvd),
  /// system.
  ShmTransport(std::string_view job, int rank, int size, const options& opts = options::from_environment())
      : ShmTransport(detail::join_group(detail::group_name(job), rank, size, opts, 0)) {}

  /// The same ranks as `over`, which find each other through its messages. All of them must be able to share memory.
  /// This is proven by a random number, which rank 0 of `over` puts into the segment and sends to the others.
  template <Bootstrap T>
    requires(!std::same_as<T, options>)
  explicit ShmTransport(T& over, const options& opts = options::from_environment()) : ShmTransport(meet(over, opts)) {}

  /// Joins the job that the environment describes (hvd/config.hpp): HVD_JOB, HOROVOD_RANK and HOROVOD_SIZE, as hvdrun
  /// sets them, or the variables of torchrun, mpiexec or srun; a group of one rank if no variable shows that a launcher
  /// has started this process. Errors: invalid_argument, which names the variable, its value and the allowed values;
  /// unsupported if the job has ranks on other hosts.
  static ShmTransport from_environment() {
    const config c = config::from_environment();
    detail::refuse_nameless(c);
    // Warns once in a process.
    static const std::string text = detail::lone_rank_warning(c, detail::variable_of_environment);
    static const int printed = text.empty() ? 0 : std::fprintf(stderr, "hvd: warning: %s\n", text.c_str());
    static_cast<void>(printed);
    if (c.launcher == "none" && !c.job.empty()) {
      detail::fail(error_kind::invalid_argument,
                   {detail::assignment("HVD_JOB", c.job),
                    " is set but HOROVOD_RANK and HOROVOD_SIZE are not; set them on every rank, or unset HVD_JOB for a "
                    "program that runs alone"});
    }
    if (c.local_size != c.size) {
      detail::fail(error_kind::unsupported,
                   {c.launcher, " has started ", c.local_size, " of the ", c.size,
                    " ranks on this host, and ShmTransport joins ranks of one host only; start all of them on one, or "
                    "use hvd::MpiTransport or hvd::Hierarchical"});
    }
    if (c.job.empty()) return {detail::joined({"alone-", detail::hex(detail::random_word())}), c.rank, c.size};
    return {detail::meeting_name(c), c.rank, c.size};
  }

  ShmTransport(ShmTransport&&) noexcept = default;
  ShmTransport& operator=(ShmTransport&& other) noexcept {
    leave();
    detail::peer_communicator::operator=(other);
    state_ = std::move(other.state_);
    return *this;
  }
  ~ShmTransport() { leave(); }

  /// Collective: ranks with the same color form a group, ordered by key and then by rank here; see no_group. Cost: that
  /// of joining. Errors: those of the constructor and of `barrier`. The deadline is the shorter one of
  /// failure_policy::timeout and start_timeout; a timeout ends this group, too.
  [[nodiscard]] ShmTransport split(int color, int key) {
    const detail::split_plan plan = detail::plan_split(peers(), color, key, detail::random_word());
    const auto lost = [&](int awaited) {
      peers().waits().begin(plan.members[static_cast<std::size_t>(awaited)]);
      peers().waits().look();
      return peers().aborted() ? detail::group_ended : state_->find_gone(plan.members);
    };
    struct waits_end {
      detail::wait_board& board;
      ~waits_end() { board.end(); }
    } const at_end{peers().waits()};
    try {
      detail::group_name name(detail::joined({"split-", detail::hex(plan.nonce)}),
                              detail::part_name(state_->file(), "split", plan.nonce), true);
      return ShmTransport(detail::join_group(std::move(name), plan.rank, static_cast<int>(plan.members.size()),
                                             state_->opts(), 0, lost, state_->claims()));
    } catch (const error& e) {
      peers().check_abort(-1, detail::phase::join);  // this group has ended, and with it the new one
      if (e.kind() == error_kind::peer_lost) peers().inform();
      if (e.rank() < 0) throw;
      // The caller never gets the new group and does not know its ranks, so the error names ranks of this group. A rank
      // may have left because of another one, which need not be in the new group.
      int culprit = plan.members[static_cast<std::size_t>(e.rank())];
      if (e.kind() == error_kind::peer_lost) culprit = state_->blame(culprit);
      // Other ranks still wait, and would blame this one when it leaves.
      if (e.kind() == error_kind::timeout) {
        peers().set_abort(e.kind(), culprit, detail::phase::join);
        try {
          peers().check_abort(-1, detail::phase::join);
        } catch (const error& first) {
          if (first.rank() != culprit) throw;
        }
      }
      const std::string who = detail::joined({"split on ", peers().label(), ": rank ", culprit});
      if (e.kind() == error_kind::peer_lost) {
        peers().report_lost(culprit, detail::phase::join);
        detail::fail(e.kind(), {who, detail::is_lost, " while the new group came together"}, culprit);
      }
      detail::fail(e.kind(), {who, " is rank ", e.rank(), " of the new group: ", detail::sentence(e)}, culprit);
    }
  }

  /// The group of the ranks that are left, in their order, when this group has lost some. Collective over those: each
  /// calls it when it has got an error of kind peer_lost, or aborted. They agree on who is left, also if more are lost
  /// meanwhile, and need no launcher and no name. This group ends, for ranks that still use it, too; after a call of
  /// this function it can only be destroyed, or be asked again. If all ranks are left, they make the same group once
  /// more. Cost: some 100 us after the last rank has come. Errors: timeout, with a rank that is alive but did not come
  /// within failure_policy::timeout (or start_timeout, if that is shorter); no_memory; invalid_argument in a forked
  /// process. Model: MPI_Comm_shrink of ULFM, and NcclTransport::without.
  [[nodiscard]] ShmTransport without_lost() {
    if (peers().orphaned()) peers().enter("without_lost");
    const detail::join_limit limit = state_->limit_of_parts();
    const auto deadline = detail::deadline_after(limit.time);
    const std::string where = detail::joined({"without_lost on ", peers().label(), ": "});
    for (;;) {
      const detail::next_members next = state_->find_survivors(deadline);
      if (next.ranks.empty()) {
        detail::fail(error_kind::timeout, {where, "rank ", next.awaited, " did not come", limit.text()}, next.awaited);
      }
      const auto lost = [&](int) { return state_->find_gone(next.ranks); };
      const auto own = std::lower_bound(next.ranks.begin(), next.ranks.end(), rank()) - next.ranks.begin();
      detail::group_name name(detail::joined({"left-", detail::hex(next.nonce)}),
                              detail::part_name(state_->file(), "left", next.nonce), true, true);
      try {
        return ShmTransport(detail::join_group(std::move(name), static_cast<int>(own),
                                               static_cast<int>(next.ranks.size()), state_->opts(), 0, lost,
                                               state_->claims()));
      } catch (const error& e) {
        if (e.kind() == error_kind::peer_lost) continue;  // on all of them: see settle_formed
        const int culprit = e.rank() < 0 ? -1 : next.ranks[static_cast<std::size_t>(e.rank())];
        detail::fail(e.kind(), {where, detail::sentence(e)}, culprit);
      }
    }
  }

  /// n elements on every rank, zero at first; collective. Collectives on them do not use staging memory. Errors:
  /// mismatch if ranks request different sizes, no_memory (on all ranks; the transport stays usable).
  template <class T>
  [[nodiscard]] shared_array<T> alloc_shared(std::size_t n) {
    std::shared_ptr<detail::segment> memory = state_->allocate(n, sizeof(T));
    if (n == 0) return {};
    std::byte* const base = memory->data();
    const std::size_t stride = memory->bytes() / static_cast<std::size_t>(size());
    return share_block<T>(std::move(memory), base, stride, n);
  }

  /// The same for memory that each rank already has in a file on a memory file system, which need not have a name. Maps
  /// n elements at the start of the file, at a new address. Collective. Empty, on all ranks, if a rank passes -1 for
  /// `fd`, or cannot open another rank's file (for example a file of another user, or of another PID namespace). The
  /// descriptors may be closed after the call. Cost: two exchanges and a mapping for each rank. Errors: those of
  /// `barrier`.
  template <class T>
  [[nodiscard]] shared_array<T> map_shared(int fd, std::size_t n) {
    std::shared_ptr<detail::peer_files> files = state_->map_files(fd, n * sizeof(T));
    if (!files) return {};
    std::byte* const base = files->base();
    const std::size_t stride = files->stride();
    return share_block<T>(std::move(files), base, stride, n);
  }

 private:
  using state = detail::shm_group;

  /// Parts of n elements in `memory` as a block of the group.
  template <class T, class Memory>
  shared_array<T> share_block(std::shared_ptr<Memory> memory, std::byte* base, std::size_t stride, std::size_t n) {
    const detail::shared_block block = state_->add_block(base, stride, n * sizeof(T));
    T* const data = reinterpret_cast<T*>(block.part(rank()));
    std::shared_ptr<void> owner(static_cast<void*>(data), [memory = std::move(memory), id = block.id,
                                                           from = std::weak_ptr<state>(state_)](void*) {
      if (const auto s = from.lock()) s->peers().remove_block(id);
    });
    return {data, n, std::move(owner)};
  }

  template <class T>
  static std::shared_ptr<state> meet(T& over, const options& opts) {
    struct {
      std::array<std::uint64_t, 2> nonce{detail::random_word(), detail::random_word()};
      std::array<char, 240> file{};
    } meeting;
    std::string file = detail::part_name(job_file(over), "over", meeting.nonce[0]);
    file.copy(meeting.file.data(), meeting.file.size() - 1);
    auto* const bytes = reinterpret_cast<std::byte*>(&meeting);
    for (int q = 1; q < over.size() && over.rank() == 0; ++q) over.send(bytes, sizeof meeting, q);
    if (over.rank() != 0) over.recv(bytes, sizeof meeting, 0);
    meeting.file.back() = '\0';
    detail::group_name name(detail::joined({"over-", detail::hex(meeting.nonce[0])}), meeting.file.data(),
                            std::same_as<T, ShmTransport>);
    // If `over` can show that one of its ranks is lost, the others do not wait for it here.
    std::vector<int> members;
    for (int q = 0; q != over.size(); ++q) members.push_back(q);
    const auto lost = [&](int) {
      if constexpr (std::same_as<T, ShmTransport>) {
        return over.state_->find_gone(members);
      } else if constexpr (PeerMemory<T>) {
        for (const int q : members) {
          if (over.peers().of(q).self.state.load(std::memory_order_acquire) == detail::presence::left) return q;
        }
      }
      return -1;
    };
    std::shared_ptr<detail::job_claims> claims;
    if constexpr (std::same_as<T, ShmTransport>) claims = over.state_->claims();
    return detail::join_group(std::move(name), over.rank(), over.size(), opts, meeting.nonce[1], lost,
                              std::move(claims));
  }
  /// The name of the first segment of the job that `over` belongs to.
  template <class T>
  static std::string job_file(const T& over) {
    if constexpr (std::same_as<T, ShmTransport>) {
      return over.state_->file();
    } else {
      return detail::segment_name(detail::job_of_environment("over"));
    }
  }

  explicit ShmTransport(std::shared_ptr<state> joined)
      : detail::peer_communicator(joined->peers()), state_(std::move(joined)) {}

  void leave() noexcept {
    if (state_) state_->leave();
    state_.reset();
  }

  std::shared_ptr<state> state_;
};

static_assert(Transport<ShmTransport> && Probing<ShmTransport> && PeerMemory<ShmTransport>);

}  // namespace hvd::inline HVD_ABI
