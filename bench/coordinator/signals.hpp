// bench/coordinator/signals.hpp: signals that end a run, as exceptions.
#pragma once

#include <csignal>
#include <stdexcept>
#include <string>

namespace hvd::bench {

inline constexpr int ending_signals[] = {SIGINT, SIGTERM, SIGHUP};

/// As "SIGINT".
std::string signal_name(int signal);

/// A signal ended the run; exit code 128 + signal.
struct interrupted : std::runtime_error {
  explicit interrupted(int s, const std::string& kept = "")
      : std::runtime_error("interrupted by " + signal_name(s) + kept), signal(s) {}
  int signal;
};
/// From now on SIGINT, SIGTERM and SIGHUP end waits of this process by `interrupted`.
void catch_signals();
/// The signal that has come since then; 0 if none has.
int received_signal() noexcept;

}  // namespace hvd::bench
