// tests/campaign/fuzz/tuning.cpp: HVD_TUNING and HVD_COSTS, and what is chosen by them.
//
// Findings besides those of fuzz.hpp: an algorithm that cannot do what it is chosen for, and costs that are others when
// they are written out and read again.
#include <hvd/algorithm/measure.hpp>
#include <hvd/selection.hpp>

#include "fuzz.hpp"

#include <limits>

FUZZ(in) {
  const std::string_view text = in.all();
  hvd::selector s;
  fuzz::accepts([&] { s.table = hvd::tuning_table(text); });
  fuzz::accepts([&] {
    s.model.costs = hvd::parse_costs(text);
    fuzz::require(hvd::parse_costs(hvd::to_string(s.model.costs)) == s.model.costs, "costs change when read again");
  });
  for (const hvd::operation kind : hvd::detail::tuned_operations()) {
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}, std::size_t{1} << 20,
                                    std::numeric_limits<std::size_t>::max()}) {
      for (const int ranks : {1, 2, 3, 64}) {
        const hvd::workload w{.kind = kind, .bytes = bytes, .ranks = ranks, .commutative = ranks != 3};
        fuzz::require(hvd::possible(s(w), w), "an algorithm that cannot do it");
      }
    }
  }
}
