// tests/examples/own_algorithm.cpp: the algorithm of example 10 under the conformance body.
#include <examples/with_private_memory.hpp>
#include <support/queue_transport.hpp>
#include <transport/conformance_algorithms.hpp>

#define main own_algorithm_main  // the example is a program; here it lends its algorithm
#include <examples/10_own_algorithm.cpp>
#undef main

#include <exception>

using namespace hvd::test;

namespace {

/// Messages without buffers: who sends waits for the receiver.
struct on_queues {
  static constexpr std::initializer_list<int> sizes = {1, 2, 3, 4, 5, 8};
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& = {}) {
    CHECK_NOTHROW(on_ranks(size, [&](QueueTransport& t) {
      with_private_memory<QueueTransport> comm(std::move(t));
      f(comm);
    }));
  }
};

template <class Run>
void conforms() {
  for (const int fan_out : {1, 2, 3, 100}) {
    conformance_over_messages<Run, std::int32_t, hvd::sum_t>(k_ary_tree{.fan_out = fan_out, .chunk_bytes = 1000});
  }
  conformance_over_messages<Run, std::int8_t, hvd::sum_t>(k_ary_tree{});
  conformance_same_bits<Run, float>(std::vector<k_ary_tree>{{}, {.chunk_bytes = 1024}}, true);
}

}  // namespace

TEST_CASE("k-ary tree on threads") { conforms<on_threads>(); }
TEST_CASE("k-ary tree on queues") { conforms<on_queues>(); }

TEST_CASE("k-ary tree: averages, scale factors, and operations that do not commute") {
  thread_run(
      5,
      [](hvd::ThreadTransport& comm) {
        std::vector<float> x(100, static_cast<float>(comm.rank()));
        hvd::allreduce(comm, x, hvd::scaled(hvd::average, 3.0, 2.0), k_ary_tree{.fan_out = 2});
        require(x == std::vector<float>(100, 12.0f), "a scaled average is wrong");
        try {
          hvd::allreduce(comm, x, hvd::non_commutative([](float a, float) { return a; }), k_ary_tree{});
          require(false, "an operation that does not commute was accepted");
        } catch (const hvd::error& e) {
          require(e.kind() == hvd::error::unsupported, e.what());
        }
      },
      long_deadline());
}
