// hvd/algorithm/measure.hpp: measures the costs of messages between the ranks of a group, once.
#pragma once

#include <hvd/algorithm/recursive_doubling.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/selection.hpp>
#include <hvd/transport.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hvd::inline HVD_ABI {

/// The text for HVD_COSTS: "latency_ns=1200,byte_fs=95000,...".
std::string to_string(const link_costs& costs);

/// Parses the text of to_string. An invalid_argument error names `source`, the wrong part and the allowed form.
link_costs parse_costs(std::string_view text, std::string_view source = "HVD_COSTS");

namespace detail {

struct cost_field {
  std::string_view name;
  std::uint64_t& (*of)(link_costs&);
};
inline constexpr std::array<cost_field, 11> cost_fields{{
    {"latency_ns", [](link_costs& c) -> std::uint64_t& { return c.latency_ns; }},
    {"byte_fs", [](link_costs& c) -> std::uint64_t& { return c.byte_fs; }},
    {"reduce_fs", [](link_costs& c) -> std::uint64_t& { return c.reduce_fs; }},
    {"allreduce_ns", [](link_costs& c) -> std::uint64_t& { return c.allreduce.latency_ns; }},
    {"allreduce_fs", [](link_costs& c) -> std::uint64_t& { return c.allreduce.byte_fs; }},
    {"reduce_scatter_ns", [](link_costs& c) -> std::uint64_t& { return c.reduce_scatter.latency_ns; }},
    {"reduce_scatter_fs", [](link_costs& c) -> std::uint64_t& { return c.reduce_scatter.byte_fs; }},
    {"allgather_ns", [](link_costs& c) -> std::uint64_t& { return c.allgather.latency_ns; }},
    {"allgather_fs", [](link_costs& c) -> std::uint64_t& { return c.allgather.byte_fs; }},
    {"broadcast_ns", [](link_costs& c) -> std::uint64_t& { return c.broadcast.latency_ns; }},
    {"broadcast_fs", [](link_costs& c) -> std::uint64_t& { return c.broadcast.byte_fs; }},
}};

using numbers = std::array<std::uint64_t, cost_fields.size() + 3>;

/// Replaces each number by its maximum over all ranks.
template <class T>
void agree_on_largest(T& t, numbers& values) {
  static const reduction largest = make_reduction<std::uint64_t>(max, 1);
  auto* const bytes = reinterpret_cast<std::byte*>(values.data());
  recursive_doubling{}(t, allreduce_call{bytes, bytes, values.size(), largest});
}

/// The time per call in nanoseconds, over `times` calls, on the slowest rank.
template <class T, class F>
std::uint64_t slowest(T& t, int times, const F& f) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i != times; ++i) f();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
  numbers values{static_cast<std::uint64_t>(spent.count() / times) + 1};
  agree_on_largest(t, values);
  return values.front();
}

/// The costs of f(bytes), measured at two points: 8 bytes, and `bytes`.
template <class T, class F>
link_costs::own two_points(T& t, std::size_t bytes, const F& f) {
  f(8);  // not measured: it makes connections and allocates buffers
  const std::uint64_t little = slowest(t, 2, [&] { f(8); });
  f(bytes);
  const std::uint64_t much = slowest(t, 1, [&] { f(bytes); });
  return {little, much > little ? (much - little) * 1000000 / bytes : 0};
}

/// Measures the costs of the transport's own call_of(bytes) into `into`, if the transport has one.
template <class T, class F>
void measure_native(T& t, std::size_t bytes, link_costs::own& into, const F& call_of) {
  if constexpr (Native<T, decltype(call_of(bytes))>) {
    bool able = true;
    const auto own = two_points(t, bytes, [&](std::size_t n) { able = able && t.native(call_of(n)); });
    if (able) into = own;
  }
}

/// Measures messages around the ring of all ranks, a reduction of one rank, and the transport's own collectives; all
/// ranks get the same costs. Cost: some 60 messages and collectives, at most about 20 ms. If messages are slow
/// (oversubscribed ranks), the transport's own collectives are not measured, and are then always used.
template <PointToPoint T>
link_costs measure(T& t) {
  constexpr std::size_t sample = std::size_t{64} << 10;
  constexpr std::uint64_t slow_ns = 100000;
  const int p = t.size(), to = around(t.rank() + 1, p), from = around(t.rank() - 1, p);
  const temporary out(sample * 2), in(sample * 2);
  for (std::size_t i = 0; i != sample * 2; ++i) out.data()[i] = in.data()[i] = std::byte{0};
  const auto exchange = [&](std::size_t bytes) { t.exchange(out.data(), bytes, to, in.data(), bytes, from); };

  link_costs costs;
  const link_costs::own messages = two_points(t, sample, exchange);
  costs.latency_ns = messages.latency_ns;
  costs.byte_fs = messages.byte_fs;
  const reduction add = make_reduction<float>(sum, 1);
  const auto combine = [&] { add.combine(in.data(), in.data(), out.data(), sample / sizeof(float)); };
  combine();
  costs.reduce_fs = slowest(t, 4, combine) * 1000000 / sample;
  if (costs.latency_ns > slow_ns) return costs;

  const auto own = [&](link_costs::own& into, const auto& call_of) { measure_native(t, sample, into, call_of); };
  // Whole vectors and all blocks together have `bytes`, rounded up to equal blocks.
  const auto blocks_of = [&](std::size_t bytes) {
    return (bytes / sizeof(float) + static_cast<std::size_t>(p) - 1) / static_cast<std::size_t>(p);
  };
  const partition little(p, blocks_of(8), sizeof(float)), much(p, blocks_of(sample), sizeof(float));
  const temporary all(much.total_bytes());
  const auto blocks = [&](std::size_t bytes) -> const partition& { return bytes == sample ? much : little; };
  for (std::size_t i = 0; i != much.total_bytes(); ++i) all.data()[i] = std::byte{0};
  own(costs.allreduce, [&](std::size_t n) { return allreduce_call{out.data(), in.data(), n / sizeof(float), add}; });
  own(costs.reduce_scatter, [&](std::size_t n) { return reduce_scatter_call{all.data(), in.data(), blocks(n), add}; });
  own(costs.allgather, [&](std::size_t n) { return allgather_call{out.data(), all.data(), blocks(n)}; });
  own(costs.broadcast, [&](std::size_t n) { return broadcast_call{out.data(), out.data(), n, 0}; });
  return costs;
}

}  // namespace detail

inline std::string to_string(const link_costs& costs) {
  std::string text;
  link_costs copy = costs;
  for (const auto& field : detail::cost_fields) {
    text += detail::joined({text.empty() ? "" : ",", field.name, "=", field.of(copy)});
  }
  return text;
}

inline link_costs parse_costs(std::string_view text, std::string_view source) {
  link_costs costs;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const std::size_t equals = std::min(one.find('='), one.size());
    const std::string_view value = one.substr(std::min(equals + 1, one.size()));
    const auto* field = detail::cost_fields.begin();
    while (field != detail::cost_fields.end() && field->name != one.substr(0, equals)) ++field;
    bool good = field != detail::cost_fields.end();
    if (good) {
      const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), field->of(costs));
      good = code == std::errc{} && end == value.data() + value.size();
    }
    if (!good) {
      std::string names;
      for (const auto& known : detail::cost_fields) names += detail::joined({names.empty() ? "" : ", ", known.name});
      detail::fail(error_kind::invalid_argument,
                   {source, ": \"", one, "\" is not a cost; allowed: NAME=NUMBER, with names ", names});
    }
  }
  if (!costs.known()) detail::fail(error_kind::invalid_argument, {source, ": latency_ns is missing or 0"});
  return costs;
}

/// Makes a transport's selector ready. Collective; `automatic` calls it at its first collective. If HVD_COSTS is set
/// (to the costs printed by hvd-bench --explain), nothing is measured. HVD_TUNING is a tuning_table. Errors, on all
/// ranks: invalid_argument for a text that cannot be read, mismatch if ranks have different texts.
template <Selecting T>
void make_ready(T& t) {
  selector& s = t.selection();
  const auto text_of = [](const char* name) {
    const char* const text = std::getenv(name);
    return std::string_view(text != nullptr ? text : "");
  };
  const std::string_view costs = text_of("HVD_COSTS"), tuning = text_of("HVD_TUNING");
  std::exception_ptr unreadable;
  try {
    if (!costs.empty()) s.model.costs = parse_costs(costs);
    s.table = tuning_table(tuning);
  } catch (const error&) {
    unreadable = std::current_exception();
  }
  const std::uint64_t hash = detail::text_hash(detail::joined({costs, ";", tuning}));
  detail::numbers values{hash, ~hash, unreadable ? 1U : 0U};
  detail::agree_on_largest(t, values);
  if (unreadable) std::rethrow_exception(unreadable);
  if (values[0] != hash || values[1] != ~hash || values[2] != 0) {
    detail::fail(error_kind::mismatch,
                 {"rank ", t.rank(), " of ", t.size(),
                  ": HVD_COSTS or HVD_TUNING differs between ranks; set both to the same values on all ranks"});
  }
  if (costs.empty()) s.model.costs = detail::measure(t);
  s.ready = true;
}

}  // namespace hvd::inline HVD_ABI
