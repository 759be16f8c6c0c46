// tests/transport/conformance_hierarchical.cpp: two levels, shared memory and MPI, under the conformance body.
#include <hvd/hierarchical.hpp>
#include <hvd/transport/shm.hpp>

#include <transport/conformance.hpp>
#include <transport/on_mpi.hpp>

#include <utility>

using namespace hvd::test;

namespace {

using transport = hvd::Hierarchical<hvd::ShmTransport, hvd::MpiTransport>;

/// Two ranks a host, and an odd last one alone; on real hosts in so far as these have the ranks that mpiexec gives
/// them.
struct on_two_levels {
  static constexpr std::initializer_list<int> sizes = {2, 3, 4};
  template <class F>
  static void run(int size, const F& f, const hvd::sharing_options& opts = long_deadline()) {
    on_first(size, [&](MPI_Comm part) {
      hvd::MpiTransport all(part, {.timeout = opts.failure.timeout});
      hvd::MpiTransport near = all.split(all.rank() / 2, all.rank());
      hvd::ShmTransport local(near, opts);
      transport comm(std::move(all), std::move(local), {.leader_bytes = 100, .chunk_bytes = 3000});
      f(comm);
    });
  }
};

}  // namespace

static_assert(hvd::PointToPoint<transport> && hvd::Native<transport, hvd::alltoall_call> &&
              !hvd::PeerMemory<transport>);

TEST_CASE("shared memory and MPI: every collective") {
  conformance_collectives<on_two_levels, std::int32_t, hvd::sum_t>({3, 4}, false);
}
TEST_CASE("shared memory and MPI: an operation that does not commute") {
  conformance_collectives<on_two_levels, affine, compose>({4}, false);
}
TEST_CASE("shared memory and MPI: roots, uneven blocks, groups") {
  conformance_roots<on_two_levels>();
  conformance_uneven_blocks<on_two_levels>();
  conformance_split<on_two_levels>();
  conformance_limit<on_two_levels>();
  conformance_probing<on_two_levels>();
}
TEST_CASE("shared memory and MPI: elements of any alignment") {
  conformance_alignment<on_two_levels>(hvd::automatic<>{});
}
TEST_CASE("shared memory and MPI: several MiB") { conformance_large<on_two_levels>({4}); }
TEST_CASE("shared memory and MPI: built by one call") {
  on_first(4, [](MPI_Comm part) {
    transport comm = transport::over(hvd::MpiTransport(part));
    require(comm.size() == 4 && comm.hosts() >= 1, "a wrong group");
    std::vector<float> x(100000, static_cast<float>(comm.rank()));
    hvd::allreduce(comm, x);
    require(x.front() == 6 && x.back() == 6, "a wrong sum");
  });
}
