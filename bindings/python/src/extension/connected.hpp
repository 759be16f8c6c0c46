// connected.hpp: connected ranks, on their way to the job or the group that takes them.
#pragma once

#include <hvd/any_transport.hpp>
#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <utility>

namespace hvd_python {

using connected = std::optional<hvd::any_transport>;

/// Needs the GIL, as does `taken_from`.
inline nanobind::capsule in_capsule(std::unique_ptr<connected> ranks) {
  return nanobind::capsule(ranks.release(), "hvd.connected",
                           [](void* p) noexcept { delete static_cast<connected*>(p); });
}
inline hvd::any_transport taken_from(const nanobind::capsule& capsule) {
  connected ranks = std::exchange(*static_cast<connected*>(capsule.data("hvd.connected")), std::nullopt);
  if (!ranks) throw nanobind::value_error("hvd: these ranks belong to a job or a group already");
  return std::move(*ranks);
}

}  // namespace hvd_python
