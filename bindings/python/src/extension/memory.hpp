// memory.hpp: hvd's memory for results, as the Python class Memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace hvd_python {

/// A result, or memory for one. Lives as long as a view of it.
struct memory {
  std::shared_ptr<std::byte> data;
  std::size_t bytes;
  int device = -1;  ///< its device; -1: the host
};

/// Dimensions, or row counts. Raises ValueError for a negative number.
std::vector<std::size_t> read_lengths(nanobind::handle lengths);

void define_memory(nanobind::module_& m);

}  // namespace hvd_python
