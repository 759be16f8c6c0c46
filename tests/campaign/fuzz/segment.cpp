// tests/campaign/fuzz/segment.cpp: the header of a segment that a rank finds under the name of its job.
//
// An input is written over a header that is right, from a place that it names.
// Findings besides those of fuzz.hpp: a segment that is taken although its layout is not what its ranks compute.
#include <hvd/transport/shm/start.hpp>

#include "fuzz.hpp"

#include <filesystem>

using namespace hvd::detail;

namespace {

constexpr int size = 2;

hvd::sharing_options small() {
  hvd::sharing_options o;
  o.memory.staging_bytes = std::size_t{64} << 10;
  o.memory.directory = std::filesystem::temp_directory_path() / "hvd-fuzz-XXXXXX";
  if (::mkdtemp(o.memory.directory.data()) == nullptr) std::abort();
  return o;
}
const hvd::sharing_options& options() {
  static const hvd::sharing_options& made = *new hvd::sharing_options(small());  // for the function at the end
  return made;
}

/// The segment of rank 0, which lives as long as the process, and its header as it should be.
struct group {
  segment memory = *create_group("fuzz", size, options(), 1);
  std::vector<std::byte> header{memory.data(), memory.data() + sizeof(group_header)};

  group() {
    std::atexit([] { std::filesystem::remove_all(options().memory.directory); });
  }
};

}  // namespace

FUZZ(in) {
  static group& rank_0 = *new group;
  std::copy(rank_0.header.begin(), rank_0.header.end(), rank_0.memory.data());
  while (!in.ended()) {
    const std::size_t at = in.take<std::uint16_t>() % sizeof(group_header);
    const std::string_view bytes = in.text(in.below(17));
    std::memcpy(rank_0.memory.data() + at, bytes.data(), std::min(bytes.size(), sizeof(group_header) - at));
  }
  const watch nobody;
  const group_name name("fuzz");
  const group_finder finder{.name = name,
                            .rank = 1,
                            .size = size,
                            .nonce = 1,
                            .opts = options(),
                            .lost = nobody,
                            .limit = join_limit::of(name, options().failure),
                            .deadline = {}};
  bool creator = false;
  fuzz::accepts([&] {
    const segment found = finder.find(creator);
    const auto& h = *reinterpret_cast<const group_header*>(found.data());
    fuzz::require(!creator && h.size == size && h.windows == make_geometry(size, options().memory.staging_bytes),
                  "another layout");
  });
}
