// module.cpp: hvd._timeline, an index of timelines for Python. Needs neither the engine nor a job.

#include "buckets.hpp"
#include "index.hpp"
#include "merger.hpp"
#include "views.hpp"
#include "window.hpp"

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace hvd_timeline {
namespace {

namespace nb = nanobind;

// Names in a damaged file may not be UTF-8.
nb::object text(std::string_view bytes) {
  return nb::steal(PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}
double microseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1000; }
nb::object time_or_none(std::int64_t nanoseconds) {
  return nanoseconds == never ? nb::none() : nb::object(nb::float_(microseconds(nanoseconds)));
}
std::int64_t nanoseconds(double microseconds) {
  if (!(std::abs(microseconds) < 1e15)) throw nb::value_error("a time must be a number of microseconds below 10^15");
  return static_cast<std::int64_t>(std::llround(microseconds * 1000));
}
template <class Range, class Value>
nb::list list_of(const Range& range, const Value& value) {
  nb::list list;
  for (const auto& element : range) list.append(value(element));
  return list;
}

// The result of copy(index), all from one moment.
template <class Copy>
auto copied(const index& of, const Copy& copy) {
  const nb::gil_scoped_release release;
  const std::lock_guard hold(of.mutex());
  return copy(of);
}

nb::dict state(const index& of) {
  const state_view view = copied(of, view_state);
  std::uint64_t bytes = 0, size = 0, damaged = 0;
  nb::list files;
  for (const file_view& f : view.files) {
    bytes += f.closed ? f.size : f.bytes;
    size += f.size;
    damaged += f.damaged;
    nb::dict file;
    file["bytes"] = f.bytes;
    file["size"] = f.size;
    file["complete"] = f.closed;
    file["rest"] = f.rest;
    file["damaged"] = f.damaged;
    files.append(file);
  }
  nb::dict ranks;
  for (const rank_facts& r : view.ranks) {
    nb::dict rank;
    rank["host"] = text(r.host);
    rank["size"] = r.size;
    rank["process"] = r.process;
    rank["starts"] = r.starts;
    rank["first_us"] = time_or_none(r.first);
    rank["last_us"] = time_or_none(r.last);
    rank["first_step_us"] = time_or_none(r.first_step);
    rank["operations"] = r.operations;
    rank["steps"] = r.steps;
    ranks[nb::int_(r.rank)] = rank;
  }
  const totals& sums = view.sums;
  nb::dict d;
  d["bytes"] = bytes;
  d["size"] = size;
  d["damaged"] = damaged;
  d["events"] = sums.events;
  d["operations"] = sums.operations;
  d["negotiations"] = sums.negotiations;
  d["dropped"] = sums.dropped;
  d["unplaced"] = sums.unplaced;
  d["waits"] = sums.waits;
  d["steps"] = sums.steps;
  d["samples"] = sums.samples;
  d["first_us"] = time_or_none(sums.first);
  d["last_us"] = time_or_none(sums.last);
  d["files"] = files;
  d["ranks"] = ranks;
  d["reports"] = list_of(view.reports, [](const report& r) {
    return nb::make_tuple(microseconds(r.time), r.of_launcher ? nb::none() : nb::object(nb::int_(r.rank)),
                          text(r.text));
  });
  return d;
}

// The columns of a chart, each with its value of a cell.
template <class Use>
void for_each_column(const Use& use) {
  use("operations", [](const cell& c) { return static_cast<double>(c.operations); });
  use("negotiations", [](const cell& c) { return static_cast<double>(c.negotiations); });
  use("steps", [](const cell& c) { return static_cast<double>(c.steps); });
  use("samples", [](const cell& c) { return static_cast<double>(c.samples); });
  use("dropped", [](const cell& c) { return static_cast<double>(c.dropped); });
  use("negotiate_us", [](const cell& c) { return microseconds(c.negotiate); });
  use("total_us", [](const cell& c) { return microseconds(c.total); });
  use("busy_us", [](const cell& c) { return microseconds(c.busy); });
  use("negotiating_us", [](const cell& c) { return microseconds(c.negotiating); });
  use("wait_us", [](const cell& c) { return microseconds(c.wait); });
  use("bytes", [](const cell& c) { return c.bytes; });
  use("bus_bytes", [](const cell& c) { return c.bus_bytes; });
  use("global_operations", [](const cell& c) { return static_cast<double>(c.global_operations); });
  use("global_negotiations", [](const cell& c) { return static_cast<double>(c.global_negotiations); });
  use("global_busy_us", [](const cell& c) { return microseconds(c.global_busy); });
  use("global_negotiating_us", [](const cell& c) { return microseconds(c.global_negotiating); });
  use("active", [](const cell& c) { return c.events != 0 ? 1.0 : 0.0; });
}

// `wanted`: names of columns, or None for all.
nb::dict chart(const index& of, double from_us, double to_us, std::size_t most, bool by_rank,
               const nb::object& wanted) {
  const std::int64_t from = nanoseconds(from_us), to = nanoseconds(to_us);
  if (most == 0 || most > 65536) throw nb::value_error("most must be from 1 to 65536");
  const buckets found = copied(of, [&](const index& i) { return sum_buckets(i, from, to, most); });
  nb::dict d, columns;
  const std::size_t count = found.count;
  d["from_us"] = microseconds(found.from);
  d["width_us"] = microseconds(found.width);
  d["count"] = count;
  d["ranks"] = list_of(found.ranks, [](std::uint32_t r) { return r; });
  for_each_column([&](const char* name, const auto& value) {
    if (!wanted.is_none() && !nb::cast<bool>(wanted.attr("__contains__")(name))) return;
    if (by_rank) {
      columns[name] = list_of(found.cells, [&](const auto& cells) { return list_of(cells, value); });
      return;
    }
    std::vector<double> sums(count);
    for (const auto& cells : found.cells) {
      for (std::size_t i = 0; i != count; ++i) sums[i] += value(cells[i]);
    }
    columns[name] = list_of(sums, [](double v) { return v; });
  });
  d["columns"] = columns;
  return d;
}

nb::dict shares(const index& of, double from_us, double to_us, std::size_t count, std::int64_t rank,
                std::uint64_t most_bytes) {
  const std::int64_t from = nanoseconds(from_us), to = nanoseconds(to_us);
  if (count == 0 || count > 65536) throw nb::value_error("columns must be from 1 to 65536");
  if (to <= from) throw nb::value_error("from_us must be before to_us");
  bins found;
  {
    const nb::gil_scoped_release release;
    found = read_bins(of, from, to, count, rank, most_bytes);
  }
  nb::dict d;
  d["from_us"] = microseconds(from);
  d["to_us"] = microseconds(to);
  d["columns"] = count;
  d["exact"] = found.exact;
  d["ranks"] = list_of(found.ranks, [](std::uint32_t r) { return r; });
  const auto add = [&](const char* name, std::vector<double> bins::of_rank::*member) {
    d[name] = list_of(found.rows, [&](const bins::of_rank& r) {
      return list_of(r.*member, [](double v) { return std::round(v * 1e4) / 1e4; });
    });
  };
  add("busy", &bins::of_rank::busy);
  add("negotiate", &bins::of_rank::negotiate);
  add("wait", &bins::of_rank::wait);
  add("operations", &bins::of_rank::operations);
  add("steps", &bins::of_rank::steps);
  return d;
}

nb::dict slices(const index& of, double from_us, double to_us, std::size_t most, std::int64_t rank,
                std::uint64_t most_bytes) {
  const std::int64_t from = nanoseconds(from_us), to = nanoseconds(to_us);
  window found;
  {
    const nb::gil_scoped_release release;
    found = read_window(of, from, to, rank, most_bytes);
    if (found.slices.size() > most) found = {};
    // In drawing order: outer ones first.
    std::stable_sort(found.slices.begin(), found.slices.end(),
                     [](const slice& a, const slice& b) { return a.begin < b.begin; });
    if (found.marks.size() > most) found.marks.resize(most);
  }
  nb::dict d;
  d["complete"] = found.complete;
  d["names"] = list_of(found.names, text);
  d["tensors"] = list_of(found.tensors, text);
  const auto column = [&](const char* name, const auto& value) { d[name] = list_of(found.slices, value); };
  column("tensor", [](const slice& s) { return s.tensor; });
  column("rank", [](const slice& s) { return s.rank; });
  column("name", [](const slice& s) { return s.name; });
  column("depth", [](const slice& s) { return static_cast<int>(s.depth); });
  column("begin_us", [](const slice& s) { return microseconds(s.begin); });
  column("end_us", [](const slice& s) { return microseconds(s.end); });
  column("state", [](const slice& s) { return static_cast<int>(s.state); });
  const std::vector<nb::object> details = [&] {
    std::vector<nb::object> texts;
    for (const std::string& detail : found.details) texts.push_back(text(detail));
    return texts;
  }();
  column("detail", [&](const slice& s) { return details[s.detail]; });
  d["marks"] = list_of(found.marks, [](const instant_mark& m) {
    const nb::object what = m.text.empty() ? nb::object(nb::int_(m.number)) : text(m.text);
    return nb::make_tuple(microseconds(m.time), m.rank, text(m.name), what);
  });
  return d;
}

// Python text as UTF-8. UnicodeEncodeError for half of a surrogate pair.
std::string_view utf8(const nb::str& text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(size)};
}

nb::list search(const index& of, std::string_view wanted, std::size_t most, std::string_view by) {
  const tensor_weight weight = [&]() -> tensor_weight {
    if (by == "exposed") return [](auto& t, auto) { return static_cast<double>(t.exposed); };
    if (by == "recent") return [](auto& t, auto now) { return static_cast<double>(t.recently_exposed(now)); };
    if (by == "bytes") return [](auto& t, auto) { return t.bytes; };
    if (by == "operations") return [](auto& t, auto) { return static_cast<double>(t.operations); };
    if (by == "time") return [](auto& t, auto) { return static_cast<double>(t.negotiate + t.run); };
    throw nb::value_error("tensors can be asked for by exposed, recent, bytes, operations or time");
  }();
  const auto found = copied(of, [&](const index& i) { return view_tensors(i, wanted, most, weight); });
  return list_of(found, [&](const tensor_view& view) {
    const tensor_state& t = view.tensor;
    nb::dict d;
    d["name"] = text(t.name);
    d["pid"] = t.process;
    d["kind"] = text(view.kind);
    d["set"] = t.set;
    d["operations"] = t.operations;
    d["bytes"] = t.bytes;
    d["negotiate_us"] = microseconds(t.negotiate);
    d["run_us"] = microseconds(t.run);
    d["exposed_us"] = microseconds(t.exposed);
    d["recent_exposed_us"] = microseconds(view.recently_exposed);
    d["slowest"] = view.slowest < 0 ? nb::none() : nb::object(nb::int_(view.slowest));
    d["first_us"] = time_or_none(t.first);
    d["last_us"] = time_or_none(t.last);
    return d;
  });
}

nb::list open_operations(const index& of) {
  return list_of(copied(of, view_open), [](const row_view& view) {
    nb::dict d;
    d["tensor"] = text(view.tensor);
    d["pid"] = view.process;
    d["set"] = view.set;
    d["rank"] = view.rank;
    d["done"] = view.done;
    d["kind"] = text(view.kind);
    d["activity"] = text(view.activity);
    d["phase"] = nb::str(!view.open ? "" : view.negotiates ? "negotiating" : "running");
    d["begin_us"] = time_or_none(view.submitted);
    return d;
  });
}

// Whether the file lists the ranks of a process set, and the ranks: otherwise those that have used it.
nb::tuple process_set_ranks(const index& of, int number) {
  const process_set set = copied(of, [&](const index& i) {
    const process_set* const found = i.sets().find(number);
    return found == nullptr ? process_set() : *found;
  });
  const bool told = !set.ranks.empty();
  return nb::make_tuple(told, list_of(told ? set.ranks : set.users, [](std::uint32_t r) { return r; }));
}

}  // namespace
}  // namespace hvd_timeline

NB_MODULE(_timeline, m) {
  namespace nb = nanobind;
  using namespace nanobind::literals;
  using hvd_timeline::index;
  constexpr std::uint64_t most_bytes = 24 << 20;  // read again in some 0.05 s

  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& e) {
      const nb::object arguments = nb::make_tuple(e.code().value(), e.what());
      PyErr_SetObject(PyExc_OSError, arguments.ptr());
    }
  });
  nb::exception<hvd_timeline::restarted>(m, "Restarted", PyExc_RuntimeError);
  nb::class_<index>(m, "Index")
      .def(nb::init<>())
      .def(
          "add_file",
          [](index& of, int fd, double shift_us) {
            const std::int64_t shift = hvd_timeline::nanoseconds(shift_us);
            const nb::gil_scoped_release release;
            return of.add_file(fd, shift);
          },
          "fd"_a, "shift_us"_a = 0.0)
      .def("read", &index::read, "most_bytes"_a = std::uint64_t{1} << 26, nb::call_guard<nb::gil_scoped_release>())
      .def("state", &hvd_timeline::state)
      .def("buckets", &hvd_timeline::chart, "from_us"_a, "to_us"_a, "most"_a, "ranks"_a = false,
           "columns"_a = nb::none())
      .def("bins", &hvd_timeline::shares, "from_us"_a, "to_us"_a, "columns"_a, "rank"_a = -1,
           "most_bytes"_a = most_bytes)
      .def("slices", &hvd_timeline::slices, "from_us"_a, "to_us"_a, "most"_a, "rank"_a = -1,
           "most_bytes"_a = most_bytes)
      .def(
          "tensors",
          [](const index& of, std::size_t most, nb::str by) {
            return hvd_timeline::search(of, "", most, hvd_timeline::utf8(by));
          },
          "most"_a, "by"_a = nb::str("time"))
      .def(
          "search",
          [](const index& of, nb::str text, std::size_t most) {
            return hvd_timeline::search(of, hvd_timeline::utf8(text), most, "operations");
          },
          "text"_a, "most"_a)
      .def("open_operations", &hvd_timeline::open_operations)
      .def("process_set", &hvd_timeline::process_set_ranks, "number"_a);

  using hvd_timeline::merger;
  nb::class_<merger>(m, "Merger")
      .def(nb::init<>())
      .def(
          "begin_file", [](merger& to, double shift_us) { to.begin_file(hvd_timeline::nanoseconds(shift_us)); },
          "shift_us"_a)
      .def(
          "feed",
          [](merger& to, nb::bytes part, bool last) {
            std::string lines;
            {
              const nb::gil_scoped_release release;
              lines = to.feed({part.c_str(), part.size()}, last);
            }
            return nb::bytes(lines.data(), lines.size());
          },
          "part"_a, "last"_a)
      .def_prop_ro("events", [](const merger& of) { return of.events; })
      .def_prop_ro("damaged", [](const merger& of) { return of.damaged; })
      .def_prop_ro("ranks", [](const merger& of) { return hvd_timeline::list_of(of.ranks, [](auto r) { return r; }); });
}
