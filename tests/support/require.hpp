// tests/support/require.hpp: a check in a rank that may be another process, where doctest cannot look.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace hvd::test {

/// What launchers report: thread_run throws it on, fork_run prints it and returns 1.
struct requirement_failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws with file, line and `what` (a string, or a function that makes one) unless `holds`.
template <class What>
void require(bool holds, const What& what, std::source_location where = std::source_location::current()) {
  if (holds) [[likely]]
    return;
  std::string text = std::string(where.file_name()) + ":" + std::to_string(where.line()) + ": ";
  if constexpr (std::is_invocable_v<const What&>) {
    text += what();
  } else {
    text += what;
  }
  throw requirement_failed(text);
}

}  // namespace hvd::test
