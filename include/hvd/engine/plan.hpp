// hvd/engine/plan.hpp: groups operations that are ready into batches.
#pragma once

#include <hvd/engine/signature_cache.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Operations that run as one, by their numbers.
struct batch {
  std::vector<std::uint32_t> ids{};
  std::size_t bytes = 0;
};

/// Bytes of all tensors of an operation on a rank; of one row of each if ranks may have different numbers of rows.
inline std::size_t bytes_of(const signature& s) noexcept {
  std::size_t all = 0;
  for (std::size_t t = 0; t != s.types.size(); ++t) all += s.elements(t) * size_of(s.types[t]);
  return all;
}

/// One operation of a batch on this rank.
struct work {
  const signature& what;
  const request* mine = nullptr;  ///< null on a joined rank, which contributes zeros
  completion* end = nullptr;
  /// Every rank's tensors lie alike in memory registered with a device's library, or in none; the same on all ranks. If
  /// not, the library gets memory of the engine's own.
  bool alike = true;
};

/// True if two operations may share a collective: they differ only in names, types and shapes, and are neither alltoall
/// nor barrier.
inline bool fusable(const signature& a, const signature& b) noexcept {
  if (a.kind != b.kind || a.op != b.op || a.root != b.root || a.memory != b.memory) return false;
  if (a.prescale != b.prescale || a.postscale != b.postscale || a.wire != b.wire || a.even != b.even) return false;
  return a.kind != operation::alltoall && a.kind != operation::barrier;
}

/// Batches of at most `threshold` bytes (a single operation may have more; 0: nothing is fused), in the order in which
/// they run: by priority, then by number. An operation that does not fit into a batch does not end it: later ones that
/// fit still join it. With `groups_alone` each group is a separate batch. A pure function, so that all ranks make the
/// same plan.
inline std::vector<batch> plan(const signature_cache& known, std::vector<std::uint32_t> ready, std::size_t threshold,
                               bool groups_alone) {
  std::sort(ready.begin(), ready.end(), [&](std::uint32_t a, std::uint32_t b) {
    const int x = known[a].priority, y = known[b].priority;
    return x != y ? x > y : a < b;
  });
  const auto alone = [&](const signature& s) {
    return threshold == 0 || (groups_alone && s.types.size() > 1) || !fusable(s, s);
  };
  std::vector<batch> all;
  for (const std::uint32_t id : ready) {
    const signature& what = known[id].what;
    const std::size_t bytes = bytes_of(what);
    const auto fits = [&](const batch& b) {
      const signature& first = known[b.ids.front()].what;
      return !alone(first) && fusable(first, what) && b.bytes + bytes <= threshold;
    };
    const auto found = alone(what) ? all.end() : std::find_if(all.begin(), all.end(), fits);
    if (found == all.end()) {
      all.push_back({{id}, bytes});
    } else {
      found->ids.push_back(id);
      found->bytes += bytes;
    }
  }
  return all;
}

}  // namespace hvd::inline HVD_ABI::detail
