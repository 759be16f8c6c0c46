// bench/gpu/facts.cpp: times and sizes of the driver and of NCCL on which decisions of hvd depend.
#include <bench/gpu/measure.hpp>

#include <hvd/cuda/copy.hpp>
#include <hvd/transport/nccl/library.hpp>

#include <atomic>
#include <cstdio>
#include <stdexcept>

namespace hvd::bench {
namespace {

using detail::device_part;

template <class F>
F* symbol(const char* library, const char* name) {
  void* const open = ::dlopen(library, RTLD_NOW | RTLD_LOCAL);
  return open == nullptr ? nullptr : reinterpret_cast<F*>(::dlsym(open, name));
}

template <class F>
void row(const char* what, int times, const F& f) {
  std::vector<double> taken;
  for (int i = 0; i != times; ++i) {
    const auto start = bench_clock::now();
    f();
    taken.push_back(us_since(start));
  }
  std::printf("| %s, us | %.2f | %.2f |\n", what, taken.front(), median(taken));
  std::fflush(stdout);
}

}  // namespace

int measure_facts(const gpu_settings& /*s*/) {
  const auto device = std::make_shared<detail::cuda_device>(0);
  Gpu gpu(device);
  const detail::cuda_driver& driver = gpu.driver();
  const detail::nccl_library& nccl = detail::get_nccl();
  print_gpu(gpu);
  std::printf("| what | first | median |\n|---|--:|--:|\n");

  row("hvd's kernels compiled and loaded (without the driver's cache if CUDA_CACHE_DISABLE=1)", 3,
      [&] { const detail::cuda_copies copies(driver); });
  detail::cuda_copies copies(driver);
  std::byte* const memory = static_cast<std::byte*>(gpu.allocate(1 << 20));
  for (const std::size_t parts : {std::size_t{3}, std::size_t{1000}}) {
    const std::vector<device_part> list(parts, device_part{memory, memory + (1 << 19), 16});
    const auto launch = [&] { copies(list, dtype::float32, dtype::float32, 0.5, 1, gpu.stream()); };
    row(parts == 3 ? "a launch of 3 parts" : "a launch of 1000 parts", 200, launch);
    gpu.finish();
  }
  for (const auto& [what, bytes] : {std::pair("1 MiB", std::size_t{1} << 20), {"256 MiB", std::size_t{256} << 20}}) {
    detail::cu_pointer at = 0;
    row((std::string("cuMemAlloc of ") + what).c_str(), 1,
        [&] { driver.check(driver.alloc(&at, bytes), "cuMemAlloc"); });
    row((std::string("cuMemFree of ") + what).c_str(), 1, [&] { driver.check(driver.free(at), "cuMemFree"); });
  }
  detail::cu_event event = nullptr;
  driver.check(driver.event_create(&event, detail::cu_event_disable_timing), "cuEventCreate");
  row("cuEventRecord", 200, [&] { driver.check(driver.event_record(event, gpu.stream()), "cuEventRecord"); });
  gpu.finish();
  row("cuEventQuery of one that has passed", 200, [&] { driver.check(driver.event_query(event), "cuEventQuery"); });
  std::atomic<int> held{0};
  driver.check(driver.call_host(
                   gpu.stream(), [](void* now) { static_cast<std::atomic<int>*>(now)->wait(0); }, &held),
               "cuLaunchHostFunc");
  driver.check(driver.event_record(event, gpu.stream()), "cuEventRecord");
  row("cuEventQuery of one that is pending", 200, [&] { driver.event_query(event); });
  held = 1;
  held.notify_all();
  gpu.finish();
  driver.event_destroy(event);
  row("the context made current, and back", 200, [&] { const detail::cuda_device::scope current(*device); });
  unsigned value = 0;
  row("cuPointerGetAttribute", 200, [&] {
    const auto at = detail::to_device(memory);
    driver.check(driver.pointer_attribute(&value, detail::cu_pointer_memory_type, at), "cuPointerGetAttribute");
  });
  void* word = nullptr;
  driver.check(driver.alloc_host(&word, 64, 0), "cuMemHostAlloc");
  const char* const library = std::getenv("HVD_CUDA_LIBRARY");
  if (auto* const write = symbol<int(detail::cu_stream, std::uint64_t, std::uint32_t, unsigned)>(
          library != nullptr ? library : "libcuda.so.1", "cuStreamWriteValue32_v2")) {
    const auto once = [&] {
      if (write(gpu.stream(), reinterpret_cast<std::uint64_t>(word), 7, 0) != 0) {
        throw std::runtime_error("cuStreamWriteValue32 to pinned memory is refused");
      }
    };
    row("cuStreamWriteValue32 to pinned memory", 200, once);
    gpu.finish();
    std::printf("| the word after that | %u | |\n", *static_cast<volatile std::uint32_t*>(word));
  }
  driver.free_host(word);

  if (nccl.alloc == nullptr) return 0;
  for (const std::size_t bytes : {std::size_t{1}, (std::size_t{3} << 20) + 1, (std::size_t{100} << 20) + 1}) {
    std::size_t before = 0, after = 0, total = 0;
    driver.check(driver.memory_info(&before, &total), "cuMemGetInfo");
    void* at = nullptr;
    const auto start = bench_clock::now();
    if (nccl.alloc(&at, bytes) != detail::nccl_success) throw std::runtime_error("ncclMemAlloc has failed");
    const double us = us_since(start);
    driver.check(driver.memory_info(&after, &total), "cuMemGetInfo");
    std::printf("| ncclMemAlloc of %zu bytes: takes KiB, us | %zu | %.2f |\n", bytes, (before - after) >> 10, us);
    nccl.free(at);
  }
  return 0;
}

}  // namespace hvd::bench
