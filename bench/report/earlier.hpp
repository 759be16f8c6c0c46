// bench/report/earlier.hpp: an earlier run of the same machine and settings, to compare with.
#pragma once

#include <bench/options.hpp>
#include <bench/report/machine.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <tuple>

namespace hvd::bench {

/// Times in us; 0: not measured, or wrong.
struct earlier_times {
  double hvd = 0, peers = 0;
  std::string best_peer = "none";
};

/// The run of a file of --json or of bench/compare.
class Earlier {
 public:
  /// Reads `o.earlier`, or if it is empty the newest file of bench/results, below the current folder, that has a row of
  /// this run. A row is the same if machine, settings, collective, type, reduction, root, size and place are. Errors:
  /// usage_error if a file that `o.earlier` names has no results.
  Earlier(const options& o, const machine& m);

  /// Empty if there is no row to compare with.
  [[nodiscard]] const std::string& file() const { return file_; }
  [[nodiscard]] const std::string& date() const { return date_; }
  [[nodiscard]] earlier_times find(std::size_t size, const std::string& type, const std::string& op, int root) const;

 private:
  using key = std::tuple<std::size_t, std::string, std::string, int>;
  /// Whether it has a row of this run. Throws what the JSON library throws.
  bool read(const std::string& path, const options& o, const machine& m);

  std::string file_, date_;
  std::map<key, earlier_times> rows_;
};

}  // namespace hvd::bench
