// bench/coordinator/janitor.cpp: the process that waits for the other end of a pipe to close.
#include <bench/coordinator/janitor.hpp>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

constexpr pid_t go_home = -1;

void remove_folder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace

Janitor::Janitor() {
  std::string name = "/dev/shm/hvd-bench-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) {
    throw std::runtime_error(std::string("cannot make a folder in /dev/shm: ") + std::strerror(errno));
  }
  folder_ = name;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0 || (pid_ = ::fork()) < 0) {
    remove_folder(folder_);
    throw std::runtime_error(std::string("cannot start a process: ") + std::strerror(errno));
  }
  if (pid_ == 0) {
    ::setsid();  // the terminal's signals are for others
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) ::signal(s, SIG_IGN);
    ::close_range(3, static_cast<unsigned>(ends[0]) - 1, 0);
    ::close_range(static_cast<unsigned>(ends[0]) + 1, ~0U, 0);
    wait_and_clean(ends[0]);
  }
  ::close(ends[0]);
  pipe_ = ends[1];
}

void Janitor::watch(pid_t group) const noexcept {
  while (::write(pipe_, &group, sizeof group) < 0 && errno == EINTR) {
  }
}

Janitor::~Janitor() {
  watch(go_home);
  ::close(pipe_);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  remove_folder(folder_);
}

void Janitor::wait_and_clean(int pipe) const {
  pid_t group = 0, next = 0;
  ssize_t n = 0;
  while ((n = ::read(pipe, &next, sizeof next)) != 0) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 || next == go_home) ::_exit(0);
    group = next;
  }
  if (group > 1) {
    ::kill(-group, SIGTERM);
    for (int i = 0; i != 300 && ::kill(-group, 0) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ::kill(-group, SIGKILL);
  }
  remove_folder(folder_);
  ::_exit(0);
}

}  // namespace hvd::bench
