// hvd/engine/by_host.hpp: operations on tensors of a device that only the host supports.
#pragma once

#include <hvd/engine/erased_device.hpp>
#include <hvd/engine/execute.hpp>
#include <hvd/engine/plan.hpp>
#include <hvd/engine/request.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

inline std::size_t bytes_of(const tensor& t) noexcept {
  std::size_t all = size_of(t.type);
  for (const std::size_t n : t.shape) all *= n;
  return all;
}

/// Copies the tensors to the host, runs the works there, and copies the results back; waits for the device, which has
/// `fetch` and `store`. The works must not change shapes.
inline void run_by_host(erased_device& device, executor& execute, std::span<const work> works) {
  std::vector<request> copies(works.size());
  std::vector<std::vector<std::byte>> memory;
  std::vector<work> on_host;
  for (std::size_t i = 0; i != works.size(); ++i) {
    const bool joined = works[i].mine == nullptr;
    if (!joined) {
      copies[i] = *works[i].mine;
      copies[i].done = nullptr;
      for (tensor& t : copies[i].tensors) {
        memory.push_back(device.fetch(t, bytes_of(t)));
        t.in = t.out = memory.back().data();
        t.memory = {};
      }
    }
    on_host.push_back({works[i].what, joined ? nullptr : &copies[i], works[i].end});
  }
  execute(on_host);
  for (std::size_t i = 0; i != works.size(); ++i) {
    for (std::size_t t = 0; t != copies[i].tensors.size(); ++t) {
      const tensor& from = copies[i].tensors[t];
      device.store(works[i].mine->tensors[t], works[i].end->results[t], {from.in, bytes_of(from)});
    }
  }
}

}  // namespace hvd::inline HVD_ABI::detail
