// hvd/engine/nccl.hpp: NCCL as the device of an engine, also connected when it is first needed.
#pragma once

#include <hvd/engine/device.hpp>
#include <hvd/engine/execute.hpp>
#include <hvd/engine/nccl_device.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/erased_transport.hpp>
#include <hvd/pin.hpp>
#include <hvd/topology.hpp>
#include <hvd/transport/nccl.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI {

/// A device of engines whose ranks are connected by NCCL when the first tensors on GPUs come: each rank's GPU is the
/// one on which its first tensor lies. Until then it looks for no library, and a job without GPUs runs as without this
/// device.
class NcclOnDemand {
 public:
  static constexpr std::string_view timeline_name = NcclTransport::timeline_name;
  static constexpr bool converts = true;
  using pending = detail::nccl_device::pending;

  /// `opts.device` is not used.
  explicit NcclOnDemand(nccl_options opts = nccl_options::from_environment()) : in_(std::make_unique<inner>(opts)) {}

  [[nodiscard]] int index() const noexcept { return in_->index.load(std::memory_order_acquire); }

  /// Called by the thread that submits: the first tensor decides. Errors: those of a missing driver.
  void choose(int device) {
    if (index() >= 0) return;
    const std::lock_guard lock(in_->mutex);
    if (in_->device) return;
    in_->device = std::make_shared<detail::cuda_device>(device);
    in_->index.store(in_->device->ordinal(), std::memory_order_release);
  }
  void check_request(const request& r) const { detail::nccl_device::check_request(*in_->device, r); }
  /// Called by the thread that drives, before the first batch, at the same point of the order on all ranks.
  void connect(detail::erased_transport& data) {
    if (in_->connected) return;
    in_->connected.emplace(detail::nccl_group::connect(data, in_->opts, [&] {
      if (index() < 0) choose(own_device(data));
      return index();
    }));
  }

  void order(const largest_number& largest) { in_->connected->order(largest); }
  pending start(std::span<const detail::work> works, const received_rows& rows) {
    return in_->connected->start(works, rows);
  }
  bool poll(pending& batch) { return in_->connected->poll(batch); }
  void check() {
    if (in_->connected) in_->connected->check();
  }
  void interrupt() noexcept {
    if (in_->connected) in_->connected->interrupt();
  }
  bool abort() noexcept { return !in_->connected || in_->connected->abort(); }
  /// The new group is connected when its first tensors on GPUs come.
  [[nodiscard]] NcclOnDemand split(int /*color*/, int /*key*/) { return NcclOnDemand(in_->opts); }

  [[nodiscard]] std::shared_ptr<std::byte> bucket(std::size_t bytes, const largest_number& largest) {
    return in_->connected->bucket(bytes, largest);
  }
  [[nodiscard]] std::vector<std::byte> fetch(const tensor& t, std::size_t bytes) {
    return in_->connected->fetch(t, bytes);
  }
  void store(const tensor& t, result& r, std::span<const std::byte> from) { in_->connected->store(t, r, from); }
  [[nodiscard]] std::uint64_t place_of(const request& r) const {
    return in_->connected ? in_->connected->place_of(r) : 0;
  }

 private:
  /// The device of a joined rank that has had no tensor on a GPU: the one that the thread that made this is pinned to,
  /// or else the one that `pin` would choose, with as many ranks on a GPU as the options allow.
  [[nodiscard]] int own_device(detail::erased_transport& data) const {
    if (in_->pinned >= 0) return in_->pinned;
    parsed_pin policy = detail::pin_of_environment();
    policy.max_ranks = in_->opts.ranks_per_device;
    return detail::ordinal_of(placement_of(topology::discover(), policy, local_place::of(data)));
  }

  struct inner {
    explicit inner(const nccl_options& o) : opts(o), pinned(detail::pinned() ? detail::pinned()->ordinal : -1) {}
    const nccl_options opts;
    const int pinned;
    std::mutex mutex;
    std::shared_ptr<detail::cuda_device> device;
    std::atomic<int> index{-1};
    std::optional<detail::nccl_device> connected;
  };
  std::unique_ptr<inner> in_;
};
static_assert(Device<NcclOnDemand>);

}  // namespace hvd::inline HVD_ABI
