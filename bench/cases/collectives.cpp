// bench/cases/collectives.cpp: one collective on one rank: buffers, warm-up, rewriting, timing, checking.
#include <bench/cases/collectives.hpp>

#include <bench/cases/inputs.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace hvd::bench {

std::byte* KeptBuffers::get(int which, std::size_t bytes, bool shared) {
  block& b = blocks_[{which, shared}];
  if (b.bytes < bytes) {
    drop(b);
    b.data = static_cast<std::byte*>(backend_.allocate(bytes, shared));
    b.bytes = bytes;
  }
  return b.data;
}

void KeptBuffers::trim() {
  for (auto& [key, b] : blocks_) {
    if (b.bytes > kept_bytes) drop(b);
  }
}

void KeptBuffers::drop(block& b) {
  if (b.data != nullptr) backend_.release(b.data);
  b = {};
}

namespace {

using clock = std::chrono::steady_clock;

std::uint64_t ns_between(clock::time_point a, clock::time_point b) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(b - a).count());
}

constexpr std::size_t guard_bytes = 64;
constexpr unsigned char guard_value = 0xa5;

std::size_t round_up(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

/// A buffer as the host sees it: the buffer itself, or, of one on a device, a copy.
class HostCopy {
 public:
  /// Without a buffer it does nothing.
  HostCopy(const erased_backend& backend, std::byte* buffer, std::size_t bytes)
      : backend_(backend), buffer_(buffer), bytes_(bytes) {
    if (backend_.device && buffer != nullptr) copy_.resize(bytes);
  }
  [[nodiscard]] std::byte* host() const { return copy_.empty() ? buffer_ : copy_.data(); }
  void push() const {
    if (!copy_.empty()) backend_.device->upload(buffer_, copy_.data(), bytes_);
  }
  void pull() const {
    if (!copy_.empty()) backend_.device->download(copy_.data(), buffer_, bytes_);
  }

 private:
  const erased_backend& backend_;
  std::byte* buffer_;
  std::size_t bytes_;
  mutable std::vector<std::byte> copy_;
};

/// The buffers of one job and the calls on them.
class cell {
 public:
  cell(const Stage& stage, erased_backend& backend, KeptBuffers& kept, const job& j, std::uint64_t& epoch)
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
    in_ = kept.get(0, stride_ * turns_, shared);
    out_ = j.in_place ? in_ : kept.get(1, stride_ * turns_, shared);
  }

  void measure() {
    // Everything is written before it is timed: pages that were never touched are all one page of zeros.
    for (std::size_t t = 0; t != turns_; ++t) {
      first_write(in_ + t * stride_);
      if (!job_.in_place) first_write(out_ + t * stride_);
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
    const HostCopy in(backend_, in_, stride_), out(backend_, job_.in_place ? nullptr : out_, stride_);
    std::byte* const host_in = in.host();
    std::byte* const host_out = job_.in_place ? host_in : out.host();
    for (std::uint32_t i = 0; i != job_.iterations; ++i) {
      // Data left over from the last round must not pass as a result.
      std::memset(host_in, guard_value, stride_);
      if (!job_.in_place) std::memset(host_out, guard_value, stride_);
      fill(at(0, host_in, host_out));
      in.push();
      out.push();
      barrier();
      backend_.run(backend_.self, at(0));
      finish();
      barrier();
      (job_.in_place ? in : out).pull();
      count += compare(at(0, host_in, host_out), host_out);
    }
    return count;
  }

 private:
  void barrier() { stage_.barrier(backend_.rank, epoch_); }

  void finish() const {
    if (backend_.device) backend_.device->finish();
  }
  void first_write(std::byte* to) const {
    const HostCopy memory(backend_, to, stride_);
    rewrite(job_.type, job_.op, backend_.rank, 0, memory.host(), stride_);
    memory.push();
  }

  [[nodiscard]] call at(std::uint64_t iteration) const { return at(iteration, in_, out_); }
  [[nodiscard]] call at(std::uint64_t iteration, std::byte* in, std::byte* out) const {
    const std::size_t shift = iteration % turns_ * stride_ + offset_;
    in += shift;
    out += shift;
    const std::size_t own = static_cast<std::size_t>(backend_.rank) * job_.count * unit_;
    const collective_facts& f = facts(job_.kind);
    if (job_.in_place && (f.root == root_role::none || backend_.rank == job_.root)) {
      if (f.out_blocks && !f.in_blocks) in += own;
      if (f.in_blocks && !f.out_blocks) out += own;
    }
    return {job_.kind, job_.type, job_.op, job_.root, job_.count, in, out};
  }

  /// Whether this rank gives something: its input is then rewritten before each call.
  [[nodiscard]] bool gives() const { return facts(job_.kind).root != root_role::gives || backend_.rank == job_.root; }

  std::uint64_t one(std::uint64_t iteration) {
    const call c = at(iteration);
    if (job_.state == mode::dirty && gives()) {
      rewrite(job_.type, job_.op, backend_.rank, iteration, const_cast<void*>(c.in), extent_.in * unit_);
    }
    barrier();
    const auto start = clock::now();
    backend_.run(backend_.self, c);
    finish();
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
    finish();
    const std::uint64_t each = ns_between(start, clock::now()) / job_.iterations;
    std::fill_n(stage_.samples(backend_.rank), job_.iterations, each);
  }

  void fill(const call& c) {
    if (!gives()) return;
    fill_exact(job_.type, job_.op, backend_.rank, backend_.size, 0, extent_.in, const_cast<void*>(c.in));
  }

  /// Wrong elements; each damaged guard behind the output counts as one.
  [[nodiscard]] std::uint64_t compare(const call& c, const std::byte* memory) const {
    const auto* out = static_cast<const std::byte*>(c.out);
    std::uint64_t wrong = 0;
    each_piece(job_.kind, backend_.rank, backend_.size, job_.root, job_.count, [&](const piece& p) {
      const std::byte* const got = out + p.at * unit_;
      wrong += p.ranks == 0 ? wrong_copies(job_.type, job_.op, p.rank, backend_.size, p.from, job_.count, got)
                            : wrong_results(job_.type, job_.op, p.ranks, p.from, job_.count, got);
    });
    return wrong + guards(memory);
  }

  [[nodiscard]] std::uint64_t guards(const std::byte* memory) const {
    const std::size_t end = std::max(extent_.in, extent_.out) * unit_;
    // Out of place the output may be the shorter one.
    const std::size_t used = job_.in_place ? end : extent_.out * unit_;
    const std::byte* const guard = memory + offset_ + used;
    std::uint64_t wrong = 0;
    for (std::size_t i = 0; i != guard_bytes; ++i) wrong += guard[i] != std::byte{guard_value};
    for (std::size_t i = 0; i != offset_; ++i) wrong += memory[i] != std::byte{guard_value};
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

}  // namespace

void run_collective(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch,
                    KeptBuffers& kept) {
  cell now(stage, backend, kept, work, epoch);
  if (work.check) {
    stage.slot(backend.rank).wrong = now.wrong();
  } else {
    now.measure();
  }
  kept.trim();
}

}  // namespace hvd::bench
