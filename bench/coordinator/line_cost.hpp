// bench/coordinator/line_cost.hpp: the cost of a cache line between the ranks' CPUs, which changes when a virtual
// machine's CPUs move.
#pragma once

#include <optional>
#include <string>

namespace hvd::bench {

/// Microseconds from a store on one rank's CPU until another rank sees it (hvd/line_costs.hpp, `transfer`), measured by
/// processes that are pinned as ranks are; the ranks of all libraries must sleep. Nothing if it is unknown: with a
/// single rank, with more ranks than CPUs, or if a CPU was busy. Cost: some milliseconds. Errors: interrupted.
std::optional<double> measure_line_us(int ranks, const std::string& cpu_list);

}  // namespace hvd::bench
