// bench/peers/deepspeed.cpp: one rank of DeepSpeed's allreduce through shared memory, its own file
// (csrc/cpu/comm/shm.cpp) called as inference_all_reduce_ calls it, without Python and PyTorch around it, which cost it
// some microseconds more.
#include <torch/extension.h>

#include <comm/shm.h>

#include <bench/peers/settings.hpp>
#include <bench/rank/pages.hpp>
#include <bench/rank/worker.hpp>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include <sys/mman.h>
#include <sys/statvfs.h>
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
    // DeepSpeed does not look whether its files have memory.
    struct statvfs fs {};
    if (::statvfs("/dev/shm", &fs) == 0 && fs.f_bavail * fs.f_frsize < static_cast<std::size_t>(size_) * file_bytes) {
      throw std::runtime_error("DeepSpeed needs " + std::to_string(file_bytes >> 20) +
                               " MiB in /dev/shm for each rank");
    }
    std::string port = "0";
    shm_initialize(size_, rank_, job_.data(), port.data());
  }
  DeepSpeedBackend(const DeepSpeedBackend&) = delete;
  DeepSpeedBackend& operator=(const DeepSpeedBackend&) = delete;
  ~DeepSpeedBackend() { remove_file(); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string describe() const {
    return "DeepSpeed " HVD_DEEPSPEED_VERSION " (shm.cpp)" + settings_text();
  }

  /// Checks the CPU at run time, as DeepSpeed's Python package does.
  [[nodiscard]] std::string supports(const job& j) const {
    const bool runs = j.type == dtype::float32 ? __builtin_cpu_supports("avx2") : __builtin_cpu_supports("avx512bw");
    const bool known = j.type == dtype::float32 || j.type == dtype::float16 || j.type == dtype::bfloat16;
    const bool allreduce = j.kind == collective::allreduce || has_model(j.kind);
    if (!allreduce) return "DeepSpeed has no " + std::string(name(j.kind)) + " through shared memory";
    if (!known || j.op != redop::sum) return "DeepSpeed sums floats, half and bfloat16 only";
    if (!runs) return "DeepSpeed's kernels need AVX2 for float and AVX-512 for half and bfloat16";
    if (j.kind == collective::allreduce && j.count * size_of(j.type) > most_bytes)
      return "DeepSpeed counts bytes in int";
    return {};
  }

  /// All ranks have opened the files by then.
  void prepare(const job&) { remove_file(); }
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
  static constexpr std::size_t file_bytes = std::size_t{67} << 20;
  static constexpr std::size_t most_bytes = INT_MAX - (std::size_t{32} << 20);  // it adds its chunk of 32 MiB

  /// DeepSpeed leaves its files.
  void remove_file() const {
    const std::string file =
        "/deepspeed_allreduce_buffer_" + std::to_string(::getuid()) + "_" + job_ + "_0_" + std::to_string(rank_);
    ::shm_unlink(file.c_str());
  }

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
