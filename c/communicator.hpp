// c/communicator.hpp: a group of ranks and an engine as objects whose transport is known at run time only.
#pragma once

#include "objects.hpp"

#include <hvd/call.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/engine.hpp>
#include <hvd/fusion.hpp>
#include <hvd/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hvd::inline HVD_ABI::c {

/// hvd::Engine over any transport.
class engine {
 public:
  engine() = default;
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  virtual ~engine() = default;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;
  virtual hvd::handle submit(request r, int process_set) = 0;
  virtual hvd::handle join() = 0;
  /// The number of ranks in a process set.
  [[nodiscard]] virtual int ranks_of(int process_set) const = 0;
  virtual int add_process_set(std::vector<int> ranks) = 0;
  virtual void remove_process_set(int id) = 0;
  virtual std::shared_ptr<std::byte> alloc_bucket(std::size_t bytes) = 0;
  virtual void shutdown() = 0;
};

template <class T>
class engine_on final : public engine {
 public:
  explicit engine_on(T& comm) : engine_(comm) {}

  [[nodiscard]] int rank() const noexcept override { return engine_.rank(); }
  [[nodiscard]] int size() const noexcept override { return engine_.size(); }
  hvd::handle submit(request r, int process_set) override { return engine_.submit(std::move(r), process_set); }
  hvd::handle join() override { return engine_.join(); }
  [[nodiscard]] int ranks_of(int process_set) const override {
    return static_cast<int>(engine_.process_set(process_set).size());
  }
  int add_process_set(std::vector<int> ranks) override { return engine_.add_process_set(std::move(ranks)); }
  void remove_process_set(int id) override { engine_.remove_process_set(id); }
  std::shared_ptr<std::byte> alloc_bucket(std::size_t bytes) override { return engine_.alloc_bucket(bytes); }
  void shutdown() override { engine_.shutdown(); }

 private:
  Engine<T> engine_;
};

/// A transport, with the collectives as calls on bytes: one function for each call, and not for each element type.
class communicator : public object {
 public:
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }

  /// See detail::arguments::check.
  virtual void check(const detail::arguments& found) = 0;
  virtual void barrier() = 0;
  virtual void run(const allreduce_call& call) = 0;
  virtual void run(const reduce_call& call) = 0;
  virtual void run(const reduce_scatter_call& call) = 0;
  virtual void run(const allgather_call& call) = 0;
  virtual void run(const broadcast_call& call) = 0;
  virtual void run(const alltoall_call& call) = 0;
  virtual void run(const gather_call& call) = 0;
  virtual void run(const scatter_call& call) = 0;
  virtual void run(const scan_call& call) = 0;
  virtual void send(const std::byte* data, std::size_t bytes, int peer) = 0;
  virtual void recv(std::byte* data, std::size_t bytes, int peer) = 0;
  virtual void allreduce(std::span<const fused> tensors, const dynamic_op& op) = 0;
  virtual void broadcast(std::span<const fused> tensors, int root) = 0;

  [[nodiscard]] virtual std::unique_ptr<communicator> split(int color, int key) = 0;
  [[nodiscard]] virtual std::shared_ptr<engine> make_engine() = 0;
  [[nodiscard]] virtual std::byte* alloc_shared(std::size_t bytes) = 0;
  /// False for memory from another source than this group's alloc_shared.
  [[nodiscard]] virtual bool free_shared(const void* memory) noexcept = 0;

 protected:
  communicator(int rank, int size) noexcept : rank_(rank), size_(size) {}

 private:
  int rank_, size_;
};

template <class T>
class communicator_on final : public communicator {
 public:
  explicit communicator_on(T comm) : communicator(comm.rank(), comm.size()), comm_(std::move(comm)) {}

  void check(const detail::arguments& found) override { found.check(comm_); }
  void barrier() override { comm_.barrier(); }
  void run(const allreduce_call& call) override { start(call); }
  void run(const reduce_call& call) override { start(call); }
  void run(const reduce_scatter_call& call) override { start(call); }
  void run(const allgather_call& call) override { start(call); }
  void run(const broadcast_call& call) override { start(call); }
  void run(const alltoall_call& call) override { start(call); }
  void run(const gather_call& call) override { start(call); }
  void run(const scatter_call& call) override { start(call); }
  void run(const scan_call& call) override { start(call); }
  void send(const std::byte* data, std::size_t bytes, int peer) override { comm_.send(data, bytes, peer); }
  void recv(std::byte* data, std::size_t bytes, int peer) override { comm_.recv(data, bytes, peer); }
  void allreduce(std::span<const fused> tensors, const dynamic_op& op) override {
    detail::check_distinct(comm_, tensors);
    fusion_.allreduce(tensors, op);
  }
  void broadcast(std::span<const fused> tensors, int root) override { fusion_.broadcast(tensors, root); }

  [[nodiscard]] std::unique_ptr<communicator> split(int color, int key) override {
    return std::make_unique<communicator_on>(comm_.split(color, key));
  }
  [[nodiscard]] std::shared_ptr<engine> make_engine() override { return std::make_shared<engine_on<T>>(comm_); }
  [[nodiscard]] std::byte* alloc_shared(std::size_t bytes) override {
    // If memory for the list runs out, it does so before the collective call.
    if (shared_.size() == shared_.capacity()) shared_.reserve(2 * shared_.size() + 8);
    shared_array<std::byte> made = comm_.template alloc_shared<std::byte>(bytes);
    std::byte* const start = made.data();
    if (start != nullptr) shared_.push_back(std::move(made));
    return start;
  }
  [[nodiscard]] bool free_shared(const void* memory) noexcept override {
    const auto found = std::find_if(shared_.begin(), shared_.end(), [&](const auto& a) { return a.data() == memory; });
    if (found == shared_.end()) return false;
    shared_.erase(found);
    return true;
  }

 private:
  template <class Call>
  void start(const Call& call) {
    detail::run(comm_, call, automatic<>{});
  }

  T comm_;
  FusionBuffer<T> fusion_{comm_};  // kept, because without common memory it has a buffer
  std::vector<shared_array<std::byte>> shared_;
};

}  // namespace hvd::inline HVD_ABI::c
