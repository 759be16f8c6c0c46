// hvd/timeline/file.hpp: a file of JSON that several processes append to, and that is complete after every append.
//
// The file is one array, with one event on each line, that ends with a line "]". An append takes the file's lock
// (flock), and replaces that end by a comma, events and a new end, in one write. So it is strict JSON whenever no
// process holds the lock. A reader without the lock may, for the microseconds of a write, see only its beginning;
// browsers read that too, because the format allows the end to be missing. If a process is killed within a write, the
// next append of another process repairs the file.
//
// On NFS, flock is a lock between hosts (Linux 2.6.12 and later) that also makes the writes of other hosts visible:
// hosts with a common directory write one file. This is not so if it is mounted with nolock or local_lock=flock: then
// each host needs a file of its own. File systems without flock (Lustre unless mounted with -o flock) are refused with
// an error. If the server is gone, an append blocks for as long as the mount options say; it never runs on a thread
// that trains.
#pragma once

#include <hvd/detail/descriptor.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/fork_guard.hpp>
#include <hvd/timeline/json_string.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// Used by one thread at a time.
class timeline_file {
 public:
  enum class outcome : unsigned char { written, busy, failed };

  /// Opens the file, or makes it. The first process of a job empties it and writes the header with the job and the time
  /// of the start; `who` is for messages. Only an empty file and a timeline of hvd are emptied, links are followed; a
  /// file with any other content is refused and left as it is. A child forked later closes the file, and
  /// `forked(context)` is called in it.
  timeline_file(const std::string& path, std::string_view who, std::string_view job, std::int64_t start_epoch_us,
                void (*forked)(void*), void* context)
      : path_(path), job_line_(beginning) {
    append_json_string(job_line_, job);
    job_line_ += ",\"start_time_since_epoch_in_micros\":";
    try {
      open(forked, context);
      join(start_epoch_us);
    } catch (const error& e) {
      fail(e.kind(), {"timeline on ", who, ": ", sentence(e)});
    }
  }

  /// The start time in the header: that of the first rank of the job, at the job's first start.
  [[nodiscard]] std::int64_t start_epoch_us() const noexcept { return start_epoch_us_; }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  /// Appends lines, each of which begins with ",\n". Busy: another process has held the lock for all of `limit`,
  /// nothing was written. Failed: see problem(); the file is as it was before, and is not to be written again.
  outcome append(const std::string& lines, std::chrono::nanoseconds limit) {
    const lock held(fd(), limit);
    if (held.error() == EWOULDBLOCK) return outcome::busy;
    if (held.error() != 0) return failed({"cannot lock it: ", std::strerror(held.error())});
    if (whose() != owner::this_job) return failed({"another process has restarted or emptied it"});
    const std::optional<off_t> end = end_of_events();
    if (!end) return failed({"it is damaged"});
    if (write_at(lines + closing, *end)) return outcome::written;
    const int why = errno;
    if (write_at(closing, *end)) (void)!::ftruncate(fd(), *end + static_cast<off_t>(sizeof closing - 1));
    return failed({std::strerror(why)});
  }

  /// The reason why an append has failed, as a clause.
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }

 private:
  /// Every timeline of hvd, of any version, begins with this: it marks a file that may be replaced.
  static constexpr std::string_view beginning =
      "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"hvd\",\"job\":";
  static constexpr char closing[] = "\n]\n";
  static constexpr std::chrono::seconds lock_limit{5};  // appends of other ranks take milliseconds

  enum class owner : unsigned char { nobody, this_job, another, no_timeline, unknown };

  // While it exists no other process appends, unless error() is not 0.
  class lock {
   public:
    lock(int fd, std::chrono::nanoseconds limit) noexcept : fd_(fd) {
      using clock = std::chrono::steady_clock;
      backoff rest(paces::file_lock);
      for (const auto deadline = clock::now() + limit; ::flock(fd_, LOCK_EX | LOCK_NB) != 0;) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK || clock::now() >= deadline) {
          error_ = errno;
          return;
        }
        rest.step();
      }
    }
    lock(const lock&) = delete;
    lock& operator=(const lock&) = delete;
    ~lock() {
      if (error_ == 0) ::flock(fd_, LOCK_UN);
    }
    [[nodiscard]] int error() const noexcept { return error_; }

   private:
    int fd_;
    int error_ = 0;
  };

  [[nodiscard]] int fd() const noexcept { return guard_->fd(); }

  void open(void (*forked)(void*), void* context) {
    const fork_guard::pause no_fork;
    // Checked before it is opened, because opening a pipe or a device already has effects. The check of the open file
    // below decides.
    struct stat status {};
    if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) refuse_kind();
    const int fd = open_descriptor(path_.c_str(), O_CREAT | O_RDWR | O_NOCTTY | O_NONBLOCK, 0666);
    if (fd < 0) {
      const int why = errno;
      constexpr std::array of_the_path = {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, EROFS, ENAMETOOLONG, ELOOP, ENXIO};
      const bool callers = std::find(of_the_path.begin(), of_the_path.end(), why) != of_the_path.end();
      fail(callers ? error_kind::invalid_argument : error_kind::system,
           {"cannot open '", path_, "' for writing: ", std::strerror(why),
            "; give it a file in a directory that exists and that this user may write to"});
    }
    guard_.emplace(fd, forked, context);
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) refuse_kind();
  }
  [[noreturn]] void refuse_kind() const {
    fail(error_kind::invalid_argument, {"'", path_, "' is not a regular file; give it a file of its own"});
  }

  void join(std::int64_t start_epoch_us) {
    const lock held(fd(), lock_limit);
    if (held.error() == EWOULDBLOCK) {
      fail(error_kind::timeout, {"another process has held the lock of '", path_, "' for ", lock_limit.count(),
                                 " seconds; end it, or give the timeline another file"});
    }
    if (held.error() != 0) {
      fail(error_kind::system, {"cannot lock '", path_, "': ", std::strerror(held.error()),
                                "; give it a file on a file system that supports flock"});
    }
    switch (whose()) {
      case owner::this_job: return;
      case owner::no_timeline:
        fail(error_kind::invalid_argument, {"'", path_,
                                            "' contains something other than a timeline of hvd, and is not "
                                            "changed; remove it, or give the timeline another file"});
      case owner::unknown:
        fail(error_kind::system, {"cannot read '", path_, "': ", std::strerror(errno), "; give it another file"});
      case owner::another:
      case owner::nobody: break;
    }
    start_epoch_us_ = start_epoch_us;
    const std::string header =
        joined({job_line_, start_epoch_us,
                "}},\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":0,\"args\":{\"sort_index\":0}}", closing});
    // Emptied first, so that a process that is killed in between leaves an empty file and no mixture.
    if (::ftruncate(fd(), 0) != 0 || !write_at(header, 0)) {
      const int why = errno;
      (void)!::ftruncate(fd(), 0);
      fail(error_kind::system, {"cannot write to '", path_, "': ", std::strerror(why),
                                "; make room, or give it a file on another file system"});
    }
  }

  // Reads the header, and from a file of this job its time of the start. Unknown: errno is the reason.
  owner whose() {
    std::string head(job_line_.size() + 24, '\0');
    std::size_t have = 0;
    while (have != head.size()) {
      const ::ssize_t n = ::pread(fd(), head.data() + have, head.size() - have, static_cast<off_t>(have));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return owner::unknown;
      if (n == 0) break;
      have += static_cast<std::size_t>(n);
    }
    head.resize(have);
    if (head.empty()) return owner::nobody;
    if (!head.starts_with(job_line_)) return head.starts_with(beginning) ? owner::another : owner::no_timeline;
    std::int64_t time = 0;
    const char* const last = head.data() + head.size();
    const auto [end, wrong] = std::from_chars(head.data() + job_line_.size(), last, time);
    if (wrong != std::errc() || !std::string_view(end, last).starts_with("}},\n")) return owner::another;
    start_epoch_us_ = time;
    return owner::this_job;
  }

  // The end of the last event. Cuts off the rest of an unfinished write after it.
  std::optional<off_t> end_of_events() {
    struct stat status {};
    if (::fstat(fd(), &status) != 0) return std::nullopt;
    constexpr off_t tail = sizeof closing;  // the last byte of the last event, and the end
    char last[tail] = {};
    if (::pread(fd(), last, tail, status.st_size - tail) == tail && last[0] == '}' &&
        std::memcmp(last + 1, closing, tail - 1) == 0) {
      return status.st_size - (tail - 1);
    }
    std::string block;
    for (off_t end = status.st_size; end > 0;) {
      const off_t from = std::max<off_t>(0, end - 65536);
      block.resize(static_cast<std::size_t>(end - from));
      if (::pread(fd(), block.data(), block.size(), from) != static_cast<::ssize_t>(block.size())) return std::nullopt;
      const std::size_t at = std::max(found(block.rfind("}\n")), found(block.rfind("},\n")));
      if (at != 0) {
        const off_t good = from + static_cast<off_t>(at);
        if (::ftruncate(fd(), good) != 0) return std::nullopt;
        return good;
      }
      end = from == 0 ? 0 : from + 2;  // the pattern may lie across the border
    }
    return std::nullopt;
  }
  static std::size_t found(std::size_t at) noexcept { return at == std::string::npos ? 0 : at + 1; }

  bool write_at(std::string_view text, off_t at) const noexcept {
    while (!text.empty()) {
      const ::ssize_t n = ::pwrite(fd(), text.data(), text.size(), at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      text.remove_prefix(static_cast<std::size_t>(n));
      at += n;
    }
    return true;
  }

  outcome failed(std::initializer_list<piece> why) {
    problem_ = joined(why);
    return outcome::failed;
  }

  std::string path_;
  std::string job_line_;  // how the file of this job begins, up to the time
  std::int64_t start_epoch_us_ = 0;
  std::string problem_;
  std::optional<fork_guard> guard_;
};

}  // namespace hvd::inline HVD_ABI::detail
