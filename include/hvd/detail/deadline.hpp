// hvd/detail/deadline.hpp: time limits that a program passes as seconds, and the clock's times at which they end.
#pragma once

#include <hvd/error.hpp>

#include <chrono>
#include <string_view>

namespace hvd::inline HVD_ABI::detail {

/// The end of a wait that begins now. Limits above a hundred years, and infinity, mean no limit: nanoseconds in 64 bits
/// end after 292 years.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::duration<double> limit) noexcept {
  using clock = std::chrono::steady_clock;
  if (!(limit < std::chrono::hours(24 * 36525))) return clock::time_point::max();
  return clock::now() + std::chrono::duration_cast<clock::duration>(limit);
}

/// Errors: invalid_argument, with the name, for a limit that is negative or not a number.
inline void check_limit(std::string_view name, std::chrono::duration<double> limit) {
  if (limit.count() >= 0) return;
  fail(error_kind::invalid_argument,
       {name, " is ", limit.count(), " s; allowed: 0 or more seconds, or infinity for no limit"});
}

}  // namespace hvd::inline HVD_ABI::detail
