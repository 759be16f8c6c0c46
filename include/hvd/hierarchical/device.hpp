// hvd/hierarchical/device.hpp: local groups whose buffers lie on GPUs, for `Hierarchical`.
#pragma once

#include <hvd/cuda/device.hpp>
#include <hvd/hierarchical.hpp>
#include <hvd/transport/nccl.hpp>

#include <cstddef>
#include <memory>
#include <utility>

namespace hvd::inline HVD_ABI::detail {

template <>
struct level_memory<NcclTransport> {
  class scratch {
   public:
    explicit scratch(std::shared_ptr<std::byte> memory) : memory_(std::move(memory)) {}
    [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }

   private:
    std::shared_ptr<std::byte> memory_;
  };

  static scratch take(NcclTransport& local, std::size_t bytes) {
    return scratch(bytes == 0 ? nullptr : cuda_memory(local.group()->device(), bytes));
  }
  static void copy(NcclTransport& local, std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes == 0) return;
    const cuda_device& device = *local.group()->device();
    const cuda_device::scope current(device);
    const cuda_stream stream(device.driver());
    local.group()->copy_on_device(to, from, bytes, stream.get());
    device.driver().check(device.driver().stream_synchronize(stream.get()), "cuStreamSynchronize");
  }
};

}  // namespace hvd::inline HVD_ABI::detail
