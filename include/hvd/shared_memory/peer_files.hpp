// hvd/shared_memory/peer_files.hpp: turns memory that each rank already has in a file into a block of the group.
//
// A framework keeps a tensor in its own shared memory, a file without a name. Processes of one user on one host open
// each other's files by /proc/PID/fd. Device and number of an opened file are compared with those from its owner, so
// that no other file is mapped, such as that of a process in another PID namespace.
#pragma once

#include <hvd/detail/descriptor.hpp>
#include <hvd/error.hpp>
#include <hvd/shared_memory/agree.hpp>
#include <hvd/shared_memory/fork_guard.hpp>
#include <hvd/shared_memory/peer_memory.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hvd::inline HVD_ABI::detail {

/// The files of all ranks, mapped one after the other. Made by `map_peer_files`.
class peer_files {
 public:
  /// A rank's description of its file for the others.
  struct description {
    std::int32_t process = 0, descriptor = -1;
    std::uint64_t device = 0, inode = 0;
    std::uint64_t bytes = 0;
  };

  /// Room for `ranks` files of `bytes` each.
  peer_files(int ranks, std::size_t bytes)
      : stride_(round_up(bytes, 4096)), all_(static_cast<std::size_t>(ranks) * stride_) {
    const fork_guard::pause no_fork;
    void* const room = ::mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return;
    base_ = static_cast<std::byte*>(room);
    ::madvise(base_, all_, MADV_DONTFORK);
  }
  peer_files(const peer_files&) = delete;
  peer_files& operator=(const peer_files&) = delete;
  ~peer_files() {
    if (base_ != nullptr) ::munmap(base_, all_);
  }

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

  /// The description of this rank's file; without a descriptor if it cannot be shared.
  static description describe(int fd, std::size_t bytes) noexcept {
    description d;
    d.bytes = bytes;
    struct stat st {};
    if (fd < 0 || ::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || static_cast<std::size_t>(st.st_size) < bytes)
      return d;
    d.process = ::getpid();
    d.descriptor = fd;
    d.device = st.st_dev;
    d.inode = st.st_ino;
    return d;
  }

  /// Maps the file of `rank`. False if it cannot be opened here, or is a different file.
  bool map(int rank, const description& d) const noexcept {
    if (base_ == nullptr || d.descriptor < 0) return false;
    const fork_guard::pause no_fork;
    const std::string path = joined({"/proc/", d.process, "/fd/", d.descriptor});
    const int fd = open_descriptor(path.c_str(), O_RDWR | O_NONBLOCK);
    if (fd < 0) return false;
    struct stat st {};
    const bool meant = ::fstat(fd, &st) == 0 && st.st_dev == d.device && st.st_ino == d.inode &&
                       st.st_uid == ::geteuid() && static_cast<std::size_t>(st.st_size) >= d.bytes;
    void* const at = base_ + static_cast<std::size_t>(rank) * stride_;
    const bool done = meant && ::mmap(at, d.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
    ::close(fd);
    if (done) ::madvise(at, d.bytes, MADV_DONTFORK);
    return done;
  }

 private:
  std::size_t stride_, all_;
  std::byte* base_ = nullptr;
};

/// The first `bytes` of the file `fd` of each rank, mapped here; collective. Null, on all ranks, if a rank has no file
/// (`fd` -1), if the files differ in size, or if a rank cannot open another rank's file; nothing stays mapped then. The
/// files must stay open until all ranks have returned. Errors: those of a wait.
inline std::unique_ptr<peer_files> map_peer_files(peer_memory& m, int fd, std::size_t bytes) {
  const auto all = share(m, peer_files::describe(fd, bytes), operation::alloc_shared);
  bool usable = bytes != 0;
  for (const auto& d : all) usable = usable && d.descriptor >= 0 && d.bytes == bytes;
  std::unique_ptr<peer_files> files;
  if (usable) {
    files = std::make_unique<peer_files>(m.size(), bytes);
    for (int q = 0; q != m.size(); ++q) usable = usable && files->map(q, all[static_cast<std::size_t>(q)]);
  }
  for (const std::uint8_t mapped : share(m, static_cast<std::uint8_t>(usable ? 1 : 0), operation::alloc_shared)) {
    if (mapped == 0) files.reset();
  }
  return files;
}

}  // namespace hvd::inline HVD_ABI::detail
