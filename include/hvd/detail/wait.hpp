// hvd/detail/wait.hpp: the steps of loops that poll, and how many of each such a loop takes.
//
// A thread that is always woken (a completion's, that of an engine or of a watch) sleeps on a futex or on a condition
// variable instead, and polls nothing.
#pragma once

#include <hvd/detail/cpu.hpp>
#include <hvd/version.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include <sched.h>

namespace hvd::inline HVD_ABI::detail {

inline timespec timespec_of(std::chrono::nanoseconds time) noexcept {
  timespec t{};
  t.tv_sec = time.count() / 1'000'000'000;
  t.tv_nsec = time.count() % 1'000'000'000;
  return t;
}

/// Sleeps: std::this_thread::sleep_for, without the rest of its header.
inline void nap(std::chrono::microseconds time) noexcept {
  const timespec t = timespec_of(time);
  ::nanosleep(&t, nullptr);
}

/// The steps of a wait, in this order, with a poll after each.
struct pace {
  int looks = 0;   ///< polls at once
  int pauses = 0;  ///< polls after a pause of the CPU
  int yields = 0;  ///< polls after a yield of the CPU
  /// Polls after a sleep, each twice as long as the one before, up to `longest`. Without sleeps, yields do not end.
  std::chrono::microseconds sleep{0};
  std::chrono::microseconds longest = sleep;
};

/// The paces of waits. Others are options, with their reasons there: waiting_policy for ranks with common memory, and
/// mpi_options::polls. The naps of an engine between two looks at its device lie in engine/pending.hpp.
namespace paces {

using us = std::chrono::microseconds;

/// A message of an engine's round, for a thread of the program. The sleeps are for ranks without common memory, where
/// no peer can ring: they poll less often the longer it lasts.
inline constexpr pace round{.pauses = 200, .yields = 10, .sleep = us(20), .longest = us(1000)};
/// The same for the engine's own thread: nobody waits for it at that moment.
inline constexpr pace round_by_itself{.pauses = 20, .yields = 10, .sleep = us(20), .longest = us(1000)};
/// The sleeps in a round if peers can ring: short enough that they are checked in time.
inline constexpr pace doorbell{.sleep = us(50'000)};
/// Another thread that drives an engine: it may end the operation, or stop driving, in a moment. Then a sleep on the
/// operation's end.
inline constexpr int other_driver_yields = 50;

/// An MPI: it moves messages only while it is polled. `tagged` begins again after each sleep.
inline constexpr pace mpi{};
inline constexpr pace tagged{.yields = 255, .sleep = us(50)};

/// A message over TCP, before poll(2): its system calls take about as long as a message in a data centre.
inline constexpr pace tcp{.looks = 16};

/// Work on a GPU, and NCCL, which connects ranks in threads of its own.
inline constexpr pace gpu{.yields = 1000, .sleep = us(50)};
/// A call of NCCL in another thread, with a check of the other ranks after each sleep.
inline constexpr pace nccl_call{.sleep = us(50)};
/// The end of a communicator, of a stream, or of all work of a device, which may take seconds.
inline constexpr pace gpu_end{.sleep = us(100)};
/// Another group's turn to queue its work; the group of a batch can do nothing else meanwhile.
inline constexpr pace gpu_turn{.sleep = us(20)};

/// Ranks that join a group: at once if all start together, or after seconds.
inline constexpr pace joining{.sleep = us(20), .longest = us(1000)};
inline constexpr pace connecting{.sleep = us(200), .longest = us(50'000)};  // each try costs a packet, or a port
/// A lock that another process holds for microseconds, to remove a name, and one that it holds for milliseconds, to
/// append to a timeline.
inline constexpr pace name_lock{.sleep = us(50)};
inline constexpr pace file_lock{.sleep = us(50), .longest = us(1000)};
/// A state that another process or thread is about to reach.
inline constexpr pace other_process{.sleep = us(1000)};
/// Children of a launcher, which take as long as the job, and claims by another launch.
inline constexpr pace whole_job{.sleep = us(2000)};

}  // namespace paces

/// The steps in which a thread keeps its CPU. True as soon as `ready()`.
template <class Ready>
bool spin(const pace& p, Ready&& ready) {
  for (int i = p.looks; i > 0; --i) {
    if (ready()) return true;
  }
  for (int i = p.pauses; i > 0; --i) {
    cpu_pause();
    if (ready()) return true;
  }
  return false;
}

/// The steps after `spin`, one at a time.
class backoff {
 public:
  explicit backoff(const pace& p) noexcept
      : yields_(p.yields), yields_only_(p.sleep.count() == 0), sleep_(p.sleep), longest_(p.longest) {}

  /// Yields the CPU; false if it is time to sleep.
  bool yield() noexcept {
    if (!yields_only_) {
      if (yields_ <= 0) return false;
      --yields_;
    }
    ::sched_yield();
    return true;
  }
  /// The time to sleep next.
  std::chrono::microseconds sleep() noexcept { return std::exchange(sleep_, std::min(2 * sleep_, longest_)); }
  /// Yields or sleeps.
  void step() noexcept {
    if (!yield()) nap(sleep());
  }

 private:
  int yields_;
  bool yields_only_;
  std::chrono::microseconds sleep_, longest_;
};

/// Polls `ready()` until it is true, or, after each step, until `until`; true if it became true in time.
template <class Ready>
bool wait_until(std::chrono::steady_clock::time_point until, const pace& p, Ready&& ready) {
  if (spin(p, ready)) return true;
  for (backoff rest(p); !ready(); rest.step()) {
    if (std::chrono::steady_clock::now() >= until) return false;
  }
  return true;
}

}  // namespace hvd::inline HVD_ABI::detail
