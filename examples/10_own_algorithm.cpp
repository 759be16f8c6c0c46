// 10_own_algorithm.cpp: an algorithm of your own, for any transport that passes messages. Here: a tree in which every
// node has as many children as you say. With fan_out = 1 it is a chain, with size - 1 everybody reports to rank 0.
#include <hvd/hvd.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

/// An aggregate of its tunables, equal on all ranks, with a call for each collective that it can do; see the calls in
/// hvd/transport.hpp. Collectives without one are refused by the compiler.
struct k_ary_tree {
  /// Whether ranks are combined in their order, as reductions that do not commute need it.
  static constexpr bool rank_ordered = false;

  int fan_out = 4;                                  // at least 1
  std::size_t chunk_bytes = std::size_t{64} << 10;  // levels of the tree work on different chunks at the same time

  /// Up the tree to rank 0, chunk by chunk, and down again.
  template <hvd::PointToPoint T>
  void operator()(T& comm, const hvd::allreduce_call& call) const {
    const int rank = comm.rank();
    const bool top = rank == 0;
    const int parent = (rank - 1) / fan_out;
    const int first_child = std::min(rank * fan_out + 1, comm.size());
    const int end_of_children = std::min(first_child + fan_out, comm.size());

    const hvd::reduction& op = call.op;
    const std::size_t unit = op.element_bytes;
    const std::size_t chunk = std::max<std::size_t>(1, std::min(chunk_bytes / unit, call.count));
    const auto received = std::make_unique<std::byte[]>(first_child == end_of_children ? 0 : chunk * unit);

    // One message is sent even without elements, so that ranks that disagree on the count find out.
    for (std::size_t at = 0; at == 0 || at < call.count; at += chunk) {
      const std::size_t n = std::min(chunk, call.count - at);
      std::byte* const sum = call.out + at * unit;
      op.prepare(sum, call.in + at * unit, n);  // copies, unless in place, and multiplies by a prescale factor
      for (int child = first_child; child != end_of_children; ++child) {
        comm.recv(received.get(), n * unit, child);
        op.combine(sum, sum, received.get(), n);
      }
      if (top) op.finish(sum, n);  // divides an average, multiplies by a postscale factor
      if (!top) comm.send(sum, n * unit, parent);
    }
    for (std::size_t at = 0; at == 0 || at < call.count; at += chunk) {
      const std::size_t n = std::min(chunk, call.count - at);
      std::byte* const result = call.out + at * unit;
      if (!top) comm.recv(result, n * unit, parent);
      for (int child = first_child; child != end_of_children; ++child) comm.send(result, n * unit, child);
    }
  }
};
/// For messages and benchmarks.
std::string name(const k_ary_tree& a) {
  return "k_ary_tree(fan_out=" + std::to_string(a.fan_out) + ", chunk_bytes=" + std::to_string(a.chunk_bytes) + ")";
}

static_assert(hvd::Answers<k_ary_tree, hvd::ShmTransport, hvd::allreduce_call>);
static_assert(!hvd::Answers<k_ary_tree, hvd::ShmTransport, hvd::broadcast_call>);

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 5;
  return hvd::fork_run(ranks, [](hvd::ShmTransport& comm) {
    for (const k_ary_tree how : {k_ary_tree{}, k_ary_tree{.fan_out = 2, .chunk_bytes = 4096}}) {
      std::vector<float> gradient(10000, static_cast<float>(comm.rank() + 1));
      hvd::allreduce(comm, gradient, hvd::average, how);
      if (comm.rank() == 0) std::printf("%s: %g\n", name(how).c_str(), gradient.back());
    }
  });
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
