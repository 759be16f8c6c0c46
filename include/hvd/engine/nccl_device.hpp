// hvd/engine/nccl_device.hpp: an NcclTransport as the device of an engine.
#pragma once

#include <hvd/cuda/results.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/engine/device.hpp>
#include <hvd/engine/execute.hpp>
#include <hvd/engine/plan.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/error.hpp>
#include <hvd/fusion/device.hpp>
#include <hvd/transport/nccl.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

namespace detail {

/// Turns works into batches of hvd/fusion/device.hpp. The `ready` of a tensor is an event of CUDA, or null.
class nccl_device {
 public:
  static constexpr std::string_view timeline_name = NcclTransport::timeline_name;
  static constexpr bool converts = true;
  using pending = std::shared_ptr<device_batch>;

  explicit nccl_device(const NcclTransport& transport) : nccl_device(transport.group()) {}
  explicit nccl_device(std::shared_ptr<nccl_group> group)
      : batches_(std::make_unique<device_batches>(std::move(group))),
        results_(std::make_shared<cuda_results>(batches_->group().device())) {
    batches_->group().communicator().share();  // the program may drop memory of the transport
  }

  [[nodiscard]] int index() const noexcept { return group().device()->ordinal(); }

  /// Throws invalid_argument for addresses of other devices, and for events in a CUDA graph, on the rank that submits
  /// them; any thread.
  void check_request(const request& r) const { check_request(*group().device(), r); }
  static void check_request(const cuda_device& device, const request& r) {
    const cuda_device::scope current(device);
    const std::string label = joined({"GPU ", device.ordinal(), ", tensor \"", r.name, "\""});
    for (const tensor& t : r.tensors) {
      const bool empty = std::find(t.shape.begin(), t.shape.end(), std::size_t{0}) != t.shape.end();
      check_device_memory(device, name(r.kind), label, "input", t.in, empty ? 0 : 1);
      if (t.out != nullptr) check_device_memory(device, name(r.kind), label, "output", t.out, empty ? 0 : 1);
      if (t.memory.ready != nullptr && device.driver().event_query(t.memory.ready) == cu_captured_event) {
        fail(error_kind::invalid_argument,
             {name(r.kind), " on ", label, ": its event was recorded in a stream that is being captured into a CUDA ",
              "graph, and collectives in CUDA graphs are not supported; submit it outside of the capture"});
      }
    }
  }

  /// Takes a place for the next batch in the order of all groups on the GPU.
  void order(const largest_number& largest) { batches_->order(largest); }
  pending start(std::span<const work> works, const received_rows& rows) {
    const cuda_device::scope current(*group().device());
    pending batch;
    try {
      batch = batch_of(works, rows);
    } catch (const error& e) {
      batches_->withdraw();
      // NCCL supports a call on all ranks or on none, but memory may be missing on this rank alone.
      if (e.kind() == error_kind::unsupported) throw;
      throw batches_->lose(e);
    }
    std::vector<completion*> ends;
    for (std::shared_ptr<void>& event : free_) {
      batch->ready.push_back(event.get());
      batch->kept.push_back(std::move(event));
    }
    free_.clear();
    for (const work& w : works) {
      if (w.mine == nullptr) continue;
      for (const tensor& t : w.mine->tensors) {
        // Tensors that are ready together often share one event.
        if (t.memory.ready != nullptr &&
            std::find(batch->ready.begin(), batch->ready.end(), t.memory.ready) == batch->ready.end()) {
          batch->ready.push_back(t.memory.ready);
        }
      }
      ends.push_back(w.end);
    }
    if (std::any_of(ends.begin(), ends.end(), [](const completion* end) { return end->timed; })) {
      batch->took = [ends](std::chrono::nanoseconds time) {
        for (completion* const end : ends) end->device_time = time;
      };
    }
    batch->queued = [ends = std::move(ends)](const std::shared_ptr<void>& event) {
      for (completion* const end : ends) end->queue(event);
    };
    batches_->start(batch);
    return batch;
  }
  bool poll(pending& batch) { return batches_->poll(*batch); }
  void check() { batches_->check(); }
  void interrupt() noexcept { group().communicator().interrupt(); }
  bool abort() noexcept {
    const bool over = batches_->abort();
    if (!over) keep_for_ever(results_);
    return over;
  }
  nccl_device split(int color, int key) { return nccl_device(group().split(color, key)); }
  nccl_device split(int color, int key, const largest_number& largest) {
    return batches_->in_order(largest, [&] { return split(color, key); });
  }

  /// Memory for tensors, registered with NCCL; collective. Symmetric, because ranks compare places in it.
  [[nodiscard]] std::shared_ptr<std::byte> bucket(std::size_t bytes, const largest_number& largest) {
    return batches_->in_order(largest, [&] { return group().allocate(bytes, 1, nccl_window_symmetric); });
  }
  /// See signature::place.
  [[nodiscard]] std::uint64_t place_of(const request& r) const {
    std::uint64_t all = text_hash({});
    bool any = false;
    for (const tensor& t : r.tensors) {
      for (const std::byte* const at : {t.in, static_cast<const std::byte*>(t.out)}) {
        const auto found = group().communicator().windows().find(at);
        any = any || found;
        const nccl_windows::place p = found.value_or(nccl_windows::place{});
        all = text_hash({reinterpret_cast<const char*>(&p), sizeof p}, all);
      }
    }
    return any ? all | 1 : 0;
  }

  /// For operations that only the host supports: copies the elements of a tensor to the host once it is ready, and
  /// back. Both wait for the GPU.
  std::vector<std::byte> fetch(const tensor& t, std::size_t bytes) {
    std::vector<std::byte> copy(bytes);
    transfer(t.memory.ready, [&](const cuda_driver& driver, cu_stream stream) {
      if (bytes != 0)
        driver.check(driver.copy_to_host(copy.data(), to_device(t.in), bytes, stream), "cuMemcpyDtoHAsync");
    });
    return copy;
  }
  void store(const tensor& t, result& r, std::span<const std::byte> from) {
    std::byte* to = t.out;
    std::shared_ptr<void> after;
    if (to == nullptr) {
      r.data = results_->take(from.size(), after);
      to = r.data.get();
    } else {
      r.data = nullptr;
    }
    transfer(after.get(), [&](const cuda_driver& driver, cu_stream stream) {
      if (!from.empty()) {
        driver.check(driver.copy_to_device(to_device(to), from.data(), from.size(), stream), "cuMemcpyHtoDAsync");
      }
    });
  }

 private:
  [[nodiscard]] nccl_group& group() const noexcept { return batches_->group(); }

  template <class F>
  void transfer(void* ready, const F& f) {
    const cuda_device::scope current(*group().device());
    const cuda_driver& driver = group().driver();
    const cuda_stream stream(driver);
    group().await_event(stream.get(), ready);
    f(driver, stream.get());
    driver.check(driver.stream_synchronize(stream.get()), "cuStreamSynchronize");
  }

  /// Memory of tensors that NCCL must not get, because it is registered and other ranks' memory is not: copies that it
  /// gets instead.
  struct substitutes {
    device_copy in{dtype::uint8, dtype::uint8}, out{dtype::uint8, dtype::uint8};
    std::vector<std::shared_ptr<void>> memory{};
  };
  const std::byte* read_from(substitutes& others, const work& w, const std::byte* at, std::size_t bytes) {
    if (w.alike || !group().communicator().windows().find(at)) return at;
    const auto memory = cuda_memory(group().device(), bytes);
    others.memory.push_back(memory);
    others.in.parts.push_back({at, memory.get(), bytes});
    return memory.get();
  }
  std::byte* write_to(substitutes& others, const work& w, std::byte* at, std::size_t bytes) {
    if (w.alike || !group().communicator().windows().find(at)) return at;
    const auto memory = cuda_memory(group().device(), bytes);
    others.memory.push_back(memory);
    others.out.parts.push_back({memory.get(), at, bytes});
    return memory.get();
  }

  pending batch_of(std::span<const work> works, const received_rows& rows) {
    const signature& common = works.front().what;
    layout all;
    lay_out(all, works, rows, group().rank(), group().size(), [&](std::size_t bytes) {
      std::shared_ptr<void> after;
      auto memory = results_->take(bytes, after);
      if (after) free_.push_back(std::move(after));
      return memory;
    });
    std::vector<fused>& tensors = all.tensors;
    std::vector<bool> alike;
    for (const work& w : works) alike.insert(alike.end(), w.what.types.size(), w.alike);
    substitutes others;
    if (!has_op(common.kind)) {  // reductions take care of it themselves
      std::size_t index = 0;
      for (const work& w : works) {
        for (std::size_t t = 0; t != w.what.types.size(); ++t, ++index) {
          fused& f = tensors[index];
          const std::size_t row = w.what.row_elements(t), unit = size_of(f.type);
          const bool even = all.counts.empty();  // a broadcast
          const std::size_t in = even ? f.count : w.mine->tensors[t].shape.front() * row;
          const std::size_t out = even ? f.count : sum_of(all.counts[index], all.counts[index].size());
          f.in = read_from(others, w, f.in, in * unit);
          f.out = write_to(others, w, f.out, out * unit);
        }
      }
    }
    const dynamic_op op{common.op, common.prescale, common.postscale};
    pending batch;
    switch (common.kind) {
      case operation::allreduce: return allreduce(tensors, op, alike);
      case operation::reduce_scatter:
        return device_reduce_scatter(group(), std::move(tensors), std::move(all.counts), op, alike);
      case operation::broadcast: {
        std::vector<fused_part> parts;
        for (const fused& f : tensors) parts.push_back({f.in, f.out, f.count * size_of(f.type), 0, parts.size()});
        batch = device_broadcast(std::move(parts), common.root);
        break;
      }
      case operation::allgather: batch = device_allgather(std::move(tensors), std::move(all.counts)); break;
      default: batch = alltoall(works.front(), std::move(tensors), std::move(all.counts));
    }
    if (!others.in.parts.empty()) batch->before.push_back(std::move(others.in));
    if (!others.out.parts.empty()) batch->after.push_back(std::move(others.out));
    batch->kept = std::move(others.memory);
    return batch;
  }

  pending allreduce(const std::vector<fused>& tensors, const dynamic_op& op, const std::vector<bool>& alike) {
    std::vector<fused_vector> vectors = by_type(
        tensors, [&](fused_vector& v, std::size_t i) { v.add(tensors[i].in, tensors[i].out, tensors[i].count, i); });
    std::vector<reduction> ops;
    for (const fused_vector& v : vectors) ops.push_back(make_reduction(v.wire, op, group().size()));
    return device_allreduce(group(), std::move(vectors), ops, alike);
  }

  pending alltoall(const work& w, std::vector<fused> tensors, std::vector<std::vector<std::size_t>> receive) {
    std::vector<std::vector<std::size_t>> send;
    for (std::size_t t = 0; t != tensors.size(); ++t) send.push_back(sent_by(w, t, group().size()));
    auto batch = std::make_shared<device_batch>();
    batch->what = "alltoall";
    batch->calls = [tensors = std::move(tensors), send = std::move(send),
                    receive = std::move(receive)](nccl_group_call& calls) {
      for (std::size_t t = 0; t != tensors.size(); ++t) {
        const std::size_t unit = size_of(tensors[t].type);
        calls.add(alltoall_call{tensors[t].in, tensors[t].out, partition(send[t], unit), partition(receive[t], unit)});
      }
    };
    return batch;
  }

  std::unique_ptr<device_batches> batches_;
  std::shared_ptr<cuda_results> results_;
  std::vector<std::shared_ptr<void>> free_;  // events after which the batch that is being made may write its results
};
static_assert(Device<nccl_device>);

}  // namespace detail

template <>
struct device_for<NcclTransport> {
  using type = detail::nccl_device;
};

}  // namespace hvd::inline HVD_ABI
