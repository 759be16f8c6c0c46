// hvd/shared_memory/segment.hpp: a file in memory that the processes of one user map together.
//
// A segment is made without a name, filled, and only then linked into its directory, so that no process opens a
// half-made one. Its creator and every rank lock a byte of it each, through an open file description of their own. The
// kernel frees the lock when the process ends in any way, so the locks show which ranks are alive, and if a segment
// under a name is stale.
#pragma once

#include <hvd/detail/descriptor.hpp>
#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/detail/wait.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/fork_guard.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The file name of a job: readable, and distinct for distinct jobs and users.
inline std::string segment_name(std::string_view job) {
  std::string readable(job.substr(0, 64));
  for (char& c : readable) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
    if (!plain) c = '_';
  }
  return joined({"hvd-", ::geteuid(), "-", readable, "-", hex(text_hash(job))});
}

/// The file name of a further segment of a job. It begins with the name of the job's first segment, so that all files
/// of a job can be found and removed.
inline std::string part_name(std::string_view job_file, std::string_view kind, std::uint64_t nonce) {
  return joined({job_file.substr(0, job_file.find('.')), ".", kind, "-", hex(nonce)});
}

/// Calls allocate(at, bytes), which returns an errno, for the whole range, or for parts of it. Older kernels undo an
/// allocation in memory when a signal interrupts it; with a profiler's timer a large one would never end. So each
/// interruption halves the size of a request, down to a size that is cleared between two ticks of any timer.
template <class F>
int allocate_despite_signals(off_t at, off_t bytes, F&& allocate) {
  constexpr off_t least = off_t{64} << 10;
  for (off_t part = bytes; bytes > 0;) {
    part = std::min(part, bytes);
    const int failed = allocate(at, part);
    if (failed == EINTR) {
      part = std::max(part / 2, least);
    } else if (failed != 0) {
      return failed;
    } else {
      at += part;
      bytes -= part;
    }
  }
  return 0;
}

class segment {
 public:
  /// The creator's lock byte; rank r locks byte r.
  static constexpr off_t creator_byte = off_t{1} << 20;

  segment(segment&& other) noexcept
      : guard_(std::exchange(other.guard_, nullptr)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_),
        path_(std::move(other.path_)), staging_(other.staging_) {}
  segment& operator=(segment&&) = delete;
  ~segment() {
    const bool forked = guard_ != nullptr && guard_->fd() < 0;  // then the mapping is the parent's alone
    if (data_ != nullptr && !forked) ::munmap(data_, bytes_);
    delete guard_;
  }

  /// A segment without a name, of which the first `reserved` bytes are backed by memory. `staging`: its size depends on
  /// memory_policy::staging_bytes, and the error for too little memory then names that option as a remedy.
  static segment make(const std::string& directory, const std::string& name, std::size_t bytes, std::size_t reserved,
                      bool staging = false) {
    if (beyond_file_limit(bytes)) {
      errno = EFBIG;
      refuse({"cannot make shared memory in ", directory}, bytes, directory, staging);
    }
    const fork_guard::pause no_fork;
    const int fd = open_descriptor(directory.c_str(), O_TMPFILE | O_RDWR, 0600);
    if (fd < 0) refuse({"cannot make shared memory in ", directory}, bytes, directory, staging);
    if (::fchmod(fd, 0600) != 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      const int why = errno;
      ::close(fd);
      errno = why;
      refuse({"cannot make shared memory in ", directory}, bytes, directory, staging);
    }
    segment s(fd, joined({directory, "/", name}), bytes, staging);
    s.reserve(0, reserved);
    s.map();
    return s;
  }

  /// Gives the segment its name. False if the name is taken. The caller must hold a lock of it, otherwise `sweep` would
  /// remove the segment as abandoned.
  [[nodiscard]] bool publish() const {
    const std::string self = joined({"/proc/self/fd/", fd()});
    if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path_.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
    if (errno == EEXIST) return false;
    fail(error_kind::system, {"cannot name shared memory ", path_, ": ", std::strerror(errno)});
  }

  /// Opens a named segment of this user with at least `least` bytes; nothing if there is none. If the name exists but
  /// is not a segment, `why` is set to the reason.
  static std::optional<segment> open(const std::string& directory, const std::string& name, std::size_t least,
                                     std::string& why, bool staging = false) {
    const std::string path = joined({directory, "/", name});
    const fork_guard::pause no_fork;
    const int fd = open_descriptor(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
      if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
      why = joined({path, ": ", std::strerror(errno)});
      struct stat st {};
      if (::lstat(path.c_str(), &st) == 0) why += joined({" (it belongs to user ", st.st_uid, ")"});
      return std::nullopt;
    }
    struct stat st {};
    const bool known = ::fstat(fd, &st) == 0;
    if (!known || !S_ISREG(st.st_mode) || st.st_uid != ::geteuid() || (st.st_mode & 0077) != 0) {
      why = joined({path, " was not made by hvd for this user (owner ", st.st_uid, ", mode ", st.st_mode >> 6 & 7,
                    st.st_mode >> 3 & 7, st.st_mode & 7, "; wanted owner ", ::geteuid(), ", mode 600)"});
    } else if (static_cast<std::size_t>(st.st_size) < least) {
      why = joined({path, " is truncated: ", st.st_size, " bytes"});
    } else {
      segment s(fd, path, static_cast<std::size_t>(st.st_size), staging);
      s.map();
      return s;
    }
    ::close(fd);
    return std::nullopt;
  }

  /// Backs a part with memory, so that touching it cannot fail later (a full file system would be SIGBUS).
  void reserve(std::size_t offset, std::size_t bytes) const {
    if (bytes == 0) return;
    errno = allocate_despite_signals(static_cast<off_t>(offset), static_cast<off_t>(bytes),
                                     [&](off_t at, off_t part) { return ::posix_fallocate(fd(), at, part); });
    if (errno == 0) return;
    const std::string directory = path_.substr(0, path_.rfind('/'));
    refuse({"cannot reserve shared memory in ", directory}, bytes, directory, staging_);
  }

  /// Takes a lock byte; false if another holder has it. Errors: system, if the system refuses locks.
  [[nodiscard]] bool lock(off_t byte) const {
    struct flock f = byte_lock(F_WRLCK, byte);
    if (::fcntl(fd(), F_OFD_SETLK, &f) == 0) return true;
    if (held_by_another(errno)) return false;
    fail(error_kind::system, {"cannot lock ", path_, ": ", std::strerror(errno)});
  }
  /// True if another holder has a lock byte.
  [[nodiscard]] bool locked(off_t byte) const noexcept {
    struct flock f = byte_lock(F_WRLCK, byte);
    return ::fcntl(fd(), F_OFD_GETLK, &f) == 0 && f.l_type != F_UNLCK;
  }

  /// Removes the name if it still refers to this segment.
  void unlink() const noexcept { unlink(fd(), path_); }

  /// Removes the names of this user's segments that no process holds any more: of jobs whose processes were all killed
  /// while a segment had a name. Cost: one check of each name in the directory.
  static void sweep(const std::string& directory) noexcept {
    const fork_guard::pause no_fork;
    DIR* const all = ::opendir(directory.c_str());
    if (all == nullptr) return;
    try {
      const std::string prefix = joined({"hvd-", ::geteuid(), "-"});
      while (const dirent* const entry = ::readdir(all)) {
        if (std::string_view(entry->d_name).starts_with(prefix)) sweep_one(joined({directory, "/", entry->d_name}));
      }
    } catch (const std::bad_alloc&) {  // the next sweep does it
    }
    ::closedir(all);
  }

  /// Calls `forgotten(context)` in a forked child.
  void on_fork(void (*forgotten)(void*), void* context) {
    const fork_guard::pause no_fork;
    const int own = duplicate_descriptor(fd());  // the same open file description, so the same locks
    if (own < 0) fail(error_kind::system, {"cannot duplicate a descriptor: ", std::strerror(errno)});
    delete std::exchange(guard_, new fork_guard(own, forgotten, context));
  }

  /// Maps the first bytes a second time, read-only, for use beyond the life of this object. The caller must hold a
  /// fork_guard::pause.
  [[nodiscard]] void* map_start(std::size_t bytes) const {
    void* const start = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd(), 0);
    if (start == MAP_FAILED)
      refuse({"cannot map shared memory ", path_}, bytes, path_.substr(0, path_.rfind('/')), false);
    ::madvise(start, bytes, MADV_DONTFORK);
    return start;
  }

  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  [[nodiscard]] static std::uint64_t free_bytes(const struct statvfs& fs) noexcept {
    const std::uint64_t blocks = fs.f_bavail;
    return blocks * fs.f_frsize;
  }
  /// The errno with the reason why `directory` cannot take `bytes` more; 0 if it can.
  static int trouble_in(const std::string& directory, std::size_t bytes) noexcept {
    struct statvfs fs {};
    if (::access(directory.c_str(), W_OK | X_OK) != 0 || ::statvfs(directory.c_str(), &fs) != 0) return errno;
    if (beyond_file_limit(bytes)) return EFBIG;
    return fs.f_blocks == 0 || free_bytes(fs) >= bytes ? 0 : ENOSPC;
  }

  /// Throws no_memory (or system) with the requested amount, the place, the remaining amount and a remedy. The reason
  /// is errno, which keeps its value while the error is thrown.
  [[noreturn]] static void refuse(std::initializer_list<piece> what, std::size_t bytes, const std::string& directory,
                                  bool staging) {
    const int why = errno;
    const bool limited = why == EFBIG && beyond_file_limit(bytes);
    const bool room = why == ENOSPC || why == ENOMEM || why == EDQUOT || why == EFBIG;
    struct statvfs fs {};
    std::string left;
    if (room && !limited && ::statvfs(directory.c_str(), &fs) == 0 && fs.f_blocks != 0) {
      left = joined({" (", free_bytes(fs), " bytes free there)"});
    }
    const char* const smaller = staging ? ", set memory_policy::staging_bytes lower," : "";
    const std::string remedy = limited ? joined({"; the limit on file sizes (ulimit -f) is lower: raise it",
                                                 staging ? ", or set memory_policy::staging_bytes lower" : ""})
                               : room  ? joined({"; make it larger", smaller, " or name another directory in memory"})
                                       : "; name another directory in memory, where this user may write";
    const error e(room ? error_kind::no_memory : error_kind::system,
                  joined({joined(what), " (HVD_SHM_DIR or memory_policy::directory): ", bytes,
                          " bytes wanted: ", std::strerror(why), left, remedy}));
    errno = why;
    throw error(e);
  }

 private:
  /// True beyond RLIMIT_FSIZE, where the system sends a signal that ends the process.
  static bool beyond_file_limit(std::size_t bytes) noexcept {
    struct rlimit limit {};
    return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur;
  }

  /// Processes remove a name one at a time, so that a late rank cannot remove the next segment of the same name. The
  /// process that holds the byte may be killed or stopped before it has removed the name: then the next sweep removes
  /// it.
  static void unlink(int fd, const std::string& path) noexcept {
    constexpr off_t name_byte = creator_byte + 1;
    backoff rest(paces::name_lock);
    for (int attempt = 0; attempt != 5000 && names(path, fd); ++attempt) {
      struct flock f = byte_lock(F_WRLCK, name_byte);
      const bool locked = ::fcntl(fd, F_OFD_SETLK, &f) == 0;
      // If the system refuses locks, the name is removed without one rather than kept.
      if (locked || !held_by_another(errno)) {
        if (names(path, fd)) ::unlink(path.c_str());
        f = byte_lock(F_UNLCK, name_byte);
        if (locked) ::fcntl(fd, F_OFD_SETLK, &f);
        return;
      }
      rest.step();
    }
  }
  /// True if the name refers to the open file.
  static bool names(const std::string& path, int fd) noexcept {
    struct stat named {
    }, own{};
    return ::lstat(path.c_str(), &named) == 0 && ::fstat(fd, &own) == 0 && named.st_ino == own.st_ino &&
           named.st_dev == own.st_dev;
  }
  static void sweep_one(const std::string& path) noexcept {
    const int fd = open_descriptor(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    struct stat st {};
    struct flock any = byte_lock(F_WRLCK, 0);
    any.l_len = 0;  // to the end
    const bool own = ::fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == ::geteuid();
    if (own && ::fcntl(fd, F_OFD_GETLK, &any) == 0 && any.l_type == F_UNLCK) unlink(fd, path);
    ::close(fd);
  }

  segment(int fd, std::string path, std::size_t bytes, bool staging)
      : guard_(new fork_guard(fd, nullptr, nullptr)), bytes_(bytes), path_(std::move(path)), staging_(staging) {}

  [[nodiscard]] int fd() const noexcept { return guard_->fd(); }

  void map() {
    if (bytes_ == 0) return;  // a stale file that was truncated
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd(), 0);
    if (data_ == MAP_FAILED) {
      data_ = nullptr;
      refuse({"cannot map shared memory ", path_}, bytes_, path_.substr(0, path_.rfind('/')), staging_);
    }
    ::madvise(data_, bytes_, MADV_DONTFORK);  // a child must not be able to disturb the group
  }

  static bool held_by_another(int error) noexcept { return error == EAGAIN || error == EACCES; }
  static struct flock byte_lock(short type, off_t byte) noexcept {
    struct flock f {};
    f.l_type = type;
    f.l_whence = SEEK_SET;
    f.l_start = byte;
    f.l_len = 1;
    return f;
  }

  fork_guard* guard_;
  void* data_ = nullptr;
  std::size_t bytes_;
  std::string path_;
  bool staging_;
};

}  // namespace hvd::inline HVD_ABI::detail
