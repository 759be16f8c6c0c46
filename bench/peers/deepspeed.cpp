// bench/peers/deepspeed.cpp: one rank of DeepSpeed's allreduce through shared memory, its own file
// (csrc/cpu/comm/shm.cpp) called as inference_all_reduce_ calls it, without Python and PyTorch around it, which cost it
// some microseconds more.
#include <torch/extension.h>

#include <comm/shm.h>

#include <bench/pages.hpp>
#include <bench/peers/launch.hpp>
#include <bench/worker.hpp>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace hvd::bench {
namespace {

class DeepSpeedBackend {
 public:
  explicit DeepSpeedBackend(place at) : rank_(at.rank), size_(at.size) {
    const char* const folder = std::getenv(scratch_variable);
    if (folder == nullptr) {
      throw std::runtime_error(std::string(scratch_variable) + " is not set; its name tells this job from others");
    }
    job_ = folder;
    for (char& letter : job_) {
      if (letter == '/') letter = '_';
    }
    std::string port = "0";
    shm_initialize(size_, rank_, job_.data(), port.data());
  }
  DeepSpeedBackend(const DeepSpeedBackend&) = delete;
  DeepSpeedBackend& operator=(const DeepSpeedBackend&) = delete;
  /// DeepSpeed leaves its files.
  ~DeepSpeedBackend() {
    const std::string file =
        "/deepspeed_allreduce_buffer_" + std::to_string(::getuid()) + "_" + job_ + "_0_" + std::to_string(rank_);
    ::shm_unlink(file.c_str());
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string describe() const {
    return "DeepSpeed " HVD_DEEPSPEED_VERSION " (shm.cpp)" + settings_text();
  }

  [[nodiscard]] std::string supports(const job& j) const {
    const bool known = j.type == dtype::float32 || j.type == dtype::float16 || j.type == dtype::bfloat16;
    const bool allreduce =
        j.kind == collective::allreduce || j.kind == collective::fused || j.kind == collective::engine;
    if (!allreduce) return "DeepSpeed has no " + std::string(name(j.kind)) + " through shared memory";
    if (!known || j.op != redop::sum) return "DeepSpeed sums floats, half and bfloat16 only";
    return {};
  }

  void prepare(const job&) {}
  void* allocate(std::size_t bytes, bool /*shared: it copies into memory of its own*/) {
    return pages_.allocate(bytes);
  }
  void release(void* memory) { pages_.release(memory); }

  void run(const call& c) {
    if (c.count == 0) return;
    const std::size_t bytes = c.count * size_of(c.type);
    if (c.in != c.out) std::memcpy(c.out, c.in, bytes);  // it works in place
    torch::Tensor tensor{c.out, c.type == dtype::float32   ? c10::ScalarType::Float
                                : c.type == dtype::float16 ? c10::ScalarType::Half
                                                           : c10::ScalarType::BFloat16};
    all_reduce_outer_loop(tensor, c.count, static_cast<int>(bytes));
  }

 private:
  int rank_;
  int size_;
  std::string job_;
  PageAllocator pages_;
};

}  // namespace
}  // namespace hvd::bench

int main() {
  return hvd::bench::worker_main([](hvd::bench::place at) { return hvd::bench::DeepSpeedBackend(at); });
}
