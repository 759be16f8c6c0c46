// hvd/transport/nccl/launch.hpp: collectives that NCCL launches together, with the scaling before and after them.
#pragma once

#include <hvd/call.hpp>
#include <hvd/cuda/copy.hpp>
#include <hvd/cuda/device.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/transport/nccl/collectives.hpp>
#include <hvd/transport/nccl/communicator.hpp>
#include <hvd/transport/nccl/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// Calls that NCCL launches together on a stream. Use: construct, `add` calls, `close`. Within a scope of the device.
/// If a call is refused after another one was added, the communicator is finished: other ranks may wait for both.
class nccl_launch {
 public:
  nccl_launch(nccl_communicator& comm, cuda_copies& copies, nccl_scratch& scratch, cu_stream stream,
              std::string_view what)
      : comm_(comm), copies_(copies), scratch_(scratch), stream_(stream), what_(what) {}
  nccl_launch(const nccl_launch&) = delete;
  nccl_launch& operator=(const nccl_launch&) = delete;

  /// Errors: invalid_argument (memory of the host, or of another device), unsupported, and those of the communicator.
  template <class Call>
    requires requires(nccl_group_call& g, const Call& c) { g.add(c); }
  void add(const Call& c) {
    check_buffers(c);
    if constexpr (requires { c.send; }) {
      if (c.in == c.out && c.in != nullptr) {  // NCCL has no version in place
        const std::size_t bytes = c.send.total_bytes();
        std::byte* const copy = take(bytes);
        const cuda_driver& driver = comm_.device()->driver();
        driver.check(driver.copy_on_device(to_device(copy), to_device(c.in), bytes, stream_), "cuMemcpyDtoDAsync");
        return calls().add(Call{copy, c.out, c.send, c.recv});
      }
    }
    calls().add(c);
  }
  template <Reducing Call>
    requires requires(nccl_group_call& g, const Call& c, const nccl_reduction& r) { g.add(c, r); }
  void add(const Call& c) {
    nccl_reduction r = nccl_reduction_of(c.op, comm_.size(), comm_.options().average, Call::kind);
    check_buffers(c);
    Call call = c;
    if (r.rest.prescales()) {
      const std::size_t bytes = input_bytes(c, comm_.rank());
      std::byte* const scaled = take(bytes);
      scale(scaled, c.in, bytes, c.op, r.rest.pre, 1);
      call.in = scaled;
    }
    if (r.multiplies) r.op = calls().multiply(c.op.type, r.type);
    calls().add(call, r);
    const std::size_t written = output_bytes(c, comm_.rank());
    if (r.rest.postscales() && written != 0) after_.push_back({c.out, written, c.op, r.rest});
  }
  /// The thread waits while NCCL has to be polled: long when it first connects, and after every call in some versions.
  void close() {
    if (calls_) {
      if (!comm_.abort_if_lost([&] { return calls_->close(); })) comm_.await_ready(what_, comm_.options().timeout);
      calls_.reset();
    }
    for (const output& o : after_) scale(o.data, o.data, o.bytes, o.op, o.rest.post, o.rest.divisor);
    for (const auto& memory : taken_) scratch_.give_back(memory, stream_);
  }

 private:
  /// A result that is scaled afterwards.
  struct output {
    std::byte* data;
    std::size_t bytes;
    reduction op;
    scaling rest;
  };

  template <class Call>
  void check_buffers(const Call& c) const {
    const auto check = [&](const char* what, const void* address, std::size_t bytes) {
      check_device_memory(*comm_.device(), name(Call::kind), comm_.label(), what, address, bytes);
    };
    check("input", c.in, input_bytes(c, comm_.rank()));
    check("output", c.out, output_bytes(c, comm_.rank()));
    comm_.usable();
  }
  nccl_group_call& calls() {
    if (!calls_) calls_.emplace(comm_, stream_, what_);
    return *calls_;
  }
  std::byte* take(std::size_t bytes) { return taken_.emplace_back(scratch_.take(bytes)).get(); }
  /// out[i] = in[i] * factor / divisor.
  void scale(std::byte* out, const std::byte* in, std::size_t bytes, const reduction& op, double factor,
             std::uint32_t divisor) {
    const device_part all{in, out, bytes / op.element_bytes};
    copies_(std::span(&all, 1), op.type, op.type, factor, divisor, stream_);
  }

  nccl_communicator& comm_;
  cuda_copies& copies_;
  nccl_scratch& scratch_;
  cu_stream stream_;
  std::string_view what_;
  std::optional<nccl_group_call> calls_;
  std::vector<output> after_;
  std::vector<std::shared_ptr<std::byte>> taken_;
};

}  // namespace hvd::inline HVD_ABI::detail
