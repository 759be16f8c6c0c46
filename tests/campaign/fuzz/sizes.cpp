// tests/campaign/fuzz/sizes.cpp: sizes on the command line of the benchmarks.
//
// Findings besides those of fuzz.hpp: a size that is another one when it is written out in bytes.
#include <bench/sizes.hpp>

#include "fuzz.hpp"

FUZZ(in) {
  const std::string_view text = in.all();
  const auto bytes = hvd::bench::parse_size(text);
  if (!bytes) return;
  fuzz::require(hvd::bench::parse_size(std::to_string(*bytes) + "B") == bytes, "another size");
  fuzz::require(!hvd::bench::size_text(*bytes).empty(), "no text");
}
