// hvd/detail/random_word.hpp: 64 bits that cannot be guessed.
#pragma once

#include <hvd/error.hpp>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include <sys/random.h>

namespace hvd::inline HVD_ABI::detail {

/// From the kernel. Throws kind system if the kernel has no random numbers.
inline std::uint64_t random_word() {
  std::uint64_t r = 0;
  if (::getrandom(&r, sizeof r, 0) != static_cast<ssize_t>(sizeof r)) {
    fail(error_kind::system, {"no random numbers: ", std::strerror(errno)});
  }
  return r;
}

}  // namespace hvd::inline HVD_ABI::detail
