// hvd/selection.hpp: the choice of an algorithm for a message: by rule, by cost, or by the user's table.
//
// Everything here is a pure function of values that are the same on all ranks, so that all ranks make the same choice.
#pragma once

#include <hvd/selection/choice.hpp>
#include <hvd/selection/costs.hpp>
#include <hvd/selection/table.hpp>
#include <hvd/transport.hpp>

#include <concepts>

namespace hvd::inline HVD_ABI {

/// The state that a transport keeps for `automatic`: the model of its links, and the user's table. It is fixed from the
/// first collective on, so that a program's results do not change while it runs.
struct selector {
  cost_model model{};
  tuning_table table{};
  bool ready = false;

  [[nodiscard]] choice operator()(const workload& w) const noexcept {
    if (const choice* wanted = table.find(w)) return *wanted;
    return model.costs.known() ? model(w) : default_tuning{}(w);
  }
};

/// A transport with a selector.
template <class T>
concept Selecting = PointToPoint<T> && requires(T& t) {
  { t.selection() } -> std::same_as<selector&>;
};

}  // namespace hvd::inline HVD_ABI
