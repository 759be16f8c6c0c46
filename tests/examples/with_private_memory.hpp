// tests/examples/with_private_memory.hpp: what the conformance body asks for beyond PointToPoint.
#pragma once

#include <hvd/transport/self.hpp>

#include <cstddef>
#include <utility>

namespace hvd::test {

/// The body takes all its buffers from `alloc_shared`; a transport without common memory gets private ones.
template <class T>
struct with_private_memory : T {
  using T::T;
  explicit with_private_memory(T&& t) : T(std::move(t)) {}
  with_private_memory split(int color, int key) { return with_private_memory(T::split(color, key)); }
  template <class E>
  [[nodiscard]] shared_array<E> alloc_shared(std::size_t n) {
    return SelfTransport().alloc_shared<E>(n);
  }
};

}  // namespace hvd::test
