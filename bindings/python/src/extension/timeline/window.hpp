// window.hpp: a time span, event by event, read again from the relevant parts of the files.
#pragma once

#include "index.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hvd_timeline {

enum class slice_state : unsigned char { finished, unfinished, open };

/// One activity. Numbers of tensors, names and details are indices into the tables of its window.
struct slice {
  std::uint32_t tensor = 0, rank = 0;
  std::int64_t begin = 0, end = 0;
  std::uint16_t name = 0;
  std::uint16_t detail = 0;
  std::uint8_t depth = 0;
  slice_state state = slice_state::finished;
};

struct instant_mark {
  std::int64_t time = 0;
  std::uint32_t rank = 0;
  std::string name, text;
  std::int64_t number = 0;
};

struct window {
  bool complete = false;      ///< false: too much to read; the rest is then empty
  std::vector<slice> slices;  ///< by rank, tensor and begin; inner ones after outer ones
  std::vector<instant_mark> marks;
  std::vector<std::string> tensors, names, details;
};

/// All activities that overlap [begin, end), of one rank or of all (-1). Reads at most `most_bytes` of the files.
window read_window(const index& of, std::int64_t begin, std::int64_t end, std::int64_t rank, std::uint64_t most_bytes);

/// For each rank, the shares of its states in each of `columns` equal parts of [begin, end).
struct bins {
  bool exact = false;  ///< computed from activities; otherwise from sums over spans that may be longer than a column
  std::vector<std::uint32_t> ranks;
  struct of_rank {
    std::vector<double> busy, negotiate, wait, operations, steps;
  };
  std::vector<of_rank> rows;  ///< for each rank
};
bins read_bins(const index& of, std::int64_t begin, std::int64_t end, std::size_t columns, std::int64_t rank,
               std::uint64_t most_bytes);

}  // namespace hvd_timeline
