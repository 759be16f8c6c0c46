// bench/coordinator/run.hpp: one run: all libraries at all sizes.
#pragma once

#include <bench/coordinator/launched.hpp>
#include <bench/options.hpp>

#include <optional>

namespace hvd::bench {

/// Measures and prints; inside a launcher, ranks above 0 only serve. Returns the exit code: 0, or 1 where a result is
/// wrong, hvd failed, another library could not be started, or the bandwidth is less than was asked for. Errors:
/// usage_error, interrupted.
int run(const options& o, const std::optional<launched>& inside);

/// Prints the table of `--list`.
void list();

}  // namespace hvd::bench
