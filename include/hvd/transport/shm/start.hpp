// hvd/transport/shm/start.hpp: makes a group's segment, and finds it by the name of the job.
#pragma once

#include <hvd/detail/function_ref.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/policy.hpp>
#include <hvd/shared_memory/abort.hpp>
#include <hvd/shared_memory/fork_guard.hpp>
#include <hvd/shared_memory/layout.hpp>
#include <hvd/shared_memory/segment.hpp>
#include <hvd/topology.hpp>

#include <cerrno>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The name under which the ranks of a group find each other.
struct group_name {
  std::string job;         ///< for messages
  std::string file;        ///< of the segment
  bool part = false;       ///< belongs to a group that exists already
  bool survivors = false;  ///< of a group that has lost ranks: see settle_formed

  template <std::convertible_to<std::string_view> T>
  group_name(const T& name) : job(name), file(segment_name(job)) {}
  group_name(std::string job_text, std::string file_name, bool is_part, bool of_survivors = false)
      : job(std::move(job_text)), file(std::move(file_name)), part(is_part), survivors(of_survivors) {}

  /// True if a user chose the name: another launch may then use it at the same time.
  [[nodiscard]] bool ambiguous() const noexcept { return !part && job.find('@') == job.npos; }
};

/// A number for this process that is unique on the host: process ids are unique only within their namespace.
inline std::uint64_t process_identity() noexcept {
  struct stat space {};
  ::stat("/proc/self/ns/pid", &space);
  const std::uint64_t number = space.st_ino;
  return number << 32 | static_cast<std::uint32_t>(::getpid());
}

/// A segment's geometry, computed from values that no other process can change: its length, and this rank's `size`.
inline geometry geometry_of(const segment& s, int size) {
  return make_geometry(size, (s.bytes() - sizeof(group_header)) / static_cast<std::size_t>(size) + header_bytes);
}

/// A new group's memory under its name, made by rank 0 or by the launcher of all ranks; nothing if the name is taken.
/// `nonce` (0: draw one) is the number that ranks which meet over another transport expect to find.
inline std::optional<segment> create_group(const group_name& name, int size, const sharing_options& opts,
                                           std::uint64_t nonce, bool launched = false) {
  if (!name.part) segment::sweep(opts.memory.directory);
  const geometry shape = make_geometry(size, opts.memory.staging_bytes);
  // Each rank reserves its own window, so that the pages lie in its own NUMA node.
  segment s = segment::make(opts.memory.directory, name.file, group_bytes(size, shape), sizeof(group_header), true);
  auto* const h = new (s.data()) group_header;
  h->total_bytes = s.bytes();
  h->nonce = {nonce != 0 ? nonce : random_word(), random_word()};
  version.copy(h->version.data(), h->version.size() - 1);
  name.job.copy(h->job.data(), h->job.size() - 1);
  h->job_hash = text_hash(name.job);
  h->size = size;
  h->check = opts.failure.check ? 1 : 0;
  h->windows = shape;
  h->caches = {host().l2, host().l3};
  h->launched = launched ? 1 : 0;
  // Rank 0 locks its byte before any process can find the segment: another one that claims to be rank 0 comes too late.
  if (!s.lock(segment::creator_byte) || (!launched && !s.lock(0))) {
    fail(error_kind::system, {"cannot lock ", s.path()});
  }
  // No other process looks for the segment of a single rank without a launcher.
  if ((size > 1 || launched) && !s.publish()) return std::nullopt;
  return s;
}

/// The last part of error texts for ranks that did not find each other.
inline constexpr const char* how_to_meet =
    "; were all ranks started on this host, by this user, with the same HVD_JOB, HOROVOD_SIZE and HVD_SHM_DIR?";

/// Ends a group in which another process already is `rank`, and throws invalid_argument.
[[noreturn]] inline void claim_twice(group_header& h, int rank) {
  std::uint64_t none = 0;
  h.abort.value.compare_exchange_strong(none, abort_reason(error_kind::mismatch, rank, -1, phase::join));
  fail(error_kind::invalid_argument, {two_claims(rank)}, rank);
}

/// A job's header, mapped once more for groups that are split off the named group: they look there for a second claim.
/// All of them on this rank share it, because they may outlive the named group.
class job_claims {
 public:
  explicit job_claims(const segment& s) {
    const fork_guard::pause no_fork;
    page_ = s.map_start(sizeof(group_header));
  }
  job_claims(const job_claims&) = delete;
  job_claims& operator=(const job_claims&) = delete;
  ~job_claims() {
    if (page_ != nullptr) ::munmap(page_, sizeof(group_header));
  }

  [[nodiscard]] const word& abort_word() const noexcept { return static_cast<const group_header*>(page_)->abort.value; }

  /// Called when the name is removed, so that no process can claim a rank any more. Maps an empty page over the header,
  /// so that the header no longer keeps its file alive, which holds the staging memory of all ranks. Other threads may
  /// be reading it. (If the system refuses, the header stays mapped.)
  void forget() noexcept {
    if (page_ == nullptr) return;
    ::mmap(page_, sizeof(group_header), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }

 private:
  void* page_ = nullptr;
  // Registered before the page is mapped: a forked child, which does not have the page, finds no pointer to it.
  const fork_guard guard_{-1, [](void* self) { static_cast<job_claims*>(self)->page_ = nullptr; }, this};
};

/// Called while a rank joins and waits for `awaited`. Returns a rank that will never come, -1 if none is known, or
/// group_ended if the group from which all of them come has ended.
using watch = function_ref<int(int awaited)>;
inline constexpr int group_ended = -2;

/// The time for which a rank waits for the others to join.
struct join_limit {
  std::chrono::duration<double> time;
  const char* variable;

  /// Ranks of a group that exists already have the deadline of an operation, if it is shorter.
  static join_limit of(const group_name& name, const failure_policy& policy) noexcept {
    const bool working = name.part && policy.timeout.count() > 0 && policy.timeout < policy.start_timeout;
    return working ? join_limit{policy.timeout, "HVD_TIMEOUT"}
                   : join_limit{policy.start_timeout, "HOROVOD_START_TIMEOUT"};
  }
  [[nodiscard]] std::string text() const { return joined({" within ", time.count(), " s (", variable, ")"}); }
};

/// A rank that looks for its job's segment.
struct group_finder {
  using clock = std::chrono::steady_clock;

  const group_name& name;
  int rank, size;
  std::uint64_t nonce;
  const sharing_options& opts;
  const watch& lost;
  join_limit limit;
  clock::time_point deadline;

  /// The segment of the job: opened if it exists; otherwise rank 0 makes it and sets `creator`.
  segment find(bool& creator) const {
    const std::string& directory = opts.memory.directory;
    const std::size_t wanted = group_bytes(size, make_geometry(size, opts.memory.staging_bytes));
    const auto started = clock::now();
    std::string stale;
    backoff rest(paces::other_process);
    for (bool first = true;; first = false) {
      std::string why;
      std::optional<segment> s = segment::open(directory, name.file, 0, why, true);
      if (s) {
        stale = stale_reason(*s);
        if (stale.empty() && !complete(*s)) return std::move(*s);
        if (stale.empty()) {
          refuse_second_claim(*s);
          stale = joined({s->path(), " belongs to a group that this process has joined before"});
        }
        const bool dead = !s->locked(segment::creator_byte);  // a creator that is alive holds it
        if (dead || rank == 0) s->unlink();
        // It was absent or alive on the first check, so it belongs to this job unless another process claimed the rank.
        if (dead && rank != 0 && !first && !taken(*s)) refuse_dead(*s);
      } else if (!why.empty()) {
        fail(error_kind::system, {why, "; remove it or use another job name"});
      }
      if (rank == 0) {
        if (auto made = create_group(name, size, opts, nonce)) {
          creator = true;
          return std::move(*made);
        }
      }
      const auto now = clock::now();
      if (now > deadline) {
        fail(error_kind::timeout,
             {"rank 0 did not create the group's memory in ", directory, limit.text(),
              stale.empty() ? "" : "; refused existing memory: ", stale, how_to_meet},
             0);
      }
      const int gone = lost ? lost(0) : -1;
      if (gone == group_ended) fail(error_kind::aborted, {"its parent group has ended"});
      if (gone >= 0) {
        // Rank 0 may just have made the segment. Only this group uses the name.
        if (const auto made = segment::open(directory, name.file, 0, why)) made->unlink();
        refuse_lost(gone);
      }
      // Rank 0 may be unable to make the segment, and has no way to report it.
      if (rank != 0 && now - started > std::chrono::milliseconds(500)) {
        errno = segment::trouble_in(directory, wanted);
        if (errno != 0) segment::refuse({"cannot make shared memory in ", directory}, wanted, directory, true);
      }
      rest.step();
    }
  }

 private:
  /// The reason why an existing segment is not this job's; empty if it is. Throws mismatch if a living job has another
  /// version of hvd or another size than this rank.
  [[nodiscard]] std::string stale_reason(const segment& s) const {
    if (!s.locked(segment::creator_byte)) return joined({s.path(), " was left by a job that has ended"});
    if (s.bytes() < sizeof(group_header)) return joined({s.path(), " is truncated to ", s.bytes(), " bytes"});
    const auto& h = *reinterpret_cast<const group_header*>(s.data());
    if (h.magic != group_header::magic_value) return joined({s.path(), " is not a segment of hvd"});
    if (h.job_hash != text_hash(name.job)) return joined({s.path(), " belongs to another job"});
    const std::string_view theirs(h.version.data(), strnlen(h.version.data(), h.version.size()));
    if (theirs != version) {
      fail(error_kind::mismatch, {"rank 0 runs hvd ", theirs, ", this rank hvd ", version});
    }
    if (nonce != 0 && h.nonce[0] != nonce) return joined({s.path(), " belongs to another group"});
    if (h.size != size) {
      fail(error_kind::mismatch, {"the job was started with size ", h.size, ", this rank with size ", size,
                                  "; give all ranks the same HOROVOD_SIZE, and each job its own HVD_JOB"});
    }
    const geometry shape = geometry_of(s, size);
    if (h.total_bytes != s.bytes() || h.windows != shape || group_bytes(size, shape) != s.bytes()) {
      return joined({s.path(), " has an inconsistent header"});
    }
    return {};
  }

  /// True if all ranks have joined. The group then keeps its name, so that a second launch under the same name is
  /// detected.
  [[nodiscard]] bool complete(const segment& s) const noexcept {
    const auto& h = *reinterpret_cast<const group_header*>(s.data());
    int q = 0;
    while (q != size && h.ready.has(q)) ++q;
    return q == size;
  }
  [[nodiscard]] bool taken(const segment& s) const noexcept {
    return s.bytes() >= sizeof(group_header) && reinterpret_cast<const group_header*>(s.data())->entered.has(rank);
  }
  /// If another living process is this rank of the group, ends the group and throws invalid_argument.
  void refuse_second_claim(const segment& s) const {
    if (!s.locked(rank)) return;
    auto& h = *reinterpret_cast<group_header*>(s.data());
    const std::size_t window = static_cast<std::size_t>(rank) * geometry_of(s, size).window_bytes;
    const auto& self = reinterpret_cast<const control*>(s.data() + sizeof h + window)->self;
    const bool joined = self.state.load(std::memory_order_acquire) == presence::joined;
    if (!joined || self.process.load(std::memory_order_relaxed) == process_identity()) return;
    claim_twice(h, rank);
  }

  [[noreturn]] static void refuse_lost(int who) { fail(error_kind::peer_lost, {"rank ", who, is_lost}, who); }

  /// Throws: this job's group ended before this rank came.
  [[noreturn]] void refuse_dead(const segment& s) const {
    std::uint64_t reason = 0;
    if (s.bytes() >= sizeof(group_header)) {
      reason = reinterpret_cast<const group_header*>(s.data())->abort.value.load(std::memory_order_acquire);
    }
    if (reason == 0) refuse_lost(0);
    const int who = abort_culprit(reason, size);
    if (abort_kind(reason) == error_kind::peer_lost) refuse_lost(who);
    fail(abort_kind(reason), {"rank ", who, " failed while the group came together"}, who);
  }
};

}  // namespace hvd::inline HVD_ABI::detail
