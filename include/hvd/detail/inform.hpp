// hvd/detail/inform.hpp: lines of information on standard error, for users who ask for them.
#pragma once

#include <hvd/error.hpp>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <strings.h>

namespace hvd::inline HVD_ABI::detail {

/// Prints a line on standard error if HOROVOD_LOG_LEVEL is info, debug or trace, in lower or upper case. Not for
/// errors, which are thrown.
inline void inform(std::initializer_list<piece> what) {
  const char* const level = std::getenv("HOROVOD_LOG_LEVEL");
  if (level == nullptr) return;
  for (const char* const one : {"info", "debug", "trace"}) {
    if (::strcasecmp(level, one) == 0) std::fprintf(stderr, "hvd: info: %s\n", joined(what).c_str());
  }
}

}  // namespace hvd::inline HVD_ABI::detail
