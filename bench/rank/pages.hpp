// bench/rank/pages.hpp: private memory for buffers, the same kind for every library.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>

#include <sys/mman.h>

namespace hvd::bench {

/// Anonymous pages, as malloc takes them for large arrays, without advice to the kernel.
class PageAllocator {
 public:
  PageAllocator() = default;
  PageAllocator(const PageAllocator&) = delete;
  PageAllocator& operator=(const PageAllocator&) = delete;
  ~PageAllocator() {
    for (const auto& [data, bytes] : blocks_) ::munmap(data, bytes);
  }

  void* allocate(std::size_t bytes) {
    bytes = (bytes + 4095) / 4096 * 4096;
    void* const data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      throw std::runtime_error("no memory for a buffer of " + std::to_string(bytes) +
                               " bytes: " + std::strerror(errno));
    }
    blocks_[data] = bytes;
    return data;
  }
  /// False if the memory is not from here.
  bool release(void* data) {
    const auto it = blocks_.find(data);
    if (it == blocks_.end()) return false;
    ::munmap(data, it->second);
    blocks_.erase(it);
    return true;
  }

 private:
  std::map<void*, std::size_t> blocks_;
};

}  // namespace hvd::bench
