#include "device_group_python.hpp"

#include "calls.hpp"
#include "device_group.hpp"
#include "group_python.hpp"
#include "keep_alive.hpp"

#include <nanobind/stl/string.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace hvd_python {
namespace {

namespace nb = nanobind;

/// All functions need the GIL, and release it while they wait.
class device_group_object {
 public:
  device_group_object(const group_object& host, const hvd::nccl_options& options, bool check)
      : group_(std::make_shared<device_group>(host.get(), options, check)) {}

  /// The group. Raises ValueError if it is closed.
  [[nodiscard]] std::shared_ptr<device_group> get() const {
    if (!group_) throw nb::value_error("hvd: this process has left the group");
    return group_;
  }
  void close(double limit) {
    const std::shared_ptr<device_group> last = std::move(group_);
    if (!last) return;
    {
      const released_gil released;
      last->close(seconds(limit));
    }
    released_objects::instance().drain();
  }
  /// For a forked child; see group_object.
  void forget() { new std::shared_ptr<device_group>(std::move(group_)); }

 private:
  std::shared_ptr<device_group> group_;
};

struct device_pending_object {
  std::shared_ptr<device_group> of;
  std::shared_ptr<device_pending> what;
};

/// `open`: `complete` follows. Each call: (kind, input, output, count, dtype, op, factor, root, send, recv), as for
/// Group.run.
device_pending_object queue(const device_group_object& g, std::string what, nb::sequence calls, std::uintptr_t stream,
                            double timeout, nb::object keep, bool open) {
  released_objects::instance().drain();
  const std::shared_ptr<device_group> to = g.get();
  auto p = std::make_shared<device_pending>();
  p->what = std::move(what);
  for (const nb::handle one : calls) {
    const auto call = nb::cast<nb::tuple>(one);
    p->calls.push_back(read(nb::cast<int>(call[0]), nb::cast<std::uintptr_t>(call[1]),
                            nb::cast<std::uintptr_t>(call[2]), nb::cast<std::size_t>(call[3]), nb::cast<int>(call[4]),
                            nb::cast<int>(call[5]), nb::cast<double>(call[6]), nb::cast<int>(call[7]),
                            nb::cast<lengths>(call[8]), nb::cast<lengths>(call[9])));
  }
  p->called_on = stream_at(0, stream).handle;
  p->timeout = seconds(timeout);
  p->keep = keep_alive(keep);
  p->open = open;
  without_gil([&] { to->queue(p); });
  return {to, std::move(p)};
}

void wait(const device_pending_object& p, std::optional<double> limit) {
  if (limit && std::isnan(*limit))
    throw nb::value_error("hvd: the time limit is not a number; pass seconds, or no limit");
  const bool done = without_gil([&] {
    return p.of->wait(*p.what, limit ? std::optional(seconds(*limit)) : std::nullopt, &interrupted_by_signal);
  });
  released_objects::instance().drain();
  if (done) return;
  PyErr_SetString(PyExc_TimeoutError, "hvd: the GPU is not done yet");
  throw nb::python_error();
}

}  // namespace

void define_device_group(nb::module_& m) {
  nb::class_<device_pending_object>(m, "DevicePending")
      .def("poll", [](const device_pending_object& p) { return p.of->poll(*p.what); })
      .def("wait", &wait, nb::arg("limit") = nb::none())
      .def(
          "wait_queued", [](const device_pending_object& p, std::optional<double>) { p.of->check(*p.what); },
          nb::arg("limit") = nb::none())
      .def("make_stream_wait",
           [](const device_pending_object& p, int device, std::uintptr_t stream) {
             without_gil([&] { p.of->make_wait(*p.what, stream_at(device, stream)); });
             released_objects::instance().drain();
           })
      .def("complete", [](const device_pending_object& p) { without_gil([&] { p.of->complete(*p.what); }); });

  nb::class_<device_group_object>(m, "DeviceGroup")
      .def(nb::init<const group_object&, const hvd::nccl_options&, bool>())
      .def("connect",
           [](const device_group_object& g, int device, double timeout) {
             const auto to = g.get();
             without_gil([&] { to->connect(device, seconds(timeout)); });
           })
      .def_prop_ro("stream",
                   [](const device_group_object& g) { return reinterpret_cast<std::uintptr_t>(g.get()->stream()); })
      .def("queue", &queue)
      .def("settle",
           [](const device_group_object& g) {
             const auto to = g.get();
             without_gil([&] { to->settle(&interrupted_by_signal); });
             released_objects::instance().drain();
           })
      .def("abort",
           [](const device_group_object& g) {
             const auto to = g.get();
             const released_gil released;
             to->abort();
           })
      .def("close", &device_group_object::close)
      .def("forget", &device_group_object::forget);
}

}  // namespace hvd_python
