// bench/collective.hpp: the measured collectives, and the data in which they differ.
//
// One more collective is a line in the enumeration, one in the table, its output in `each_piece`, and its call in each
// library that has it: for hvd in bench/backends/calls.hpp.
#pragma once

#include <hvd/dtype.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string_view>

namespace hvd::bench {

enum class collective : std::uint8_t {
  allreduce,
  reduce,
  reduce_scatter,
  allgather,
  broadcast,
  alltoall,
  gather,
  scatter,
  scan,       ///< the reduction of the inputs of all ranks up to this one
  exscan,     ///< the same without this one's
  send_recv,  ///< every rank sends to the next and receives from the one before
  barrier,
  fused,   ///< the gradients of a model: packed, reduced, unpacked
  engine,  ///< the same as a backward pass gives them, by name; its calls come as allreduce
};

/// The part of the root.
enum class root_role : std::uint8_t { none, gives, gets };

struct collective_facts {
  std::string_view name;
  bool reduces = false;
  root_role root = root_role::none;
  bool in_blocks = false, out_blocks = false;  ///< whether a buffer holds a block of `count` elements for each rank
  bool in_place = true;                        ///< whether it works in place
  bool averages = true;                        ///< whether it has the operation avg
};
inline constexpr collective_facts facts_of_collectives[] = {
    {.name = "allreduce", .reduces = true},
    {.name = "reduce", .reduces = true, .root = root_role::gets},
    {.name = "reduce_scatter", .reduces = true, .in_blocks = true},
    {.name = "allgather", .out_blocks = true},
    {.name = "broadcast", .root = root_role::gives},
    {.name = "alltoall", .in_blocks = true, .out_blocks = true},
    {.name = "gather", .root = root_role::gets, .out_blocks = true},
    {.name = "scatter", .root = root_role::gives, .in_blocks = true},
    {.name = "scan", .reduces = true, .averages = false},
    {.name = "exscan", .reduces = true, .averages = false},
    {.name = "send_recv", .in_place = false},
    {.name = "barrier", .in_place = false},
    {.name = "fused", .reduces = true, .in_place = false},
    {.name = "engine", .reduces = true, .in_place = false},
};
inline constexpr auto collective_names = [] {
  std::array<std::string_view, std::size(facts_of_collectives)> names;
  for (std::size_t i = 0; i != names.size(); ++i) names[i] = facts_of_collectives[i].name;
  return names;
}();
static_assert(collective_names.size() == static_cast<std::size_t>(collective::engine) + 1, "facts of each collective");
constexpr const collective_facts& facts(collective c) noexcept {
  return facts_of_collectives[static_cast<unsigned char>(c)];
}
constexpr std::string_view name(collective c) noexcept { return facts(c).name; }
constexpr bool reduces(collective c) noexcept { return facts(c).reduces; }
constexpr bool has_root(collective c) noexcept { return facts(c).root != root_role::none; }
/// Whether `count` is one rank's block of a buffer that holds one for each rank.
constexpr bool has_blocks(collective c) noexcept { return facts(c).in_blocks || facts(c).out_blocks; }
constexpr bool works_in_place(collective c) noexcept { return facts(c).in_place; }

constexpr bool is_one_of(collective c, std::initializer_list<collective> these) noexcept {
  return std::find(these.begin(), these.end(), c) != these.end();
}
/// Whether it is measured on the gradients of a model, whose reductions come as allreduce.
constexpr bool has_model(collective c) noexcept { return c == collective::fused || c == collective::engine; }

/// Elements of one rank's input and output.
struct extent {
  std::size_t in, out;
};
constexpr extent extent_of(collective c, std::size_t count, int ranks) noexcept {
  if (c == collective::barrier) return {0, 0};
  const std::size_t all = count * static_cast<std::size_t>(ranks);
  return {facts(c).in_blocks ? all : count, facts(c).out_blocks ? all : count};
}

/// The value of the column "size": the larger of both buffers, in bytes.
constexpr std::size_t size_of_message(collective c, std::size_t count, int ranks, dtype type) noexcept {
  const extent e = extent_of(c, count, ranks);
  return std::max(e.in, e.out) * hvd::size_of(type);
}
/// nccl-tests' way from a size to a count: rounded down to whole elements, or blocks.
constexpr std::size_t count_of(collective c, std::size_t bytes, int ranks, dtype type) noexcept {
  return bytes / hvd::size_of(type) / (has_blocks(c) ? static_cast<std::size_t>(ranks) : 1);
}

/// Bus bandwidth over algorithm bandwidth: the load of a link, independent of the number of ranks.
constexpr double bus_factor(collective c, int ranks) noexcept {
  const double n = ranks;
  if (c == collective::allreduce || has_model(c)) return 2.0 * (n - 1.0) / n;
  return has_blocks(c) ? (n - 1.0) / n : 1.0;
}

/// `count` elements of an output: those of the inputs from element `from` on, of rank `rank`, or reduced over `ranks`
/// ranks from 0 on if that is not 0.
struct piece {
  std::size_t at;  ///< first element in the output
  std::size_t from;
  int rank;
  int ranks = 0;
};

/// Calls f(piece) for all that the output of `rank` consists of; the order is that of the output.
template <class F>
constexpr void each_piece(collective c, int rank, int size, int root, std::size_t count, F f) {
  const bool gets = facts(c).root != root_role::gets || rank == root;
  const std::size_t own = static_cast<std::size_t>(rank) * count;
  switch (c) {
    case collective::barrier: return;
    case collective::broadcast: return f(piece{0, 0, root});
    case collective::scatter: return f(piece{0, own, root});
    case collective::send_recv: return f(piece{0, 0, (rank + size - 1) % size});
    case collective::scan: return f(piece{0, 0, 0, rank + 1});
    case collective::exscan:
      if (rank != 0) f(piece{0, 0, 0, rank});
      return;
    case collective::reduce_scatter: return f(piece{0, own, 0, size});
    case collective::allgather:
    case collective::gather:
    case collective::alltoall:
      for (int q = 0; gets && q != size; ++q) {
        f(piece{static_cast<std::size_t>(q) * count, c == collective::alltoall ? own : 0, q});
      }
      return;
    case collective::allreduce:
    case collective::reduce:
    case collective::fused:
    case collective::engine:
      if (gets) f(piece{0, 0, 0, size});
  }
}

}  // namespace hvd::bench
