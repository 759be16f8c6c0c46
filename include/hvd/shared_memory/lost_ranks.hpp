// hvd/shared_memory/lost_ranks.hpp: reports lost ranks to hvdrun, so that it names the rank that failed first.
#pragma once

#include <hvd/detail/descriptor.hpp>
#include <hvd/version.hpp>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// A file in the memory of hvdrun, with a line for each rank that another one has lost: "peer_lost RANK BY PHASE", with
/// ranks of the job.
class lost_ranks {
 public:
  /// The file in HVD_LOST_RANKS, and the rank in HOROVOD_RANK. The variables are read once, when the process first
  /// joins a group.
  static const lost_ranks& file() noexcept {
    static const lost_ranks one(std::getenv("HVD_LOST_RANKS"), std::getenv("HOROVOD_RANK"));
    return one;
  }
  lost_ranks(const char* path, const char* rank) noexcept {
    if (path == nullptr || rank == nullptr || std::strlen(path) >= path_.size()) return;
    std::memcpy(path_.data(), path, std::strlen(path));
    own_ = static_cast<std::uint32_t>(std::strtoul(rank, nullptr, 10)) + 1;
  }

  /// The rank of this process in the job plus 1; 0 if hvdrun has not started it.
  [[nodiscard]] std::uint32_t own() const noexcept { return own_; }

  /// Adds a line in one write, if it can. `lost`: a rank of the job plus 1, or 0 for one that is not known.
  void add(std::uint32_t lost, const char* phase) const noexcept {
    char text[96] = {};
    if (own_ == 0 || lost == 0 || lost == own_ || ::readlink(path_.data(), text, sizeof text - 1) < 0) return;
    if (!std::string_view(text).starts_with("/memfd:hvd-lost-ranks")) return;  // not the file of hvdrun
    const int n = std::snprintf(text, sizeof text, "peer_lost %u %u %s\n", lost - 1, own_ - 1, phase);
    const auto length = static_cast<std::size_t>(n);
    const int fd = length < sizeof text ? open_descriptor(path_.data(), O_WRONLY | O_APPEND) : -1;
    if (fd < 0) return;
    [[maybe_unused]] const ssize_t written = ::write(fd, text, length);
    ::close(fd);
  }

 private:
  std::array<char, 64> path_{};
  std::uint32_t own_ = 0;
};

}  // namespace hvd::inline HVD_ABI::detail
