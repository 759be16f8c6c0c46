// bench/backends/limit.cpp: the limit: the loads and stores that a collective cannot do without, and nothing else.
//
// All buffers can be reached by all ranks. Each byte of input is read as often as it must be, each byte of output
// written once, with hvd's vector kernel or memcpy, past the caches where hvd would; no rank waits for another. The
// rest of the time of a real collective is synchronisation, staging, and room for improvement.
#include <bench/backends/hvd.hpp>
#include <bench/backends/kernels.hpp>
#include <bench/cases/inputs.hpp>
#include <bench/rank/worker.hpp>

#include <hvd/algorithm/direct.hpp>
#include <hvd/broadcast.hpp>
#include <hvd/transport/shm.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

class limit_backend {
 public:
  static constexpr bool synchronises = false;

  explicit limit_backend(ShmTransport& comm) : comm_(comm) {}

  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int size() const { return comm_.size(); }
  [[nodiscard]] std::string describe() const {
    return "moves only the bytes that must move, without synchronisation, in memory that all ranks reach";
  }
  [[nodiscard]] std::string supports(const job& j) const {
    using enum collective;
    if (j.kind == barrier) return "a barrier moves no bytes";
    if (!has_model(j.kind) && !is_one_of(j.kind, {allreduce, reduce, reduce_scatter, allgather, broadcast, alltoall,
                                                  gather, scatter, scan, exscan, send_recv})) {
      return "the limit is not defined for " + std::string(name(j.kind));
    }
    if (j.in_place && has_blocks(j.kind)) return "for blocks the limit is measured out of place only";
    if (j.in_place && is_one_of(j.kind, {collective::scan, exscan})) {
      return "in place a " + std::string(name(j.kind)) + " overwrites what other ranks still read";
    }
    if (j.pace == cadence::streaming) return "calls without synchronisation cannot follow each other";
    if (reduces(j.kind) && !defined(j.type, j.op)) {
      return "there is no " + std::string(name(j.op)) + " of " + std::string(type_name(j.type));
    }
    return {};
  }
  void prepare(const job& j) {
    if (reduces(j.kind)) op_ = reduction_for(j.type, j.op, size());
  }

  /// One file of memory for all ranks, which rank 0 makes and the others open.
  void* allocate(std::size_t bytes, bool /*shared: always*/) {
    const std::size_t stride = (bytes + 4095) / 4096 * 4096;
    const std::size_t all = stride * static_cast<std::size_t>(size());
    std::array<int, 2> where{::getpid(), -1};
    if (rank() == 0) {
      where[1] = ::memfd_create("hvd-bench-limit", MFD_CLOEXEC);
      if (where[1] < 0 || ::ftruncate(where[1], static_cast<off_t>(all)) != 0) where[1] = -1;
    }
    hvd::broadcast(comm_, where);
    int fd = where[1];
    if (rank() != 0 && fd >= 0) {
      fd = ::open(("/proc/" + std::to_string(where[0]) + "/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
    }
    void* const base = fd < 0 ? MAP_FAILED : ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    comm_.barrier();  // all have opened it
    if (fd >= 0) ::close(fd);
    if (base == MAP_FAILED) {
      throw std::runtime_error("no memory for " + std::to_string(all) + " bytes that ranks share");
    }
    auto* const own = static_cast<std::byte*>(base) + static_cast<std::size_t>(rank()) * stride;
    regions_[own] = {static_cast<std::byte*>(base), stride, all};
    return own;
  }
  void release(void* own) {
    const auto it = regions_.find(static_cast<std::byte*>(own));
    if (it == regions_.end()) return;
    ::munmap(it->second.base, it->second.all);
    regions_.erase(it);
  }

  void run(const call& c) {
    const std::size_t unit = hvd::size_of(c.type);
    const auto p = static_cast<std::size_t>(size()), me = static_cast<std::size_t>(rank());
    const auto root = static_cast<std::size_t>(c.root);
    const std::size_t block = c.count * unit;
    const peers in(*this, c.in), out(*this, c.out);
    const bool large = extent_of(c.kind, c.count, size()).out * unit > streaming_bytes();
    const auto how = large && c.in != c.out ? detail::output::streaming : detail::output::cached;
    switch (c.kind) {
      case collective::fused:
      case collective::engine:
      case collective::allreduce:  // a slice of all inputs into all outputs
      case collective::reduce: {   // or into the root's alone
        const std::size_t line = std::max<std::size_t>(64 / unit, 1);
        const auto start = [&](std::size_t q) { return std::min(c.count, (c.count * q / p + line - 1) / line * line); };
        const std::size_t first = start(me), n = start(me + 1) - first;
        const bool all = c.kind != collective::reduce;
        for (std::size_t q = 0; q != p; ++q) {
          sources_[q] = in.of(q) + first * unit;
          targets_[q] = out.of(all ? q : root) + first * unit;
        }
        detail::complete_to(how, op_, targets_.data(), all ? size() : 1, sources_.data(), size(), n);
        break;
      }
      case collective::scan:  // all inputs up to the rank's own
      case collective::exscan: {
        const int ranks = c.kind == collective::scan ? rank() + 1 : rank();
        if (ranks == 0) break;
        for (std::size_t q = 0; q != static_cast<std::size_t>(ranks); ++q) sources_[q] = in.of(q);
        targets_[0] = out.of(me);
        detail::complete_to(how, op_, targets_.data(), 1, sources_.data(), ranks, c.count);
        break;
      }
      case collective::reduce_scatter:
        for (std::size_t q = 0; q != p; ++q) sources_[q] = in.of(q) + me * block;
        targets_[0] = out.of(me);
        detail::complete_to(how, op_, targets_.data(), 1, sources_.data(), size(), c.count);
        break;
      case collective::allgather:
        for (std::size_t k = 0; k != p; ++k) {
          const std::size_t q = (me + k) % p;  // ranks start at different places
          copy(how, out.of(me) + q * block, in.of(q), block);
        }
        break;
      case collective::gather: copy(how, out.of(root) + me * block, in.of(me), block); break;
      case collective::broadcast: copy(how, out.of(me), in.of(root), block); break;
      case collective::alltoall:
        for (std::size_t k = 0; k != p; ++k) {
          const std::size_t q = (me + k) % p;
          copy(how, out.of(me) + q * block, in.of(q) + me * block, block);
        }
        break;
      case collective::scatter: copy(how, out.of(me), in.of(root) + me * block, block); break;
      case collective::send_recv: copy(how, out.of(me), in.of((me + p - 1) % p), block); break;
      default: throw std::runtime_error("not prepared for " + std::string(name(c.kind)));
    }
    detail::output_fence(how);
  }

 private:
  struct region {
    std::byte* base;
    std::size_t stride, all;
  };
  /// The same place in each rank's part of the memory that `p` is in.
  struct peers {
    peers(const limit_backend& b, const void* p) {
      const auto it = --b.regions_.upper_bound(static_cast<std::byte*>(const_cast<void*>(p)));
      base = it->second.base;
      stride = it->second.stride;
      offset = static_cast<std::size_t>(static_cast<const std::byte*>(p) - it->first);
    }
    [[nodiscard]] std::byte* of(std::size_t rank) const { return base + rank * stride + offset; }
    std::byte* base;
    std::size_t stride, offset;
  };

  static void copy(detail::output how, std::byte* to, const std::byte* from, std::size_t bytes) {
    if (to != from) detail::copy_to(how, to, from, bytes);
  }
  [[nodiscard]] std::size_t streaming_bytes() const {
    const auto& m = comm_.peers();
    return direct_sizes::derive(m).streaming_bytes;
  }

  ShmTransport& comm_;
  reduction op_;
  std::vector<const std::byte*> sources_ = std::vector<const std::byte*>(static_cast<std::size_t>(comm_.size()));
  std::vector<std::byte*> targets_ = std::vector<std::byte*>(static_cast<std::size_t>(comm_.size()));
  std::map<std::byte*, region> regions_;
};

static_assert(Backend<limit_backend>);

}  // namespace

int limit_process(const Stage& stage, const hvd_settings& settings, int rank) {
  return exit_code_of(stage, rank, [&] {
    pin_to_list(rank);
    ShmTransport comm(settings.job, rank, stage.ranks());
    limit_backend backend(comm);
    return serve(stage, erase(backend));
  });
}

}  // namespace hvd::bench
