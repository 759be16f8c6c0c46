// tests/gpu/hierarchical.cpp: NCCL between the GPUs of a host, another transport between hosts; on stand-ins.
#include "gpu/standin.hpp"

#include <hvd/gpu.hpp>
#include <hvd/hvd.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

namespace {

using levels = hvd::Hierarchical<hvd::NcclTransport, hvd::ShmTransport>;
static_assert(hvd::memory_of<levels> == hvd::memory_kind::device);
static_assert(hvd::Transport<levels> && !hvd::PointToPoint<levels> && hvd::Native<levels, hvd::allreduce_call>);

/// Device memory of a rank, which the test fills and reads.
class buffer {
 public:
  buffer(levels& comm, std::vector<float> values)
      : comm_(comm), there_(comm.local().alloc_shared<float>(values.size())), size_(values.size()) {
    comm.local().copy_to_device<float>(values, there_.data());
  }
  std::span<float> span() { return {there_.data(), size_}; }
  std::vector<float> copy() {
    std::vector<float> values(size_);
    comm_.local().copy_to_host<float>(there_.data(), values);
    return values;
  }

 private:
  levels& comm_;
  hvd::shared_array<float> there_;
  std::size_t size_;
};

int mistakes = 0;
void expect(bool right, const std::string& what, int rank) {
  if (right) return;
  ++mistakes;
  std::fprintf(stderr, "rank %d: wrong %s\n", rank, what.c_str());
}

/// `hosts` says which ranks are taken for one host each: rank r is on host hosts[r].
int check(const std::vector<int>& hosts) {
  const int size = static_cast<int>(hosts.size());
  ::setenv("HVD_STANDIN_GPUS", "4", 1);
  return hvd::fork_run(size, [&](hvd::ShmTransport& world) {
    const int me = world.rank();
    hvd::ShmTransport near = world.split(hosts[static_cast<std::size_t>(me)], me);
    levels comm(world.split(0, me), hvd::NcclTransport(near, {.device = me}),
                {.leader_bytes = 64, .chunk_bytes = 1024});
    const float total = static_cast<float>(size * (size + 1) / 2);
    for (const std::size_t n : {1UL, 3UL, 16UL, 1000UL, 1025UL}) {
      const std::string with = " with " + std::to_string(n);
      buffer in(comm, std::vector<float>(n, static_cast<float>(me + 1))), out(comm, std::vector<float>(n, -1));
      hvd::allreduce(comm, in.span(), out.span());
      expect(out.copy() == std::vector<float>(n, total), "allreduce" + with, me);
      hvd::allreduce(comm, in.span(), out.span(), hvd::scaled(hvd::average, 2.0));
      expect(out.copy() == std::vector<float>(n, 2 * total / static_cast<float>(size)), "average" + with, me);
      for (int root = 0; root != size; ++root) {
        buffer b(comm, std::vector<float>(n, me == root ? 7.0F : 0.0F)), r(comm, std::vector<float>(n, -1));
        hvd::broadcast(comm, b.span(), root);
        expect(b.copy() == std::vector<float>(n, 7), "broadcast" + with, me);
        hvd::reduce(comm, in.span(), r.span(), hvd::max, root);
        const float largest = me == root ? static_cast<float>(size) : -1.0F;
        expect(r.copy() == std::vector<float>(n, largest), "reduce" + with, me);
      }
      const auto p = static_cast<std::size_t>(size);
      std::vector<float> gathered;
      for (int q = 0; q != size; ++q) gathered.insert(gathered.end(), n, static_cast<float>(q + 1));
      buffer all(comm, std::vector<float>(n * p)), part(comm, std::vector<float>(n)), turned(comm, gathered);
      hvd::allgather(comm, in.span(), all.span());
      expect(all.copy() == gathered, "allgather" + with, me);
      hvd::reduce_scatter(comm, turned.span(), part.span());
      expect(part.copy() == std::vector<float>(n, static_cast<float>((me + 1) * size)), "reduce_scatter" + with, me);
      hvd::alltoall(comm, turned.span(), all.span());
      expect(all.copy() == std::vector<float>(n * p, static_cast<float>(me + 1)), "alltoall" + with, me);
    }
    comm.barrier();
    const auto& gpu = hvd::test::standin_gpu::get();
    expect(gpu.violations(nullptr, 0) == 0, "order: " + gpu.last_violation(), me);
    return mistakes == 0 ? 0 : 3;
  });
}

TEST_CASE("collectives on GPUs of several hosts, by way of the hosts' memory") {
  CHECK(check({0, 1}) == 0);
  CHECK(check({0, 0}) == 0);
  CHECK(check({0, 0, 1, 1}) == 0);
  CHECK(check({0, 0, 0, 1}) == 0);
  CHECK(check({0, 1, 0, 1}) == 0);
}

}  // namespace
