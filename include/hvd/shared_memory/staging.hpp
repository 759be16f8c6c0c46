// hvd/shared_memory/staging.hpp: the places of collectives' chunks in the staging memory: a ring of bytes in each
// window.
//
// All ranks compute the same places for the same calls, so none of them has to be communicated. A chunk has the same
// place in every rank's ring. Each place begins at a page boundary: CPUs prefetch within a page, and would otherwise
// take lines from the rank that writes the next chunk.
#pragma once

#include <hvd/shared_memory/layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hvd::inline HVD_ABI::detail {

/// Bytes of a window that the ring takes: 3/16 of a core's second-level cache, so that the cache holds the rings of two
/// ranks and the buffers, but enough that a rank reuses a place only after the reader's first-level cache has evicted
/// it. If more staging memory than the default is requested, the ring uses all of it.
inline std::size_t ring_size(const geometry& g, const cache_sizes& caches, int ranks) noexcept {
  if (g.window_bytes > (std::size_t{1} << 20)) return g.ring_bytes;
  const std::size_t slices = 3 * static_cast<std::size_t>(ranks) * staging_page;
  return std::min<std::size_t>(std::max({caches.l2 / 16 * 3, std::size_t{192} << 10, slices}), g.ring_bytes);
}

/// A place in the ring: the number of completed turns around the ring, and an offset in bytes.
struct staging_place {
  std::uint64_t turn = 0;
  std::size_t at = 0;
};

/// The places of one operation's chunks: of equal size, one after the other, wrapping around the ring.
struct staging_plan {
  std::uint64_t first = 0;  ///< the number of chunk 0 among all chunks of the group
  std::uint64_t chunks = 0;
  std::uint64_t lap = 1;    ///< chunk k reuses the place of chunk k - lap
  std::size_t room = 0;     ///< bytes of a place
  std::uint64_t turn = 0;   ///< of chunk 0
  std::uint64_t place = 0;  ///< of chunk 0, among the places of this size in the ring

  [[nodiscard]] staging_place operator[](std::uint64_t k) const noexcept {
    const std::uint64_t i = place + k;
    if (i < lap) [[likely]]
      return {turn, i * room};
    return {turn + i / lap, i % lap * room};
  }
};

/// The ring as one rank sees it. A plan is made before ranks compare their calls, and taken if the calls are the same.
class staging_ring {
 public:
  explicit staging_ring(std::size_t bytes) noexcept : bytes_(bytes / staging_page * staging_page) {}

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Bytes of the largest place, a third of the ring: while one chunk is staged, the previous one is read and the one
  /// before that copied out. With fewer than three places ranks would wait for each other for ever.
  [[nodiscard]] std::size_t largest_place() const noexcept { return bytes_ / 3 / staging_page * staging_page; }

  /// Places for `chunks` chunks of at most `chunk_bytes`, which is at most largest_place(), after those of the last
  /// operation. So operations of one size use every place once in each turn, and ranks that swap places at each turn
  /// always write the lines that they last read.
  [[nodiscard]] staging_plan plan(std::uint64_t chunks, std::size_t chunk_bytes) const noexcept {
    staging_plan p{number_, chunks, 1, round_up(std::max<std::size_t>(chunk_bytes, 1), staging_page), next_.turn, 0};
    p.place = p.room == staging_page ? next_.at / staging_page : (next_.at + p.room - 1) / p.room;
    if ((p.place + 1) * p.room > bytes_) {
      p.place = 0;
      ++p.turn;
    }
    const std::uint64_t end = p.place + chunks;  // no division in the usual case
    p.lap =
        chunks <= bytes_ / staging_page && end * p.room <= bytes_ ? std::max<std::uint64_t>(end, 1) : bytes_ / p.room;
    return p;
  }

  /// True if the place of chunk 0 is known to be free before ranks compare their calls.
  [[nodiscard]] bool is_free(const staging_plan& p) const noexcept {
    return p.chunks != 0 && position(p[0]) + p.room <= over_ + bytes_;
  }
  /// Called when all ranks have begun the current operation, and so have completed all before it.
  void all_began() noexcept { over_ = position(next_); }
  void take(const staging_plan& p) noexcept {
    if (p.chunks == 0) return;
    number_ += p.chunks;
    const staging_place last = p[p.chunks - 1];
    next_ = {last.turn, last.at + p.room};
  }

 private:
  /// Bytes from the group's first chunk on, counted over all turns.
  [[nodiscard]] std::uint64_t position(const staging_place& p) const noexcept { return p.turn * bytes_ + p.at; }

  std::size_t bytes_;
  staging_place next_{};      // where the next operation may begin
  std::uint64_t number_ = 0;  // chunks taken
  std::uint64_t over_ = 0;    // memory before this position is no longer used
};

}  // namespace hvd::inline HVD_ABI::detail
