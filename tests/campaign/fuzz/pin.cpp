// tests/campaign/fuzz/pin.cpp: pinning policies as users write them.
//
// Findings besides those of fuzz.hpp: a policy that is another when it is written out and read again.
#include <hvd/pin.hpp>

#include "fuzz.hpp"

FUZZ(in) {
  const std::string_view text = in.all();
  fuzz::accepts([&] {
    const std::string again = hvd::parse_pin(text).text();
    fuzz::require(hvd::parse_pin(again).text() == again, "a policy changes when it is written and read");
  });
}
