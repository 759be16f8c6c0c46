// tests/gpu/standin/mesh.cpp: rings of bytes between each two ranks.
#include "gpu/standin/mesh.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace hvd::standin {

namespace {

constexpr std::size_t ring_bytes = std::size_t{1} << 16;
constexpr int most_ranks = 64;

}  // namespace

// A new file's bytes are zero, and so all of this begins.
struct mesh::head {
  std::atomic<int> here;
  std::atomic<int> size;
  std::atomic<int> present[most_ranks];
  rank_info info[most_ranks];
};

struct mesh::channel {
  alignas(64) std::atomic<std::uint64_t> written;
  alignas(64) std::atomic<std::uint64_t> read;
  alignas(64) std::byte bytes[ring_bytes];
};

mesh::mesh(const std::string& name, int rank, int size, const rank_info& mine, const std::function<bool()>& stop)
    : rank_(rank), size_(size) {
  if (size > most_ranks) throw std::runtime_error("the stand-in has at most 64 ranks");
  const std::string path = "/dev/shm/" + name;
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) throw std::runtime_error("cannot open " + path);
  file_ = file;
  bytes_ = (sizeof(head) + 4095) / 4096 * 4096 + 2 * static_cast<std::size_t>(size * size) * sizeof(channel);
  // Never shorter than another rank has made it, not even if that one counts other ranks.
  struct stat now {};
  const bool too_short = ::fstat(file, &now) == 0 && now.st_size < static_cast<off_t>(bytes_);
  void* const at = too_short && ::ftruncate(file, static_cast<off_t>(bytes_)) != 0
                       ? MAP_FAILED
                       : ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) {
    ::close(file_.exchange(-1));
    throw std::runtime_error("no memory for " + path);
  }
  mapped_ = at;
  // Held while the process lives and the rank belongs to it: this is how others see the end of both.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  ::fcntl(file, F_OFD_SETLK, &lock);

  auto& h = *static_cast<head*>(mapped_);
  int none = 0;
  h.info[rank] = mine;
  std::string error;
  if (!h.size.compare_exchange_strong(none, size) && none != size) error = "ranks differ in their number";
  if (h.present[rank].exchange(1) != 0) error = "this rank is there twice";
  if (error.empty()) ++h.here;
  while (error.empty() && h.here.load() < size) {
    if (stop()) error = "given up while the ranks came together";
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  // All have opened it, or nobody will.
  ::unlink(path.c_str());
  if (!error.empty()) {
    leave();
    ::munmap(mapped_, bytes_);
    throw std::runtime_error(error);
  }
}

mesh::~mesh() {
  leave();
  ::munmap(mapped_, bytes_);
}

void mesh::leave() {
  if (const int file = file_.exchange(-1); file >= 0) ::close(file);
}

const rank_info& mesh::info(int rank) const { return static_cast<const head*>(mapped_)->info[rank]; }

mesh::channel& mesh::between(plane p, int from, int to) const {
  auto* const first = static_cast<std::byte*>(mapped_) + (sizeof(head) + 4095) / 4096 * 4096;
  const int index = (p == of_hosts ? size_ * size_ : 0) + from * size_ + to;
  return *reinterpret_cast<channel*>(first + static_cast<std::size_t>(index) * sizeof(channel));
}

bool mesh::step(plane p, transfer& t) {
  channel& c = t.send ? between(p, rank_, t.peer) : between(p, t.peer, rank_);
  bool moved = false;
  const auto some = [&](void* data, std::size_t bytes, std::size_t& done) {
    while (done != bytes) {
      const std::uint64_t written = c.written.load(std::memory_order_acquire);
      const std::uint64_t read = c.read.load(std::memory_order_acquire);
      const std::uint64_t at = t.send ? written : read;
      const std::size_t free = t.send ? ring_bytes - (written - read) : written - read;
      const std::size_t n = std::min({free, bytes - done, ring_bytes - at % ring_bytes});
      if (n == 0) return false;
      std::byte* const mine = static_cast<std::byte*>(data) + done;
      std::byte* const ring = c.bytes + at % ring_bytes;
      t.send ? std::memcpy(ring, mine, n) : std::memcpy(mine, ring, n);
      (t.send ? c.written : c.read).store(at + n, std::memory_order_release);
      done += n;
      moved = true;
    }
    return true;
  };
  if (t.send) t.header = {t.bytes, t.tag, t.note};
  if (some(&t.header, sizeof t.header, t.header_done) && t.header.bytes == t.bytes && t.header.tag == t.tag) {
    some(t.data, t.bytes, t.done);
  }
  return moved;
}

bool mesh::move(plane p, std::vector<transfer>& all, const std::function<bool()>& stop,
                const std::function<void(const std::string&)>& differs) {
  bool complained = false;
  for (int idle = 0;; ++idle) {
    bool moved = false, over = true;
    std::set<std::pair<bool, int>> busy;
    for (transfer& t : all) {
      const auto finished = [&] {
        return t.header_done == sizeof t.header && t.done == t.bytes && t.header.bytes == t.bytes &&
               t.header.tag == t.tag;
      };
      if (finished()) continue;
      if (busy.contains({t.send, t.peer})) continue;
      moved = step(p, t) || moved;
      if (finished()) continue;
      busy.emplace(t.send, t.peer);
      over = false;
      if (t.header_done == sizeof t.header && (t.header.bytes != t.bytes || t.header.tag != t.tag) && !complained) {
        complained = true;
        differs("rank " + std::to_string(rank_) + " expects " + std::to_string(t.bytes) + " bytes from rank " +
                std::to_string(t.peer) + ", which sends " + std::to_string(t.header.bytes) +
                (t.header.bytes == t.bytes
                     ? " of another operation, or of memory that is registered on some ranks alone"
                     : ""));
      }
    }
    if (over) return true;
    if (moved) {
      idle = 0;
      continue;
    }
    if (stop()) return false;
    idle < 20 ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

int mesh::find_gone(const std::vector<transfer>& all) const {
  const int file = file_;
  for (const transfer& t : all) {
    if (t.peer == rank_ || file < 0 || (t.done == t.bytes && t.header_done == sizeof t.header)) continue;
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = t.peer;
    lock.l_len = 1;
    if (::fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) return t.peer;
  }
  return -1;
}

}  // namespace hvd::standin
