// hvd/detail/keep_for_ever.hpp: memory that is never freed, because a device may use it for ever.
#pragma once

#include <hvd/version.hpp>

#include <cstddef>
#include <new>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

/// Keeps things until the process ends: their destructors never run. Needs no memory.
template <class... T>
void keep_for_ever(T... things) noexcept {
  const auto keep = []<class One>(One& thing) {
    alignas(One) std::byte place[sizeof(One)];
    ::new (static_cast<void*>(place)) One(std::move(thing));
  };
  (keep(things), ...);
}

}  // namespace hvd::inline HVD_ABI::detail
