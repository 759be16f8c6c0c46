// connected.hpp: connected ranks, before they have a session.
#pragma once

#include <hvd/any_transport.hpp>

#include <vector>

namespace hvd_python {

struct connected {
  hvd::any_transport comm;
  std::vector<int> hosts;  ///< a number for each rank's host; ranks with common memory have the same one
};

}  // namespace hvd_python
