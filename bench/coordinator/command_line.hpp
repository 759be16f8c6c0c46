// bench/coordinator/command_line.hpp: the command line of hvd-bench.
#pragma once

#include <bench/options.hpp>

#include <optional>

namespace hvd::bench {

/// `launched` is the number of ranks that a launcher started, 0 outside of one. Errors: usage_error. After --help,
/// --version: nothing, and the text has been printed.
std::optional<options> parse_options(int argc, char** argv, int launched);

}  // namespace hvd::bench
