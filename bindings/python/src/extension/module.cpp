// module.cpp: hvd._core, the engine for Python. Tensors are addresses, dtypes, shapes and streams, so no framework is
// needed.

#include "callbacks.hpp"
#include "connected.hpp"
#include "device_group_python.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "group_python.hpp"
#include "group_timeline.hpp"
#include "job.hpp"
#include "keep_alive.hpp"
#include "memory.hpp"
#include "metrics.hpp"
#include "pinning.hpp"
#include "session.hpp"
#include "streams.hpp"
#include "tcp.hpp"
#include "xla.hpp"

#include <hvd/config.hpp>
#include <hvd/transport/nccl/library.hpp>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
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
using seconds = std::chrono::duration<double>;

/// (input address, output address or 0, number of the dtype, shape[, splits or None[, device, stream[, rows of the
/// output of an alltoall]]])
hvd::tensor read_tensor(nb::tuple description, ready_events& ready) {
  hvd::tensor t;
  t.in = reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(description[0]));
  t.out = reinterpret_cast<std::byte*>(nb::cast<std::uintptr_t>(description[1]));
  t.type = static_cast<hvd::dtype>(nb::cast<std::uint8_t>(description[2]));
  t.shape = read_lengths(description[3]);
  if (description.size() > 4 && !description[4].is_none()) t.splits = read_lengths(description[4]);
  if (description.size() > 6)
    ready.add(t, stream_at(nb::cast<int>(description[5]), nb::cast<std::uintptr_t>(description[6])));
  if (description.size() > 7) t.out_rows = nb::cast<std::size_t>(description[7]);
  return t;
}

/// Lengths as a Python tuple.
nb::tuple to_tuple(const std::vector<std::size_t>& lengths) {
  nb::list list;
  for (const std::size_t length : lengths) list.append(length);
  return nb::tuple(list);
}

/// Calls `(h.*await)(limit)` without the GIL, and checks every 0.1 s for signals such as Ctrl-C.
template <void (hvd::handle::*await)(std::optional<seconds>) const>
void wait(const hvd::handle& h, std::optional<double> limit) {
  using clock = std::chrono::steady_clock;
  if (limit && std::isnan(*limit))
    throw nb::value_error("hvd: the time limit is not a number; pass seconds, or no limit");
  constexpr seconds slice(0.1);
  const clock::time_point started = clock::now();
  while (true) {
    seconds next = slice;
    if (limit) next = std::min(next, std::max(seconds(0), seconds(*limit) - seconds(clock::now() - started)));
    std::optional<hvd::error> problem;
    {
      const released_gil released;
      try {
        (h.*await)(next);
      } catch (const hvd::error& e) {
        problem = e;
      }
    }
    released_objects::instance().drain();
    if (!problem) return;
    if (h.poll()) {
      // It may have ended just after the slice: then its own result or error counts.
      try {
        h.wait();
        return;
      } catch (const hvd::error& e) {
        throw failed_operation{e};
      }
    }
    if (problem->kind() != hvd::error::timeout) throw failed_operation{*problem};  // it cannot be waited for
    int interrupted = 0;
    stay_if_python_ends([&] { interrupted = PyErr_CheckSignals(); });
    if (interrupted != 0) throw nb::python_error();
    if (limit && seconds(clock::now() - started) >= seconds(*limit)) {
      PyErr_SetString(PyExc_TimeoutError, problem->what());
      throw nb::python_error();
    }
  }
}

/// Sets `pending.handle` here, because Ctrl-C may arrive before Python has stored a result. `wire`: a dtype's number,
/// or -1. `done`: None, or the function that `next_callback` returns when the operation has ended.
void submit(const job& j, nb::object pending, int kind, std::string name, nb::sequence tensors, int op, double prescale,
            double postscale, int wire, int root, int priority, int process_set, nb::object keep, bool wake,
            std::optional<nb::object> done) {
  released_objects::instance().drain();
  hvd::request r;
  r.kind = static_cast<hvd::operation>(kind);
  r.name = std::move(name);
  ready_events ready;
  for (const nb::handle description : tensors)
    r.tensors.push_back(read_tensor(nb::cast<nb::tuple>(description), ready));
  r.op = static_cast<hvd::reduce_op>(op);
  r.prescale = prescale;
  r.postscale = postscale;
  if (wire >= 0) r.wire = static_cast<hvd::dtype>(wire);
  r.root = root;
  r.priority = priority;
  r.keep = keep_alive(keep);
  if (!ready.empty())
    r.keep = std::make_shared<std::pair<std::shared_ptr<void>, ready_events>>(r.keep, std::move(ready));
  if (done) {
    r.done = [function = keep_alive(*done)](const hvd::handle&) { callbacks::instance().add(function); };
  }
  static const nb::handle attribute(PyUnicode_InternFromString("handle"));  // created once, because that is slow
  nb::setattr(pending, attribute,
              nb::cast(j.run([&](session& s) { return s.submit(std::move(r), process_set, wake); })));
}

void define_handle(nb::module_& m) {
  nb::class_<hvd::handle>(m, "Handle")
      .def("poll", &hvd::handle::poll)
      .def("let_go", &hvd::handle::let_go)
      .def("wait", &wait<&hvd::handle::wait>, nb::arg("limit") = nb::none())
      .def("wait_queued", &wait<&hvd::handle::wait_queued>, nb::arg("limit") = nb::none())
      .def("make_stream_wait",
           [](const hvd::handle& h, int device, std::uintptr_t stream) {
             framework_devices::instance().make_wait(stream_at(device, stream), h.device_event());
           })
      .def(
          "output",
          [](const hvd::handle& h, std::size_t i, int device) {
            const hvd::result& r = h.output(i);
            std::size_t bytes = hvd::size_of(r.type);
            for (const std::size_t n : r.shape) bytes *= n;
            return nb::make_tuple(memory{r.data, bytes, device}, to_tuple(r.shape));
          },
          nb::arg("i"), nb::arg("device") = -1)
      .def("received_splits", [](const hvd::handle& h, std::size_t i) { return to_tuple(h.output(i).received_splits); })
      .def("last_joined", &hvd::handle::last_joined);
}

/// An environment variable from a dictionary. It may not be valid text: Python escapes its bytes.
std::optional<std::string> variable_of(const nb::dict& environment, const char* name) {
  const nb::object value = environment.attr("get")(name);
  if (value.is_none()) return std::nullopt;
  const auto bytes = nb::cast<nb::bytes>(value.attr("encode")("utf-8", "surrogateescape"));
  return std::string(bytes.c_str(), bytes.size());
}

std::string lone_rank_warning(const nb::dict& environment) {
  const auto variable = [&](const char* name) { return variable_of(environment, name); };
  return hvd::detail::lone_rank_warning(hvd::detail::find_place(variable), variable);
}

/// The fields of hvd.core.placement.Place.
nb::tuple find_place(const nb::dict& environment) {
  const auto variable = [&](const char* name) { return variable_of(environment, name); };
  const hvd::detail::place p = hvd::detail::find_place(variable);
  hvd::detail::refuse_nameless(p);
  return nb::make_tuple(p.rank, p.size, p.local_rank, p.local_size, p.cross_rank, p.cross_size,
                        hvd::detail::meeting_name(p), std::string(p.launcher));
}

void define_job(nb::module_& m) {
  nb::class_<job> c(m, "Job");
  c.def_prop_ro("rank", [](const job& j) { return j.run([](const session& s) { return s.rank(); }); });
  c.def_prop_ro("size", [](const job& j) { return j.run([](const session& s) { return s.size(); }); });
  c.def_prop_ro("hosts", [](const job& j) { return j.run([](const session& s) { return s.hosts(); }); });
  c.def("submit", &submit);
  c.def("join", [](const job& j) { return j.run([](session& s) { return s.join(); }); });
  c.def("settle", [](const job& j) { j.run([](session& s) { s.settle(); }); });
  c.def("add_process_set", [](const job& j, const std::vector<int>& ranks) {
    return j.run([&](session& s) { return s.add_process_set(ranks); });
  });
  c.def("remove_process_set", [](const job& j, int id) { j.run([&](session& s) { s.remove_process_set(id); }); });
  c.def("alloc_bucket", [](const job& j, std::size_t bytes) {
    return memory{.data = j.run([&](session& s) { return s.alloc_bucket(bytes); }), .bytes = bytes};
  });
  c.def("alloc_device_bucket", [](const job& j, std::size_t bytes, int device) {
    return memory{j.run([&](session& s) { return s.alloc_device_bucket(bytes, device); }), bytes, device};
  });
  c.def("start_timeline", [](const job& j, const std::string& path, bool mark_cycles) {
    j.run([&](session& s) { s.start_timeline(path, mark_cycles); });
  });
  c.def("stop_timeline", [](const job& j) { j.run([](session& s) { s.stop_timeline(); }); });
  c.def("mark_step", [](const job& j, std::uint64_t samples) { j.run([&](session& s) { s.mark_step(samples); }); });
  c.def("metrics", [](const job& j) {
    const hvd::engine_metrics now = j.run([](const session& s) { return s.metrics(); });
    nb::dict found;
    found["steps"] = now.steps;
    found["samples"] = now.samples;
    found["stalls"] = now.stalls;
    found["dropped_events"] = now.dropped;
    found["in_flight"] = now.in_flight;
    found["oldest_seconds"] = seconds(now.oldest).count();
    found["operations"] = to_list(now.operations);
    return found;
  });
  c.def("publish", [](const job& j) { publish(j.held()); });
  c.def("close", &job::close);
  c.def("forget", &job::forget);

  m.def("next_callback", [] { return callbacks::instance().next(); });
  m.def("forget_callbacks", [] {
    callbacks::forget();
    released_objects::forget();
    framework_devices::forget();
  });
  m.def("find_place", &find_place);
  m.def("lone_rank_warning", &lone_rank_warning);
  m.def("nccl_version", [] {
    const hvd::detail::nccl_search& found = hvd::detail::nccl_search::result();
    return found.usable ? found.version : 0;
  });
  const auto released = nb::call_guard<released_gil>();
  nb::class_<hvd::nccl_options>(m, "NcclOptions")
      .def("__init__", [](hvd::nccl_options* o) { new (o) hvd::nccl_options(hvd::nccl_options::from_environment()); })
      .def_rw("min_ctas", &hvd::nccl_options::min_ctas)
      .def_rw("max_ctas", &hvd::nccl_options::max_ctas)
      .def_rw("network", &hvd::nccl_options::network)
      .def_rw("high_priority", &hvd::nccl_options::high_priority);
  m.def("connect", [](const nb::capsule& transport) {
    hvd::any_transport ranks = taken_from(transport);
    const released_gil without;
    return job(connect(std::move(ranks), {}));
  });
  m.def(
      "connect_alone", [] { return job(connect_alone({})); }, released);
  // Options are given for groups of torch.distributed, which have one timeline.
  m.def(
      "connect_shm",
      [](const std::string& name, int rank, int size, const hvd::nccl_options* nccl) {
        return job(connect_shm(name, rank, size,
                               nccl == nullptr ? session_options() : session_options{*nccl, timeline_entry::shared()}));
      },
      nb::arg("name"), nb::arg("rank"), nb::arg("size"), nb::arg("nccl") = nb::none(), released);
}

}  // namespace
}  // namespace hvd_python

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  // Objects that live until the process ends are not leaks, and a report would not help a user.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(&hvd_python::translate);
  hvd_python::define_memory(m);
  hvd_python::define_handle(m);
  hvd_python::define_job(m);
  hvd_python::define_group(m);
  hvd_python::define_tcp(m);
  hvd_python::define_device_group(m);
  hvd_python::define_pinning(m);
  hvd_python::define_xla(m);

  m.attr("version") = std::string(hvd::version);
  nb::dict types, operations;
  for (std::uint8_t i = 0; i != static_cast<std::uint8_t>(hvd::dtype::user); ++i)
    types[std::string(hvd::name(static_cast<hvd::dtype>(i))).c_str()] = i;
  using hvd::operation;
  for (const operation o :
       {operation::barrier, operation::allreduce, operation::reduce_scatter, operation::allgather, operation::broadcast,
        operation::alltoall, operation::reduce, operation::gather, operation::scatter})
    operations[std::string(hvd::name(o)).c_str()] = static_cast<int>(o);
  m.attr("dtypes") = types;
  m.attr("operations") = operations;
}
