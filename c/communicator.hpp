// c/communicator.hpp: the objects behind the numbers of communicators and engines.
#pragma once

#include "objects.hpp"

#include <hvd/any_transport.hpp>
#include <hvd/engine.hpp>
#include <hvd/shared_array.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::c {

using engine = Engine<any_transport>;

/// A group of ranks, with the memory that it has given out.
class communicator final : public object, public any_transport {
 public:
  explicit communicator(any_transport comm) noexcept : any_transport(std::move(comm)) {}

  [[nodiscard]] std::byte* alloc_shared(std::size_t bytes) {
    // If memory for the list runs out, it does so before the collective call.
    if (shared_.size() == shared_.capacity()) shared_.reserve(2 * shared_.size() + 8);
    shared_array<std::byte> made = any_transport::alloc_shared<std::byte>(bytes);
    std::byte* const start = made.data();
    if (start != nullptr) shared_.push_back(std::move(made));
    return start;
  }
  /// False for memory from another source than this group's alloc_shared.
  [[nodiscard]] bool free_shared(const void* memory) noexcept {
    const auto found = std::find_if(shared_.begin(), shared_.end(), [&](const auto& a) { return a.data() == memory; });
    if (found == shared_.end()) return false;
    shared_.erase(found);
    return true;
  }

 private:
  std::vector<shared_array<std::byte>> shared_;
};

}  // namespace hvd::inline HVD_ABI::c
