// tests/selection.cpp: what the cost model, the user's table and measured costs choose.
#include <hvd/algorithm/measure.hpp>
#include <hvd/hvd.hpp>
#include <hvd/selection.hpp>
#include <hvd/transport/simulated.hpp>

#include <support/messages_only.hpp>
#include <transport/conformance.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

using namespace hvd::test;
using hvd::choice;
using hvd::operation;

namespace {

/// 1 us and 1 GB/s, as between hosts; combining at 4 GB/s.
constexpr hvd::link_costs network{.latency_ns = 1000, .byte_fs = 1000000, .reduce_fs = 250000};

std::string message_of(auto f) {
  try {
    f();
  } catch (const hvd::error& e) {
    CHECK(e.kind() == hvd::error::invalid_argument);
    return e.what();
  }
  return "nothing was thrown";
}

struct on_messages {
  using transport = MessagesOnly;
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4, 5};
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& opts = long_deadline()) {
    CHECK(hvd::fork_run(
              size,
              [&](hvd::ShmTransport& world) {
                MessagesOnly comm(world.split(0, world.rank()));
                f(comm);
              },
              opts) == 0);
  }
};
static_assert(hvd::Selecting<MessagesOnly> && !hvd::PeerMemory<MessagesOnly>);

}  // namespace

namespace {

/// The operations that an algorithm has a call operator for.
template <class A>
std::uint32_t answered() {
  const auto one = []<class Call>(std::type_identity<Call>) {
    return hvd::Answers<A, hvd::SimulatedTransport, Call> ? hvd::detail::bits_of(Call::kind) : 0;
  };
  return one(std::type_identity<hvd::allreduce_call>()) | one(std::type_identity<hvd::reduce_call>()) |
         one(std::type_identity<hvd::reduce_scatter_call>()) | one(std::type_identity<hvd::allgather_call>()) |
         one(std::type_identity<hvd::broadcast_call>()) | one(std::type_identity<hvd::alltoall_call>()) |
         one(std::type_identity<hvd::gather_call>()) | one(std::type_identity<hvd::scatter_call>()) |
         one(std::type_identity<hvd::scan_call>()) | one(std::type_identity<hvd::exscan_call>());
}

}  // namespace

TEST_CASE("what can be chosen is what the algorithms do") {
  const auto listed = [](choice c) { return hvd::detail::operations_of[static_cast<std::size_t>(c)]; };
  CHECK(listed(choice::ring) == answered<hvd::ring>());
  CHECK(listed(choice::tree) == answered<hvd::tree>());
  CHECK(listed(choice::recursive_doubling) == answered<hvd::recursive_doubling>());
  CHECK(listed(choice::halving_doubling) == answered<hvd::halving_doubling>());
  CHECK(listed(choice::double_tree) == answered<hvd::double_tree>());
  CHECK(listed(choice::bruck) == answered<hvd::bruck>());
}

TEST_CASE("the model follows the formulas") {
  const hvd::cost_model model{network};
  const auto time = [&](choice c, operation kind, std::size_t bytes, int ranks) {
    return model.time(c, {.kind = kind, .bytes = bytes, .ranks = ranks});
  };
  // In nanoseconds: 2 * 3 messages of 1 us, 2 * 3/4 of 4000 bytes at 1 ns each, 3/4 combined at 1/4 ns.
  CHECK(time(choice::ring, operation::allreduce, 4000, 4) == 6000 + 6000 + 750);
  CHECK(time(choice::recursive_doubling, operation::allreduce, 4000, 4) == 2 * (1000 + 4000) + 2 * 1000);
  CHECK(time(choice::recursive_doubling, operation::allreduce, 4000, 5) == 4 * (1000 + 4000) + 3 * 1000);
  CHECK(time(choice::halving_doubling, operation::allreduce, 4000, 4) == 4000 + 6000 + 750);
  CHECK(time(choice::bruck, operation::allgather, 4000, 4) == 2 * 1000 + 3000 + 500);
  CHECK(time(choice::tree, operation::broadcast, 4000, 8) == 3 * (1000 + 4000));
  CHECK(time(choice::bruck, operation::allreduce, 4000, 4) == std::numeric_limits<double>::infinity());
  CHECK(time(choice::native, operation::allreduce, 4000, 4) == std::numeric_limits<double>::infinity());
}

TEST_CASE("the model of scan: a message of the whole vector and a combination in each step") {
  const hvd::cost_model model{{.latency_ns = 1000, .byte_fs = 1'000'000, .reduce_fs = 500'000}};
  for (const auto& [ranks, steps] : {std::pair{2, 1}, {3, 2}, {4, 2}, {9, 4}}) {
    const hvd::workload w{.kind = operation::scan, .bytes = 1 << 20, .ranks = ranks, .commutative = false};
    CHECK(model(w) == choice::recursive_doubling);
    CHECK(model.time(choice::recursive_doubling, w) == doctest::Approx(steps * (1000 + 1.5 * (1 << 20))));
    hvd::workload exclusive = w;  // two combinations
    exclusive.kind = operation::exscan;
    CHECK(model(exclusive) == choice::recursive_doubling);
    CHECK(model.time(choice::recursive_doubling, exclusive) == doctest::Approx(steps * (1000 + 2.0 * (1 << 20))));
  }
}

TEST_CASE("latency decides for short messages, bytes for long ones") {
  const hvd::cost_model model{network};
  const auto chosen = [&](operation kind, std::size_t bytes, int ranks, bool commutative = true) {
    return model({.kind = kind, .bytes = bytes, .ranks = ranks, .commutative = commutative});
  };
  CHECK(chosen(operation::allreduce, 8, 16) == choice::recursive_doubling);
  CHECK(chosen(operation::allreduce, 64 << 10, 16) == choice::halving_doubling);
  CHECK(chosen(operation::allreduce, 64 << 20, 6) == choice::ring);  // halving and doubling needs a power of two
  CHECK(chosen(operation::allreduce, 64 << 20, 6, false) == choice::double_tree);  // a ring does not keep the order
  CHECK(chosen(operation::broadcast, 8, 16) == choice::tree);
  CHECK(chosen(operation::broadcast, 64 << 20, 4) == choice::ring);
  CHECK(chosen(operation::alltoall, 64, 16) == choice::bruck);
  CHECK(chosen(operation::alltoall, 64 << 20, 16) == choice::ring);
  CHECK(model({.kind = operation::alltoall, .bytes = 64, .ranks = 16, .uniform = false}) == choice::ring);
  for (const operation kind : hvd::detail::tuned_operations()) {
    for (const int ranks : {2, 3, 1000}) {
      for (const std::size_t bytes : {0, 1, 1 << 30}) {
        const hvd::workload w{.kind = kind, .bytes = bytes, .ranks = ranks, .commutative = false, .uniform = false};
        CAPTURE(bytes);
        CHECK(hvd::possible(model(w), w));
      }
    }
  }
}

TEST_CASE("what the model chooses is as fast as anything on a simulated network") {
  const hvd::network net;  // one rank a host
  const double alpha = net.between.latency + net.between.overhead;
  const hvd::cost_model model{{.latency_ns = static_cast<std::uint64_t>(alpha * 1e9),
                               .byte_fs = static_cast<std::uint64_t>(1e15 / net.between.bandwidth),
                               .reduce_fs = static_cast<std::uint64_t>(1e15 / net.reduction_rate)}};
  // Virtual seconds of one algorithm; buffers may be any memory, as messages carry no bytes.
  const auto seconds = [&](choice c, operation kind, std::size_t bytes, int ranks) {
    const auto run = [&](hvd::SimulatedTransport& comm) {
      const hvd::reduction op = comm.charged(hvd::make_reduction<float>(hvd::sum, ranks));
      auto memory = comm.alloc_shared<std::byte>(2 * bytes);
      std::byte* const data = memory.data();
      const std::size_t n = bytes / sizeof(float), each = n / static_cast<std::size_t>(ranks);
      const hvd::partition blocks(ranks, each, sizeof(float));
      const auto with = [&](const auto& how) {
        const auto ask = [&](const auto& call) {
          if constexpr (requires { how(comm, call); }) how(comm, call);
        };
        switch (kind) {
          case operation::allreduce: return ask(hvd::allreduce_call{data, data, n, op});
          case operation::reduce_scatter: return ask(hvd::reduce_scatter_call{data, data + bytes, blocks, op});
          case operation::allgather: return ask(hvd::allgather_call{data + blocks.offset(comm.rank()), data, blocks});
          default: return ask(hvd::broadcast_call{data, data, n * sizeof(float), 0});
        }
      };
      switch (c) {
        case choice::ring: return with(hvd::ring{});
        case choice::tree: return with(hvd::tree{});
        case choice::recursive_doubling: return with(hvd::recursive_doubling{});
        case choice::halving_doubling: return with(hvd::halving_doubling{});
        case choice::double_tree: return with(hvd::double_tree{});
        default: return with(hvd::bruck{});
      }
    };
    return hvd::simulate(ranks, net, run, {.payload = false}).seconds;
  };
  for (const operation kind :
       {operation::allreduce, operation::reduce_scatter, operation::allgather, operation::broadcast}) {
    for (const int ranks : {2, 3, 4, 7, 8, 16, 100}) {
      for (const std::size_t bytes : {400, 4000, 40000, 400000, 4000000}) {
        const hvd::workload w{.kind = kind, .bytes = bytes, .ranks = ranks};
        const double chosen = seconds(model(w), kind, bytes, ranks);
        for (const choice c : hvd::all_choices) {
          if (!possible(c, w)) continue;
          // What copies cost is known to the model and not to the simulation.
          const double copies = c == choice::bruck ? static_cast<double>(bytes) / net.reduction_rate / 2 : 0;
          const double other = seconds(c, kind, bytes, ranks) + copies;
          CHECK_MESSAGE(chosen <= 1.3 * other, name(kind), " of ", bytes, " bytes on ", ranks,
                        " ranks: ", name(model(w)), " takes ", chosen * 1e6, " us, ", name(c), " ", other * 1e6);
        }
      }
    }
  }
}

TEST_CASE("the transport's own collective is one more candidate") {
  hvd::link_costs costs = network;
  const auto chosen = [&](operation kind, std::size_t bytes) {
    return hvd::cost_model{costs}({.kind = kind, .bytes = bytes, .ranks = 4, .native = true});
  };
  CHECK(chosen(operation::allreduce, 8) == choice::native);  // not measured: taken at its word
  costs.allreduce = {.latency_ns = 1500, .byte_fs = 20000000};
  CHECK(chosen(operation::allreduce, 8) == choice::native);
  CHECK(chosen(operation::allreduce, 64 << 20) != choice::native);
  CHECK(chosen(operation::reduce, 64 << 20) == choice::native);
}

TEST_CASE("a table of the user's") {
  const hvd::tuning_table table("allreduce:0-4k=recursive_doubling,4k-inf=ring;broadcast:10-1m=tree,2m-3g=ring");
  const auto found = [&](operation kind, std::size_t bytes, bool commutative = true) {
    const choice* c = table.find({.kind = kind, .bytes = bytes, .ranks = 4, .commutative = commutative});
    return c == nullptr ? std::string("none") : std::string(name(*c));
  };
  CHECK(found(operation::allreduce, 0) == "recursive_doubling");
  CHECK(found(operation::allreduce, 4095) == "recursive_doubling");
  CHECK(found(operation::allreduce, 4096) == "ring");
  CHECK(found(operation::allreduce, std::size_t{1} << 40) == "ring");
  CHECK(found(operation::allreduce, 4096, false) == "none");  // a ring does not keep the order
  CHECK(found(operation::broadcast, 9) == "none");
  CHECK(found(operation::broadcast, 10) == "tree");
  CHECK(found(operation::broadcast, 1 << 20) == "none");
  CHECK(found(operation::broadcast, (std::size_t{3} << 30) - 1) == "ring");
  CHECK(found(operation::reduce, 10) == "none");
  CHECK(hvd::tuning_table("").empty());
}

TEST_CASE("a table that cannot be read names the place and what is allowed") {
  const auto refused = [](const char* text) { return message_of([&] { hvd::tuning_table table(text); }); };
  CHECK(refused("allreduc:0-4k=ring") ==
        "hvd: HVD_TUNING=\"allreduc:0-4k=ring\", character 1: allowed: allreduce, reduce, reduce_scatter, allgather, "
        "broadcast, alltoall, gather, scatter, scan, exscan");
  CHECK(refused("allreduce:0-4k=bruck") ==
        "hvd: HVD_TUNING=\"allreduce:0-4k=bruck\", character 16: allowed: ring, tree, recursive_doubling, "
        "halving_doubling, double_tree, native");
  CHECK(refused("allreduce:4-3=ring").find("character 14: allowed: a range that ends above its start") !=
        std::string::npos);
  CHECK(refused("allreduce:0-4k=ring,").find("character 21: allowed: a number of bytes, or inf") != std::string::npos);
  CHECK(refused("allreduce:0-99999999999999999999=ring").find("character 13") != std::string::npos);
  CHECK(refused("allreduce").find("character 10: allowed: ':'") != std::string::npos);
  CHECK(refused("allreduce:0-4k=ring broadcast").find("character 20: allowed: ';'") != std::string::npos);
}

TEST_CASE("costs are saved as text") {
  hvd::link_costs costs = network;
  costs.broadcast = {.latency_ns = 7, .byte_fs = 8};
  CHECK(hvd::parse_costs(hvd::to_string(costs)) == costs);
  CHECK(hvd::parse_costs("latency_ns=5") == hvd::link_costs{.latency_ns = 5});
  CHECK(message_of([] { hvd::parse_costs("latency_ns=5,bytes=3"); })
            .starts_with(
                "hvd: HVD_COSTS: \"bytes=3\" is not a cost; allowed: NAME=NUMBER, with names latency_ns, byte_fs"));
  CHECK(message_of([] { hvd::parse_costs("latency_ns=5x"); }).find("\"latency_ns=5x\"") != std::string::npos);
  CHECK(message_of([] { hvd::parse_costs("byte_fs=3"); }).find("latency_ns is missing or 0") != std::string::npos);
}

TEST_CASE("all ranks measure the same") {
  on_messages::run(3, [](MessagesOnly& comm) {
    int one = 1;
    hvd::allreduce(comm, &one, 1);
    require(one == 3, "a sum by whatever was chosen");
    const hvd::selector first = comm.selection();
    require(first.ready && first.model.costs.known(), "costs were measured");
    std::array<std::uint64_t, 3> mine{first.model.costs.latency_ns, first.model.costs.byte_fs,
                                      first.model.costs.reduce_fs};
    std::vector<std::uint64_t> all(9);
    hvd::allgather(comm, mine, all);
    for (std::size_t i = 0; i != 9; ++i) require(all[i] == mine[i % 3], "ranks have different costs");
    require(comm.selection().model == first.model, "the choice stays");
  });
}

TEST_CASE("automatic runs what is chosen") {
  conformance_collectives<on_messages, std::int32_t, hvd::sum_t>({2, 3, 5}, false);
}

TEST_CASE("costs and a table from the environment") {
  ::setenv("HVD_COSTS", hvd::to_string(network).c_str(), 1);
  ::setenv("HVD_TUNING", "allreduce:0-inf=tree", 1);
  on_messages::run(2, [](MessagesOnly& comm) {
    int one = 1;
    hvd::allreduce(comm, &one, 1);
    require(comm.selection().model.costs == network, "costs are not those of HVD_COSTS");
    require(comm.selection()({.kind = operation::allreduce, .ranks = 2}) == choice::tree, "HVD_TUNING is ignored");
  });
  ::unsetenv("HVD_COSTS");
  ::unsetenv("HVD_TUNING");
}

TEST_CASE("texts that differ between ranks, or cannot be read, are errors on all ranks") {
  on_messages::run(3, [](MessagesOnly& comm) {
    const auto kind_with = [&](const char* text) {
      ::setenv("HVD_TUNING", text, 1);
      int one = 1;
      try {
        hvd::allreduce(comm, &one, 1);
      } catch (const hvd::error& e) {
        return std::string(name(e.kind()));
      }
      return std::string("none");
    };
    require(kind_with(comm.rank() == 1 ? "allreduce:0-1=tree" : "allreduce:0-1=ring") == "mismatch", "different texts");
    const bool bad = comm.rank() == 2;
    require(kind_with(bad ? "x" : "allreduce:0-1=ring") == (bad ? "invalid_argument" : "mismatch"),
            "an unreadable text");
    require(kind_with("") == "none", "the group is usable after that");
  });
}
