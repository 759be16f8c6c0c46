// tests/campaign/fuzz/timeline_index.cpp: timelines as hvd-timeline reads and merges them.
//
// An input is how the file comes, in parts, and the file after its header. Findings besides those of fuzz.hpp: sums
// that depend on the parts; more activities than ends; shares that are none; a merged file that has a line which is no
// event, or other sums than the file that it is made of.
#include <bindings/python/src/extension/timeline/bins.cpp>
#include <bindings/python/src/extension/timeline/buckets.cpp>
#include <bindings/python/src/extension/timeline/index.cpp>
#include <bindings/python/src/extension/timeline/json_line.cpp>
#include <bindings/python/src/extension/timeline/merger.cpp>
#include <bindings/python/src/extension/timeline/window.cpp>

#include "fuzz.hpp"

#include <sys/mman.h>

namespace {

constexpr std::string_view header =
    "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"hvd\",\"job\":\"1\","
    "\"start_time_since_epoch_in_micros\":1}}";

struct file {
  int fd = ::memfd_create("hvd-fuzz-timeline", MFD_CLOEXEC);
  ~file() { ::close(fd); }
  void add(std::string_view text) { size += ::pwrite(fd, text.data(), text.size(), size); }
  off_t size = 0;
};

struct sums {
  std::uint64_t operations, waits, steps, dropped;
  std::size_t ranks;
  bool operator==(const sums&) const = default;
};
sums of(const hvd_timeline::index& read) {
  const hvd_timeline::totals& t = read.sums();
  return {t.operations, t.waits, t.steps, t.dropped, read.ranks().size()};
}

sums read_in_parts(std::string_view text, std::size_t part) {
  file here;
  hvd_timeline::index read;
  read.add_file(here.fd, 500);
  while (!text.empty()) {
    here.add(text.substr(0, part));
    text.remove_prefix(std::min(part, text.size()));
    while (read.read(1 << 20) != 0) continue;
  }
  const hvd_timeline::window all = hvd_timeline::read_window(read, -1'000'000, 1'000'000'000, -1, 1 << 20);
  fuzz::require(all.complete && all.slices.size() <= read.sums().events, "more activities than events");
  const hvd_timeline::bins shares = hvd_timeline::read_bins(read, 0, 1'000'000'000, 7, -1, 1 << 20);
  for (const auto& rank : shares.rows) {
    for (const auto* const column : {&rank.busy, &rank.negotiate, &rank.wait}) {
      for (const double share : *column) fuzz::require(share >= 0 && share < 1.0001, "a share that is none");
    }
  }
  const std::lock_guard hold(read.mutex());
  fuzz::require(hvd_timeline::sum_buckets(read, 0, 1'000'000'000, 5).cells.size() == read.ranks().size(), "lost ranks");
  return of(read);
}

std::string merged(std::string_view text, std::size_t part, std::uint64_t& events) {
  hvd_timeline::merger merger;
  merger.begin_file(1500);
  std::string out(header);
  while (!text.empty()) {
    const std::string_view now = text.substr(0, part);
    text.remove_prefix(now.size());
    out += merger.feed(now, text.empty());
  }
  events = merger.events;
  return out + "\n]\n";
}

}  // namespace

FUZZ(in) {
  const std::size_t part = 1 + in.below(200);
  const std::string text = std::string(header) + ",\n" + std::string(in.all());
  const sums whole = read_in_parts(text, text.size());
  fuzz::require(read_in_parts(text, part) == whole, "parts change the sums");
  std::uint64_t events = 0;
  const std::string one = merged(text, text.size(), events);
  file here;
  here.add(one);
  hvd_timeline::index read;
  read.add_file(here.fd, 0);
  while (read.read(1 << 20) != 0) continue;
  fuzz::require(read.files()[0].file.damaged == 0 && read.files()[0].file.closed, "a damaged line was merged");
  fuzz::require(read.sums().events == events + 1, "an event was lost or added");
  fuzz::require(merged(text, part, events) == one, "parts change the merged file");
}
