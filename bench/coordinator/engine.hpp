// bench/coordinator/engine.hpp: the engine against calls, while backward passes are replayed.
#pragma once

#include <bench/coordinator/launched.hpp>
#include <bench/options.hpp>

#include <optional>

namespace hvd::bench {

/// hvd-bench engine: measures steps of hvd's engine and of each library's calls, in turns; the engine's latency, and
/// the costs of an idle engine and of a timeline. Returns and throws as run().
int run_engine(const options& o, const std::optional<launched>& inside);

}  // namespace hvd::bench
