// Groups that come and go: ranks join by name, over another group and by fork_run, split, share memory and leave.
// usage: campaign_start RANKS CYCLES SEED; prints `cycles launches wrong files rss_kib descriptors`: groups joined by
// ranks that stay, fork_run, wrong sums, files that a cycle left, and the growth after warming up of the rank with
// most.
#include <hvd/hvd.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace {

std::int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return 0;
}

std::int64_t entries(const std::string& directory) {
  const auto all = std::filesystem::directory_iterator(directory);
  return std::distance(begin(all), end(all));
}

std::int64_t files() { return entries(hvd::memory_policy::from_environment().directory); }

/// One if a sum over the group is wrong: each rank gives its rank in the larger group, `first` is the sum of these.
std::int64_t wrong_sum(hvd::ShmTransport& comm, std::int64_t given, std::int64_t expected) {
  std::vector<std::int64_t> data(300, given);
  hvd::allreduce(comm, data);
  return std::all_of(data.begin(), data.end(), [&](std::int64_t x) { return x == expected; }) ? 0 : 1;
}

/// What every group goes through. `dice` gives the same numbers on all ranks.
std::int64_t use(hvd::ShmTransport& comm, std::mt19937& dice) {
  const int size = comm.size(), rank = comm.rank();
  std::int64_t wrong = wrong_sum(comm, rank, std::int64_t{size} * (size - 1) / 2);
  if (dice() % 4 == 0) {
    const std::size_t n = 1 + dice() % 5000;
    auto shared = comm.alloc_shared<std::int64_t>(n);
    std::fill(shared.begin(), shared.end(), rank + 1);
    hvd::allreduce(comm, shared);
    wrong += shared[n - 1] != std::int64_t{size} * (size + 1) / 2 ? 1 : 0;
  }
  const int colors = 1 + static_cast<int>(dice() % 3), turned = static_cast<int>(dice() % 2),
            deeper = static_cast<int>(dice() % 2);
  hvd::ShmTransport part = comm.split(rank % colors, turned != 0 ? -rank : rank);
  std::int64_t expected = 0, members = 0;
  for (int q = rank % colors; q < size; q += colors) expected += q, ++members;
  const int place = turned != 0 ? (static_cast<int>(members) - 1 - rank / colors) : rank / colors;
  wrong += part.size() != members || part.rank() != place ? 1 : 0;
  wrong += wrong_sum(part, rank, expected);
  if (deeper != 0) {
    const std::int64_t half = place / 2;
    hvd::ShmTransport pair = part.split(static_cast<int>(half), place);
    const std::int64_t other = std::min<std::int64_t>(2 * half + 1, members - 1);
    wrong += wrong_sum(pair, place, other == 2 * half ? other : 2 * half + other);
  }
  return wrong;
}

/// One group more, or two, beside `base`.
std::int64_t cycle(hvd::ShmTransport& base, std::mt19937& dice, const std::string& job, int number) {
  const int rank = base.rank(), size = base.size();
  const auto kind = dice() % 64;
  if (kind == 0) {  // a bare name, the same each time: 20 ms
    hvd::ShmTransport comm(job, rank, size);
    return use(comm, dice);
  }
  if (kind == 1) {  // two groups by it at once, left in either order
    std::optional<hvd::ShmTransport> first(std::in_place, job, rank, size), second(std::in_place, job, rank, size);
    const std::int64_t wrong = use(*first, dice) + use(*second, dice);
    (dice() % 2 == 0 ? first : second).reset();
    return wrong;
  }
  if (kind < 20) {
    hvd::ShmTransport comm(base);
    return use(comm, dice);
  }
  if (kind < 28) return use(base, dice);
  // By its launch, or by a name that is new each time: ranks in another order.
  const int turned = static_cast<int>((static_cast<unsigned>(rank) + dice()) % static_cast<unsigned>(size));
  hvd::ShmTransport comm(job + "@" + std::to_string(kind < 50 ? number : number % 2), turned, size);
  return use(comm, dice);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int ranks = std::atoi(argv[1]), cycles = std::atoi(argv[2]);
  const auto seed = static_cast<unsigned>(std::atol(argv[3]));
  const int stays = cycles - cycles / 10, warm = std::min(200, stays / 4);
  const std::string job = "campaign-start-" + std::to_string(seed);
  int code = hvd::fork_run(ranks, [&](hvd::ShmTransport& base) {
    std::mt19937 dice(seed);
    std::int64_t memory = 0, descriptors = 0, count[] = {0, 0};
    for (int i = 0; i != stays; ++i) {
      if (i == warm) {
        memory = resident_kib();
        descriptors = entries("/proc/self/fd");
      }
      count[0] += cycle(base, dice, job, i);
      base.barrier();  // all have left
      if (base.rank() == 0) count[1] += files();
      base.barrier();
    }
    std::int64_t growth[] = {resident_kib() - memory, entries("/proc/self/fd") - descriptors};
    hvd::allreduce(base, growth, hvd::max);
    hvd::allreduce(base, count);
    if (base.rank() == 0) {
      std::printf("%d %lld %lld %lld %lld ", stays, static_cast<long long>(count[0]), static_cast<long long>(count[1]),
                  static_cast<long long>(growth[0]), static_cast<long long>(growth[1]));
    }
  });
  // Ranks that are new in each cycle.
  std::int64_t left = 0;
  const std::int64_t before = entries("/proc/self/fd");
  for (int i = stays; i < cycles && code == 0; ++i) {
    code = hvd::fork_run(ranks, [&](hvd::ShmTransport& comm) {
      std::mt19937 dice(seed + static_cast<unsigned>(i));
      return use(comm, dice) == 0 ? 0 : 3;
    });
    left += files() + entries("/proc/self/fd") - before;
  }
  if (code == 0) std::printf("%d %lld\n", cycles - stays, static_cast<long long>(left));
  return code;
}
