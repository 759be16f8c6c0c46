// memory.hpp: memory of hvd's own as the class Memory of Python, for results.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <vector>

namespace hvd_python {

/// A result, or memory for one; lives as long as a view of it.
struct memory {
  std::shared_ptr<std::byte> data;
  std::size_t bytes;
  int device = -1;  ///< that it is on; -1: the host
};

/// Lengths of dimensions, or numbers of rows. Raises ValueError for a negative one.
std::vector<std::size_t> read_lengths(nanobind::handle lengths);

void define_memory(nanobind::module_& m);

}  // namespace hvd_python
