// bench/report/machine.hpp: the machine that numbers were measured on.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace hvd::bench {

struct machine {
  std::string cpu, kernel, host;
  std::vector<int> cpus;  ///< usable
  std::size_t l2 = 0, l3 = 0;

  static machine of_this_process();
};

/// Bytes that programs can still get; those of a control group's limit, if less.
std::size_t available_memory();
/// Free bytes for shared buffers.
std::size_t available_shared();
/// The time, such as "2025-01-31T12:00:00Z".
std::string timestamp();

}  // namespace hvd::bench
