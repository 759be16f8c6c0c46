// bench/stage.hpp: the shared memory through which the coordinator leads the ranks of one library.
//
// It is an anonymous file that ranks open through /proc: no name is left behind, whichever process is killed. That a
// process lives is seen by a lock that the kernel releases: byte 0 is the coordinator's, byte 1 + r that of rank r.
#pragma once

#include <bench/job.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fcntl.h>

namespace hvd::bench {

/// The environment variables by which the coordinator tells a rank where it is. A rank that the library's own launcher
/// starts learns its number from that.
inline constexpr const char* stage_variable = "HVD_BENCH_STAGE";  ///< path of the stage
inline constexpr const char* cpus_variable = "HVD_BENCH_CPUS";    ///< "0,1,...": rank r gets entry r, round robin
inline constexpr const char* rank_variable = "HVD_BENCH_RANK";    ///< if no launcher gives one

/// The coordinator wants the rank to end, or is gone.
struct stage_ended : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class outcome : std::uint32_t { none, done, unsupported, failed };

template <std::size_t N>
struct text {
  std::array<char, N> bytes;
  void set(std::string_view s) noexcept { bytes[s.copy(bytes.data(), N - 1)] = '\0'; }
  [[nodiscard]] std::string get() const { return bytes.data(); }
};

struct alignas(128) rank_slot {
  // Written in every iteration; on a line of its own.
  std::atomic<std::uint64_t> arrived{0};  ///< barriers reached
  // Written once for each job.
  alignas(128) std::atomic<std::uint32_t> done{0};  ///< the last command that this rank has finished
  std::atomic<std::uint32_t> attached{0};
  std::atomic<int> pid{0};
  std::atomic<int> cpu{-1};      ///< -1: not pinned
  text<96> device{};             ///< for people; empty: the CPU
  std::atomic<int> ordinal{-1};  ///< of the device
  outcome result{};
  std::uint64_t wrong{0};    ///< elements, in a check
  std::uint64_t elapsed{0};  ///< ns that all iterations took, rewriting counted
  std::uint32_t order{0};    ///< of failures: the first is the cause, others may be effects
  text<512> problem{};
};

struct stage_header {
  static constexpr std::uint64_t magic_value = 0x31656761'74736876;
  std::uint64_t magic = 0;
  int ranks = 0;
  std::uint64_t capacity = 0;  ///< samples for each rank
  std::uint64_t slots_offset = 0;
  std::uint64_t samples_offset = 0;
  std::uint64_t bytes = 0;
  bool yields = false;                                 ///< more ranks than CPUs: wait by yielding
  alignas(128) std::atomic<std::uint32_t> command{0};  ///< counts jobs; ranks sleep on it
  std::atomic<std::uint32_t> quit{0};
  std::atomic<std::uint32_t> abort{0};
  job work{};
  alignas(128) std::atomic<std::uint32_t> finished{0};  ///< counts ranks that reported; the coordinator sleeps on it
  std::atomic<std::uint32_t> failures{0};
  alignas(128) text<2048> description{};  ///< of the library, by rank 0: version and settings
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A mapping of the stage, by the coordinator or by a rank.
class Stage {
 public:
  /// Makes one. Errors: std::runtime_error.
  static Stage make(int ranks, std::uint64_t capacity, bool yields);
  /// Opens the stage at `path` (of another process).
  static Stage open(const std::string& path);

  Stage(Stage&& other) noexcept;
  Stage& operator=(Stage&&) = delete;
  ~Stage();

  [[nodiscard]] stage_header& header() const noexcept { return *static_cast<stage_header*>(data_); }
  [[nodiscard]] int ranks() const noexcept { return header().ranks; }
  [[nodiscard]] rank_slot& slot(int rank) const noexcept {
    return reinterpret_cast<rank_slot*>(static_cast<std::byte*>(data_) + header().slots_offset)[rank];
  }
  /// ns of each iteration of `rank`.
  [[nodiscard]] std::uint64_t* samples(int rank) const noexcept {
    return reinterpret_cast<std::uint64_t*>(static_cast<std::byte*>(data_) + header().samples_offset) +
           static_cast<std::uint64_t>(rank) * header().capacity;
  }
  /// The path for other processes of this user, valid as long as this one lives.
  [[nodiscard]] std::string path() const;

  // ---- for a rank
  /// Says that `rank` is there.
  void attach(int rank, int cpu) const;
  /// Waits for the job after number `last` and returns its number. Throws stage_ended.
  std::uint32_t next(std::uint32_t last) const;
  void report(int rank, std::uint32_t command) const;
  /// The same if the rank cannot go on.
  void report_failure(int rank, std::uint32_t command, std::string_view why) const;
  /// The light barrier: one store, and a load of each other rank's line. `epoch` is this rank's own count.
  void barrier(int rank, std::uint64_t& epoch) const {
    slot(rank).arrived.store(++epoch, std::memory_order_release);
    for (int q = 0; q != ranks(); ++q) {
      if (slot(q).arrived.load(std::memory_order_acquire) < epoch) wait_for(q, epoch);
    }
  }

  // ---- for the coordinator
  std::uint32_t send(const job& j) const;
  /// Tells all ranks to end.
  void quit() const;
  /// Sleeps until ranks have reported or `limit` is over.
  void wait(std::uint32_t seen_finished, std::chrono::milliseconds limit) const;
  /// Whether the process of an attached rank (or, with -1, the coordinator) still lives.
  [[nodiscard]] bool alive(int rank) const;

 private:
  Stage(int fd, void* data, std::size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}
  void wait_for(int rank, std::uint64_t epoch) const;
  void check() const;
  void lock(int byte) const;

  int fd_;
  void* data_;
  std::size_t bytes_;
};

}  // namespace hvd::bench
