// session_of.hpp: a session over one transport. Each transport has its own source file, so that they compile in
// parallel.
#pragma once

#include "session.hpp"

#include <hvd/gpu.hpp>
#include <hvd/transport.hpp>
#include <hvd/transport/self.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hvd_python {

template <hvd::Transport T>
class session_of final : public session {
 public:
  session_of(T comm, const session_options& how)
      : comm_(std::move(comm)), engine_(comm_, hvd::NcclOnDemand(how.nccl), options_of(how)) {}

  int rank() const override { return engine_.rank(); }
  int size() const override { return engine_.size(); }
  std::vector<int> hosts() const override {
    if constexpr (requires { comm_.host_of(); }) {
      return comm_.host_of();
    } else {
      static_assert(hvd::PeerMemory<T> || std::same_as<T, hvd::SelfTransport>, "all ranks are on one host");
      return std::vector<int>(static_cast<std::size_t>(size()));
    }
  }
  hvd::handle submit(hvd::request r, int process_set, bool wake) override {
    return engine_.submit(std::move(r), process_set, wake);
  }
  hvd::handle join() override { return engine_.join(); }
  void settle() override { engine_.settle(); }
  int add_process_set(const std::vector<int>& ranks) override { return engine_.add_process_set(ranks); }
  void remove_process_set(int id) override { engine_.remove_process_set(id); }
  std::shared_ptr<std::byte> alloc_bucket(std::size_t bytes) override { return engine_.alloc_bucket(bytes); }
  std::shared_ptr<std::byte> alloc_device_bucket(std::size_t bytes, int device) override {
    return engine_.alloc_device_bucket(bytes, device);
  }
  void start_timeline(const std::string& path, bool mark_cycles) override { engine_.start_timeline(path, mark_cycles); }
  void stop_timeline() override { engine_.stop_timeline(); }
  void mark_step(std::uint64_t samples) override { engine_.mark_step(samples); }
  hvd::engine_metrics metrics() const override { return engine_.metrics(); }
  void shutdown() override { engine_.shutdown(); }

 private:
  static hvd::engine_options options_of(const session_options& how) {
    hvd::engine_options options = hvd::engine_options::from_environment();
    options.records_in = how.records_in;
    return options;
  }

  T comm_;
  hvd::Engine<T, hvd::NcclOnDemand> engine_;  // NCCL is loaded when the first GPU tensor arrives
};

}  // namespace hvd_python
