// bench/report/explain.hpp: the choices of `automatic` on a group, with reasons, as text.
#pragma once

#include <hvd/algorithm/measure.hpp>
#include <hvd/selection.hpp>

#include <cstddef>
#include <cstdio>
#include <string>

namespace hvd::bench {

/// A table of choices by collective and size, with the model's times; the costs stand above it as HVD_COSTS takes them.
inline std::string explain(const hvd::selector& selection, int ranks, bool native) {
  std::string text = "HVD_COSTS=";
  text += hvd::to_string(selection.model.costs) + "\n";
  text += "collective             bytes  choice                  model\n";
  for (const hvd::operation kind : hvd::detail::tuned_operations()) {
    hvd::choice last{};
    bool first = true;
    for (std::size_t bytes = 8; bytes <= std::size_t{1} << 30; bytes *= 2) {
      const hvd::workload w{.kind = kind, .bytes = bytes, .ranks = ranks, .native = native};
      const hvd::choice now = selection(w);
      if (!first && now == last) continue;  // a line for each change
      char line[128];
      const double us = selection.model.time(now, w) / 1000;
      const bool measured = now != hvd::choice::native || us > 0;
      std::snprintf(line, sizeof line, measured ? "%-14s %13zu  %-18s %8.1f us\n" : "%-14s %13zu  %-18s not measured\n",
                    std::string(name(kind)).c_str(), bytes, std::string(name(now)).c_str(), us);
      text += line;
      last = now;
      first = false;
    }
  }
  return text;
}

}  // namespace hvd::bench
