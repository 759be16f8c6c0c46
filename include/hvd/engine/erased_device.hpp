// hvd/engine/erased_device.hpp: the interface through which an engine uses a device of any type.
//
// As for transports (hvd/erased_transport.hpp): the engine is compiled once for all devices.
#pragma once

#include <hvd/call.hpp>
#include <hvd/engine/device.hpp>
#include <hvd/engine/plan.hpp>
#include <hvd/engine/request.hpp>
#include <hvd/erased_transport.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::detail {

/// A Device, and the optional functions of devices. An engine without a device has a null pointer.
class erased_device {
 public:
  using pending = std::shared_ptr<void>;
  /// The optional functions are called only if the device has them; those not listed here do nothing if it has not.
  struct abilities {
    bool converts;    ///< a static member `converts` is true: tensors may travel as another type
    bool interrupts;  ///< `interrupt`
    bool allocates;   ///< `bucket`
    bool copies;      ///< `fetch` and `store`
  };

  explicit erased_device(abilities all) noexcept : can(all) {}
  erased_device(const erased_device&) = delete;
  erased_device& operator=(const erased_device&) = delete;
  virtual ~erased_device() = default;

  const abilities can;
  /// The name of a collective in a timeline, such as "NCCL_ALLREDUCE", by the static member `timeline_name`.
  [[nodiscard]] virtual const char* activity(operation kind) const noexcept = 0;

  // See Device.
  [[nodiscard]] virtual int index() noexcept = 0;
  [[nodiscard]] virtual pending start(std::span<const work> works, const received_rows& rows) = 0;
  [[nodiscard]] virtual bool poll(const pending& batch) = 0;
  virtual void check() = 0;
  [[nodiscard]] virtual bool abort() noexcept = 0;
  /// Or a D's `split(color, key, largest)`.
  [[nodiscard]] virtual std::unique_ptr<erased_device> split(int color, int key, const largest_number& largest) = 0;

  // Optional, called by any thread that submits:
  /// A tensor lies on device `index`: a device that has no index yet gets this one.
  virtual void choose(int index) = 0;
  /// Throws for a request, of tensors on the device, that it cannot run.
  virtual void check_request(const request& r) = 0;
  /// Ends the work on this rank although the thread that drives is in another call. Later calls throw peer_lost.
  virtual void interrupt() noexcept = 0;

  // Optional, called by the thread that drives:
  /// Called before the first batch and before `bucket`; collective. Errors fail on all ranks.
  virtual void connect(erased_transport& data) = 0;
  /// See signature::place.
  [[nodiscard]] virtual std::uint64_t place_of(const request& r) = 0;
  /// Called before `start`, so that several groups of a rank can start their batches in one order on all ranks.
  virtual void order(const largest_number& largest) = 0;
  /// Memory for tensors, zero at first; collective.
  [[nodiscard]] virtual std::shared_ptr<std::byte> bucket(std::size_t bytes, const largest_number& largest) = 0;
  /// Copies the elements of a tensor to the host when it is ready, and back, for operations that only the host has.
  [[nodiscard]] virtual std::vector<std::byte> fetch(const tensor& t, std::size_t bytes) = 0;
  virtual void store(const tensor& t, result& r, std::span<const std::byte> from) = 0;
};

template <Device D>
class erased_device_of final : public erased_device {
 public:
  explicit erased_device_of(D device) : erased_device(able), device_(std::move(device)) {}

  [[nodiscard]] const char* activity(operation kind) const noexcept override { return activities_on<D>::name(kind); }

  [[nodiscard]] int index() noexcept override { return device_.index(); }
  [[nodiscard]] pending start(std::span<const work> works, const received_rows& rows) override {
    return std::make_shared<typename D::pending>(device_.start(works, rows));
  }
  [[nodiscard]] bool poll(const pending& batch) override {
    return device_.poll(*static_cast<typename D::pending*>(batch.get()));
  }
  void check() override { device_.check(); }
  [[nodiscard]] bool abort() noexcept override { return device_.abort(); }
  [[nodiscard]] std::unique_ptr<erased_device> split(int color, int key, const largest_number& largest) override {
    if constexpr (requires(D& d) { d.split(color, key, largest); }) {
      return std::make_unique<erased_device_of>(device_.split(color, key, largest));
    } else {
      return std::make_unique<erased_device_of>(device_.split(color, key));
    }
  }

  void choose(int index) override {
    if constexpr (requires(D& d) { d.choose(index); }) device_.choose(index);
  }
  void check_request(const request& r) override {
    if constexpr (requires(D& d) { d.check_request(r); }) device_.check_request(r);
  }
  void interrupt() noexcept override {
    if constexpr (able.interrupts) device_.interrupt();
  }
  void connect(erased_transport& data) override {
    if constexpr (requires(D& d) { d.connect(data); }) device_.connect(data);
  }
  [[nodiscard]] std::uint64_t place_of(const request& r) override {
    if constexpr (requires(D& d) { d.place_of(r); }) return device_.place_of(r);
    return 0;
  }
  void order(const largest_number& largest) override {
    if constexpr (requires(D& d) { d.order(largest); }) device_.order(largest);
  }
  [[nodiscard]] std::shared_ptr<std::byte> bucket(std::size_t bytes, const largest_number& largest) override {
    if constexpr (able.allocates) return device_.bucket(bytes, largest);
    return nullptr;
  }
  [[nodiscard]] std::vector<std::byte> fetch(const tensor& t, std::size_t bytes) override {
    if constexpr (able.copies) return device_.fetch(t, bytes);
    return {};
  }
  void store(const tensor& t, result& r, std::span<const std::byte> from) override {
    if constexpr (able.copies) device_.store(t, r, from);
  }

 private:
  static constexpr bool converts = [] {
    if constexpr (requires { bool{D::converts}; }) return D::converts;
    return false;
  }();
  static constexpr bool interrupts = requires(D& d) { d.interrupt(); };
  static constexpr bool allocates = requires(D& d, const largest_number& largest) { d.bucket(std::size_t{}, largest); };
  static constexpr bool copies = requires(D& d, const tensor& t, result& r) {
    d.fetch(t, std::size_t{});
    d.store(t, r, std::span<const std::byte>());
  };
  static constexpr abilities able{converts, interrupts, allocates, copies};

  D device_;
};

/// The device of an engine that is made with a D.
template <class D>
std::unique_ptr<erased_device> erase_device(D device) {
  using type = typename device_for<D>::type;
  return std::make_unique<erased_device_of<type>>(type(std::move(device)));
}

}  // namespace hvd::inline HVD_ABI::detail
