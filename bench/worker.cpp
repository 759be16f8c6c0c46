// bench/worker.cpp: the loop of a rank: buffers, warm-up, rewriting, timing, checking.
#include <bench/worker.hpp>

#include <bench/fused.hpp>
#include <bench/replay.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include <sched.h>
#include <sys/prctl.h>

namespace hvd::bench {
namespace {

using clock = std::chrono::steady_clock;

std::uint64_t ns_between(clock::time_point a, clock::time_point b) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(b - a).count());
}

constexpr std::size_t guard_bytes = 64;
constexpr unsigned char guard_value = 0xa5;

/// Memory of the backend that is kept from job to job as long as it fits.
class memory_pool {
 public:
  explicit memory_pool(erased_backend& b) : backend_(b) {}
  memory_pool(const memory_pool&) = delete;
  memory_pool& operator=(const memory_pool&) = delete;
  ~memory_pool() { clear(); }

  /// `which` is 0 for inputs, 1 for outputs and so on. Equal on all ranks: allocation may be collective.
  std::byte* get(int which, std::size_t bytes, bool shared) {
    block& b = blocks_[{which, shared}];
    if (b.bytes < bytes) {
      drop(b);
      b.data = static_cast<std::byte*>(backend_.allocate(bytes, shared));
      b.bytes = bytes;
    }
    return b.data;
  }
  /// At the end of a job: big memory goes back, so that many libraries do not hold it at a time.
  void trim() {
    for (auto& [key, b] : blocks_) {
      if (b.bytes > kept_bytes) drop(b);
    }
  }
  void clear() {
    for (auto& [key, b] : blocks_) drop(b);
  }

 private:
  struct block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  void drop(block& b) {
    if (b.data != nullptr) backend_.release(b.data);
    b = {};
  }
  erased_backend& backend_;
  std::map<std::pair<int, bool>, block> blocks_;  // ordered, so that ranks release in one order
};

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

/// The buffers of one job and the calls on them.
class cell {
 public:
  cell(const Stage& stage, erased_backend& backend, memory_pool& pool, const job& j, std::uint64_t& epoch)
      : stage_(stage), backend_(backend), job_(j), epoch_(epoch), unit_(hvd::size_of(j.type)),
        extent_(extent_of(j.kind, j.count, backend.size)) {
    const std::size_t in = extent_.in * unit_, out = extent_.out * unit_;
    const std::size_t larger = std::max(in, out);
    offset_ = j.unalign * unit_;
    stride_ = round_up(larger + offset_ + guard_bytes, 64);
    if (j.state == mode::rotating && !j.check) {
      const std::size_t for_one = j.rotating_bytes / static_cast<std::size_t>(backend.size) / (j.in_place ? 1 : 2);
      turns_ = std::max<std::size_t>(2, (for_one + stride_ - 1) / stride_);
    }
    const bool shared = j.memory == buffers::shared;
    in_ = pool.get(0, stride_ * turns_, shared);
    out_ = j.in_place ? in_ : pool.get(1, stride_ * turns_, shared);
  }

  void measure() {
    // Everything is written before it is timed: pages that were never touched are all one page of zeros.
    for (std::size_t t = 0; t != turns_; ++t) {
      rewrite(job_.type, job_.op, backend_.rank, 0, in_ + t * stride_, stride_);
      if (!job_.in_place) rewrite(job_.type, job_.op, backend_.rank, 0, out_ + t * stride_, stride_);
    }
    for (std::uint32_t i = 0; i != job_.warmup; ++i) one(i);
    const auto start = clock::now();
    if (job_.pace == cadence::isolated) {
      std::uint64_t* const samples = stage_.samples(backend_.rank);
      for (std::uint32_t i = 0; i != job_.iterations; ++i) samples[i] = one(job_.warmup + i);
    } else {
      stream();
    }
    stage_.slot(backend_.rank).elapsed = ns_between(start, clock::now());
  }

  [[nodiscard]] std::uint64_t wrong() {
    std::uint64_t count = 0;
    for (std::uint32_t i = 0; i != job_.iterations; ++i) {
      const call c = at(0);
      // What is left over from the last round must not pass as a result.
      std::memset(in_, guard_value, stride_);
      if (!job_.in_place) std::memset(out_, guard_value, stride_);
      fill(c);
      barrier();
      backend_.run(backend_.self, c);
      barrier();
      count += compare(c);
    }
    return count;
  }

 private:
  void barrier() { stage_.barrier(backend_.rank, epoch_); }

  [[nodiscard]] call at(std::uint64_t iteration) const {
    const std::size_t shift = iteration % turns_ * stride_ + offset_;
    std::byte* in = in_ + shift;
    std::byte* out = out_ + shift;
    const std::size_t own = static_cast<std::size_t>(backend_.rank) * job_.count * unit_;
    const bool root = backend_.rank == job_.root;
    if (job_.in_place) {
      if (job_.kind == collective::allgather || (job_.kind == collective::gather && root)) in += own;
      if (job_.kind == collective::reduce_scatter || (job_.kind == collective::scatter && root)) out += own;
    }
    return {job_.kind, job_.type, job_.op, job_.root, job_.count, in, out};
  }

  /// Whether this rank gives something: its input is then rewritten before each call.
  [[nodiscard]] bool gives() const {
    const bool from_root = job_.kind == collective::broadcast || job_.kind == collective::scatter;
    return !from_root || backend_.rank == job_.root;
  }

  std::uint64_t one(std::uint64_t iteration) {
    const call c = at(iteration);
    if (job_.state == mode::dirty && gives()) {
      rewrite(job_.type, job_.op, backend_.rank, iteration, const_cast<void*>(c.in), extent_.in * unit_);
    }
    barrier();
    const auto start = clock::now();
    backend_.run(backend_.self, c);
    const auto end = clock::now();
    if (!backend_.synchronises) barrier();
    return ns_between(start, end);
  }

  void stream() {
    if (job_.state == mode::dirty && gives()) {
      rewrite(job_.type, job_.op, backend_.rank, 1, const_cast<void*>(at(0).in), extent_.in * unit_);
    }
    barrier();
    const auto start = clock::now();
    for (std::uint32_t i = 0; i != job_.iterations; ++i) {
      const call c = at(i);
      backend_.run(backend_.self, c);
    }
    const std::uint64_t each = ns_between(start, clock::now()) / job_.iterations;
    std::fill_n(stage_.samples(backend_.rank), job_.iterations, each);
  }

  void fill(const call& c) {
    if (!gives()) return;
    fill_exact(job_.type, job_.op, backend_.rank, backend_.size, 0, extent_.in, const_cast<void*>(c.in));
  }

  /// Elements that are not what they should be; guards behind the output count as one element each.
  [[nodiscard]] std::uint64_t compare(const call& c) const {
    const int rank = backend_.rank, size = backend_.size;
    const bool root = rank == job_.root;
    const auto* out = static_cast<const std::byte*>(c.out);
    const std::size_t block = job_.count * unit_;
    const auto copies = [&](int from, std::size_t first, std::size_t place) {
      return wrong_copies(job_.type, job_.op, from, size, first, job_.count, out + place * block);
    };
    std::uint64_t wrong = 0;
    switch (job_.kind) {
      case collective::allreduce:
      case collective::fused:
      case collective::engine: wrong = wrong_results(job_.type, job_.op, size, 0, job_.count, out); break;
      case collective::reduce:
        if (root) wrong = wrong_results(job_.type, job_.op, size, 0, job_.count, out);
        break;
      case collective::reduce_scatter:
        wrong = wrong_results(job_.type, job_.op, size, static_cast<std::size_t>(rank) * job_.count, job_.count, out);
        break;
      case collective::allgather:
      case collective::gather:
        for (int q = 0; q != size && (root || job_.kind == collective::allgather); ++q) {
          wrong += copies(q, 0, static_cast<std::size_t>(q));
        }
        break;
      case collective::alltoall:
        for (int q = 0; q != size; ++q) {
          wrong += copies(q, static_cast<std::size_t>(rank) * job_.count, static_cast<std::size_t>(q));
        }
        break;
      case collective::broadcast: wrong = copies(job_.root, 0, 0); break;
      case collective::scatter: wrong = copies(job_.root, static_cast<std::size_t>(rank) * job_.count, 0); break;
      case collective::send_recv: wrong = copies((rank + size - 1) % size, 0, 0); break;
      case collective::barrier: break;
    }
    return wrong + guards();
  }

  [[nodiscard]] std::uint64_t guards() const {
    const std::size_t end = std::max(extent_.in, extent_.out) * unit_;
    // Out of place the output may be the shorter one.
    const std::size_t used = job_.in_place ? end : extent_.out * unit_;
    const std::byte* const guard = out_ + offset_ + used;
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i != guard_bytes; ++i) wrong += guard[i] != std::byte{guard_value};
    for (std::size_t i = 0; i != offset_; ++i) wrong += out_[i] != std::byte{guard_value};
    return wrong;
  }

  const Stage& stage_;
  erased_backend& backend_;
  const job& job_;
  std::uint64_t& epoch_;
  std::size_t unit_;
  extent extent_;
  std::size_t offset_ = 0;
  std::size_t stride_ = 0;
  std::size_t turns_ = 1;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

/// The CPU that this thread is bound to, by us or by a launcher; -1 if it may use several.
int bound_cpu() {
  cpu_set_t set;
  if (pinned_cpu() >= 0 || ::sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1) return pinned_cpu();
  int cpu = 0;
  while (!CPU_ISSET(cpu, &set)) ++cpu;
  return cpu;
}

}  // namespace

namespace {

/// Why the library cannot do the job; empty if it can.
std::string refusal(const erased_backend& b, const job& work) {
  const schedule what = work.passes.what;
  const bool by_name = what == schedule::engine || what == schedule::latency || what == schedule::idle;
  if (work.kind == collective::engine && by_name && !b.named) return "it takes no tensors by name";
  return b.supports(work);
}

}  // namespace

int serve(const Stage& stage, erased_backend b) {
  if (b.size != stage.ranks() || b.rank < 0 || b.rank >= b.size) {
    throw std::runtime_error("the library started " + std::to_string(b.size) + " ranks and says that this is rank " +
                             std::to_string(b.rank) + ", but " + std::to_string(stage.ranks()) +
                             " were asked for: the launcher and the library do not belong together");
  }
  rank_slot& mine = stage.slot(b.rank);
  if (b.rank == 0) stage.header().description.set(b.describe());
  stage.attach(b.rank, bound_cpu());
  memory_pool pool(b);
  std::uint64_t epoch = 0;
  for (std::uint32_t number = 0;;) {
    try {
      number = stage.next(number);
    } catch (const stage_ended&) {
      return 0;  // the usual end
    }
    const job work = stage.header().work;
    mine.wrong = 0;
    mine.elapsed = 0;
    mine.problem.set("");
    try {
      if (const std::string why = refusal(b, work); !why.empty()) {
        mine.result = outcome::unsupported;
        mine.problem.set(why);
      } else {
        b.prepare(work);
        if (work.kind == collective::fused) {
          run_fused(stage, b, work, epoch);
        } else if (work.kind == collective::engine) {
          run_replay(stage, b, work, epoch);
        } else {
          cell now(stage, b, pool, work, epoch);
          if (work.check) {
            mine.wrong = now.wrong();
          } else {
            now.measure();
          }
          pool.trim();
        }
        mine.result = outcome::done;
      }
    } catch (const stage_ended&) {
      return 3;
    } catch (const std::exception& e) {
      stage.report_failure(b.rank, number, e.what());
      return 1;
    }
    stage.report(b.rank, number);
  }
}

}  // namespace hvd::bench
