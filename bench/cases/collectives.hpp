// bench/cases/collectives.hpp: one collective on buffers of one size, on one rank.
#pragma once

#include <bench/backend.hpp>
#include <bench/stage.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace hvd::bench {

/// KeptBuffers up to this size stay with a library from job to job; larger ones are given back.
inline constexpr std::size_t kept_bytes = std::size_t{64} << 20;

/// Memory of the backend that is kept from job to job as long as it fits.
class KeptBuffers {
 public:
  explicit KeptBuffers(erased_backend& b) : backend_(b) {}
  KeptBuffers(const KeptBuffers&) = delete;
  KeptBuffers& operator=(const KeptBuffers&) = delete;
  ~KeptBuffers() {
    for (auto& [key, b] : blocks_) drop(b);
  }

  /// `which` is 0 for inputs, 1 for outputs. Equal on all ranks: allocation may be collective.
  std::byte* get(int which, std::size_t bytes, bool shared);
  /// At the end of a job: big memory goes back, so that many libraries do not hold it at a time.
  void trim();

 private:
  struct block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  void drop(block& b);

  erased_backend& backend_;
  std::map<std::pair<int, bool>, block> blocks_;  // ordered, so that ranks release in one order
};

/// Measures or checks one job, as run_fused and run_replay do for theirs.
void run_collective(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch,
                    KeptBuffers& kept);

}  // namespace hvd::bench
