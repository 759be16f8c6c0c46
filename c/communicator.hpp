// c/communicator.hpp: the objects behind the numbers of communicators and engines.
#pragma once

#include "objects.hpp"

#include <hvd/any_transport.hpp>
#include <hvd/engine.hpp>
#include <hvd/shared_array.hpp>
#include <hvd/transport/shm.hpp>
#ifdef HVD_C_MPI
#include <hvd/transport/mpi.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
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

/// A group of ranks, with the memory that it has given out.
class communicator final : public object, public any_transport {
 public:
  explicit communicator(any_transport comm) noexcept : any_transport(std::move(comm)) {}

  [[nodiscard]] std::shared_ptr<engine> make_engine() {
    ShmTransport* const shared = target<ShmTransport>();
    if (shared != nullptr) return std::make_shared<engine_on<ShmTransport>>(*shared);
#ifdef HVD_C_MPI
    MpiTransport* const mpi = target<MpiTransport>();
    if (mpi != nullptr) return std::make_shared<engine_on<MpiTransport>>(*mpi);
#endif
    std::abort();  // join and fork_run make no others
  }
  [[nodiscard]] std::byte* alloc_shared(std::size_t bytes) {
    // If memory for the list runs out, it does so before the collective call.
    if (shared_.size() == shared_.capacity()) shared_.reserve(2 * shared_.size() + 8);
    shared_array<std::byte> made = any_transport::alloc_shared<std::byte>(bytes);
    std::byte* const start = made.data();
    if (start != nullptr) shared_.push_back(std::move(made));
    return start;
  }
  /// False for memory from another source than this group's alloc_shared.
  [[nodiscard]] bool free_shared(const void* memory) noexcept {
    const auto found = std::find_if(shared_.begin(), shared_.end(), [&](const auto& a) { return a.data() == memory; });
    if (found == shared_.end()) return false;
    shared_.erase(found);
    return true;
  }

 private:
  std::vector<shared_array<std::byte>> shared_;
};

}  // namespace hvd::inline HVD_ABI::c
