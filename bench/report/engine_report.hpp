// bench/report/engine_report.hpp: the table of hvd-bench engine, and the same as JSON.
#pragma once

#include <bench/options.hpp>
#include <bench/report/machine.hpp>
#include <bench/report/report.hpp>

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace hvd::bench {

/// One line of the table. Times in us.
struct engine_cell {
  std::size_t library;
  schedule what;
  bool traced;
  std::vector<double> steps{}, exposed{};
  std::optional<std::uint64_t> wrong{};
  std::string error{};
  timing step{}, beyond{};  // summaries, at the end
};

struct engine_result {
  [[nodiscard]] const engine_cell& find(std::size_t library, schedule what, bool traced) const {
    return *std::find_if(cells.begin(), cells.end(), [&](const engine_cell& c) {
      return c.library == library && c.what == what && c.traced == traced;
    });
  }
  /// The peers' cell with the shortest step among these schedules; null if there is none.
  [[nodiscard]] const engine_cell* best_peer(std::initializer_list<schedule> among) const {
    const engine_cell* best = nullptr;
    for (const engine_cell& c : cells) {
      const bool wanted = std::find(among.begin(), among.end(), c.what) != among.end();
      if (c.library == 0 || !wanted || c.steps.empty()) continue;
      if (best == nullptr || c.step.median < best->step.median) best = &c;
    }
    return best;
  }
  [[nodiscard]] bool has_steps() const {
    return std::any_of(cells.begin(), cells.end(), [](const engine_cell& c) { return !c.steps.empty(); });
  }
  /// Whether hvd gave every number.
  [[nodiscard]] bool whole() const {
    return std::all_of(cells.begin(), cells.end(),
                       [](const engine_cell& c) { return c.library != 0 || c.error.empty(); });
  }
  [[nodiscard]] std::uint64_t wrong() const {
    return std::accumulate(cells.begin(), cells.end(), std::uint64_t{0},
                           [](std::uint64_t n, const engine_cell& c) { return n + c.wrong.value_or(0); });
  }

  std::size_t gradients = 0, parameters = 0;
  std::vector<engine_cell> cells;
  timing latency;
  std::optional<double> idle_cpu;  ///< CPU seconds of all ranks for each second
  std::uint64_t idle_woken = 0;
};

void print_head(const options& o, const machine& m, const engine_result& run,
                const std::vector<library_line>& libraries, const std::vector<rank_line>& ranks);
/// All below the head. `interruption` names the signal that ended the run, if one did.
void print(const engine_result& run, const options& o, const std::vector<library_line>& libraries,
           const std::string& interruption);
nlohmann::ordered_json json_of(const engine_result& run, const options& o, const machine& m,
                               const std::vector<library_line>& libraries, const std::vector<rank_line>& ranks,
                               const std::string& interruption);

}  // namespace hvd::bench
