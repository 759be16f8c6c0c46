// growing_file.hpp: reads a timeline while others append to it, and maps times to positions in it.
#pragma once

#include "lines.hpp"

#include <hvd/detail/descriptor.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

namespace hvd_timeline {

/// Thrown if a file was replaced after a part of it was read.
struct restarted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A part of a file, and the times of its events.
struct block {
  std::uint64_t offset = 0, bytes = 0;
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  std::int64_t last = std::numeric_limits<std::int64_t>::min();
};

/// Owns a descriptor.
class descriptor {
 public:
  explicit descriptor(int fd) : fd_(hvd::detail::duplicate_descriptor(fd)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "cannot duplicate the file descriptor");
  }
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&&) = delete;
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// The number of bytes from `offset` on, at most `size`.
  std::size_t read(char* to, std::size_t size, std::uint64_t offset) const {
    std::size_t have = 0;
    while (have != size) {
      const ::ssize_t n = ::pread(fd_, to + have, size - have, static_cast<off_t>(offset + have));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw std::system_error(errno, std::generic_category(), "cannot read the timeline");
      if (n == 0) break;
      have += static_cast<std::size_t>(n);
    }
    return have;
  }
  [[nodiscard]] std::uint64_t size() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) throw std::system_error(errno, std::generic_category(), "cannot read the timeline");
    return static_cast<std::uint64_t>(status.st_size);
  }
  [[nodiscard]] descriptor duplicate() const { return descriptor(fd_); }

 private:
  int fd_;
};

/// Only one thread at a time fetches. The owner guards public members, as `take` does.
class growing_file {
 public:
  static constexpr std::size_t block_bytes = std::size_t{1} << 18;
  static constexpr std::size_t longest_line = std::size_t{1} << 22;

  growing_file(int fd, std::int64_t shift_ns) : file(fd), shift(shift_ns), buffer_(block_bytes + line_padding) {}

  /// Reads the next part into the buffer and returns its size: 0 if nothing was added. Throws `restarted`.
  std::size_t fetch() {
    found_size_ = file.size();
    check_beginning();
    if (found_size_ <= consumed) return fetched_ = 0;
    fetched_ = file.read(buffer_.data(), buffer_.size() - line_padding, consumed);
    at_end_ = consumed + fetched_ >= found_size_;
    std::fill_n(buffer_.data() + fetched_, line_padding, '\0');
    return fetched_;
  }

  /// Calls visit(event, line) for the events of the last fetch, whose block is blocks.back(). Returns whether there may
  /// be more to read. The caller sets the block's times.
  template <class Visit>
  bool take(const Visit& visit) {
    size = found_size_;
    if (fetched_ == 0) return false;
    if (blocks.empty() || blocks.back().bytes >= block_bytes) blocks.push_back({.offset = consumed});
    const lines_read done = read_lines(buffer_.data(), fetched_, consumed == 0, at_end_, texts_, visit);
    damaged += done.damaged;
    closed = done.closed;
    std::size_t used = done.consumed;
    if (used == 0 && !at_end_ && !closed) {
      if (fetched_ < longest_line) {
        buffer_.resize(2 * fetched_ + line_padding);
        return true;
      }
      ++damaged;
      used = fetched_;
    }
    if (buffer_.size() > block_bytes + line_padding) {
      buffer_.resize(block_bytes + line_padding);
      buffer_.shrink_to_fit();
    }
    blocks.back().bytes += used;
    consumed += used;
    return !at_end_;
  }

  /// Bytes at the end that are not a whole event, without the end of the array.
  [[nodiscard]] std::uint64_t rest() const noexcept { return closed || size <= consumed ? 0 : size - consumed; }

  const descriptor file;
  const std::int64_t shift;  // nanoseconds to add to the file's times for the job's
  std::vector<block> blocks;
  std::uint64_t consumed = 0;
  std::uint64_t size = 0;
  std::uint64_t damaged = 0;
  bool closed = false;

 private:
  // A restarted file has another job, or another start time.
  void check_beginning() {
    constexpr std::size_t most = 512;
    if (found_size_ < consumed) throw restarted("the timeline was emptied while it was read");
    if (consumed == 0) {
      beginning_.resize(most);
      beginning_.resize(file.read(beginning_.data(), most, 0));
      return;
    }
    if (beginning_.size() > consumed) beginning_.resize(consumed);
    char now[most];
    const std::size_t have = file.read(now, beginning_.size(), 0);
    if (beginning_ != std::string_view(now, have)) throw restarted("the timeline was restarted while it was read");
  }

  std::vector<char> buffer_;
  decoded_texts texts_;
  std::string beginning_;
  std::size_t fetched_ = 0;
  std::uint64_t found_size_ = 0;
  bool at_end_ = false;
};

}  // namespace hvd_timeline
