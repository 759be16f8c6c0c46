// bench/report/where.hpp: machine, ranks and libraries, with which every table and JSON file begins.
#pragma once

#include <bench/options.hpp>
#include <bench/report/machine.hpp>

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace hvd::bench {

/// Where one rank of hvd runs.
struct rank_line {
  int pid = 0;
  int cpu = -1;          ///< -1: on several
  std::string device{};  ///< its name, if buffers are on one
  int ordinal = -1;      ///< of the device
};

struct library_line {
  std::string name, description, missing;
};

/// The part of a table's head that all tables share; and the same for the JSON file.
void print_where(const options& o, const machine& m, const std::vector<library_line>& libraries,
                 const std::vector<rank_line>& ranks);
void add_where(nlohmann::ordered_json& all, const machine& m, const std::vector<library_line>& libraries,
               const std::vector<rank_line>& ranks);

}  // namespace hvd::bench
