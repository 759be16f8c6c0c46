// tests/campaign/fuzz/cpu_list.cpp: lists of CPUs as the kernel writes them.
//
// Findings besides those of fuzz.hpp: CPUs out of order or twice, and a list that is another when it is written out and
// read again.
#include <hvd/topology.hpp>

#include "fuzz.hpp"

#include <algorithm>

FUZZ(in) {
  const std::string_view text = in.all();
  fuzz::accepts([&] {
    const std::vector<int> cpus = hvd::parse_cpu_list(text);
    fuzz::require(std::adjacent_find(cpus.begin(), cpus.end(), std::greater_equal<>()) == cpus.end(), "not ascending");
    std::string again;
    for (std::size_t i = 0; i != cpus.size();) {
      std::size_t last = i;
      while (last + 1 != cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
      again += (again.empty() ? "" : ",") + std::to_string(cpus[i]) + '-' + std::to_string(cpus[last]);
      i = last + 1;
    }
    fuzz::require(hvd::parse_cpu_list(again) == cpus, "a list changes when it is written and read");
  });
}
