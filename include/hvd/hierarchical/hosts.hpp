// hvd/hierarchical/hosts.hpp: the ranks of a job find out which of them can share memory.
#pragma once

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/config.hpp>
#include <hvd/detail/descriptor.hpp>
#include <hvd/detail/inform.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/segment.hpp>
#include <hvd/version.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// Checks that all ranks run the same version of hvd, in the same job.
template <class Cross>
void introduce(Cross& world) {
  struct introduction {
    std::array<char, 24> version{};
    std::uint64_t job = 0;
  } mine;
  version.copy(mine.version.data(), mine.version.size() - 1);
  mine.job = text_hash(job_of_environment(""));
  const auto all = detail::share_by_messages(world, mine);
  for (int r = 1; r < world.size(); ++r) {
    const introduction &first = all.front(), &other = all[static_cast<std::size_t>(r)];
    const bool same_version = first.version == other.version;
    if (same_version && first.job == other.job) continue;
    if (same_version) {
      fail(error_kind::mismatch, {"Hierarchical: ranks 0 and ", r, " are of different jobs (HVD_JOB, HVD_LAUNCH)"}, r);
    }
    fail(error_kind::mismatch,
         {"Hierarchical: ranks 0 and ", r, " run different versions of hvd: ", first.version.data(), " and ",
          other.version.data(), "; build both from the same headers"},
         r);
  }
}

/// The lowest rank that may be on this rank's host: it has the same running kernel and the same user.
template <class Cross>
int neighbourhood(Cross& world) {
  struct identity {
    std::array<char, 40> kernel{};
    std::uint64_t user = ::geteuid();
    bool operator==(const identity&) const = default;
  } mine;
  const int fd = open_descriptor("/proc/sys/kernel/random/boot_id", O_RDONLY);
  if (fd >= 0) {
    if (::read(fd, mine.kernel.data(), mine.kernel.size()) < 0) mine.kernel = {};
    ::close(fd);
  }
  const auto all = detail::share_by_messages(world, mine);
  int lowest = 0;
  while (all[static_cast<std::size_t>(lowest)] != mine) ++lowest;
  return lowest;
}

/// True if all ranks of `neighbours` see the same directory: they look for a file that rank 0 makes there.
template <class Cross>
bool share_memory(Cross& neighbours, const std::string& directory) {
  if (neighbours.size() == 1) return true;
  std::uint64_t number = random_word();
  auto* const bytes = reinterpret_cast<std::byte*>(&number);
  detail::run(neighbours, broadcast_call{bytes, bytes, sizeof number, 0}, automatic<>{});
  const std::string name = part_name(segment_name(job_of_environment("over")), "seen", number);
  struct file {
    std::optional<segment> made{};
    ~file() {
      if (made) made->unlink();
    }
  } shown;
  if (neighbours.rank() == 0) {
    try {
      shown.made.emplace(segment::make(directory, name, 0, 0));
      if (!shown.made->lock(segment::creator_byte) || !shown.made->publish()) shown.made.reset();
    } catch (const error&) {
      // All ranks find out next.
    }
  }
  neighbours.barrier();
  const std::uint8_t seen = ::access((directory + "/" + name).c_str(), F_OK) == 0 ? 1 : 0;
  const auto all = detail::share_by_messages(neighbours, seen);
  if (all.front() == 0) return true;  // rank 0 cannot make a file there: the local group's error is clearer
  if (std::find(all.begin(), all.end(), 0) == all.end()) return true;
  if (neighbours.rank() == 0) {
    inform({neighbours.size(), " ranks of one host cannot share memory in ", directory,
            " (separate containers?) and go on as hosts of their own"});
  }
  return false;
}

}  // namespace hvd::inline HVD_ABI::detail
