// tests/bench/test_peer.cpp: a library under measurement that misbehaves as its first argument says.
#include <bench/rank/pages.hpp>
#include <bench/rank/worker.hpp>

#include <hvd/allreduce.hpp>
#include <hvd/transport/shm.hpp>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>

#include <unistd.h>

namespace {

using namespace hvd::bench;

class test_backend {
 public:
  test_backend(place at, std::string how)
      : comm_("test-peer@" + std::to_string(std::hash<std::string>()(std::getenv(stage_variable))), at.rank, at.size),
        how_(std::move(how)) {
    if (how_ == "refuse") throw std::runtime_error("the test peer does not like this machine");
  }
  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  std::string describe() const { return "test peer, " + how_; }
  std::string supports(const job& j) const {
    const bool known = j.kind == collective::allreduce || j.kind == collective::engine;
    if (!known || j.type != hvd::dtype::float32 || j.op != redop::sum) {
      return "the test peer has only sums of float";
    }
    return {};
  }
  void prepare(const job&) {}
  void* allocate(std::size_t bytes, bool) { return pages_.allocate(bytes); }
  void release(void* data) { pages_.release(data); }
  void run(const call& c) {
    if (c.count >= 1024 && comm_.rank() == 1) {
      if (how_ == "crash") std::raise(SIGKILL);
      if (how_ == "hang") ::pause();
      if (how_ == "throw") throw std::runtime_error("the test peer gives up");
    }
    auto* const out = static_cast<float*>(c.out);
    hvd::allreduce(comm_, static_cast<const float*>(c.in), out, c.count);
    if (how_ == "wrong") out[c.count / 2] += 1;
    if (how_ == "overflow") out[c.count] = 1;
  }

 private:
  hvd::ShmTransport comm_;
  std::string how_;
  PageAllocator pages_;
};

}  // namespace

int main(int argc, char** argv) {
  return worker_main([&](place at) { return test_backend(at, argc > 1 ? argv[1] : "good"); });
}
