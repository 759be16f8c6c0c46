// bench/gpu/measure.hpp: shared by the measurements of hvd-bench-gpu: settings, turns, medians, tables.
#pragma once

#include <bench/backends/gpu.hpp>
#include <bench/cases/gradients.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <dlfcn.h>

namespace hvd::bench {

struct gpu_settings {
  int ranks = 1;
  int ranks_per_gpu = 1;
  double seconds = 0.2;  ///< for each number
};

/// The measurements; each prints a table on rank 0, and returns an exit code.
int measure_facts(const gpu_settings& s);
int measure_pack(const gpu_settings& s);
int measure_overhead(const gpu_settings& s);
int measure_submit(const gpu_settings& s);

/// Tensors of a measurement.
struct tensor_group {
  std::string name;
  std::vector<std::size_t> counts;  ///< floats of each
};

/// Of the gradients of ResNet-50. A stand-in, which copies on the CPU, gets short ones.
inline std::vector<std::size_t> resnet50_counts(bool stands_in) {
  std::vector<std::size_t> counts;
  for (const gradient& g : gradients_in(model::resnet50)) {
    counts.push_back(stands_in ? std::min<std::size_t>(g.count, 4096) : g.count);
  }
  return counts;
}

using bench_clock = std::chrono::steady_clock;
inline double us_since(bench_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(bench_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Calls each of `ways` in turns, so that all see the same minutes, and returns the median of their results. The
/// number of turns fits into the time, by how long one turn takes; `agree` makes it the same on all ranks.
inline std::vector<double> in_turns(std::span<const std::function<double()>> ways, double seconds,
                                    const std::function<int(int)>& agree = {}) {
  for (const auto& way : ways) way();  // warm
  const auto start = bench_clock::now();
  for (const auto& way : ways) way();
  const double all = us_since(start) * 1e-6;
  int turns = static_cast<int>(std::clamp(seconds * static_cast<double>(ways.size()) / all, 3.0, 301.0));
  if (agree) turns = agree(turns);
  std::vector<std::vector<double>> taken(ways.size());
  for (int turn = 0; turn != turns; ++turn) {
    for (std::size_t w = 0; w != ways.size(); ++w) taken[w].push_back(ways[w]());
  }
  std::vector<double> result;
  for (auto& values : taken) result.push_back(median(std::move(values)));
  return result;
}

/// How often the host has waited for the GPU until now, if the driver's library counts that (a stand-in, or
/// tests/gpu/check/counted.cpp around the real one); -1: nobody counts.
inline std::int64_t host_synchronisations() {
  static const auto counter = []() -> std::uint64_t (*)() {
    const char* const path = std::getenv("HVD_CUDA_LIBRARY");
    void* const library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    return library == nullptr
               ? nullptr
               : reinterpret_cast<std::uint64_t (*)()>(::dlsym(library, "hvd_standin_host_synchronisations"));
  }();
  return counter == nullptr ? -1 : static_cast<std::int64_t>(counter());
}

/// The head of a table: GPU, versions, CPU.
void print_gpu(const Gpu& gpu);

}  // namespace hvd::bench
