// bench/cases/replay.cpp: replays backward passes, each schedule on the same gradients in the same order.
#include <bench/cases/replay.hpp>

#include <bench/cases/fused.hpp>
#include <bench/cases/gradients.hpp>
#include <bench/cases/inputs.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

namespace hvd::bench {
namespace {

using clock = std::chrono::steady_clock;

std::uint64_t ns(clock::duration d) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(d).count());
}

/// The backward pass as far as it has come.
class progress {
 public:
  progress(bool on_cpu, clock::time_point start) : on_cpu_(on_cpu), start_(start) {}
  /// Returns when the pass has done `seconds` of its work. An accelerator does it whether or not anybody waits; a CPU
  /// that does something else meanwhile, or is taken away, does it later.
  void until(double seconds) {
    if (!on_cpu_) {
      const auto when = std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
      std::this_thread::sleep_until(start_ + when);
      return;
    }
    for (const double end = cpu_seconds() + seconds - done_; cpu_seconds() < end;) {
    }
    done_ = seconds;
  }

 private:
  static double cpu_seconds() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  bool on_cpu_;
  clock::time_point start_;
  double done_ = 0;
};

class replayer {
 public:
  replayer(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch)
      : stage_(stage), backend_(backend), work_(work), epoch_(epoch), all_(gradients_in(work.parameters)),
        data_(work, backend.rank, backend.size) {
    if (work.passes.what == schedule::engine) engine_ = backend.named(work);
    if (work.passes.what == schedule::fused_after) buffer_.emplace(backend, work);
  }

  void measure() {
    const bool traced = engine_ != nullptr && work_.passes.timeline[0] != '\0';
    if (traced) engine_->start_timeline(work_.passes.timeline);
    const auto start = clock::now();
    for (std::uint32_t i = 0; i != work_.warmup + work_.iterations; ++i) {
      data_.rewrite(i);
      // Those that are timed are the same ones, whatever the warm-up.
      const std::uint64_t took = step(std::uint64_t{i} - work_.warmup);
      if (i >= work_.warmup) stage_.samples(backend_.rank)[i - work_.warmup] = took;
    }
    stage_.slot(backend_.rank).elapsed = ns(clock::now() - start);
    if (traced) engine_->stop_timeline();
  }

  [[nodiscard]] std::uint64_t wrong() {
    std::uint64_t wrong = 0;
    for (std::uint32_t i = 0; i != work_.iterations; ++i) {
      data_.fill();
      step(i);
      wrong += data_.wrong();
    }
    return wrong;
  }

 private:
  std::uint64_t step(std::uint64_t number) {
    const backward_pass pass = pass_of(all_, work_.passes, backend_.rank, number);
    stage_.barrier(backend_.rank, epoch_);
    const auto start = clock::now();
    progress backward(work_.passes.on_cpu, start);
    switch (work_.passes.what) {
      case schedule::engine:
        for (const auto& [g, seconds] : pass.arrivals) {
          backward.until(seconds);
          engine_->submit(all_[g].name, data_.parts()[g].data(), all_[g].shape);
        }
        engine_->wait();
        break;
      case schedule::each: {
        std::vector<bool> here(all_.size());
        std::size_t next = 0;
        for (const auto& [g, seconds] : pass.arrivals) {
          backward.until(seconds);
          here[g] = true;
          for (; next != all_.size() && here[next]; ++next) reduce(data_.parts()[next]);
        }
        break;
      }
      case schedule::each_after:
        backward.until(pass.seconds());
        for (const auto part : data_.parts()) reduce(part);
        break;
      default:
        backward.until(pass.seconds());
        buffer_->reduce_all(data_.parts(), [&](std::byte* data, std::size_t bytes) { reduce({data, bytes}); });
        break;
    }
    return ns(clock::now() - start);
  }

  void reduce(std::span<std::byte> part) {
    const std::size_t count = part.size() / hvd::size_of(work_.type);
    backend_.run(backend_.self, {collective::allreduce, work_.type, work_.op, 0, count, part.data(), part.data()});
  }

  const Stage& stage_;
  erased_backend& backend_;
  const job& work_;
  std::uint64_t& epoch_;
  std::vector<gradient> all_;
  GradientBuffers data_;
  std::unique_ptr<NamedReductions> engine_;  // ends before the memory
  std::optional<PackBuffer> buffer_;
};

constexpr std::size_t tiny_bytes = 8;

void measure_latency(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch) {
  alignas(tiny_bytes) std::byte data[tiny_bytes];
  const std::vector<std::size_t> shape{tiny_bytes / hvd::size_of(work.type)};
  const auto engine = backend.named(work);
  const auto begin = clock::now();
  for (std::uint32_t i = 0; i != work.warmup + work.iterations; ++i) {
    rewrite(work.type, work.op, backend.rank, i, data, sizeof data);
    stage.barrier(backend.rank, epoch);
    const auto start = clock::now();
    engine->run("latency", data, shape);
    const auto end = clock::now();
    if (i >= work.warmup) stage.samples(backend.rank)[i - work.warmup] = ns(end - start);
  }
  stage.slot(backend.rank).elapsed = ns(clock::now() - begin);
}

/// CPU and wake-ups of all ranks together, over `idle_seconds`, of an engine that has worked before.
void measure_idle(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch) {
  alignas(tiny_bytes) std::byte data[tiny_bytes];
  rewrite(work.type, work.op, backend.rank, 0, data, sizeof data);
  const auto engine = backend.named(work);
  engine->submit("before", data, {tiny_bytes / hvd::size_of(work.type)});
  engine->wait();
  const auto used = [] {
    struct rusage u {};
    ::getrusage(RUSAGE_SELF, &u);
    const auto us = [](const timeval& t) { return std::uint64_t(t.tv_sec) * 1'000'000 + std::uint64_t(t.tv_usec); };
    return std::pair{(us(u.ru_utime) + us(u.ru_stime)) * 1000, static_cast<std::uint64_t>(u.ru_nvcsw) * 1000};
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // spinning threads have gone to sleep
  stage.barrier(backend.rank, epoch);
  std::uint64_t* const mine = stage.samples(backend.rank);
  const auto before = used();
  std::this_thread::sleep_for(std::chrono::duration<double>(work.passes.idle_seconds));
  const auto after = used();
  // This thread itself woke once, at the end of its sleep.
  mine[2] = after.first - before.first;
  mine[3] = after.second - before.second;
  stage.barrier(backend.rank, epoch);
  std::set<int> processes;
  std::uint64_t cpu = 0, woken = 0;
  for (int r = 0; r != stage.ranks(); ++r) {
    if (!processes.insert(stage.slot(r).pid.load()).second) continue;  // ranks may be threads
    cpu += stage.samples(r)[2];
    woken += stage.samples(r)[3];
  }
  const std::uint64_t threads = static_cast<std::uint64_t>(stage.ranks()) * 1000;
  stage.barrier(backend.rank, epoch);
  mine[0] = cpu;
  mine[1] = woken - std::min(woken, threads);
}

}  // namespace

void run_replay(const Stage& stage, erased_backend& backend, const job& work, std::uint64_t& epoch) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // an accelerator is punctual; the default is 50 us late
  if (work.passes.what == schedule::latency) return measure_latency(stage, backend, work, epoch);
  if (work.passes.what == schedule::idle) return measure_idle(stage, backend, work, epoch);
  replayer one(stage, backend, work, epoch);
  if (work.check) {
    stage.slot(backend.rank).wrong = one.wrong();
  } else {
    one.measure();
  }
}

}  // namespace hvd::bench
