// bench/gpu/submit.cpp: the host's cost of an engine with tensors on GPUs: from the first submission until all of the
// work is queued on the GPU, when a trainer goes on.
#include <bench/gpu/measure.hpp>

#include <hvd/broadcast.hpp>
#include <hvd/engine.hpp>
#include <hvd/engine/nccl.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport/nccl.hpp>

#include <atomic>
#include <cstdio>
#include <stdexcept>

namespace hvd::bench {
namespace {

/// The measured times do not depend on the length of gradients.
std::vector<tensor_group> steps(bool stands_in) {
  return {{"1 tensor of 4 KiB", {1024}},
          {"1 tensor of 1 MiB", {1 << 18}},
          {"100 tensors of 4 KiB", std::vector<std::size_t>(100, 1024)},
          {stands_in ? "161 tensors of up to 16 KiB" : "161 gradients of ResNet-50", resnet50_counts(stands_in)}};
}

class submitter {
 public:
  submitter(Engine<ShmTransport, NcclTransport>& engine, Gpu& gpu, int device, const tensor_group& s)
      : engine_(engine), gpu_(gpu), device_(device), step_(s) {
    for (std::size_t t = 0; t != s.counts.size(); ++t) {
      const std::vector<float> mine(s.counts[t], static_cast<float>(engine.rank() + 1));
      memory_.push_back(static_cast<std::byte*>(gpu.allocate(mine.size() * sizeof(float))));
      gpu.upload(memory_.back(), mine.data(), mine.size() * sizeof(float));
      names_.push_back(s.name + "/" + std::to_string(t));
    }
    gpu.driver().check(gpu.driver().event_create(&ready_, detail::cu_event_disable_timing), "cuEventCreate");
  }
  submitter(const submitter&) = delete;
  submitter& operator=(const submitter&) = delete;
  ~submitter() {
    for (std::byte* const p : memory_) gpu_.release(p);
    gpu_.driver().event_destroy(ready_);
  }

  /// All tensors in one operation: no step needs a larger buffer.
  void run_together() {
    gpu_.driver().check(gpu_.driver().event_record(ready_, gpu_.stream()), "cuEventRecord");
    request r = asked(step_.name);
    for (std::size_t i = 0; i != memory_.size(); ++i) r.tensors.push_back(tensor_of(i));
    engine_.submit(std::move(r)).wait();
  }

  struct times {
    double submitted = 0, queued = 0;  ///< us from the start of a step
  };
  /// The tensors become ready when all is queued: what the GPU does with them must not take the host's time, which that
  /// of a stand-in would.
  times run() {
    ready_now_ = 0;
    gpu_.driver().check(
        gpu_.driver().call_host(
            gpu_.stream(), [](void* now) { static_cast<std::atomic<int>*>(now)->wait(0); }, &ready_now_),
        "cuLaunchHostFunc");
    gpu_.driver().check(gpu_.driver().event_record(ready_, gpu_.stream()), "cuEventRecord");
    handles_.clear();
    times t;
    const auto start = bench_clock::now();
    for (std::size_t i = 0; i != memory_.size(); ++i) {
      request r = asked(names_[i]);
      r.tensors.push_back(tensor_of(i));
      handles_.push_back(engine_.submit(std::move(r)));
    }
    t.submitted = us_since(start);
    for (const handle& h : handles_) h.wait_queued();
    t.queued = us_since(start);
    ready_now_ = 1;
    ready_now_.notify_all();
    for (const handle& h : handles_) h.wait();
    return t;
  }
  /// Elements that are not the average of 1, 2, ...
  [[nodiscard]] std::size_t wrong() const {
    std::size_t count = 0;
    const float want = static_cast<float>(engine_.size() + 1) / 2;
    for (std::size_t t = 0; t != memory_.size(); ++t) {
      std::vector<float> got(step_.counts[t]);
      gpu_.download(got.data(), memory_[t], got.size() * sizeof(float));
      for (const float x : got) count += x != want;
    }
    return count;
  }

 private:
  [[nodiscard]] static request asked(const std::string& name) {
    request r;
    r.kind = operation::allreduce;
    r.name = name;
    r.op = reduce_op::average;
    return r;
  }
  [[nodiscard]] tensor tensor_of(std::size_t i) const {
    tensor x;
    x.in = x.out = memory_[i];
    x.shape = {step_.counts[i]};
    x.memory = {memory_kind::device, device_, ready_};
    return x;
  }

  Engine<ShmTransport, NcclTransport>& engine_;
  Gpu& gpu_;
  int device_;
  const tensor_group& step_;
  std::vector<std::byte*> memory_;
  std::vector<std::string> names_;
  std::vector<handle> handles_;
  detail::cu_event ready_ = nullptr;
  std::atomic<int> ready_now_{1};
};

void rank_of(ShmTransport& control, const gpu_settings& s) {
  NcclTransport comm(control, take_gpu(control.rank(), s.ranks_per_gpu));
  const int device = comm.device();
  Gpu gpu(comm.group()->device());
  const bool speaks = control.rank() == 0;
  if (speaks) {
    print_gpu(gpu);
    std::printf(
        "%d rank(s), averages of float32, us a tensor: until it is submitted, and until all is queued on the GPU "
        "(wait_queued)\n\n"
        "| a step | submitted | queued | host waits for the GPU |\n|---|--:|--:|--:|\n",
        control.size());
  }
  Engine<ShmTransport, NcclTransport> engine(control, std::move(comm));
  std::size_t wrong = 0;
  for (const tensor_group& what : steps(gpu.stands_in())) {
    submitter one(engine, gpu, device, what);
    for (int i = 0; i != 4; ++i) one.run_together();  // both of the engine's buffers grow
    for (int i = 0; i != 6; ++i) one.run();           // names become known, and kernels are loaded
    control.barrier();
    const auto start = bench_clock::now();
    one.run();
    int rounds = static_cast<int>(std::clamp(s.seconds * 1e6 / us_since(start), 5.0, 2001.0));
    hvd::broadcast(control, std::span(&rounds, 1));
    const std::int64_t before = host_synchronisations();
    std::vector<double> submitted, queued;
    for (int i = 0; i != rounds; ++i) {
      control.barrier();
      const submitter::times t = one.run();
      const auto each = static_cast<double>(what.counts.size());
      submitted.push_back(t.submitted / each);
      queued.push_back(t.queued / each);
    }
    const std::int64_t waits = host_synchronisations() - before;
    wrong += one.wrong();
    if (!speaks) continue;
    std::printf("| %s | %.2f | %.2f | %s |\n", what.name.c_str(), median(submitted), median(queued),
                before < 0 ? "not counted"
                           : (std::to_string(waits) + " in " + std::to_string(rounds) + " steps").c_str());
    std::fflush(stdout);
  }
  engine.shutdown();
  if (wrong != 0) throw std::runtime_error(std::to_string(wrong) + " elements are wrong");
}

}  // namespace

int measure_submit(const gpu_settings& s) {
  return fork_run(s.ranks, [&](ShmTransport& control) { rank_of(control, s); });
}

}  // namespace hvd::bench
