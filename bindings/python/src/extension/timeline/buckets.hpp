// buckets.hpp: sums over equal spans of time, for charts.
#pragma once

#include "index.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd_timeline {

struct buckets {
  std::int64_t from = 0, width = 0;
  std::size_t count = 0;
  std::vector<std::uint32_t> ranks{};
  std::vector<std::vector<cell>> cells{};  ///< for each rank
};

/// At most `most` spans that cover [begin, end), in multiples of the index's cell width. The caller holds the mutex.
buckets sum_buckets(const index& of, std::int64_t begin, std::int64_t end, std::size_t most);

}  // namespace hvd_timeline
