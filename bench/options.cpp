// bench/options.cpp: values derived from the options of a run.
#include <bench/options.hpp>

#include <algorithm>
#include <cstring>

namespace hvd::bench {

job job_of(const options& o) {
  job j;
  j.kind = o.kind;
  j.type = o.types[0];
  j.op = o.ops[0];
  j.memory = o.memory;
  j.state = o.state;
  j.pace = o.pace;
  j.unalign = o.unalign;
  j.parameters = o.parameters;
  j.fusion_bytes = o.fusion_bytes;
  j.passes = o.passes;
  std::strncpy(j.algorithm, o.algorithm.c_str(), sizeof j.algorithm - 1);
  return j;
}

unsigned most_iterations(const options& o) { return static_cast<unsigned>(std::clamp(o.seconds * 8000, 2000.0, 1e6)); }

std::vector<std::size_t> sizes_of(const options& o) {
  if (o.kind == collective::barrier) return {0};
  if (has_model(o.kind)) return {parameters_of(o.parameters) * hvd::size_of(o.types[0])};
  std::vector<std::size_t> sizes;
  for (std::size_t s = o.min_bytes; s <= o.max_bytes;) {
    sizes.push_back(s);
    const std::size_t next = o.step_factor > 1 ? s * o.step_factor : s + o.step_bytes;
    if (next <= s || (o.step_factor > 1 && next / o.step_factor != s)) break;  // too large for a number
    s = next;
  }
  return sizes;
}

}  // namespace hvd::bench
