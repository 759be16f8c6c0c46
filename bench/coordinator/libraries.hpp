// bench/coordinator/libraries.hpp: all libraries of one run, hvd first.
#pragma once

#include <bench/coordinator/launched.hpp>
#include <bench/coordinator/library.hpp>
#include <bench/options.hpp>
#include <bench/report/machine.hpp>
#include <bench/report/report.hpp>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hvd::bench {

/// Rotating buffers are together twice the last-level cache, or 1 GiB where that is less or nobody knows.
std::size_t rotating_bytes();

/// What the largest size needs, against what there is. Errors: usage_error.
void check_memory(const options& o, std::size_t libraries);

/// The CPUs to pin ranks to, as "0,1"; empty: not.
std::string cpu_list(const options& o, const machine& m);

/// Starts hvd, the peers, and the limit if asked for. What could not be started says why; if that is hvd:
/// std::runtime_error. From then on signals end waits.
std::vector<std::unique_ptr<Library>> start_libraries(const options& o, const machine& m,
                                                      const std::optional<launched>& inside);

std::vector<library_line> lines_of(const std::vector<std::unique_ptr<Library>>& libraries);

/// Says on stderr which libraries never ran. Whether all did.
bool say_missing(const std::vector<library_line>& lines);

}  // namespace hvd::bench
