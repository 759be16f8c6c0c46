// hvd/version.hpp: the version, written once, and the inline namespace made from it.
#pragma once

#if __cplusplus < 202002L
#error "hvd needs C++20: compile with -std=c++20 (Meson: default_options: ['cpp_std=c++20'])"
#include <hvd_needs_cpp20>  // there is no such file, which ends the compilation: all else would be thousands of errors
#endif
#ifndef __cpp_exceptions
#error "hvd reports errors by exceptions: compile without -fno-exceptions, or use libhvd (hvd/c/hvd.h)"
#include <hvd_needs_exceptions>
#endif
#ifndef __LP64__
#error "hvd needs a 64-bit processor, and a compiler for it (without -m32)"
#include <hvd_needs_64_bits>
#endif

#include <cstddef>  // of libstdc++, removes the macros min and max

// Names of the interface, and template parameters. (`error` would be another class in files without the macro.)
#if defined(min) || defined(max) || defined(check) || defined(error) || defined(A) || defined(B) || defined(C) ||      \
    defined(D) || defined(E) || defined(F) || defined(M) || defined(N) || defined(P) || defined(R) || defined(S) ||    \
    defined(T) || defined(U) || defined(V) || defined(X) || defined(Z)
#error "hvd: min, max, check, error or a capital letter is a macro: #undef it, or include hvd first (R: R_NO_REMAP)"
#include <hvd_needs_names>
#endif

#include <string_view>

/// The version, in three numbers. It is written only here.
#define HVD_VERSION_MAJOR 0
#define HVD_VERSION_MINOR 1
#define HVD_VERSION_PATCH 0

/// The default of the comparison of calls: with -DHVD_CHECK=1, collectives compare their calls between ranks before
/// they move data. `failure_policy::check`, which HVD_CHECK sets, overrides it for one transport.
#ifndef HVD_CHECK
#define HVD_CHECK 0
#endif

/// With -DHVD_COMPILED=1, the parts of hvd that take long to compile come from a library, or from the one file of the
/// program that includes hvd/compiled.hpp. It must be the same in all files of a program.
#ifndef HVD_COMPILED
#define HVD_COMPILED 0
#endif

#define HVD_DETAIL_ABI_(major, minor, patch, check, compiled) v##major##_##minor##_##patch##_c##check##_l##compiled
#define HVD_DETAIL_ABI(major, minor, patch, check, compiled) HVD_DETAIL_ABI_(major, minor, patch, check, compiled)
/// The inline namespace of everything in hvd, named after the version. So two copies of hvd in one process (two shared
/// objects that vendor different versions, or different check levels) never share a symbol.
#define HVD_ABI HVD_DETAIL_ABI(HVD_VERSION_MAJOR, HVD_VERSION_MINOR, HVD_VERSION_PATCH, HVD_CHECK, HVD_COMPILED)
#define HVD_DETAIL_TEXT_(x) #x
#define HVD_DETAIL_TEXT(x) HVD_DETAIL_TEXT_(x)

namespace hvd::inline HVD_ABI {

/// The version as text, "major.minor.patch".
inline constexpr std::string_view version =
    HVD_DETAIL_TEXT(HVD_VERSION_MAJOR) "." HVD_DETAIL_TEXT(HVD_VERSION_MINOR) "." HVD_DETAIL_TEXT(HVD_VERSION_PATCH);

}  // namespace hvd::inline HVD_ABI
