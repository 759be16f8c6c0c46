// hvd/shared_memory/layout.hpp: the layout of the memory that the ranks of a group share.
//
// A header, then one window for each rank. The control words and channels of a window are written by its rank alone
// (doorbells aside); mailboxes and staging memory rotate through the windows, so that the rank that last read a line
// writes it next. Each word that one rank polls while another writes it has 128 bytes of its own, because CPUs prefetch
// lines in pairs.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/error.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace hvd::inline HVD_ABI::detail {

inline constexpr std::size_t apart = 2 * cache_line;

using word = std::atomic<std::uint64_t>;
static_assert(word::is_always_lock_free, "hvd: ranks synchronise by 64-bit loads and stores in shared memory");

struct alignas(apart) lonely_word {
  word value{0};
};

/// A rank's message in an exchange: a rank that sees the sequence number also sees the payload. The low 16 bits of
/// `stamp` are a signature of the call, so that different calls are detected. A payload that fits into the first line
/// costs one line.
struct alignas(apart) mailbox {
  static constexpr std::size_t capacity = 34 * cache_line - sizeof(word);  // a little more than 2 KiB
  static constexpr std::size_t first_line = cache_line - sizeof(word);
  word stamp;
  std::byte payload[capacity];
};

enum class presence : std::uint32_t { absent, joined, left };

inline constexpr int max_cpus = 2048;
inline constexpr int max_ranks = 4096;

/// The rank that a rank waits for: see wait_board.
struct wait_state {
  std::atomic<std::uint32_t> waits_for{0};  ///< that rank plus 1, or 0
  std::atomic<std::uint32_t> looks{0};      ///< calls of wait_board::look
};

/// A flag for each rank.
class rank_set {
 public:
  void add(int r) noexcept { words_[index(r)].fetch_or(mask_of(r)); }
  void clear() noexcept {
    for (word& w : words_) w.store(0);
  }
  [[nodiscard]] bool has(int r) const noexcept { return (words_[index(r)].load() & mask_of(r)) != 0; }

 private:
  static std::size_t index(int r) noexcept { return static_cast<std::size_t>(r) / 64; }
  static std::uint64_t mask_of(int r) noexcept { return std::uint64_t{1} << r % 64; }
  std::array<word, max_ranks / 64> words_{};
};

/// The first part of a rank's window.
struct control {
  lonely_word staged;   ///< chunks that this rank has staged
  lonely_word reduced;  ///< chunks that it has reduced, or read from all its peers
  lonely_word done;     ///< exchanges that it has completed
  struct alignas(apart) {
    std::atomic<std::uint32_t> sleepers{0};  ///< ranks asleep until this one stores something
    std::atomic<std::uint32_t> rings{0};     ///< the word that they sleep on
  } doorbell;
  struct alignas(apart) {
    std::atomic<presence> state{presence::absent};
    std::atomic<std::uint64_t> nonce{0};      ///< as this rank read it in the header
    std::atomic<std::uint64_t> process{0};    ///< process_identity of this rank
    std::array<word, max_cpus / 64> cpus{};   ///< the CPUs it may run on, to count those of the group
    std::atomic<std::uint32_t> cpu_limit{0};  ///< and how many of them at once
    std::atomic<bool> informed{false};        ///< this rank knows that the group has failed, and may end because of it
    std::atomic<std::uint32_t> job_rank{0};   ///< lost_ranks::own of this rank
    wait_state waits;
  } self;
  /// The group after a loss, as this rank proposes it: see hvd/shared_memory/survivors.hpp.
  struct alignas(apart) proposal {
    std::atomic<std::uint32_t> round{0};  ///< the proposal for which this rank is ready
    std::uint64_t nonce = 0;
    rank_set members;
  } next;
};

/// The geometry of the memory, which the creator decides and all ranks adopt.
struct geometry {
  std::uint64_t window_bytes = 0;
  std::uint64_t slot_bytes = 0;                                  ///< payload of a channel slot
  std::uint64_t ring_bytes = 0;                                  ///< room for the staging ring
  std::uint64_t mailboxes_at = 0, channels_at = 0, ring_at = 0;  ///< offsets in a window
  friend bool operator==(const geometry&, const geometry&) = default;
};

/// Protocols are tuned by these sizes. They lie in the group's memory because ranks on different CPUs must make the
/// same choice.
struct cache_sizes {
  std::uint64_t l2 = 0;  ///< bytes of a core's second level, 0 if unknown
  std::uint64_t l3 = 0;  ///< bytes of a last-level domain, 0 if unknown
};

/// A fragment of a message; `stamp` counts the fragments of its channel.
struct alignas(cache_line) slot {
  word stamp;
  std::uint64_t message_bytes;
  std::int64_t tag;  ///< of tagged_messages; 0 in others
  std::uint64_t reserved[5];
};
inline constexpr int slots_per_channel = 2;
/// A slot's payload has at least this many bytes with any number of ranks: a message up to this length is one fragment.
inline constexpr std::size_t least_slot_bytes = 8 * cache_line;
inline constexpr std::size_t staging_page = 4096;  ///< places in the ring are multiples of it: see staging.hpp

inline constexpr std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

/// Bytes of the group's header; memory_policy::staging_bytes counts them in for each rank.
inline constexpr std::size_t header_bytes = 4096;

/// The layout if each rank adds `staging` bytes, including the header. A window has two mailboxes, channels in at most
/// a quarter of it (more if slots have the least size), and the staging ring in the rest.
inline geometry make_geometry(int size, std::size_t staging) {
  if (size < 1 || size > max_ranks) {
    fail(error_kind::invalid_argument, {"a group of ", size, " ranks cannot share memory; allowed: 1 to 4096"});
  }
  const std::size_t ranks = static_cast<std::size_t>(size);
  geometry g;
  g.window_bytes = std::max(staging / 4096 * 4096, 2 * header_bytes) - header_bytes;
  g.mailboxes_at = round_up(sizeof(control), apart);  // not at a page boundary: see copy_bytes
  g.channels_at = g.mailboxes_at + 2 * sizeof(mailbox);
  // A channel from this rank to each peer (two slots), and a word for what was taken from each.
  const std::size_t per_channel = g.window_bytes / 4 / ranks;
  const std::size_t fixed = slots_per_channel * sizeof(slot) + apart;
  const std::size_t payload = per_channel > fixed ? (per_channel - fixed) / slots_per_channel : 0;
  g.slot_bytes = std::clamp<std::size_t>(payload / cache_line * cache_line, least_slot_bytes, 32768);
  const std::size_t channel_bytes = slots_per_channel * (sizeof(slot) + g.slot_bytes) + apart;
  g.ring_at = round_up(g.channels_at + ranks * channel_bytes, staging_page);
  g.ring_bytes = g.window_bytes > g.ring_at ? (g.window_bytes - g.ring_at) / staging_page * staging_page : 0;
  const std::size_t least = 3 * round_up(ranks * cache_line, staging_page);  // three chunks with a line for each rank
  if (g.ring_bytes < least) {
    fail(error_kind::invalid_argument,
         {"staging memory of ", staging, " bytes a rank is too little for ", size,
          " ranks; set memory_policy::staging_bytes to at least ", round_up(header_bytes + g.ring_at + least, 65536)});
  }
  return g;
}

/// The start of a group's memory. Filled before any other rank can see it, and constant from then on, except for the
/// abort word and the flags.
struct alignas(header_bytes) group_header {
  static constexpr std::uint64_t magic_value = 0x33306d656d647668;  // "hvdmem03"
  std::uint64_t magic = magic_value;
  std::uint64_t total_bytes = 0;
  std::array<std::uint64_t, 2> nonce{};
  std::array<char, 32> version{};
  std::array<char, 128> job{};  ///< for messages; cut if longer
  std::uint64_t job_hash = 0;
  std::int32_t size = 0;
  std::uint32_t check = 0;
  geometry windows;
  cache_sizes caches;
  std::uint32_t launched = 0;  ///< 1: made by the launcher, which also removes its name
  rank_set entered;            ///< ranks that have come: each holds its lock while it lives
  rank_set ready;              ///< ranks whose window has memory: no other rank may touch it before
  /// 0, or the reason for the group's end (abort.hpp).
  lonely_word abort;
  lonely_word next;    ///< the proposal that is agreed: its round, and the rank that made it (survivors.hpp)
  lonely_word formed;  ///< of a group of survivors: 0, or for all of them whether they have come together
};

static_assert(sizeof(group_header) == header_bytes);

inline std::size_t group_bytes(int size, const geometry& g) {
  return sizeof(group_header) + static_cast<std::size_t>(size) * g.window_bytes;
}

}  // namespace hvd::inline HVD_ABI::detail
