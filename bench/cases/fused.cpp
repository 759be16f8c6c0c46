// bench/cases/fused.cpp: the gradients of ResNet-50 and of a GPT-2 with 124 M parameters, fused as a trainer fuses
// them.
#include <bench/cases/fused.hpp>

#include <bench/cases/gradients.hpp>
#include <bench/cases/inputs.hpp>

#include <chrono>
#include <string_view>

namespace hvd::bench {

GradientBuffers::GradientBuffers(const job& work, int rank, int size)
    : type_(work.type), op_(work.op), rank_(rank), size_(size) {
  for (const gradient& g : gradients_in(work.parameters)) {
    const std::size_t bytes = g.count * hvd::size_of(type_);
    memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    parts_.emplace_back(memory_.back().get(), bytes);
  }
}

void GradientBuffers::rewrite(std::uint64_t round) const {
  for (const auto p : parts_) bench::rewrite(type_, op_, rank_, round, p.data(), p.size());
}

void GradientBuffers::fill() const {
  std::size_t first = 0;
  for (const auto p : parts_) {
    const std::size_t count = p.size() / hvd::size_of(type_);
    fill_exact(type_, op_, rank_, size_, first, count, p.data());
    first += count;
  }
}

std::uint64_t GradientBuffers::wrong() const {
  std::uint64_t wrong = 0;
  std::size_t first = 0;
  for (const auto p : parts_) {
    const std::size_t count = p.size() / hvd::size_of(type_);
    wrong += wrong_results(type_, op_, size_, first, count, p.data());
    first += count;
  }
  return wrong;
}

PackBuffer::PackBuffer(erased_backend& backend, const job& work)
    : backend_(backend), capacity_(work.fusion_bytes / hvd::size_of(work.type) * hvd::size_of(work.type)),
      data_(static_cast<std::byte*>(
          backend.allocate(std::max(capacity_, hvd::size_of(work.type)), work.memory == buffers::shared))) {
  if (!work.check && capacity_ != 0) rewrite(work.type, work.op, backend.rank, 0, data_, capacity_);
}

void run_fused(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch) {
  using clock = std::chrono::steady_clock;
  const GradientBuffers gradients(work, backend.rank, backend.size);
  PackBuffer buffer(backend, work);
  // Gradients lie in private memory; a library that fuses by itself, by the algorithm of its choice, needs no more.
  const std::string_view algorithm = work.algorithm;
  const bool by_library = backend.fuse && work.fusion_bytes != 0 && work.memory == buffers::private_ &&
                          (algorithm.empty() || algorithm == "automatic");
  const auto step = [&] {
    if (by_library) return backend.fuse(work, gradients.parts());
    buffer.reduce_all(gradients.parts(), [&](std::byte* data, std::size_t bytes) {
      if (!backend.synchronises) stage.barrier(backend.rank, epoch);
      const std::size_t count = bytes / hvd::size_of(work.type);
      backend.run(backend.self, {collective::allreduce, work.type, work.op, 0, count, data, data});
      if (!backend.synchronises) stage.barrier(backend.rank, epoch);
    });
  };

  if (work.check) {
    std::uint64_t wrong = 0;
    for (std::uint32_t i = 0; i != work.iterations; ++i) {
      gradients.fill();
      stage.barrier(backend.rank, epoch);
      step();
      wrong += gradients.wrong();
    }
    stage.slot(backend.rank).wrong = wrong;
    return;
  }
  const auto start = clock::now();
  for (std::uint32_t i = 0; i != work.warmup + work.iterations; ++i) {
    if (i == 0 || work.state == mode::dirty) gradients.rewrite(i);
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
