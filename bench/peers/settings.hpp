// bench/peers/settings.hpp: the settings of a peer's ranks from their launcher.
#pragma once

#include <cstdlib>
#include <string>

namespace hvd::bench {

/// In the environment of ranks: the settings that their launcher chose, for their own description.
inline constexpr const char* settings_variable = "HVD_BENCH_SETTINGS";
/// In the environment of ranks that meet in a folder: a private one, removed by who made it.
inline constexpr const char* scratch_variable = "HVD_BENCH_SCRATCH";

/// "; A=1 B=2" for the end of a description; empty without settings.
inline std::string settings_text() {
  const char* const text = std::getenv(settings_variable);
  return text == nullptr || *text == '\0' ? std::string() : std::string("; ") + text;
}

}  // namespace hvd::bench
