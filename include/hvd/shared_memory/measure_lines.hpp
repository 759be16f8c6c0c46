// hvd/shared_memory/measure_lines.hpp: measures the costs of cache lines between the ranks of a group with common
// memory.
#pragma once

#include <hvd/line_costs.hpp>
#include <hvd/shared_memory/agree.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Two ranks that measure in their staging rings, which are not yet in use. Each number is the least or the median of
/// several samples: one delay of a rank spoils one sample only. If ranks wait for CPUs, rank 0 soon ends the
/// measurement, and the costs stay unknown.
class line_probe {
 public:
  /// True if the rings have room for the measurement.
  static bool fits(const peer_memory& m) noexcept { return m.shape().ring_bytes >= staging_page + places * bytes; }

  /// The pair's `number` is part of the words in the rings, which are zero at first and only grow.
  line_probe(peer_memory& m, int peer, int number)
      : m_(m), peer_(peer), own_(*reinterpret_cast<word*>(m.at(m.rank(), {}))),
        other_(*reinterpret_cast<word*>(m.at(peer, {}))), local_(m.scratch(bytes)),
        sent_(static_cast<std::uint64_t>(number) << 32), received_(sent_) {}

  /// Rank 0 writes, and gets the costs: unknown if it took too long.
  line_costs write() {
    line_costs found{~std::uint32_t{0}, 0, 0};
    for (int i = 0; i != rallies; ++i) {
      const auto began = clock::now();
      for (int k = 0; k != round_trips; ++k) {
        if (!serve()) return {};
        await_answer();
      }
      found.transfer = std::min(found.transfer, since(began) / (2 * round_trips));
    }
    for (int i = 0; i != rounds; ++i) {
      const auto began = clock::now();
      copy_bytes(m_.at(m_.rank(), {0, place(i)}), local_, bytes);
      spent_[static_cast<std::size_t>(i)] = since(began) / lines;
      if (!serve()) return {};
      await_answer();
    }
    if (found.transfer > slowest) return {};
    found.rewrite = median(0);
    found.touched = median(1) + static_cast<std::uint32_t>(std::min<std::uint64_t>(of_reader(peer_).load(), most));
    return found;
  }
  /// Its peer reads, and stores its cost of touching in its ring.
  void read() {
    for (int i = 0; i != rallies * round_trips; ++i) {
      if (!await_answer()) return;
      send();
    }
    for (int i = 0; i != rounds; ++i) {
      if (!await_answer()) return;
      const auto began = clock::now();
      copy_bytes(local_, m_.at(peer_, {0, place(i)}), bytes);
      if (touches(i)) touch_lines(m_.at(peer_, {0, place(i)}), bytes);
      spent_[static_cast<std::size_t>(i)] = since(began) / lines;
      if (i + 1 == rounds) of_reader(m_.rank()) = std::max(median(1), median(0)) - median(0);
      send();
    }
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t bytes = std::size_t{16} << 10;
  static constexpr int places = 4;  // with a single one the cost of a store varies on an EPYC
  static constexpr std::uint32_t lines = bytes / cache_line;
  static constexpr int half = 16, rounds = 2 * half, settled = 8, rallies = 6, round_trips = 8;
  static constexpr std::uint32_t most = 1'000'000'000;
  static constexpr std::uint32_t slowest = 5'000'000;  // 5 us: no line takes so long, but a rank without a CPU does
  static constexpr std::uint64_t enough = std::uint64_t{1} << 31;

  static std::uint32_t since(clock::time_point began) noexcept {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - began).count();
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>(ns, 0, 4'000'000) * 1000);
  }
  static constexpr std::size_t place(int i) noexcept {
    return staging_page + static_cast<std::size_t>(i % places) * bytes;
  }
  /// True if the reader touches lines after reading them in round i: in the second half of the rounds.
  static constexpr bool touches(int i) noexcept { return i >= half; }
  /// The median of a half without its first rounds: the cost of a round settles only after some of the same kind.
  std::uint32_t median(int which) noexcept {
    auto* const first = spent_.data() + which * half + settled;
    std::sort(first, first + (half - settled));
    return first[(half - settled) / 2];
  }

  /// A word in the ring of the pair's reader.
  [[nodiscard]] word& of_reader(int r) const { return *reinterpret_cast<word*>(m_.at(r, {0, apart})); }
  void send() { m_.store(own_, ++sent_); }
  /// False if rank 0 has ended the measurement.
  bool await_answer() { return (m_.await(other_, ++received_, peer_, phase::answer) & enough) == 0; }
  /// Rank 0 starts the next step, or ends the measurement if it has taken too long: false.
  bool serve() {
    if (clock::now() - began_ > std::chrono::milliseconds(2)) {
      m_.store(own_, sent_ | enough);
      return false;
    }
    send();
    return true;
  }

  peer_memory& m_;
  const int peer_;
  word& own_;
  const word& other_;
  std::byte* const local_;
  std::array<std::uint32_t, rounds> spent_{};
  std::uint64_t sent_, received_;
  const clock::time_point began_ = clock::now();
};

/// Collective: the line costs that all ranks use. These are `given`, if known, which must be the same on all ranks
/// (else mismatch on all of them); otherwise rank 0 measures with at most three others, and all take the mean. Unknown
/// if ranks are oversubscribed. Cost: two exchanges, and 0.2 ms for each pair; if ranks wait for CPUs, 2 ms and the
/// wait for a CPU.
inline line_costs agree_on_line_costs(peer_memory& m, const line_costs& given) {
  peer_memory::scope scope(m, "join");
  const std::vector<line_costs> wanted = share(m, given, operation::barrier);
  for (int q = 1; q != m.size(); ++q) {
    const line_costs& other = wanted[static_cast<std::size_t>(q)];
    if (other == wanted.front()) continue;
    scope.leave();
    fail(error_kind::mismatch,
         {"join on ", m.label(), ": HVD_LINE_COSTS is ", to_string(wanted.front()), " on rank 0 and ", to_string(other),
          " on rank ", q, " (zeros: not set); set it to the same on all ranks, or on none"},
         q);
  }
  if (given.known() || m.oversubscribed() || !line_probe::fits(m)) {
    scope.leave();
    return given;
  }
  std::array<std::uint64_t, 3> sums{};
  std::uint64_t known = 0;
  for (int last = 0, number = 0; const int peer : {1, m.size() / 2, m.size() - 1}) {
    if (peer <= last) continue;
    last = peer;
    if (m.rank() == peer) line_probe(m, 0, number).read();
    if (m.rank() == 0) {
      const line_costs c = line_probe(m, peer, number).write();
      sums = {sums[0] + c.transfer, sums[1] + c.rewrite, sums[2] + c.touched};
      known += c.known() ? 1U : 0U;
    }
    ++number;
  }
  const auto mean = [&](std::uint64_t sum) {
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(sum / known, 1));
  };
  line_costs found;
  if (known != 0) found = {mean(sums[0]), mean(sums[1]), mean(sums[2])};
  found = share(m, found, operation::barrier).front();
  scope.leave();
  return found;
}

}  // namespace hvd::inline HVD_ABI::detail
