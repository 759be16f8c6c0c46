// bench/stage.cpp: making, opening and waiting on the stage.
#include <bench/stage.hpp>

#include <hvd/detail/cpu.hpp>
#include <hvd/shared_memory/futex.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

constexpr std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

[[noreturn]] void refuse(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

struct flock lock_of(int byte) {
  struct flock l {};
  l.l_type = F_WRLCK;
  l.l_whence = SEEK_SET;
  l.l_start = byte;
  l.l_len = 1;
  return l;
}

}  // namespace

Stage Stage::make(int ranks, std::uint64_t capacity, bool yields) {
  const std::size_t slots = round_up(sizeof(stage_header), 4096);
  const std::size_t samples = slots + round_up(sizeof(rank_slot) * static_cast<std::size_t>(ranks), 4096);
  const std::size_t each = round_up(capacity * sizeof(std::uint64_t), 4096);  // ranks share no line
  const std::size_t bytes = samples + each * static_cast<std::size_t>(ranks);
  const int fd = ::memfd_create("hvd-bench-stage", MFD_CLOEXEC);
  if (fd < 0) refuse("cannot make the memory in which ranks are measured");
  void* data = MAP_FAILED;
  if (::fchmod(fd, 0600) == 0 && (errno = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes))) == 0) {
    data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (data == MAP_FAILED) {
    const int why = errno;
    ::close(fd);
    errno = why;
    refuse("cannot reserve " + std::to_string(bytes) + " bytes in which ranks are measured");
  }
  Stage s(fd, data, bytes);
  auto* const h = new (data) stage_header;
  h->ranks = ranks;
  h->capacity = each / sizeof(std::uint64_t);
  h->slots_offset = slots;
  h->samples_offset = samples;
  h->bytes = bytes;
  h->yields = yields;
  for (int r = 0; r != ranks; ++r) new (&s.slot(r)) rank_slot;
  h->magic = stage_header::magic_value;
  s.lock(0);
  return s;
}

Stage Stage::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) refuse("cannot open the stage " + path + " (" + stage_variable + ") that hvd-bench names");
  struct stat s {};
  void* data = MAP_FAILED;
  if (::fstat(fd, &s) == 0 && static_cast<std::size_t>(s.st_size) >= sizeof(stage_header)) {
    data = ::mmap(nullptr, static_cast<std::size_t>(s.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const auto* const h = static_cast<const stage_header*>(data);
  if (data == MAP_FAILED || h->magic != stage_header::magic_value ||
      h->bytes != static_cast<std::uint64_t>(s.st_size)) {
    ::close(fd);
    throw std::runtime_error(path + " (" + stage_variable + ") is not a stage of this version of hvd-bench");
  }
  return {fd, data, static_cast<std::size_t>(s.st_size)};
}

Stage::Stage(Stage&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Stage::~Stage() {
  if (data_ == nullptr) return;
  ::munmap(data_, bytes_);
  ::close(fd_);
}

std::string Stage::path() const { return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_); }

void Stage::lock(int byte) const {
  struct flock l = lock_of(byte);
  if (::fcntl(fd_, F_SETLK, &l) != 0) refuse("cannot lock the stage");
}

bool Stage::alive(int rank) const {
  struct flock l = lock_of(rank + 1);
  return ::fcntl(fd_, F_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

void Stage::attach(int rank, int cpu) const {
  lock(rank + 1);
  rank_slot& s = slot(rank);
  s.pid.store(::getpid(), std::memory_order_relaxed);
  s.cpu.store(cpu, std::memory_order_relaxed);
  s.attached.store(1, std::memory_order_release);
  header().finished.fetch_add(1, std::memory_order_release);
  hvd::detail::futex_wake_all(header().finished);
}

void Stage::check() const {
  if (header().abort.load(std::memory_order_acquire) != 0) throw stage_ended("the coordinator has given up");
  if (!alive(-1)) throw stage_ended("the coordinator is gone");
}

std::uint32_t Stage::next(std::uint32_t last) const {
  for (;;) {
    const std::uint32_t now = header().command.load(std::memory_order_acquire);
    if (header().quit.load(std::memory_order_acquire) != 0) throw stage_ended("the measurement is over");
    if (now != last) return now;
    hvd::detail::futex_wait(header().command, now, std::chrono::milliseconds(100));
    check();
  }
}

void Stage::report(int rank, std::uint32_t command) const {
  slot(rank).done.store(command, std::memory_order_release);
  header().finished.fetch_add(1, std::memory_order_release);
  hvd::detail::futex_wake_all(header().finished);
}

void Stage::report_failure(int rank, std::uint32_t command, std::string_view why) const {
  rank_slot& s = slot(rank);
  s.order = header().failures.fetch_add(1);
  s.problem.set(why);
  s.result = outcome::failed;
  report(rank, command);
}

// A rank waits by loading, with pauses, and from some 20 us on by yielding; the check costs two system calls and comes
// only about every millisecond.
void Stage::wait_for(int rank, std::uint64_t epoch) const {
  const auto& word = slot(rank).arrived;
  const int spins = header().yields ? 16 : 1000;
  for (int i = 0; i != spins; ++i) {
    if (word.load(std::memory_order_acquire) >= epoch) return;
    hvd::detail::cpu_pause();
  }
  auto looked = std::chrono::steady_clock::now();
  while (word.load(std::memory_order_acquire) < epoch) {
    ::sched_yield();
    const auto now = std::chrono::steady_clock::now();
    if (now - looked > std::chrono::milliseconds(1)) {
      looked = now;
      check();
    }
  }
}

std::uint32_t Stage::send(const job& j) const {
  stage_header& h = header();
  h.work = j;
  const std::uint32_t number = h.command.load(std::memory_order_relaxed) + 1;
  h.command.store(number, std::memory_order_release);
  hvd::detail::futex_wake_all(h.command);
  return number;
}

void Stage::quit() const {
  header().quit.store(1, std::memory_order_release);
  header().command.fetch_add(1, std::memory_order_release);
  hvd::detail::futex_wake_all(header().command);
}

void Stage::wait(std::uint32_t seen_finished, std::chrono::milliseconds limit) const {
  hvd::detail::futex_wait(header().finished, seen_finished, limit);
}

}  // namespace hvd::bench
