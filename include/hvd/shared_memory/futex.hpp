// hvd/shared_memory/futex.hpp: sleeping on a word of shared memory.
#pragma once

#include <hvd/detail/wait.hpp>
#include <hvd/version.hpp>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// Sleeps until woken, for at most `limit`. Returns at once if the word no longer has the expected value. Works between
/// processes. May return early.
inline void futex_wait(const std::atomic<std::uint32_t>& at, std::uint32_t expected,
                       std::chrono::nanoseconds limit) noexcept {
  const timespec t = timespec_of(limit);
  ::syscall(SYS_futex, &at, FUTEX_WAIT, expected, &t, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<std::uint32_t>& at) noexcept {
  ::syscall(SYS_futex, &at, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hvd::inline HVD_ABI::detail
