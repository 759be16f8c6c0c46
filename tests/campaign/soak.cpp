// Millions of collectives with results that are known exactly; what a rank has in memory and in descriptors must not
// grow. usage: campaign_soak RANKS SECONDS SEED; prints `operations wrong rss_kib descriptors`, the last two as growth
// after warming up of the rank with the most. All values are integers, so no rounding can hide a mistake.
#include <hvd/hvd.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace {

using clock_type = std::chrono::steady_clock;

constexpr int calls_in_block = 2'000;  // small ones; between blocks comes one of everything else
constexpr int blocks_to_warm_up = 60;
constexpr std::size_t most = 300'000;  // elements of a large buffer

std::int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoll(line.substr(6));
  }
  return 0;
}

std::int64_t descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

/// What rank r gives as element i of call k, and what all give together.
std::int64_t given(std::int64_t k, std::int64_t i, std::int64_t r) { return (r + 1) * (k % 1009 + i % 251) - 7 * r; }
std::int64_t total(std::int64_t k, std::int64_t i, std::int64_t p) {
  return p * (p + 1) / 2 * (k % 1009 + i % 251) - 7 * (p * (p - 1) / 2);
}

class soak {
 public:
  soak(hvd::ShmTransport& comm, unsigned seed)
      : comm_(comm), dice_(seed), size_(comm.size()), rank_(comm.rank()),
        shared_(comm.alloc_shared<std::int64_t>(most)), in_(most), out_(most * static_cast<std::size_t>(size_)) {}

  void block() {
    small(in_.data());
    small(shared_.data());
    for (int i = 0; i != 4; ++i) large();
    part();
    if (!engine_ || dice_() % 64 == 0) {
      engine_.reset();
      engine_.emplace(comm_);
    }
    named();
  }

  std::uint64_t operations = 0, wrong = 0;

 private:
  template <class T>
  void fill(T* data, std::size_t n, std::int64_t k) const {
    for (std::size_t i = 0; i != n; ++i) data[i] = given(k, static_cast<std::int64_t>(i), rank_);
  }
  template <class T>
  void check(const T* data, std::size_t n, std::int64_t k, std::int64_t first = 0) {
    bool right = true;
    for (std::size_t i = 0; i != n; ++i) right &= data[i] == total(k, first + static_cast<std::int64_t>(i), size_);
    wrong += right ? 0 : 1;
    ++operations;
  }

  /// Allreduces of some elements, one after the other.
  void small(std::int64_t* data) {
    for (int i = 0; i != calls_in_block; ++i) {
      const std::size_t n = 1 + (static_cast<unsigned>(i) & 7U);
      fill(data, n, ++k_);
      hvd::allreduce(comm_, std::span(data, n));
      check(data, n, k_);
    }
  }

  /// Any collective on any number of elements.
  void large() {
    const std::size_t p = static_cast<std::size_t>(size_), n = 1 + dice_() % (dice_() % 4 == 0 ? most / p : 5000);
    const auto root = static_cast<int>(dice_() % p);
    ++k_;
    fill(in_.data(), n * p > most ? n : n * p, k_);
    const std::span in(in_.data(), n);
    const auto from = [&](int r, std::size_t i) { return given(k_, static_cast<std::int64_t>(i), r); };
    bool right = true;
    switch (dice_() % 7) {
      case 0: hvd::allreduce(comm_, in, std::span(out_.data(), n)); return check(out_.data(), n, k_);
      case 1:
        fill(shared_.data(), n, k_);
        hvd::allreduce(comm_, std::span(shared_.data(), n));
        return check(shared_.data(), n, k_);
      case 2:
        hvd::reduce_scatter(comm_, std::span(in_.data(), n * p), std::span(out_.data(), n));
        return check(out_.data(), n, k_, static_cast<std::int64_t>(n) * rank_);
      case 3:
        hvd::allgather(comm_, in, std::span(out_.data(), n * p));
        for (std::size_t i = 0; i != n * p; ++i) right &= out_[i] == from(static_cast<int>(i / n), i % n);
        break;
      case 4:
        hvd::broadcast(comm_, in, root);
        for (std::size_t i = 0; i != n; ++i) right &= in_[i] == from(root, i);
        break;
      case 5:
        hvd::alltoall(comm_, std::span(in_.data(), n * p), std::span(out_.data(), n * p));
        for (std::size_t i = 0; i != n * p; ++i) {
          right &= out_[i] == from(static_cast<int>(i / n), n * static_cast<std::size_t>(rank_) + i % n);
        }
        break;
      default:
        hvd::reduce(comm_, in, std::span(out_.data(), n), hvd::sum, root);
        if (rank_ == root) return check(out_.data(), n, k_);
    }
    wrong += right ? 0 : 1;
    ++operations;
  }

  /// A group of some ranks, made and dropped.
  void part() {
    if (dice_() % 8 != 0) return;
    hvd::ShmTransport group = comm_.split(rank_ % 2, -rank_);
    auto buffer = group.alloc_shared<std::int64_t>(2000);
    std::int64_t expected = 0;
    for (int r = rank_ % 2; r < size_; r += 2) expected += r + k_;
    for (auto& value : buffer) value = rank_ + k_;
    hvd::allreduce(group, buffer);
    bool right = true;
    for (const auto value : buffer) right &= value == expected;
    wrong += right ? 0 : 1;
    operations += 2;
  }

  /// Named operations, more names than the engine remembers, in another order on each rank.
  void named() {
    constexpr std::size_t tensors = 24, n = 300;
    const std::size_t first = dice_() % 2000;
    std::vector<hvd::handle> handles;
    ++k_;
    for (std::size_t i = 0; i != tensors; ++i) {
      const std::size_t t = rank_ % 2 == 0 ? i : tensors - 1 - i;
      fill(out_.data() + t * n, n, k_ + static_cast<std::int64_t>(t));
      handles.push_back(engine_->allreduce("t" + std::to_string(first + t), std::span(out_.data() + t * n, n)));
    }
    for (const hvd::handle& h : handles) h.wait();
    for (std::size_t t = 0; t != tensors; ++t) check(out_.data() + t * n, n, k_ + static_cast<std::int64_t>(t));
  }

  hvd::ShmTransport& comm_;
  std::mt19937 dice_;
  std::int64_t k_ = 0;
  int size_, rank_;
  hvd::shared_array<std::int64_t> shared_;
  std::vector<std::int64_t> in_, out_;
  std::optional<hvd::Engine<hvd::ShmTransport>> engine_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const double seconds = std::atof(argv[2]);
  return hvd::fork_run(std::atoi(argv[1]), [&](hvd::ShmTransport& comm) {
    const auto start = clock_type::now();
    std::int64_t memory = 0, files = 0;
    soak s(comm, static_cast<unsigned>(std::atol(argv[3])));
    for (int go = 1, block = 0; go != 0; ++block) {
      if (block == blocks_to_warm_up) {
        memory = resident_kib();
        files = descriptors();
      }
      s.block();
      const std::chrono::duration<double> passed = clock_type::now() - start;
      go = passed.count() < seconds || block < blocks_to_warm_up ? 1 : 0;
      hvd::broadcast(comm, std::span(&go, 1), 0);
    }
    std::int64_t growth[] = {resident_kib() - memory, descriptors() - files};
    std::int64_t wrong = static_cast<std::int64_t>(s.wrong);
    hvd::allreduce(comm, growth, hvd::max);
    hvd::allreduce(comm, std::span(&wrong, 1));
    if (comm.rank() == 0) {
      std::printf("%llu %lld %lld %lld\n", static_cast<unsigned long long>(s.operations), static_cast<long long>(wrong),
                  static_cast<long long>(growth[0]), static_cast<long long>(growth[1]));
    }
  });
}
