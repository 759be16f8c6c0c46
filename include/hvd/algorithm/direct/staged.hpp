// hvd/algorithm/direct/staged.hpp: collectives on private buffers, by an exchange or through the staging ring.
//
// A form describes a collective: the data that ranks stage, and the work of its readers. Two protocols run any form:
//  * an exchange: a payload that fits into a mailbox travels with the sequence number that announces it.
//  * the ring: chunk k+1 is staged while chunk k is read. The first chunk is staged before ranks compare their calls
//    (`agree`) if its staging place is known to be free, so a collective of one chunk takes one exchange as well.
//
// If a collective allows it, the rank that last read a line writes it next. Reading a changed line takes it over;
// writing it then costs the reader's core a fifth of the old owner's cost (docs/performance.md has the measurements).
// So the blocks that all ranks send to all move on by one window with each turn of the ring, and pairs of ranks that
// send to each other swap slots with each turn. If data goes one way only, a line is written again after all others of
// the ring, when it has left the reader's first-level cache; and the only reader of a line touches it, if that pays
// (line_costs).
//
// tests/model/ has the proof by exhaustion for 2 and 3 ranks. Data that is never read need not be ordered: ranks in
// different calls may stage at one address at once; `agree` then fails on all of them, so that no rank reads it.
#pragma once

#include <hvd/algorithm/direct/output.hpp>
#include <hvd/algorithm/direct/vector.hpp>
#include <hvd/detail/blocks.hpp>
#include <hvd/shared_memory/agree.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// The number of elements of each of `parts` blocks in a chunk of at most `chunk_bytes`: whole lines if the size of
/// elements allows it. Throws if not even one element fits.
inline std::size_t elements_per_part(const peer_memory& m, std::size_t chunk_bytes, int parts,
                                     std::size_t element_bytes) {
  const std::size_t most = m.staging().largest_place();
  std::size_t room = std::min(chunk_bytes, most) / static_cast<std::size_t>(parts) / cache_line * cache_line;
  if (room < element_bytes) room = most / static_cast<std::size_t>(parts) / cache_line * cache_line;
  // The greatest common divisor of element and line: a line is a power of two, so an element's powers of two count.
  const std::size_t common = std::min(element_bytes & (~element_bytes + 1), cache_line);
  const std::size_t line_of_elements = element_bytes / common * cache_line;
  if (room >= line_of_elements) return room / line_of_elements * line_of_elements / element_bytes;
  if (room >= element_bytes) return room / element_bytes;
  fail(error_kind::unsupported, {m.operation_name(), " on ", m.label(), ": an element of ", element_bytes,
                                 " bytes does not fit into the staging memory (chunks of ", most, " bytes for ", parts,
                                 " ranks); raise memory_policy::staging_bytes above its default"});
}

inline std::uint64_t parts_in(std::size_t count, std::size_t each) noexcept {
  return count <= each ? count != 0 : (count + each - 1) / each;
}

/// The same for blocks of `count` elements, cut into equal chunks: a short last one costs as many waits as a long one.
inline std::size_t even_part(const peer_memory& m, std::size_t count, std::size_t chunk_bytes, int parts,
                             std::size_t element_bytes) {
  const std::size_t whole = round_up(count * element_bytes, cache_line) * static_cast<std::size_t>(parts);
  if (whole <= std::min(chunk_bytes, m.staging().largest_place())) return std::max<std::size_t>(count, 1);
  const std::size_t most = elements_per_part(m, chunk_bytes, parts, element_bytes);
  const std::uint64_t chunks = parts_in(count, most);
  if (chunks < 2) return most;
  const std::size_t unit = element_bytes < cache_line ? cache_line / element_bytes : 1;
  return std::min(most, round_up((count + chunks - 1) / chunks, unit));
}

/// The chunk size if data goes one way only and ranks overlap chunk by chunk: a quarter of the data within 4 to 32 KiB,
/// or a sixteenth if that is more; at most `chunk_bytes`.
inline std::size_t one_way_chunk(std::size_t chunk_bytes, std::size_t bytes) noexcept {
  const std::size_t few = std::clamp<std::size_t>(round_up(bytes / 4, 4096), 4096, std::size_t{32} << 10);
  return std::min(chunk_bytes, std::max(few, bytes / 16));
}

/// Part k of a block of `block_count` elements that travels in parts of `each`.
struct part_of_block {
  std::size_t first, count;
  part_of_block(std::size_t block_count, std::uint64_t k, std::size_t each)
      : first(std::min<std::size_t>(block_count, k * each)), count(std::min(block_count - first, each)) {}
};

/// Slots of a rank in a group of p, one for each other rank and, if `own`, for itself; and which slot is for `to`.
inline int slot_count(int p, bool own) noexcept { return std::max(p - 1, 1) + (own ? 1 : 0); }
inline std::size_t slot_of(int from, int to, int p) noexcept {
  return static_cast<std::size_t>(to == from ? p - 1 : to > from ? to - 1 : to);
}

/// The common part of all forms. Each rank that sends has one block of at most `count` elements for all readers, or one
/// for each of them.
struct staged_form {
  int source = -1;        ///< the only rank that sends, or -1
  int target = -1;        ///< the only rank that reads, or -1
  bool pairwise = false;  ///< a block for each reader
  bool own_slot = false;  ///< and one for the rank itself
  std::size_t count = 0;
  std::size_t element_bytes = 1;
  bool touches = false;  ///< the only reader of a line takes it over: see line_costs

  [[nodiscard]] bool sends(int r) const noexcept { return source >= 0 ? r == source : r != target; }
  [[nodiscard]] bool reads(int r) const noexcept { return target >= 0 ? r == target : r != source; }
  /// Blocks that a rank sends in a group of p.
  [[nodiscard]] int slots_in(int p) const noexcept { return pairwise ? slot_count(p, own_slot) : 1; }
  /// True if every rank sends and reads.
  [[nodiscard]] bool symmetric() const noexcept { return source < 0 && target < 0; }

  /// Copies data that another rank has staged.
  void take(output how, std::byte* to, const std::byte* from, std::size_t bytes) const noexcept {
    if (symmetric()) return copy_from_peer(how, to, from, bytes);
    if (!touches) return copy_to(how, to, from, bytes);
    for (std::size_t at = 0; at < bytes; at += touched_tile) {
      const std::size_t n = std::min(touched_tile, bytes - at);
      copy_to(how, to + at, from + at, n);
      touch_lines(from + at, n);
    }
  }
  static constexpr std::size_t touched_tile = 4096;  // is still in the first-level cache
};

/// True if a form's blocks fit into a mailbox. (An exchange carries a signature of the call, no descriptor.)
inline bool fits_mailbox(const staged_form& f, int p) noexcept {
  return f.count <= mailbox::capacity &&
         f.count * f.element_bytes * static_cast<std::size_t>(f.slots_in(p)) <= mailbox::capacity;
}

/// True if data goes one way, each line has one reader, and touching pays.
inline bool shall_touch(const peer_memory& m, const staged_form& f) noexcept {
  return !f.symmetric() && (m.size() == 2 || f.pairwise || f.target >= 0) && m.costs().touching_pays();
}

/// Runs a form by one exchange. `signature` is that of the call. Besides the members of staged_form, a form has
///   stage(k, each, slot): stores part k of this rank's blocks; slot(q) is where the block for rank q goes;
///   own(k, each):         what this rank does with part k of its own data;
///   read(k, each, from):  reads part k of what others have sent; from(q) waits for rank q and returns its block.
template <class Form>
void run_exchange(peer_memory& m, Form& f, std::uint16_t signature) {
  const std::size_t stride = f.count * f.element_bytes;
  f.touches = stride * static_cast<std::size_t>(f.slots_in(m.size())) > mailbox::first_line && shall_touch(m, f);
  m.begin(signature);
  if (f.sends(m.rank())) {
    std::byte* const to = m.payload();
    f.stage(0, f.count, [&](int q) { return f.pairwise ? to + slot_of(m.rank(), q, m.size()) * stride : to; });
    m.publish();
  }
  f.own(0, f.count);
  if (f.reads(m.rank())) {
    f.read(0, f.count, [&](int q) { return m.read(q) + (f.pairwise ? slot_of(q, m.rank(), m.size()) * stride : 0); });
    if (f.source < 0) m.mark_all_read();
  }
  m.end();
}

/// Lets ranks compare their calls. Before that, this rank stages the first chunk of `run` if its staging place is free.
template <class Run>
std::span<const descriptor> stage_and_agree(peer_memory& m, descriptor d, peer_memory::scope& scope, Run& run) {
  if (run.begin()) d.flags |= descriptor::staged;
  return agree(m, d, scope, [&] { run.meanwhile(); });
}

/// Runs a form through the ring.
template <class Form>
class staged_run {
 public:
  staged_run(peer_memory& m, Form& f, std::size_t chunk_bytes, output how)
      : m_(m), f_(f), how_(how), each_(even_part(m, f.count, chunk_bytes, f.slots_in(m.size()), f.element_bytes)),
        stride_(round_up(each_ * f.element_bytes, cache_line)),
        plan_(m.staging().plan(parts_in(f.count, each_), stride_ * static_cast<std::size_t>(f.slots_in(m.size())))) {
    f.touches = shall_touch(m, f);
  }

  /// Called before ranks compare their calls: stages the first chunk if its place is free. True if it did.
  bool begin() {
    if (!f_.sends(m_.rank()) || !m_.staging().is_free(plan_)) return false;
    stage(0);
    return begun_ = true;
  }

  /// Called while ranks compare their calls.
  void meanwhile() {
    if (!begun_ || own_last()) return;
    f_.own(0, each_);
    owned_ = 1;
  }
  /// Called after that. `all` has the calls of all ranks, which show the ranks that have staged their first chunk;
  /// empty if none has.
  void run(std::span<const descriptor> all) {
    m_.take(plan_);
    const bool sends = f_.sends(m_.rank()), reads = f_.reads(m_.rank());
    for (std::uint64_t k = 0; k != plan_.chunks + 1; ++k) {
      if (sends && k != plan_.chunks && (k != 0 || !begun_)) {
        await_room(k);
        tiled_ ? stage_and_own(k) : stage(k);
        m_.store(m_.mine().staged.value, plan_.first + k + 1);
      }
      if (k == 0) continue;
      if (!own_last() && k > owned_) f_.own(k - 1, each_);
      if (reads) {
        f_.read(k - 1, each_, [&](int q) {
          if (k != 1 || all.empty() || !all[static_cast<std::size_t>(q)].has(descriptor::staged)) {
            m_.await(m_.of(q).staged.value, plan_.first + k, q, phase::stage);
          }
          return block(q, m_.rank(), plan_[k - 1]);
        });
        if (plan_.chunks > plan_.lap) m_.store(m_.mine().reduced.value, plan_.first + k);
      }
    }
    for (std::uint64_t k = 0; own_last() && k != plan_.chunks; ++k) f_.own(k, each_);
    output_fence(how_);
  }

 private:
  static constexpr std::size_t own_tile = 4 * staging_page;  // half of a first-level cache

  /// The only sender copies to its own output last, if no chunk has to wait for room in the ring.
  [[nodiscard]] bool own_last() const noexcept { return !f_.reads(m_.rank()) && plan_.chunks <= plan_.lap; }
  /// Waits until all readers are done with the chunk whose staging place chunk k reuses.
  void await_room(std::uint64_t k) {
    if (k < plan_.lap) return;
    for (int q = 0; q != m_.size(); ++q) {
      if (q != m_.rank() && f_.reads(q)) {
        m_.await(m_.of(q).reduced.value, plan_.first + k - plan_.lap + 1, q, phase::consume);
      }
    }
  }
  void stage(std::uint64_t k) {
    f_.stage(k, each_, [&](int q) { return block(m_.rank(), q, plan_[k]); });
  }
  /// In long operations data for all ranks is read once, by tiles, to be both staged and copied to the rank's own
  /// output. In short ones the peers would wait for that.
  [[nodiscard]] bool by_tiles() const noexcept {
    const std::size_t bytes = each_ * f_.element_bytes;
    return !f_.pairwise && !own_last() && plan_.chunks > 2 && bytes % own_tile == 0 && own_tile % f_.element_bytes == 0;
  }
  void stage_and_own(std::uint64_t k) {
    const std::uint64_t tiles = each_ * f_.element_bytes / own_tile;
    std::byte* to = block(m_.rank(), m_.rank(), plan_[k]);
    for (std::uint64_t i = k * tiles; i != (k + 1) * tiles; ++i, to += own_tile) {
      f_.stage(i, each_ / tiles, [&](int) { return to; });
      f_.own(i, each_ / tiles);
    }
    owned_ = k + 1;
  }
  /// The address of the block from one rank to another.
  [[nodiscard]] std::byte* block(int from, int to, const staging_place& p) const noexcept {
    if (!f_.pairwise) return m_.at(f_.symmetric() ? around_windows(from, p.turn) : from, p);
    if (f_.symmetric() && p.turn % 2 != 0) std::swap(from, to);
    return m_.at(from, p) + slot_of(from, to, m_.size()) * stride_;
  }
  [[nodiscard]] int around_windows(int r, std::uint64_t turn) const noexcept {
    if (m_.size() == 2) return r ^ static_cast<int>(turn & 1);
    return around(r + static_cast<int>(turn % static_cast<unsigned>(m_.size())), m_.size());
  }

  peer_memory& m_;
  Form& f_;
  output how_;
  std::size_t each_;    // elements of a block in a chunk
  std::size_t stride_;  // bytes between slots
  staging_plan plan_;
  const bool tiled_ = by_tiles();
  bool begun_ = false;
  std::uint64_t owned_ = 0;  // chunks that this rank has copied to its own output
};

}  // namespace hvd::inline HVD_ABI::detail
