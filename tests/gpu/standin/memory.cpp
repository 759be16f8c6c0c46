// tests/gpu/standin/memory.cpp: memory that only streams can touch, and what becomes of it when it is freed.
#include "gpu/standin/cuda.hpp"

#include <algorithm>
#include <cstring>

#include <sys/mman.h>

namespace hvd::standin {

namespace {

constexpr int unwritten = 0xCB, poisoned = 0xFB;
constexpr std::size_t page = 4096;
// cuMemAlloc's alignment. Memory begins one such step after a page, so that what needs more has to ask for more.
constexpr std::size_t usual_alignment = 512;
// Poisoned memory that is kept for reads that come too late; the oldest goes first.
constexpr std::size_t most_quarantined = std::size_t{64} << 20;

void* map(std::size_t bytes, int protection) {
  void* const at = ::mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

allocation* machine::find_memory(std::uint64_t address) {
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return nullptr;
  allocation& a = (--after)->second;
  return address - a.begin < std::max<std::size_t>(a.bytes, 1) ? &a : nullptr;
}

allocation* machine::find_live(std::uint64_t address, std::size_t bytes) {
  allocation* const a = find_memory(address);
  return a == nullptr || a->freed || bytes > a->bytes - (address - a->begin) ? nullptr : a;
}

std::byte* machine::alias(std::uint64_t address) {
  allocation* const a = find_memory(address);
  return a == nullptr || a->alias == nullptr ? nullptr : a->alias + (address - a->begin);
}

cu_result machine::allocate(std::uint64_t& address, std::size_t bytes, std::size_t alignment, int device) {
  if (bytes == 0) return cu_invalid_value;
  if (device >= 0) {
    std::size_t used = 0;
    for (const auto& [begin, a] : memory) {
      if (!a.freed && a.device == device) used += a.bytes;
    }
    if (bytes > memory_limit || used > memory_limit - bytes) return cu_out_of_memory;
  }
  const std::size_t offset = alignment > usual_alignment ? 0 : usual_alignment;
  const std::size_t whole = (bytes + offset + page - 1) / page * page;
  auto* const alias = static_cast<std::byte*>(map(whole, PROT_READ | PROT_WRITE));
  // The device's addresses are reserved for ever: whoever uses them after the end is found out.
  auto* const reserved = device < 0 ? alias : static_cast<std::byte*>(map(whole, PROT_NONE));
  if (alias == nullptr || reserved == nullptr) return cu_out_of_memory;
  allocation a;
  address = a.begin = reinterpret_cast<std::uint64_t>(reserved + offset);
  a.bytes = bytes;
  a.device = device;
  a.alias = alias + offset;
  a.mapped = alias;
  a.mapped_bytes = whole;
  a.parts.emplace(0, allocation::part{});
  std::memset(a.alias, unwritten, bytes);
  memory.emplace(a.begin, std::move(a));
  return cu_success;
}

void machine::poison(allocation& a) {
  if (a.poisoned || a.users != 0) return;  // the last work that uses it does this at its end
  a.poisoned = true;
  std::memset(a.alias, poisoned, a.bytes);
  a.parts.clear();
  quarantine.push_back(a.begin);
  quarantined += a.mapped_bytes;
  while (quarantined > most_quarantined && !quarantine.empty()) {
    allocation& old = memory.at(quarantine.front());
    quarantine.pop_front();
    quarantined -= old.mapped_bytes;
    if (old.device >= 0) {
      ::munmap(old.mapped, old.mapped_bytes);
    } else {  // page-locked memory keeps its addresses, too
      ::mmap(old.mapped, old.mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    old.alias = nullptr;
  }
}

cu_result machine::release(std::uint64_t address, bool of_device) {
  const auto found = memory.find(address);
  if (found == memory.end() || (found->second.device >= 0) != of_device) return cu_invalid_value;
  allocation& a = found->second;
  if (a.freed) {
    violation("memory is freed twice");
    return cu_invalid_value;
  }
  a.freed = true;
  poison(a);
  return cu_success;
}

}  // namespace hvd::standin
