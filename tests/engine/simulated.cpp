// The conformance body of the engine on simulated ranks, where those who wait make progress.
#include <hvd/transport/simulated.hpp>

#include <engine/conformance.hpp>

using namespace hvd::test;

namespace {

struct simulated {
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4, 5, 8};
  static constexpr bool real_time = false;
  template <class F>
  static void run(int size, const F& f) {
    const hvd::network net{.ranks_per_host = 2, .uplink = 8e9};
    CHECK_NOTHROW(hvd::simulate(size, net, f));
  }
};

}  // namespace

TEST_CASE("engine, simulated: every operation, type and reduction") { conformance_operations<simulated>(); }
TEST_CASE("engine, simulated: typed calls") { conformance_front_doors<simulated>(); }
TEST_CASE("engine, simulated: the same bits on all ranks") { conformance_same_bits<simulated>(); }
TEST_CASE("engine, simulated: another type on the wire") { conformance_wire<simulated>(); }
TEST_CASE("engine, simulated: adasum") { conformance_adasum<simulated>(); }
TEST_CASE("engine, simulated: shapes that change, priorities") { conformance_changes<simulated>(); }
TEST_CASE("engine, simulated: callbacks") { conformance_callbacks<simulated>(); }
TEST_CASE("engine, simulated: names that come again") { conformance_names<simulated>(); }
TEST_CASE("engine, simulated: refused at once, limits of waits") { conformance_refused_here<simulated>(); }
TEST_CASE("engine, simulated: mismatches") { conformance_mismatches<simulated>(); }
TEST_CASE("engine, simulated: join") { conformance_join<simulated>(); }
TEST_CASE("engine, simulated: process sets") { conformance_process_sets<simulated>(); }
TEST_CASE("engine, simulated: process sets do not wait for each other") { conformance_independent_sets<simulated>(); }
TEST_CASE("engine, simulated: shutdown") { conformance_shutdown<simulated>(); }

TEST_CASE("engine, simulated: 1,024 ranks, 100 tensors in random orders") {
  constexpr int ranks = 1024;
  const hvd::network net{.ranks_per_host = 8};
  double steady = 0;  // virtual seconds of the last step on rank 0
  hvd::simulate(ranks, net, [&](hvd::SimulatedTransport& comm) {
    hvd::Engine engine(comm, options_for<simulated>());
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    std::vector<int> order(100);
    for (int i = 0; i != 100; ++i) order[static_cast<std::size_t>(i)] = i;
    for (int step = 0; step != 3; ++step) {
      const double start = comm.now();
      std::vector<std::vector<float>> x(order.size());
      std::vector<hvd::handle> handles;
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) {
        auto& mine = x[static_cast<std::size_t>(i)];
        mine.assign(static_cast<std::size_t>(1 + i % 7), static_cast<float>(comm.rank() + i));
        handles.push_back(engine.allreduce("t" + std::to_string(i), mine));
      }
      for (const hvd::handle& h : handles) h.wait();
      for (const int i : order) {
        const auto sum = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * i);
        for (const float value : x[static_cast<std::size_t>(i)]) require(value == sum, "a wrong sum");
      }
      if (comm.rank() == 0) steady = comm.now() - start;
    }
  });
  MESSAGE("a step takes ", steady * 1e6, " us, and a message ", net.between.latency * 1e6, " us");
  // Ten messages of a round and twenty of one allreduce; a hundred allreduces would be 2000.
  CHECK(steady < 100 * net.between.latency);
}
