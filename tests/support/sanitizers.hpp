#pragma once

namespace hvd::test {

/// Whether this is built with a sanitizer: loads and stores are slow, much address space is reserved, and SIGSEGV has a
/// handler that says where it happened.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace hvd::test
