// group_python.hpp: the Python class Group. Two modules create groups.
#pragma once

#include "connection.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "group.hpp"
#include "keep_alive.hpp"

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace hvd_python {

/// All functions need the GIL, and release it while they wait.
class group_object {
 public:
  explicit group_object(std::unique_ptr<connection> c) : group_(std::make_shared<group>(std::move(c))) {}

  /// The group. Raises ValueError if it is closed.
  [[nodiscard]] std::shared_ptr<group> get() const {
    if (!group_) throw nanobind::value_error("hvd: this process has left the group");
    return group_;
  }
  void close(double limit) {
    const std::shared_ptr<group> last = std::move(group_);
    if (!last) return;
    const released_gil released;
    last->close(seconds(limit));
  }
  /// For a forked child, which has none of the group's threads and is not a rank. Leaks the group instead of destroying
  /// it.
  void forget() { new std::shared_ptr<group>(std::move(group_)); }

 private:
  std::shared_ptr<group> group_;
};

void define_group(nanobind::module_& m);

}  // namespace hvd_python
