// tcp.cpp: connects processes by TCP, on one host or several, for jobs and groups.

#include "tcp.hpp"

#include "connected.hpp"
#include "errors.hpp"
#include "gil.hpp"

#include <hvd/hierarchical.hpp>
#include <hvd/transport/shm.hpp>
#include <hvd/transport/tcp.hpp>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace hvd_python {

namespace {

namespace nb = nanobind;
using two_levels = hvd::Hierarchical<hvd::ShmTransport, hvd::TcpTransport>;

/// Where rank 0 listens; the transport takes it.
struct listener {
  std::optional<hvd::TcpListener> open;
};

struct limits {
  double timeout, start_timeout;
  bool check;
};

nb::capsule connect_ranks(const limits& by, auto&& make) {
  auto options = two_levels::options::from_environment();
  hvd::failure_policy& failure = options.sharing.failure;
  failure.timeout = hvd::failure_policy::seconds(by.timeout);
  failure.start_timeout = hvd::failure_policy::seconds(by.start_timeout);
  failure.check |= by.check;
  std::unique_ptr<connected> made;
  {
    const released_gil released;
    made = std::make_unique<connected>(hvd::any_transport(two_levels::over(make(failure), options)));
  }
  return in_capsule(std::move(made));
}

}  // namespace

void define_tcp(nb::module_& m) {
  nb::class_<listener>(m, "TcpListener")
      .def("__init__", [](listener* self, const std::string& address,
                          const std::string& secret) { new (self) listener{hvd::TcpListener(address, secret)}; })
      .def_prop_ro("address", [](const listener& l) { return l.open ? l.open->address() : std::string(); });
  m.def("time_limits", [] {
    const auto limits = hvd::failure_policy::from_environment();
    return nb::make_tuple(limits.timeout.count(), limits.start_timeout.count());
  });
  m.def("accept_tcp", [](listener& l, int size, double timeout, double start_timeout, bool check) {
    std::optional<hvd::TcpListener> open = std::exchange(l.open, std::nullopt);
    if (!open) throw nb::value_error("hvd: this listener has been used already");
    return connect_ranks({timeout, start_timeout, check}, [&](const hvd::failure_policy& failure) {
      return hvd::TcpTransport(*std::move(open), size, failure);
    });
  });
  m.def("connect_tcp", [](int rank, int size, const std::string& address, const std::string& secret, double timeout,
                          double start_timeout, bool check) {
    return connect_ranks({timeout, start_timeout, check}, [&](const hvd::failure_policy& failure) {
      return hvd::TcpTransport(rank, size, address, secret, failure);
    });
  });
}

}  // namespace hvd_python
