// hvd/detail/descriptor.hpp: file descriptors that are never those of the standard streams.
//
// In a process without standard error (a daemon, `2>&-`) the system gives the number 2 to the next file that is opened.
// A program that then prints an error writes into that file: into memory that ranks share, for example. So hvd opens
// files by these functions alone; tests/layering.py refuses other ways.
#pragma once

#include <hvd/version.hpp>

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The lowest number of a descriptor that no program uses for standard input, output or error.
inline constexpr int first_own_descriptor = 3;

/// A new descriptor for the same open file, or -1 with errno.
inline int duplicate_descriptor(int fd) noexcept { return ::fcntl(fd, F_DUPFD_CLOEXEC, first_own_descriptor); }

/// The descriptor that a system call returned, or another one for the same open file; -1 with errno.
inline int above_standard_streams(int fd) noexcept {
  if (fd < 0 || fd >= first_own_descriptor) return fd;
  const int moved = duplicate_descriptor(fd);
  const int why = errno;
  ::close(fd);
  errno = why;
  return moved;
}

/// open(2) with O_CLOEXEC: a descriptor, or -1 with errno.
inline int open_descriptor(const char* path, int flags, mode_t mode = 0) noexcept {
  return above_standard_streams(::open(path, flags | O_CLOEXEC, mode));
}

}  // namespace hvd::inline HVD_ABI::detail
