// session.cpp: the engine of a job, in a file of its own, because it takes long to compile.
#include "session.hpp"

#include <hvd/any_transport.hpp>
#include <hvd/gpu.hpp>
#include <hvd/transport/self.hpp>
#include <hvd/transport/shm.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hvd_python {
namespace {

class engine_session final : public session {
 public:
  engine_session(hvd::any_transport ranks, const session_options& how)
      : ranks_(std::move(ranks)), engine_(ranks_, hvd::NcclOnDemand(how.nccl), options_of(how)) {}

  int rank() const override { return engine_.rank(); }
  int size() const override { return engine_.size(); }
  std::vector<int> hosts() const override { return ranks_.host_of(); }
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

  hvd::any_transport ranks_;
  hvd::Engine<hvd::any_transport, hvd::NcclOnDemand> engine_;  // NCCL is loaded when the first GPU tensor arrives
};

}  // namespace

std::shared_ptr<session> connect(hvd::any_transport ranks, const session_options& how) {
  return std::make_shared<engine_session>(std::move(ranks), how);
}
std::shared_ptr<session> connect_alone(const session_options& how) {
  return connect(hvd::any_transport(hvd::SelfTransport()), how);
}
std::shared_ptr<session> connect_shm(const std::string& name, int rank, int size, const session_options& how) {
  return connect(hvd::any_transport(hvd::ShmTransport(name, rank, size)), how);
}

}  // namespace hvd_python
