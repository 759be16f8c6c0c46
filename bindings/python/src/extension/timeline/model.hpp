// model.hpp: the state kept for a timeline: ranks, tensors, and the current activity of each rank on each tensor.
#pragma once

#include "cells.hpp"
#include "names.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace hvd_timeline {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::min();

/// The time during which at least one of several things goes on.
struct open_span {
  std::int64_t since = 0;
  std::int64_t counted = never;  ///< counted up to this time: events of several threads may come out of order
  std::uint32_t open = 0;
};

/// Facts about a rank as a whole.
struct rank_facts {
  std::uint32_t rank = 0;
  std::string host;  ///< empty if the file does not contain it
  std::int64_t size = 0, process = 0;
  std::uint32_t starts = 0;
  std::int64_t first = never;
  std::int64_t last = never;        ///< its last event, without warnings and cycles of the engine
  std::int64_t first_step = never;  ///< the end of its first step
  std::uint64_t operations = 0, steps = 0;
};

struct rank_state : rank_facts {
  open_span running, negotiating;
  open_span global_running, global_negotiating;  ///< of the process set of all ranks
  rank_cells cells;
};

/// A tensor of the program, on all ranks. In process sets other than the first, its name begins with "set 2: ".
struct tensor_state {
  static constexpr std::int64_t recent_span = 8 * rank_cells::second;

  std::string name;
  std::uint32_t process = 0;
  int set = 0;
  bool blocks = false;  ///< of a torch.distributed group, which records the shape of one rank's block
  std::uint16_t kind = activity_names::most;  ///< the activity that names the operation on it
  std::uint64_t operations = 0;
  double bytes = 0;
  std::int64_t negotiate = 0, run = 0, exposed = 0;
  std::int64_t first = never, last = never;
  std::string detail{};  ///< "float32 [64, 512]" of the last operation
  struct recent_wait {
    std::int64_t span = -1;
    std::int64_t exposed = 0;
  };
  std::array<recent_wait, 8> recent{};

  void add_exposed(std::int64_t end, std::int64_t duration) noexcept {
    exposed += duration;
    const std::int64_t span = end < 0 ? 0 : end / recent_span;
    recent_wait& r = recent[static_cast<std::size_t>(span) % recent.size()];
    if (r.span < span) r = {span, 0};
    if (r.span == span) r.exposed += duration;
  }
  /// The time waited for it in about the last minute before `now`.
  [[nodiscard]] std::int64_t recently_exposed(std::int64_t now) const noexcept {
    std::int64_t sum = 0;
    for (const recent_wait& r : recent) {
      if (r.span > now / recent_span - static_cast<std::int64_t>(recent.size())) sum += r.exposed;
    }
    return sum;
  }
};

/// A tensor on one rank.
struct row {
  static constexpr std::size_t deepest = 4;  ///< deeper activities are counted, but have no name

  std::uint32_t tensor = 0;
  std::uint32_t rank = 0;  ///< index of its rank_state
  std::uint32_t depth = 0;
  std::uint32_t done = 0;  ///< finished operations
  std::array<std::uint16_t, deepest> names{};
  std::array<std::int64_t, deepest> begins{};
  std::int64_t submitted = never;
  std::int64_t exposed = 0, run = 0;
};

/// A long activity, which may have begun far before the window that shows it.
struct long_slice {
  std::uint32_t tensor = 0;
  std::uint32_t rank = 0;  ///< the number of the rank
  std::uint16_t name = 0;
  std::uint8_t depth = 0;
  bool unfinished = false;
  std::int64_t begin = 0, end = 0;
};

/// A rank reports operations that do not end; the launcher of an elastic job reports changes of its ranks.
struct report {
  std::int64_t time = 0;
  std::uint32_t rank = 0;
  bool of_launcher = false;
  std::string text;
};

struct totals {
  std::uint64_t events = 0, operations = 0, negotiations = 0, dropped = 0, unplaced = 0, waits = 0, steps = 0,
                samples = 0;
  std::int64_t first = never, last = never;
};

}  // namespace hvd_timeline
