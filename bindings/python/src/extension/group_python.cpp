#include "group_python.hpp"

#include "callbacks.hpp"
#include "calls.hpp"
#include "connected.hpp"
#include "group_timeline.hpp"
#include "memory.hpp"
#include "metrics.hpp"

#include <hvd/detail/deadline.hpp>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace hvd_python {
namespace {

namespace nb = nanobind;

struct pending_object {
  std::shared_ptr<group> of;
  std::shared_ptr<pending> what;
};

bool wait(const pending_object& p, std::optional<double> limit) {
  if (limit && std::isnan(*limit))
    throw nb::value_error("hvd: the time limit is not a number; pass seconds, or no limit");
  const bool done =
      without_gil([&] { return p.of->wait(*p.what, limit ? std::optional(seconds(*limit)) : std::nullopt); });
  released_objects::instance().drain();
  return done;
}

pending_object submit(const group_object& g, int kind, std::uintptr_t in, std::uintptr_t out, std::size_t count,
                      int type, int op, double factor, int root, const lengths& send, const lengths& recv,
                      double timeout, const std::optional<nb::object>& keep, bool may_share, int file) {
  released_objects::instance().drain();
  const std::shared_ptr<group> to = g.get();
  auto p = std::make_shared<pending>();
  p->what = read(kind, in, out, count, type, op, factor, root, send, recv);
  p->what.may_share = may_share;
  p->what.file = file;
  p->timeout = seconds(timeout);
  const std::shared_ptr<void> kept = keep ? keep_alive(*keep) : nullptr;
  without_gil([&] { to->submit(p, kept); });
  return {to, p};
}

void run(const group_object& g, int kind, std::uintptr_t in, std::uintptr_t out, std::size_t count, int type, int op,
         double factor, int root, const lengths& send, const lengths& recv, double timeout, bool may_share) {
  const std::shared_ptr<group> to = g.get();
  pending p;
  p.what = read(kind, in, out, count, type, op, factor, root, send, recv);
  p.what.may_share = may_share;
  p.timeout = seconds(timeout);
  without_gil([&] { to->run(p); });
}

pending_object post(const group_object& g, bool sends, std::uintptr_t data, std::size_t bytes, int peer,
                    std::int64_t tag, double timeout, const std::optional<nb::object>& keep, bool at_once) {
  released_objects::instance().drain();
  const std::shared_ptr<group> to = g.get();
  if (to->size() == 1 || peer >= to->size() || peer == to->rank() || (sends && peer < 0)) {
    throw nb::value_error(("hvd: rank " + std::to_string(to->rank()) + " of " + std::to_string(to->size()) +
                           " cannot send to or receive from rank " + std::to_string(peer) +
                           " of the group; allowed: another rank of it")
                              .c_str());
  }
  auto p = std::make_shared<pending>();
  hvd::detail::tagged_message message{sends, reinterpret_cast<std::byte*>(data), bytes, peer, tag};
  if (timeout > 0) message.deadline = hvd::detail::deadline_after(seconds(timeout));
  const std::shared_ptr<void> kept = keep ? keep_alive(*keep) : nullptr;
  without_gil([&] { to->post(*p, message, at_once, kept); });
  return {to, p};
}

nb::object shared(std::shared_ptr<std::byte> data, std::size_t bytes) {
  return data ? nb::cast(memory{.data = std::move(data), .bytes = bytes}) : nb::none();
}

}  // namespace

void define_group(nb::module_& m) {
  nb::class_<pending_object>(m, "Pending")
      .def("wait", &wait, nb::arg("limit") = nb::none())
      .def("poll", [](const pending_object& p) { return p.what->end.poll(); })
      .def("then",
           [](const pending_object& p, nb::object f) {
             p.what->end.then([f = keep_alive(f)](const hvd::handle&) { callbacks::of_groups().add(f); });
           })
      .def_prop_ro("shared",
                   [](const pending_object& p) {
                     const collective& c = p.what->what;
                     return shared(p.what->shared, c.count * hvd::size_of(c.type));
                   })
      .def_prop_ro("source", [](const pending_object& p) { return p.what->end.source(); });

  nb::class_<group_object>(m, "Group")
      .def_prop_ro("rank", [](const group_object& g) { return g.get()->rank(); })
      .def_prop_ro("size", [](const group_object& g) { return g.get()->size(); })
      .def_prop_ro("hosts", [](const group_object& g) { return g.get()->hosts(); })
      .def("run", &run)
      .def("submit", &submit)
      .def("post", &post)
      .def("alloc_shared",
           [](const group_object& g, std::size_t bytes) {
             const auto to = g.get();
             return shared(without_gil([&] { return to->alloc_shared(bytes); }), bytes);
           })
      .def("map_shared",
           [](const group_object& g, int fd, std::size_t bytes) {
             const auto to = g.get();
             return shared(without_gil([&] { return to->map_shared(fd, bytes); }), bytes);
           })
      .def("start_timeline",
           [](const group_object& g, const std::string& path) {
             const auto to = g.get();
             without_gil([&] { to->start_timeline(path); });
           })
      .def("describe",
           [](const group_object& g, int set, const std::vector<int>& ranks) { g.get()->describe(set, ranks); })
      .def("abort",
           [](const group_object& g) {
             const auto to = g.get();
             const released_gil released;
             to->abort();
           })
      .def("close", &group_object::close, nb::arg("limit") = 5.0)
      .def("forget", &group_object::forget);

  const auto made = [](hvd::any_transport ranks) {
    return group_object(
        std::make_shared<group>(std::move(ranks), hvd::interruption{[](void*) { return interrupted_by_signal(); }}));
  };
  m.def(
      "group_alone", [made] { return made(alone()); }, nb::call_guard<released_gil>());
  m.def(
      "group_shm",
      [made](const std::string& name, int rank, int size, double timeout, bool check) {
        return made(over_shared_memory(name, rank, size, timeout, check));
      },
      nb::call_guard<released_gil>());
  m.def("group_over", [made](const nb::capsule& transport) {
    hvd::any_transport ranks = taken_from(transport);
    const released_gil released;
    return made(std::move(ranks));
  });
  m.def("next_group_callback", [] { return callbacks::of_groups().next(); });
  m.def("mark_group_step", [](std::uint64_t samples) { timeline_entry::mark_step(samples); });
  m.def("group_metrics", [] {
    std::vector<hvd::operation_metrics> all;
    timeline_entry::counters().report(all, -1);
    return to_list(all);
  });
  m.def("stop_group_timeline", [] {
    const released_gil released;
    timeline_entry::stop();
  });
}

}  // namespace hvd_python
