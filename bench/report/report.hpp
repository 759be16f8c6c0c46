// bench/report/report.hpp: the table that nccl-tests prints, and the same as JSON.
#pragma once

#include <bench/options.hpp>
#include <bench/report/earlier.hpp>
#include <bench/report/machine.hpp>
#include <bench/report/where.hpp>

#include <nlohmann/json_fwd.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hvd::bench {

/// Times of one library at one size, in us.
struct timing {
  double median = 0, p99 = 0, least = 0, most = 0, mean = 0, deviation = 0;
  std::size_t iterations = 0;
  unsigned warmup = 0;                 ///< calls before those of each round
  std::optional<std::uint64_t> wrong;  ///< nothing: not checked
};
timing summarise(std::vector<double> samples);

struct measured {
  std::optional<timing> out_of_place, in_place;
  std::string error;  ///< why something is missing
};

/// The costs of a cache line between the ranks' CPUs that were measured around a row, in us; nothing if unknown.
struct line_state {
  std::optional<double> lowest{}, highest{};  ///< before the row, and after each of its rounds
  unsigned tries = 1;                         ///< how often the row was measured

  /// The two costs of a virtual machine differ by a factor of 2 and more, and measurements of the same by a tenth.
  static constexpr double factor = 1.5;
  [[nodiscard]] bool changed() const { return lowest && *highest > factor * *lowest; }
  void add(std::optional<double> cost) {
    if (!cost) return;
    lowest = std::min(*cost, lowest.value_or(*cost));
    highest = std::max(*cost, highest.value_or(*cost));
  }
};

struct row {
  std::size_t size = 0, count = 0;
  dtype type{};
  redop op{};
  int root = 0;
  std::vector<measured> libraries;  ///< hvd first, in the order of the head
  line_state line{};                ///< of the last try, with --steady
};

/// Writes to standard output as rows come, and to the JSON file at the end only, whether the run came to it or was
/// interrupted.
class Report {
 public:
  /// Checks that the JSON file can be written, and reads the earlier run. Errors: usage_error.
  Report(const options& o, machine m);
  ~Report();

  void head(const std::vector<library_line>& libraries, const std::vector<rank_line>& ranks);
  void add(const row& r);
  /// The footer and the JSON file. `libraries` as they ended. `interruption` names the signal that ended the run, whose
  /// rows are then kept; without any, a file that exists is left alone.
  void finish(const std::vector<library_line>& libraries, const std::string& interruption = "");

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t wrong() const { return wrong_; }
  [[nodiscard]] double average_bandwidth() const { return averaged_ == 0 ? 0 : bandwidth_ / averaged_; }

 private:
  void print_half(const std::optional<timing>& t, const row& r);
  void print_extras(const row& r);
  [[nodiscard]] nlohmann::ordered_json json_of(const std::optional<timing>& t, const row& r) const;

  const options& options_;
  machine machine_;
  Earlier earlier_;
  std::vector<double> speeds_;  ///< against the earlier run, 1 if as fast
  std::vector<library_line> libraries_;
  std::vector<rank_line> ranks_;
  std::unique_ptr<nlohmann::ordered_json> results_;
  std::uint64_t wrong_ = 0;
  std::size_t rows_ = 0;
  bool checked_ = false;
  double bandwidth_ = 0;
  int averaged_ = 0;
};

}  // namespace hvd::bench
