// bench/fused.cpp: the gradients of ResNet-50 and of a GPT-2 with 124 M parameters, fused as a trainer fuses them.
#include <bench/fused.hpp>

#include <bench/gradients.hpp>
#include <bench/inputs.hpp>
#include <bench/worker.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>

namespace hvd::bench {
namespace {

/// The gradients of one rank, each in an allocation of its own as frameworks have them.
class gradients {
 public:
  gradients(const std::vector<std::size_t>& sizes, std::size_t unit) {
    for (const std::size_t n : sizes)
      parts_.push_back({std::make_unique_for_overwrite<std::byte[]>(n * unit), n * unit});
  }
  struct part {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes;
  };
  [[nodiscard]] const std::vector<part>& parts() const { return parts_; }

 private:
  std::vector<part> parts_;
};

/// A place in the sequence of all gradients.
struct cursor {
  std::size_t part = 0;
  std::size_t offset = 0;
};

/// Calls move(gradient's bytes, place in the buffer, length) until the buffer is full or all gradients are done.
template <class Move>
std::size_t walk(const gradients& g, cursor& at, std::size_t capacity, Move move) {
  std::size_t filled = 0;
  while (filled != capacity && at.part != g.parts().size()) {
    const auto& p = g.parts()[at.part];
    const std::size_t n = std::min(p.bytes - at.offset, capacity - filled);
    move(p.data.get() + at.offset, filled, n);
    filled += n;
    at.offset += n;
    if (at.offset == p.bytes) at = {at.part + 1, 0};
  }
  return filled;
}

}  // namespace

std::vector<std::size_t> gradients_of(model m) {
  std::vector<std::size_t> sizes;
  for (const gradient& g : gradients_in(m)) sizes.push_back(g.count);
  return sizes;
}

std::size_t parameters_of(model m) {
  const std::vector<std::size_t> sizes = gradients_of(m);
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

void run_fused(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch) {
  using clock = std::chrono::steady_clock;
  const std::size_t unit = hvd::size_of(work.type);
  const gradients all(gradients_of(work.parameters), unit);
  const std::size_t capacity = std::max<std::size_t>(work.fusion_bytes / unit, 1) * unit;
  struct fusion_buffer {
    erased_backend& b;
    std::byte* data;
    ~fusion_buffer() { b.release(data); }
  } const buffer{backend, static_cast<std::byte*>(backend.allocate(capacity, work.memory == buffers::shared))};

  const auto pack = [&](std::byte* gradient, std::size_t at, std::size_t n) {
    std::memcpy(buffer.data + at, gradient, n);
  };
  const auto unpack = [&](std::byte* gradient, std::size_t at, std::size_t n) {
    std::memcpy(gradient, buffer.data + at, n);
  };
  // Gradients lie in private memory; a library that fuses by itself, by the algorithm of its choice, needs no more.
  const std::string_view algorithm = work.algorithm;
  const bool by_library =
      backend.fuse && work.memory == buffers::private_ && (algorithm.empty() || algorithm == "automatic");
  std::vector<std::span<std::byte>> gradients_in_place;
  for (const auto& p : all.parts()) gradients_in_place.emplace_back(p.data.get(), p.bytes);
  const auto step = [&] {
    if (by_library) return backend.fuse(work, gradients_in_place);
    for (cursor at; at.part != all.parts().size();) {
      cursor back = at;
      const std::size_t bytes = walk(all, at, capacity, pack);
      if (!backend.synchronises) stage.barrier(backend.rank, epoch);
      backend.run(backend.self, {collective::allreduce, work.type, work.op, 0, bytes / unit, buffer.data, buffer.data});
      if (!backend.synchronises) stage.barrier(backend.rank, epoch);
      walk(all, back, bytes, unpack);
    }
  };
  const auto rewrite_all = [&](std::uint64_t round) {
    for (const auto& p : all.parts()) rewrite(work.type, work.op, backend.rank, round, p.data.get(), p.bytes);
  };

  if (work.check) {
    std::uint64_t wrong = 0;
    for (std::uint32_t i = 0; i != work.iterations; ++i) {
      std::size_t first = 0;
      for (const auto& p : all.parts()) {
        fill_exact(work.type, work.op, backend.rank, backend.size, first, p.bytes / unit, p.data.get());
        first += p.bytes / unit;
      }
      stage.barrier(backend.rank, epoch);
      step();
      first = 0;
      for (const auto& p : all.parts()) {
        wrong += wrong_results(work.type, work.op, backend.size, first, p.bytes / unit, p.data.get());
        first += p.bytes / unit;
      }
    }
    stage.slot(backend.rank).wrong = wrong;
    return;
  }
  rewrite(work.type, work.op, backend.rank, 0, buffer.data, capacity);
  const auto start = clock::now();
  for (std::uint32_t i = 0; i != work.warmup + work.iterations; ++i) {
    if (i == 0 || work.state == mode::dirty) rewrite_all(i);
    stage.barrier(backend.rank, epoch);
    const auto begin = clock::now();
    step();
    const std::chrono::nanoseconds took = clock::now() - begin;
    if (i >= work.warmup) stage.samples(backend.rank)[i - work.warmup] = static_cast<std::uint64_t>(took.count());
  }
  const std::chrono::nanoseconds took = clock::now() - start;
  stage.slot(backend.rank).elapsed = static_cast<std::uint64_t>(took.count());
}

}  // namespace hvd::bench
