// hvd/detail/socket_descriptor.hpp: the functions of descriptor.hpp for sockets and events, whose headers few need.
#pragma once

#include <hvd/detail/descriptor.hpp>

#include <sys/eventfd.h>
#include <sys/socket.h>

namespace hvd::inline HVD_ABI::detail {

/// socket(2) and accept(2), without blocking and with SOCK_CLOEXEC: a descriptor, or -1 with errno.
inline int socket_descriptor(int family, int type) noexcept {
  return above_standard_streams(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}
inline int accept_descriptor(int listener) noexcept {
  return above_standard_streams(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}
/// eventfd(2), without blocking: one thread writes to it, and another one's poll(2) ends.
inline int event_descriptor() noexcept { return above_standard_streams(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

}  // namespace hvd::inline HVD_ABI::detail
