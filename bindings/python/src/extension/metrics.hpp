// metrics.hpp: counters as Python objects.
#pragma once

#include <hvd/engine/metrics.hpp>
#include <nanobind/nanobind.h>

#include <chrono>
#include <string>
#include <vector>

namespace hvd_python {

/// A dict for each kind of operation and process set.
inline nanobind::list to_list(const std::vector<hvd::operation_metrics>& all) {
  nanobind::list list;
  for (const hvd::operation_metrics& o : all) {
    nanobind::dict found;
    found["kind"] = std::string(hvd::name(o.kind));
    found["process_set"] = o.process_set;
    found["operations"] = o.operations;
    found["failed"] = o.failed;
    found["bytes"] = o.bytes;
    found["waits"] = o.waits;
    found["exposed_seconds"] = std::chrono::duration<double>(o.exposed).count();
    list.append(found);
  }
  return list;
}

}  // namespace hvd_python
