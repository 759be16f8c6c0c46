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

/// Rotating buffers are together twice the last-level cache, or 1 GiB if that is less or the cache is unknown.
std::size_t rotating_bytes();

/// Checks the memory that the largest size needs. Errors: usage_error.
void check_memory(const options& o, std::size_t libraries);

/// The CPUs to pin ranks to, such as "0,1"; empty: none.
std::string cpu_list(const options& o, const machine& m);

/// Starts hvd, the peers, and the limit if asked for. A library that could not be started has the reason; if that is
/// hvd: std::runtime_error. From then on signals end waits.
std::vector<std::unique_ptr<Library>> start_libraries(const options& o, const machine& m,
                                                      const std::optional<launched>& inside);

std::vector<library_line> lines_of(const std::vector<std::unique_ptr<Library>>& libraries);

/// Says on stderr which libraries never ran. Whether all did.
bool say_missing(const std::vector<library_line>& lines);

}  // namespace hvd::bench
