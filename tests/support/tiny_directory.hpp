// tests/support/tiny_directory.hpp: a memory file system of a few pages, to be full.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

namespace hvd::test {

/// Mounted where only this process and its children see it, so that nothing is left whatever happens to them.
class tiny_directory {
 public:
  explicit tiny_directory(std::size_t bytes) {
    static const std::string refused = own_mounts();
    problem_ = refused;
    if (!problem_.empty()) return;
    char name[] = "/tmp/hvd-tiny-XXXXXX";
    if (::mkdtemp(name) == nullptr) {
      problem_ = std::string("mkdtemp: ") + std::strerror(errno);
      return;
    }
    path_ = name;
    const std::string options = "size=" + std::to_string(bytes) + ",mode=700";
    if (::mount("tmpfs", name, "tmpfs", 0, options.c_str()) != 0) {
      problem_ = std::string("cannot mount a tmpfs: ") + std::strerror(errno);
    }
  }
  tiny_directory(const tiny_directory&) = delete;
  tiny_directory& operator=(const tiny_directory&) = delete;
  ~tiny_directory() {
    if (path_.empty()) return;
    if (problem_.empty()) ::umount2(path_.c_str(), MNT_DETACH);
    ::rmdir(path_.c_str());
  }

  /// Why there is none; empty if there is.
  [[nodiscard]] const std::string& problem() const { return problem_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  /// Takes this much of it.
  void fill(std::size_t bytes) const {
    const int fd = ::open((path_ + "/filler").c_str(), O_CREAT | O_RDWR, 0600);
    if (fd < 0 || ::posix_fallocate(fd, 0, static_cast<off_t>(bytes)) != 0) std::abort();
    ::close(fd);
  }

 private:
  static std::string own_mounts() {
    const uid_t user = ::geteuid();
    const gid_t group = ::getegid();
    if (::unshare(CLONE_NEWNS) != 0) {
      if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        return std::string("no mount namespace of its own: ") + std::strerror(errno);
      }
      std::ofstream("/proc/self/setgroups") << "deny";
      std::ofstream("/proc/self/uid_map") << user << ' ' << user << " 1\n";
      std::ofstream("/proc/self/gid_map") << group << ' ' << group << " 1\n";
    }
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return std::string("cannot make mounts private: ") + std::strerror(errno);
    }
    return {};
  }

  std::string path_, problem_;
};

}  // namespace hvd::test
