// tests/support/refusals.hpp: the system refuses locks, or memory, at the moment that a test chooses. Once in a
// program.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdlib>
#include <new>

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hvd::test {

/// So many locks are granted, and then no more; -1: all are.
inline std::atomic<int> locks_left{-1};
/// So many times this thread gets memory, and then once not; -1: always.
inline thread_local int allocations_left = -1;

}  // namespace hvd::test

extern "C" int fcntl(int fd, int command, ...) {
  std::va_list list;
  va_start(list, command);
  void* const argument = va_arg(list, void*);
  va_end(list);
  if (command == F_OFD_SETLK && hvd::test::locks_left >= 0 && hvd::test::locks_left-- <= 0) {
    hvd::test::locks_left = 0;
    errno = ENOLCK;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fcntl, fd, command, argument));
}

// Not inlined: compilers take malloc and free in one function for a mismatch with new and delete in it.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (hvd::test::allocations_left >= 0 && hvd::test::allocations_left-- == 0) throw std::bad_alloc();
  if (void* const p = std::malloc(bytes != 0 ? bytes : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes != 0 ? bytes : 1);
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
