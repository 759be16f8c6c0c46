// c/errors.hpp: converts an exception to a number and a sentence for C programs.
#pragma once

#include <hvd/c/hvd.h>
#include <hvd/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI::c {

static_assert(static_cast<int>(error_kind::invalid_argument) + 1 == HVD_INVALID_ARGUMENT);
static_assert(static_cast<int>(error_kind::mismatch) + 1 == HVD_MISMATCH);
static_assert(static_cast<int>(error_kind::peer_lost) + 1 == HVD_PEER_LOST);
static_assert(static_cast<int>(error_kind::timeout) + 1 == HVD_TIMEOUT);
static_assert(static_cast<int>(error_kind::no_memory) + 1 == HVD_NO_MEMORY);
static_assert(static_cast<int>(error_kind::unsupported) + 1 == HVD_UNSUPPORTED);
static_assert(static_cast<int>(error_kind::system) + 1 == HVD_SYSTEM);
static_assert(static_cast<int>(error_kind::aborted) + 1 == HVD_ABORTED);

/// A thread's last failure. Plain characters, because it must be writable without free memory, and readable in
/// functions that run when a thread or the process ends.
struct failure {
  char text[4096];
  int rank;

  void set(std::initializer_list<std::string_view> parts, int culprit) noexcept {
    std::size_t used = 0;
    for (const std::string_view part : parts) {
      const std::size_t n = std::min(part.size(), sizeof text - 1 - used);
      std::memcpy(text + used, part.data(), n);
      used += n;
    }
    text[used] = '\0';
    rank = culprit;
  }
};
inline thread_local constinit failure last_failure{"", -1};

/// Keeps the exception that is being handled; returns its number. Adds the function's name to the sentence if it is not
/// there yet.
[[gnu::cold, gnu::noinline]] inline int keep(std::string_view function) noexcept {
  try {
    throw;
  } catch (const error& e) {
    const std::string_view what = detail::sentence(e);
    // An operation of the engine is called by its own name, as in `allreduce "weights" on rank 0 of 2`.
    const std::string_view own = function.substr(function.starts_with("engine_") ? 7 : 0);
    if (what.find(own) != std::string_view::npos) {
      last_failure.set({e.what()}, e.rank());
    } else {
      last_failure.set({"hvd: ", function, ": ", what}, e.rank());
    }
    return static_cast<int>(e.kind()) + 1;
  } catch (const std::bad_alloc&) {
    last_failure.set({"hvd: ", function, ": out of memory"}, -1);
    return HVD_NO_MEMORY;
  } catch (const std::exception& e) {
    last_failure.set({"hvd: ", function, ": ", e.what()}, -1);
  } catch (...) {
    last_failure.set({"hvd: ", function, ": an exception of an unknown type"}, -1);
  }
  return HVD_SYSTEM;
}

/// Runs the body of a function of the C interface.
template <class F>
int guarded(std::string_view function, const F& body) noexcept {
  try {
    body();
    return HVD_OK;
  } catch (...) {
    return keep(function);
  }
}

/// Throws a problem with an argument outside of any group: `what` is the rest of the sentence.
[[noreturn, gnu::cold, gnu::noinline]] inline void refuse(std::string_view function,
                                                          std::initializer_list<detail::piece> what) {
  detail::fail(error_kind::invalid_argument, {function, ": ", detail::joined(what)});
}
inline void require(std::string_view function, const void* pointer, const char* name, const char* purpose) {
  if (pointer == nullptr) [[unlikely]]
    refuse(function, {name, " is null; pass the address of ", purpose});
}

}  // namespace hvd::inline HVD_ABI::c
