// group_python.hpp: the Python class Group.
#pragma once

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
  explicit group_object(std::shared_ptr<group> g) : group_(std::move(g)) {}

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
  /// For a forked child, where the group does nothing.
  void forget() { group_.reset(); }

 private:
  std::shared_ptr<group> group_;
};

void define_group(nanobind::module_& m);

}  // namespace hvd_python
