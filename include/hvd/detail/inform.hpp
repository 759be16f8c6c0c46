// hvd/detail/inform.hpp: what is worth a line to those who ask for it.
#pragma once

#include <hvd/error.hpp>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include <strings.h>

namespace hvd::inline HVD_ABI::detail {

/// A line on standard error if HOROVOD_LOG_LEVEL is info, debug or trace, in small letters or capitals. Not for errors,
/// which are thrown.
inline void inform(std::initializer_list<piece> what) {
  const char* const level = std::getenv("HOROVOD_LOG_LEVEL");
  if (level == nullptr) return;
  for (const char* const one : {"info", "debug", "trace"}) {
    if (::strcasecmp(level, one) == 0) std::fprintf(stderr, "hvd: info: %s\n", joined(what).c_str());
  }
}

}  // namespace hvd::inline HVD_ABI::detail
