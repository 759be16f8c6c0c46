// bench/backends/hvd_engine.cpp: compiled apart, for the engine is much code.
#include <bench/backends/hvd_engine.hpp>

#include <bench/backends/kernels.hpp>

#include <hvd/engine.hpp>

#include <string>
#include <utility>
#include <vector>

namespace hvd::bench {
namespace {

template <class T>
class engine_reductions final : public NamedReductions {
 public:
  engine_reductions(T& comm, const job& work) : engine_(comm), type_(work.type), op_(reduce_op_of(work.op)) {}

  void submit(const std::string& name, void* data, const std::vector<std::size_t>& shape) override {
    handles_.push_back(engine_.submit(request_of(name, data, shape)));
  }
  void run(const std::string& name, void* data, const std::vector<std::size_t>& shape) override {
    engine_.run(request_of(name, data, shape));
  }
  void wait() override {
    for (const handle& h : handles_) h.wait();
    handles_.clear();
  }
  void start_timeline(const std::string& path) override { engine_.start_timeline(path); }
  void stop_timeline() override { engine_.stop_timeline(); }

 private:
  [[nodiscard]] request request_of(const std::string& name, void* data, const std::vector<std::size_t>& shape) const {
    request r;
    r.kind = operation::allreduce;
    r.name = name;
    r.op = op_;
    tensor t;
    t.in = t.out = static_cast<std::byte*>(data);
    t.type = type_;
    t.shape = shape;
    r.tensors.push_back(std::move(t));
    return r;
  }

  Engine<T> engine_;
  dtype type_;
  reduce_op op_;
  std::vector<handle> handles_;
};

}  // namespace

std::unique_ptr<NamedReductions> make_named(ShmTransport& comm, const job& work) {
  return std::make_unique<engine_reductions<ShmTransport>>(comm, work);
}
std::unique_ptr<NamedReductions> make_named(ThreadTransport& comm, const job& work) {
  return std::make_unique<engine_reductions<ThreadTransport>>(comm, work);
}
std::unique_ptr<NamedReductions> make_named(SelfTransport& comm, const job& work) {
  return std::make_unique<engine_reductions<SelfTransport>>(comm, work);
}

}  // namespace hvd::bench
