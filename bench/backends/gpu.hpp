// bench/backends/gpu.hpp: a rank's GPU: its buffers, its stream, its name, and how several ranks share one.
#pragma once

#include <bench/backend.hpp>

#include <hvd/cuda/device.hpp>
#include <hvd/error.hpp>
#include <hvd/transport/nccl/meet.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace hvd::bench {

/// Which GPU a rank of this host uses: consecutive ranks share one. A process that sees one GPU uses that; ranks that
/// should have different ones get an error when they meet.
inline int gpu_of(int rank, int ranks_per_gpu) {
  int count = 0;
  const detail::cuda_driver& driver = detail::get_cuda();
  driver.check(driver.device_count(&count), "cuDeviceGetCount");
  return count == 1 ? 0 : rank / ranks_per_gpu;
}

/// Before the first call of NCCL: which GPU a rank uses, and that others may use it, too. hvd itself lets them from
/// NCCL 2.30 on; an older one refuses a GPU that two ranks of a host have, so each rank calls itself a host, and they
/// talk over the loopback device.
inline nccl_options take_gpu(int rank, int ranks_per_gpu) {
  nccl_options o = nccl_options::from_environment();
  o.ranks_per_device = ranks_per_gpu;
  if (ranks_per_gpu != 1) {
    detail::get_nccl();
    if (detail::nccl_search::result().version < 23000) {
      const auto set = [](const char* variable, const std::string& value) { ::setenv(variable, value.c_str(), 0); };
      set("NCCL_HOSTID", "hvd-" + std::to_string(rank));
      set("NCCL_SOCKET_IFNAME", "lo");
      set("NCCL_IB_DISABLE", "1");
      set("NCCL_MNNVL_ENABLE", "0");
      set("NCCL_MAX_CTAS", "2");
      set("NCCL_NVLS_ENABLE", "0");
    }
    detail::allow_sharing(o);  // as a transport does, for calls without one
  }
  o.device = gpu_of(rank, ranks_per_gpu);
  return o;
}

/// "13.0" for 13000.
inline std::string driver_version() {
  int version = 0;
  const detail::cuda_driver& driver = detail::get_cuda();
  driver.check(driver.driver_version(&version), "cuDriverGetVersion");
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

/// A GPU, current for the calling thread, with a stream.
class Gpu {
 public:
  explicit Gpu(std::shared_ptr<detail::cuda_device> device)
      : device_(std::move(device)), current_(*device_), stream_(driver()) {
    std::array<char, 128> text{};
    driver().check(driver().device_name(text.data(), static_cast<int>(text.size()) - 1, device_->ordinal()),
                   "cuDeviceGetName");
    name_ = text.data();
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    driver().stream_synchronize(stream());
    blocks_.clear();
  }

  [[nodiscard]] const detail::cuda_driver& driver() const noexcept { return device_->driver(); }
  [[nodiscard]] detail::cu_stream stream() const noexcept { return stream_.get(); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Whether it is a stand-in for a GPU: its times mean nothing.
  [[nodiscard]] bool stands_in() const { return name_.find("stand-in") != std::string::npos; }
  /// Its line in a table: driver, NCCL, and whether it is a stand-in.
  [[nodiscard]] std::string versions() const {
    const std::string& file = detail::nccl_search::result().library;
    return "NCCL " + detail::nccl_version_text(detail::nccl_search::result().version) + " (" +
           file.substr(file.rfind('/') + 1) + "); CUDA driver " + driver_version() +
           (stands_in() ? "; a STAND-IN, whose times say nothing about a GPU" : "");
  }

  [[nodiscard]] void* allocate(std::size_t bytes) { return keep(detail::cuda_memory(device_, bytes)); }
  /// Takes memory of this GPU that `release` is to free.
  [[nodiscard]] void* keep(std::shared_ptr<std::byte> memory) {
    void* const data = memory.get();
    blocks_.emplace(data, std::move(memory));
    return data;
  }
  void release(void* data) { blocks_.erase(data); }

  void upload(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    driver().check(driver().copy_to_device(detail::to_device(to), from, bytes, stream()), "cuMemcpyHtoDAsync");
    finish();
  }
  void download(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    driver().check(driver().copy_to_host(to, detail::to_device(from), bytes, stream()), "cuMemcpyDtoHAsync");
    finish();
  }
  void finish() const { driver().check(driver().stream_synchronize(stream()), "cuStreamSynchronize"); }

  /// For a backend.
  [[nodiscard]] device_buffers buffers() {
    device_buffers d;
    d.name = "[" + pci() + "] " + name_;
    d.ordinal = device_->ordinal();
    d.upload = [this](void* to, const void* from, std::size_t bytes) { upload(to, from, bytes); };
    d.download = [this](void* to, const void* from, std::size_t bytes) { download(to, from, bytes); };
    d.finish = [this] { finish(); };
    return d;
  }

 private:
  /// "0000:17:00", as nccl-tests prints it.
  [[nodiscard]] std::string pci() const {
    std::array<char, 64> text{};
    driver().check(driver().device_pci(text.data(), static_cast<int>(text.size()), device_->ordinal()),
                   "cuDeviceGetPCIBusId");
    const std::string all = text.data();
    return all.substr(0, all.rfind('.'));
  }

  std::shared_ptr<detail::cuda_device> device_;
  detail::cuda_device::scope current_;
  detail::cuda_stream stream_;
  std::string name_;
  std::map<void*, std::shared_ptr<std::byte>> blocks_;
};

}  // namespace hvd::bench
