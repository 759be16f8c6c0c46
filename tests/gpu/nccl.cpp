// tests/gpu/nccl.cpp: the collectives of NcclTransport, by the test body that all transports share, and of every type.
#include <hvd/hvd.hpp>

#include <gpu/through_device.hpp>
#include <support/verifiable.hpp>
#include <transport/conformance.hpp>

#include <complex>
#include <cstdint>

namespace gpu_nccl_tests {

using namespace hvd::test;

namespace {

void sweep_sizes(const environment& variables, std::initializer_list<int> sizes, int operations) {
  struct with : on_nccl {};
  for (const int size : sizes) {
    CAPTURE(size);
    const auto counts = counts_around({64, 4096}, size, sizeof(std::int32_t));
    const tables<std::int32_t, hvd::sum_t> table(size, uneven_total(size, counts.back()));
    on_nccl::run_with(size, variables, {}, [&](through_device& comm) {
      buffers memory(comm, (table.count() + 8) * sizeof(std::int32_t));
      checker<through_device, std::int32_t, hvd::sum_t, hvd::native> check(comm, memory, table);
      sweep(check, counts, comm.rank(), sizeof(std::int32_t), false);
      for (int i = 0; i != operations; ++i) {
        const variant v{placement::apart, i % 2 == 0, i % size, static_cast<unsigned>(i % 7)};
        check.all_uneven(static_cast<std::size_t>(i * 37 % 500), static_cast<unsigned>(i), v);
        check.barrier();
      }
    });
  }
}

}  // namespace

TEST_CASE("NCCL: every collective, in place and not, 0, 1 and odd counts, even and uneven blocks") {
  sweep_sizes({}, {1, 2, 3, 4}, 10);
}
TEST_CASE("NCCL: the same where each call is in progress for a while") { sweep_sizes(in_progress, {2, 3}, 2); }
TEST_CASE("NCCL: the same with the functions of NCCL 2.18") { sweep_sizes(old_library(), {1, 3}, 10); }

namespace {

/// Collectives in a group, whose members know each other by the sum of their numbers.
void use(through_device& comm, int number, int sum) {
  std::vector<std::int32_t> x(5, number);
  hvd::allreduce(comm, x, hvd::sum, hvd::native{});
  require(x == std::vector<std::int32_t>(5, sum), "another group's sum");
  const std::vector<std::int32_t> one(1, number);
  std::vector<std::int32_t> all(static_cast<std::size_t>(comm.size()));
  hvd::allgather(comm, one, all, hvd::native{});
  require(all[static_cast<std::size_t>(comm.rank())] == number, "another order of ranks");
  comm.barrier();
}

void split_and_use(through_device& comm) {
  const int rank = comm.rank(), p = comm.size(), all = p * (p - 1) / 2;
  through_device parity = comm.split(rank % 2, -rank);
  require(parity.size() == (p + 1 - rank % 2) / 2, "a group of every other rank has another size");
  require(parity.rank() == (p - 1 - rank) / 2, "keys order a group");
  int same_parity = 0;
  for (int r = rank % 2; r < p; r += 2) same_parity += r;
  use(parity, rank, same_parity);
  use(comm, rank, all);
  through_device reversed = comm.split(-7, p - rank);
  require(reversed.size() == p && reversed.rank() == p - 1 - rank, "a group of all, backwards");
  through_device negative = comm.split(rank == 0 ? -1 : -2, 0);
  require(negative.size() == (rank == 0 ? 1 : p - 1), "groups with negative colors");
  through_device alone = comm.split(rank, 0);
  require(alone.size() == 1 && alone.rank() == 0, "a group of one each");
  const bool in_none = rank % 2 == 0;
  through_device odd = comm.split(in_none ? hvd::no_group : 2, -rank);
  require(odd.size() == (in_none ? 1 : p / 2), "a group of the odd ranks, and none for the others");
  use(odd, rank, in_none ? rank : same_parity);
  use(alone, rank, rank);
  use(negative, rank, rank == 0 ? 0 : all);
  use(reversed, rank, all);
  through_device nested = parity.split(parity.rank() / 2, 0);
  require(nested.size() == std::min(2, parity.size() - parity.rank() / 2 * 2), "a group of a group");
  use(comm, rank, all);
  {
    const through_device gone = std::move(parity);  // its groups live on
  }
  nested.barrier();
}

}  // namespace

TEST_CASE("NCCL: groups of a group, with negative colors too") {
  for (const int size : {1, 2, 4}) on_nccl::run(size, split_and_use);
}
TEST_CASE("NCCL: the same with NCCL 2.18, and in progress") {
  on_nccl::run_with(3, old_library(), {}, split_and_use);
  on_nccl::run_with(3, in_progress, {}, split_and_use);
}

}  // namespace gpu_nccl_tests
