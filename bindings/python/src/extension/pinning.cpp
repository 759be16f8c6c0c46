// pinning.cpp: hvd/pin.hpp for Python.

#include "pinning.hpp"

#include "gil.hpp"

#include <hvd/pin.hpp>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hvd_python {
namespace {

namespace nb = nanobind;

/// The host's devices for a policy: CPUs, and GPUs if the policy places ranks on them.
hvd::topology discover(const hvd::parsed_pin& policy) {
  if (!std::holds_alternative<hvd::pinning::none>(policy.device)) return hvd::topology::discover();
  return hvd::topology::discover_cpus();
}

std::string device_text(const hvd::placement& p) { return p.device ? hvd::detail::label(*p.device) : std::string(); }

/// The exception of hvd.core.pinning for errors other than invalid arguments. It is not HorovodInternalError, because
/// restarting the job does not bring back a missing GPU.
template <class F>
auto run(const F& f) {
  try {
    const released_gil released;
    return f();
  } catch (const hvd::error& e) {
    if (e.kind() == hvd::error::invalid_argument) throw;
    throw std::runtime_error(e.what());
  }
}

/// A pinned thread. It stays pinned until `restore`, even if the object is gone: `hvd.pin()` is a statement.
class pin {
 public:
  explicit pin(const std::optional<std::string>& policy) {
    run([&] {
      const hvd::parsed_pin parsed = policy ? hvd::parse_pin(*policy) : hvd::detail::pin_of_environment();
      guard_.emplace(hvd::pin(discover(parsed), parsed));
    });
    where_ = guard_->where();
  }
  pin(pin&& other) noexcept : guard_(std::move(other.guard_)), where_(std::move(other.where_)) { other.guard_.reset(); }
  pin(const pin&) = delete;
  pin& operator=(const pin&) = delete;
  ~pin() {
    if (guard_) guard_->keep();
  }

  void restore() { guard_.reset(); }
  [[nodiscard]] const hvd::placement& where() const noexcept { return where_; }

 private:
  std::optional<hvd::PinGuard> guard_;
  hvd::placement where_;
};

/// The fields of hvd.launcher.supervisor.planning.Share for each rank.
nb::list plan_placement(int ranks, const std::string& policy, int first_rank, std::size_t cores_each) {
  const auto planned = run([&] {
    const hvd::parsed_pin parsed = hvd::parse_pin(policy, "--pin");
    return hvd::detail::plan_host(discover(parsed), parsed, first_rank, ranks, cores_each);
  });
  nb::list result;
  for (const auto& [where, problem] : planned) {
    std::optional<std::string> visible;
    if (where.device && hvd::detail::is_mig(where.device->uuid)) visible = where.device->uuid;
    result.append(nb::make_tuple(where.cpus, hvd::cpu_list_text(where.cpus), device_text(where), visible, where.reason,
                                 where.cpu_reason, problem));
  }
  return result;
}

}  // namespace

void define_pinning(nb::module_& m) {
  nb::class_<pin>(m, "Pin")
      .def(nb::init<const std::optional<std::string>&>(), nb::arg("policy") = nb::none())
      .def("restore", &pin::restore)
      .def_prop_ro("ordinal", [](const pin& p) { return p.where().ordinal; })
      .def_prop_ro("device", [](const pin& p) { return device_text(p.where()); })
      .def_prop_ro("cpus", [](const pin& p) { return p.where().cpus; })
      .def_prop_ro("reason", [](const pin& p) { return p.where().reason; })
      .def_prop_ro("cpu_reason", [](const pin& p) { return p.where().cpu_reason; });
  m.def("local_device", [] { return run([] { return hvd::local_device(); }); });
  m.def("plan_placement", &plan_placement);
  m.def("parse_pin", [](const std::string& text) { return hvd::parse_pin(text, "--pin").text(); });
}

}  // namespace hvd_python
