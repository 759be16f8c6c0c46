// tests/campaign/fuzz/announcement.cpp: what ranks tell each other of the operations that they have submitted.
//
// Findings besides those of fuzz.hpp: an announcement, alone or merged with another, that is another one when it is
// written and read again.
#include <hvd/engine/negotiation.hpp>

#include "fuzz.hpp"

using namespace hvd::detail;

FUZZ(in) {
  const auto cut = in.take<std::uint16_t>();
  const std::string first(in.text(cut)), second(in.all());
  announcements a, b;
  const bool good = fuzz::accepts([&] { a = announcements::from(first); });
  const bool both = fuzz::accepts([&] { b = announcements::from(second); }) && good;
  for (const announcements* g : {&a, &b}) {
    const std::string once = g->text();
    fuzz::require(announcements::from(once).text() == once, "an announcement changes when it is written and read");
    for (std::size_t i = 1; i < g->all.size(); ++i) {
      const announcement &x = g->all[i - 1], &y = g->all[i];
      fuzz::require(x.what == y.what || !difference(x, y).empty(), "a difference without words");
    }
  }
  if (!both) return;
  const std::string merged = merge_announcements(first, second);
  fuzz::require(announcements::from(merged).text() == merged,
                "a merged announcement changes when it is written and read");
  fuzz::require(announcements::from(merged).all.size() <= a.all.size() + b.all.size(), "more than there was");
}
