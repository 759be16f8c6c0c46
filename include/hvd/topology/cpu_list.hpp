// hvd/topology/cpu_list.hpp: sets of CPUs, and the kernel's format for them.
#pragma once

#include <hvd/error.hpp>
#include <hvd/version.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

/// Sorts ascending, and removes duplicates.
inline void put_in_order(std::vector<int>& cpus) {
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
}

/// Removes the CPUs in `which` from `rest` and returns those removed; both are in order.
inline std::vector<int> take_out(std::vector<int>& rest, const std::vector<int>& which) {
  std::vector<int> taken, left;
  for (const int cpu : rest) (std::binary_search(which.begin(), which.end(), cpu) ? taken : left).push_back(cpu);
  rest = std::move(left);
  return taken;
}

/// The CPUs of `which` that are also in `all`, which is in order.
inline std::vector<int> common(const std::vector<int>& which, const std::vector<int>& all) {
  std::vector<int> both;
  for (const int cpu : which) {
    if (std::binary_search(all.begin(), all.end(), cpu)) both.push_back(cpu);
  }
  return both;
}

}  // namespace detail

/// The CPUs in the kernel's list format ("0-3,8"), ascending and each once; none for an empty text. Anything else is
/// invalid_argument, which names the text and the position in it.
inline std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int most = (1 << 20) - 1;  // far above what Linux can have; bounds the cost of a typing error
  std::vector<std::pair<int, int>> ranges;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto refuse = [&](const char* problem) {
    detail::fail(error_kind::invalid_argument,
                 {"CPU list \"", text, "\", character ", at - text.data() + 1, ": ", problem,
                  "; allowed: numbers and ranges from 0 to ", most, ", such as \"0-3,8\""});
  };
  const auto number = [&] {
    int value = 0;
    const auto [next, code] = std::from_chars(at, end, value);
    if (code == std::errc::invalid_argument || *at == '-') refuse("no number");
    if (code != std::errc{} || value > most) refuse("number too large");
    at = next;
    return value;
  };
  while (at != end) {
    const int first = number();
    int last = first;
    if (at != end && *at == '-') {
      ++at;
      last = number();
      if (last < first) refuse("range ends before it begins");
    }
    ranges.emplace_back(first, last);
    if (at == end) break;
    if (*at != ',') refuse("neither ',' nor '-'");
    if (++at == end) refuse("nothing after ','");
  }
  // Sorted, so that ranges that are repeated cost no memory.
  std::sort(ranges.begin(), ranges.end());
  std::vector<int> cpus;
  for (const auto& [first, last] : ranges) {
    for (int cpu = cpus.empty() ? first : std::max(first, cpus.back() + 1); cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

/// CPUs that are in order, as the kernel writes them: "0-3,8".
inline std::string cpu_list_text(std::span<const int> cpus) {
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    text += detail::joined({text.empty() ? "" : ",", cpus[i]});
    if (last != i) text += detail::joined({"-", cpus[last]});
    i = last + 1;
  }
  return text;
}

}  // namespace hvd::inline HVD_ABI
