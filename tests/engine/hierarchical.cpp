// The conformance body of the engine on two levels: shared memory and MPI.
#include <hvd/allreduce.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/queue.hpp>
#include <hvd/transport/shm.hpp>

#include <transport/on_mpi.hpp>

#include <engine/conformance.hpp>

using namespace hvd::test;

namespace {

/// Two ranks a host, and an odd last one alone.
struct two_levels {
  static constexpr std::initializer_list<int> sizes = {2, 3, 4};
  static constexpr bool real_time = true;
  template <class F>
  static void run(int size, const F& f) {
    on_first(size, [&](MPI_Comm part) {
      hvd::MpiTransport all(part, {.timeout = long_deadline().failure.timeout});
      hvd::MpiTransport near = all.split(all.rank() / 2, all.rank());
      hvd::ShmTransport local(near, long_deadline());
      hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport> comm(std::move(all), std::move(local));
      f(comm);
    });
  }
};

static_assert(hvd::timeline_name_of<hvd::MpiTransport> == "MPI" &&
              hvd::timeline_name_of<hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>> == "MPI");

}  // namespace

TEST_CASE("engine, two levels: every operation, type and reduction") { conformance_operations<two_levels>(); }
TEST_CASE("engine, two levels: typed calls") { conformance_front_doors<two_levels>(); }
TEST_CASE("engine, two levels: the same bits on all ranks") { conformance_same_bits<two_levels>(); }
TEST_CASE("engine, two levels: another type on the wire") { conformance_wire<two_levels>(); }
TEST_CASE("engine, two levels: adasum") { conformance_adasum<two_levels>(); }
TEST_CASE("engine, two levels: shapes that change, priorities") { conformance_changes<two_levels>(); }
TEST_CASE("engine, two levels: callbacks") { conformance_callbacks<two_levels>(); }
TEST_CASE("engine, two levels: refused at once, limits of waits") { conformance_refused_here<two_levels>(); }
TEST_CASE("engine, two levels: mismatches") { conformance_mismatches<two_levels>(); }
TEST_CASE("engine, two levels: join") { conformance_join<two_levels>(); }
TEST_CASE("engine, two levels: process sets") { conformance_process_sets<two_levels>(); }
TEST_CASE("engine, two levels: process sets do not wait for each other") { conformance_independent_sets<two_levels>(); }
TEST_CASE("engine, two levels: several threads, two engines") { conformance_threads<two_levels>(); }
TEST_CASE("engine, two levels: shutdown") { conformance_shutdown<two_levels>(); }
TEST_CASE("queue, MPI and two levels: calls, and messages with tags beside them") {
  const auto body = [](auto& comm) {
    hvd::queue calls(std::move(comm), {.messages = true});
    const int p = calls.size(), next = (calls.rank() + 1) % p, before = (calls.rank() + p - 1) % p;
    std::vector<int> values(1000, calls.rank() + 1), in(5, -1), far(100'000, -1);
    const hvd::handle sums = calls.run([&](hvd::any_transport& any) { hvd::allreduce(any, values); });
    const std::vector<int> out(5, calls.rank()), much(100'000, calls.rank());
    const hvd::handle put_far = calls.send(much, next, 1), put = calls.send(out, next, 2);
    const hvd::handle get = calls.recv(in, before, 2), get_far = calls.recv(far, hvd::queue::any_rank, 1);
    for (const hvd::handle& h : {put_far, put, get, get_far, sums}) h.wait();
    CHECK(in == std::vector<int>(5, before));
    CHECK(far == std::vector<int>(100'000, before));
    CHECK(get_far.source() == before);
    CHECK(values == std::vector<int>(1000, p * (p + 1) / 2));
  };
  for (const int size : two_levels::sizes) {
    two_levels::run(size, body);
    on_first(size, [&](MPI_Comm part) {
      hvd::MpiTransport comm(part, {.timeout = long_deadline().failure.timeout});
      body(comm);
    });
  }
}
