// cells.hpp: sums of a rank's events by spans of time. The spans for a whole job grow with it; its last minutes are
// also kept by the second.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_timeline {

/// Sums over a span of time. Durations are in nanoseconds.
struct cell {
  std::uint32_t events = 0;
  std::uint32_t operations = 0;
  std::uint32_t negotiations = 0;
  std::uint32_t steps = 0;
  std::uint64_t samples = 0;
  std::uint64_t dropped = 0;
  std::int64_t negotiate = 0;    ///< of each tensor, from its submission until all ranks have it
  std::int64_t total = 0;        ///< of each operation, from its submission to its end
  std::int64_t busy = 0;         ///< while at least one operation ran
  std::int64_t negotiating = 0;  ///< while at least one tensor waited for other ranks
  std::int64_t wait = 0;         ///< while the program waited
  double bytes = 0, bus_bytes = 0;
  /// The same for the process set of all ranks only: other sets show nothing about ranks outside them.
  std::uint32_t global_operations = 0, global_negotiations = 0;
  std::int64_t global_busy = 0, global_negotiating = 0;

  cell& operator+=(const cell& other) noexcept {
    events += other.events;
    operations += other.operations;
    negotiations += other.negotiations;
    steps += other.steps;
    samples += other.samples;
    dropped += other.dropped;
    negotiate += other.negotiate;
    total += other.total;
    busy += other.busy;
    negotiating += other.negotiating;
    wait += other.wait;
    bytes += other.bytes;
    bus_bytes += other.bus_bytes;
    global_operations += other.global_operations;
    global_negotiations += other.global_negotiations;
    global_busy += other.global_busy;
    global_negotiating += other.global_negotiating;
    return *this;
  }
};

/// Bytes that cross the bus for each byte of a tensor with n ranks, as defined by nccl-tests (its doc/PERFORMANCE.md):
/// 2 (n-1)/n for an allreduce, (n-1)/n for scattered or exchanged tensors, n-1 for a gathered block, 1 otherwise.
enum class bus_class : unsigned char { reduced, exchanged, gathered, plain };
inline double bus_factor(bus_class kind, double ranks) noexcept {
  if (ranks < 2) return kind == bus_class::plain ? 1 : 0;
  switch (kind) {
    case bus_class::reduced: return 2 * (ranks - 1) / ranks;
    case bus_class::exchanged: return (ranks - 1) / ranks;
    case bus_class::gathered: return ranks - 1;
    case bus_class::plain: break;
  }
  return 1;
}

/// The cells of one rank. Times before 0 count in the first cell.
class rank_cells {
 public:
  static constexpr std::int64_t second = 1'000'000'000, first_width = second / 8;
  static constexpr std::size_t recent_seconds = 512;

  /// The cells at a time. Valid until the next call.
  struct pair {
    cell& all;
    cell& recent;
  };
  /// `width`: the width of all ranks' cells. The caller has made room with `halve`.
  pair at(std::int64_t time, std::int64_t width) {
    const auto index = static_cast<std::size_t>(std::max<std::int64_t>(time, 0) / width);
    grow(index + 1);
    return {all_[index], recent_at(std::max<std::int64_t>(time, 0) / second)};
  }

  /// Adds a span of time to one member of the cells that it crosses.
  void add_span(std::int64_t cell::*member, std::int64_t begin, std::int64_t end, std::int64_t width) {
    begin = std::max<std::int64_t>(begin, 0);
    if (end <= begin) return;
    const auto last = static_cast<std::size_t>((end - 1) / width);
    grow(last + 1);
    split(begin, end, width,
          [&](std::int64_t i, std::int64_t part) { all_[static_cast<std::size_t>(i)].*member += part; });
    begin = std::max(begin, (end - 1) / second * second - static_cast<std::int64_t>(recent_seconds - 1) * second);
    split(begin, end, second, [&](std::int64_t i, std::int64_t part) { recent_at(i).*member += part; });
  }

  /// Halves the number of cells and doubles their width.
  void halve() {
    for (std::size_t i = 0; i < all_.size(); i += 2) {
      if (i != 0) all_[i / 2] = all_[i];
      if (i + 1 < all_.size()) all_[i / 2] += all_[i + 1];
    }
    all_.resize((all_.size() + 1) / 2);
    all_.shrink_to_fit();
  }

  [[nodiscard]] const std::vector<cell>& all() const noexcept { return all_; }

  /// The cell of a second; null if nothing happened in it, or if it is too long ago.
  [[nodiscard]] const cell* recent(std::int64_t index) const noexcept {
    if (recent_.empty() || index < 0) return nullptr;
    const stamped& s = recent_[static_cast<std::size_t>(index) % recent_seconds];
    return s.index == index ? &s.sums : nullptr;
  }

 private:
  struct stamped {
    std::int64_t index = -1;
    cell sums;
  };

  template <class Add>
  static void split(std::int64_t begin, std::int64_t end, std::int64_t width, const Add& add) {
    for (std::int64_t i = begin / width; begin < end; ++i) {
      const std::int64_t next = std::min(end, (i + 1) * width);
      add(i, next - begin);
      begin = next;
    }
  }

  // Grows by less than a vector would, because there are many ranks.
  void grow(std::size_t size) {
    if (size <= all_.size()) return;
    if (size > all_.capacity()) all_.reserve(size + size / 8);
    all_.resize(size);
  }

  cell& recent_at(std::int64_t index) {
    if (recent_.empty()) recent_.resize(recent_seconds);
    stamped& s = recent_[static_cast<std::size_t>(index) % recent_seconds];
    if (s.index > index) return too_old_;
    if (s.index < index) s = {index, {}};
    return s.sums;
  }

  std::vector<cell> all_;
  std::vector<stamped> recent_;
  cell too_old_;
};

}  // namespace hvd_timeline
