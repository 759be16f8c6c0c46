// hvd/line_costs.hpp: the costs of cache lines between two ranks, by which protocols in common memory are chosen.
#pragma once

#include <hvd/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::inline HVD_ABI {

/// Costs in picoseconds for a line of 64 bytes; all 0 if unknown. A group measures them when it starts (less than a
/// millisecond for each of at most three pairs of ranks), rank 0 decides for all ranks, and groups made by `split`
/// inherit them. They decide how data moves, not the result: if the costs of a machine change, for example when a
/// virtual machine is moved, results stay right and only get slower.
struct line_costs {
  std::uint32_t transfer = 0;  ///< from a store on one core until another core sees it
  std::uint32_t rewrite = 0;   ///< a store into a line that another core has read since the last one
  std::uint32_t touched = 0;   ///< the same if the reader has stored into it too, including the reader's cost

  [[nodiscard]] constexpr bool known() const noexcept { return transfer != 0; }
  /// True if a rank should touch lines that it has read and another rank writes next. On an EPYC (Zen 4) this is three
  /// times as fast, on a Xeon (Sapphire Rapids) slower by a sixth. True if costs are unknown.
  [[nodiscard]] constexpr bool touching_pays() const noexcept {
    return !known() || std::uint64_t{5} * touched < std::uint64_t{4} * rewrite;
  }
  friend constexpr bool operator==(const line_costs&, const line_costs&) = default;
};

/// The text for HVD_LINE_COSTS: "transfer_ps=106000,rewrite_ps=6800,touched_ps=9000".
inline std::string to_string(const line_costs& c) {
  return detail::joined({"transfer_ps=", c.transfer, ",rewrite_ps=", c.rewrite, ",touched_ps=", c.touched});
}

/// Parses the text of to_string, in any order. Otherwise throws invalid_argument with `name`, `value` and the allowed
/// form.
inline line_costs parse_line_costs(std::string_view name, std::string_view value) {
  constexpr std::uint32_t most = 100'000'000;  // 0.1 ms
  line_costs costs;
  for (std::string_view rest = value; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const std::size_t equals = std::min(one.find('='), one.size());
    const std::string_view which = one.substr(0, equals);
    std::uint32_t* const field = which == "transfer_ps"  ? &costs.transfer
                                 : which == "rewrite_ps" ? &costs.rewrite
                                 : which == "touched_ps" ? &costs.touched
                                                         : nullptr;
    if (field == nullptr) {
      costs = {};
      break;
    }
    *field = parse_integer<std::uint32_t>(name, one.substr(std::min(equals + 1, one.size())), 1, most,
                                          detail::joined({which, " in picoseconds"}));
  }
  if (costs.transfer != 0 && costs.rewrite != 0 && costs.touched != 0) return costs;
  detail::refuse_value(name, value, " is not a list of the costs of cache lines",
                       {"three numbers, such as ", to_string(line_costs{106000, 6800, 9000})});
}

}  // namespace hvd::inline HVD_ABI
