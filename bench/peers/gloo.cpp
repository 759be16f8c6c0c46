// bench/peers/gloo.cpp: one rank of Gloo under measurement, over TCP on the loopback interface, the only transport that
// Gloo has within a host.
//
// Gloo has two interfaces. If the older one has the collective (an algorithm object that keeps its buffers) it is
// used with synchronous, busy-polling pairs, its option for low latency. Synchronous pairs block in send, so that two
// ranks that send more than sockets hold would wait for each other until a timeout: larger messages, and the other
// collectives, go through the newer interface with its helper thread, as in PyTorch.
#include <bench/peers/gloo_types.hpp>
#include <bench/peers/scale.hpp>
#include <bench/peers/settings.hpp>
#include <bench/rank/pages.hpp>
#include <bench/rank/worker.hpp>

#include <hvd/topology.hpp>

#include <gloo/allgather.h>
#include <gloo/allgather_ring.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <sched.h>

namespace hvd::bench {
namespace {

/// The least size of a socket's buffers: the kernel's limit, to which Gloo raises them.
std::size_t socket_bytes() {
  std::size_t least = 128 << 10;
  std::size_t send = 0, receive = 0;
  if (std::ifstream("/proc/sys/net/core/wmem_max") >> send && std::ifstream("/proc/sys/net/core/rmem_max") >> receive) {
    least = std::max(least, std::min(send, receive));
  }
  return least;
}

/// Neighbours in a ring, each sending to the next: point-to-point buffers of the older interface.
class ring_shift final : public gloo::Algorithm {
 public:
  ring_shift(const std::shared_ptr<gloo::Context>& context, const void* in, void* out, std::size_t bytes)
      : Algorithm(context) {
    const int slot = context->nextSlot();
    send_ = getRightPair()->createSendBuffer(slot, const_cast<void*>(in), bytes);
    receive_ = getLeftPair()->createRecvBuffer(slot, out, bytes);
  }
  void run() override {
    send_->send();
    receive_->waitRecv();
    send_->waitSend();
  }

 private:
  std::unique_ptr<gloo::transport::Buffer> send_, receive_;
};

class GlooBackend {
 public:
  explicit GlooBackend(place at) : rank_(at.rank), size_(at.size) {
    const char* const folder = std::getenv(scratch_variable);
    if (folder == nullptr) {
      throw std::runtime_error(std::string(scratch_variable) + " is not set; it names the folder where ranks meet");
    }
    const char* const settings = std::getenv(settings_variable);
    busy_poll_ = settings != nullptr && std::string_view(settings) == "busy-poll";
    meeting_device_ = make_device();
    auto meeting = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    gloo::rendezvous::FileStore store(folder);
    meeting->connectFullMesh(store, meeting_device_);
    factory_ = std::make_unique<gloo::rendezvous::ContextFactory>(meeting);
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string describe() const {
    return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) + "." +
           std::to_string(GLOO_VERSION_PATCH) + "; TCP on 127.0.0.1; messages up to " + std::to_string(limit_ >> 10) +
           " KiB synchronous" + (busy_poll_ ? ", busy polling" : "") +
           " (allreduce, reduce_scatter, allgather, broadcast, send_recv, barrier), all others by its helper thread";
  }

  [[nodiscard]] std::string supports(const job& j) const {
    using enum collective;
    if (!has_model(j.kind) && !is_one_of(j.kind, {allreduce, reduce, reduce_scatter, allgather, broadcast, alltoall,
                                                  gather, scatter, send_recv, barrier})) {
      return "Gloo has no " + std::string(name(j.kind));
    }
    if (j.type == dtype::bfloat16 && reduces(j.kind)) return "Gloo has no bfloat16";
    if (j.type == dtype::float16 && reduces(j.kind) && j.op == redop::avg) return "Gloo has no average";
    if (j.kind == collective::alltoall && j.in_place) return "Gloo's alltoall does not work in place";
    if (j.kind == collective::reduce_scatter && j.count * static_cast<std::size_t>(size_) > INT_MAX) {
      return "Gloo's reduce_scatter counts elements in int";
    }
    return {};
  }

  /// Algorithm objects keep slots and buffers in their context, and connections keep the pace that they last had. With
  /// new ones for each job nothing is left of the last.
  void prepare(const job& j) {
    algorithms_.clear();
    older_.reset();
    newer_.reset();
    device_.reset();
    if (size_ == 1) return;
    device_ = make_device();
    newer_ = factory_->makeContext(device_);
    const bool in_step = synchronous(j.kind, j.count, j.type);
    if (!in_step && j.kind != collective::reduce_scatter) return;
    older_ = factory_->makeContext(device_);
    for (int q = 0; in_step && q != size_; ++q) {
      if (q != rank_) older_->getPair(q)->setSync(true, busy_poll_);
    }
  }

  void* allocate(std::size_t bytes, bool /*shared: sockets copy*/) { return pages_.allocate(bytes); }
  void release(void* memory) { pages_.release(memory); }

  void run(const call& c) {
    const std::size_t bytes = c.count * size_of(c.type);
    if (size_ == 1 && c.in != c.out) std::memcpy(c.out, c.in, bytes);
    if (size_ == 1 || (c.count == 0 && c.kind != collective::barrier)) return;
    if (c.kind == collective::reduce_scatter) {
      scatter_reduced(c);
    } else if (older_ && synchronous(c.kind, c.count, c.type)) {
      run_older(c, bytes);
    } else {
      run_newer(c, bytes);
    }
    if (c.op == redop::avg) finish_average(c, rank_, size_);
  }

 private:
  [[nodiscard]] std::shared_ptr<gloo::transport::Device> make_device() const {
    // Its helper thread inherits the CPUs of this one, and would hardly run next to a rank that spins on the same CPU.
    if (const char* const list = std::getenv(cpus_variable); list != nullptr && *list != '\0') {
      cpu_set_t all;
      CPU_ZERO(&all);
      for (const int cpu : parse_cpu_list(list)) CPU_SET(static_cast<std::size_t>(cpu), &all);
      ::sched_setaffinity(0, sizeof all, &all);
    }
    auto device = gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr("127.0.0.1"));
    pin_to_list(rank_);
    return device;
  }

  /// Whether the older interface has it, and all its messages fit into the sockets' buffers.
  [[nodiscard]] bool synchronous(collective kind, std::size_t count, dtype type) const {
    const std::size_t bytes = count * size_of(type);
    switch (kind) {
      case collective::fused:
      case collective::engine: return true;  // its calls come as allreduce, and each is looked at
      case collective::allreduce: return bytes <= 2 * limit_;
      case collective::reduce_scatter: return bytes * static_cast<std::size_t>(size_) <= 2 * limit_;
      case collective::allgather:
      case collective::broadcast:
      case collective::send_recv: return bytes <= limit_;
      case collective::barrier: return true;
      default: return false;
    }
  }

  /// The algorithm object for these buffers, made when they come for the first time: during warm-up.
  template <class Make>
  gloo::Algorithm& algorithm(const void* in, const void* out, std::size_t bytes, Make make) {
    auto& found = algorithms_[{in, out, bytes}];
    if (!found) found = make();
    return *found;
  }

  void run_older(const call& c, std::size_t bytes) {
    const int n = static_cast<int>(bytes);
    const bool root = rank_ == c.root;
    char* const in = static_cast<char*>(const_cast<void*>(c.in));
    char* const out = static_cast<char*>(c.out);
    switch (c.kind) {
      case collective::allreduce:
        if (in != out) std::memcpy(out, in, bytes);  // it works in place
        return algorithm(out, out, bytes, [&] { return make_allreduce(c); }).run();
      case collective::allgather:
        return algorithm(in, out, bytes,
                         [&] {
                           return std::make_unique<gloo::AllgatherRing<char>>(older_, std::vector<const char*>{in}, out,
                                                                              n);
                         })
            .run();
      case collective::broadcast: {
        char* const data = root ? in : out;
        algorithm(data, data, bytes, [&] {
          return std::make_unique<gloo::BroadcastOneToAll<char>>(older_, std::vector<char*>{data}, n, c.root);
        }).run();
        if (root && in != out) std::memcpy(out, in, bytes);
        return;
      }
      case collective::send_recv:
        return algorithm(in, out, bytes, [&] { return std::make_unique<ring_shift>(older_, in, out, bytes); }).run();
      default:
        return algorithm(nullptr, nullptr, 0, [&] { return std::make_unique<gloo::BarrierAllToAll>(older_); }).run();
    }
  }

  std::unique_ptr<gloo::Algorithm> make_allreduce(const call& c) {
    std::unique_ptr<gloo::Algorithm> made;
    with_gloo_type(c.type, c.op, [&]<class T>(const gloo::ReductionFunction<T>* function) {
      const std::vector<T*> data{static_cast<T*>(c.out)};
      const int count = static_cast<int>(c.count);
      // AllreduceBcube takes a few us less at small sizes, but reads beyond its arrays, and is wrong if the number of
      // ranks is not a power of two.
      made = std::make_unique<gloo::AllreduceHalvingDoubling<T>>(older_, data, count, function);
    });
    return made;
  }

  /// In the older interface only, and only on a buffer that it may overwrite.
  void scatter_reduced(const call& c) {
    const std::size_t unit = size_of(c.type);
    const std::size_t all = c.count * static_cast<std::size_t>(size_);
    if (work_.size() < all * unit) {
      algorithms_.clear();
      work_.resize(all * unit);
    }
    gloo::Algorithm& a = algorithm(work_.data(), nullptr, all * unit, [&] {
      std::unique_ptr<gloo::Algorithm> made;
      with_gloo_type(c.type, c.op, [&]<class T>(const gloo::ReductionFunction<T>* function) {
        made = std::make_unique<gloo::ReduceScatterHalvingDoubling<T>>(
            older_, std::vector<T*>{reinterpret_cast<T*>(work_.data())}, static_cast<int>(all),
            std::vector<int>(static_cast<std::size_t>(size_), static_cast<int>(c.count)), function);
      });
      return made;
    });
    std::memcpy(work_.data(), c.in, all * unit);
    a.run();
    std::memcpy(c.out, work_.data(), c.count * unit);
  }

  void run_newer(const call& c, std::size_t bytes) {
    const bool root = rank_ == c.root;
    char* const in = static_cast<char*>(const_cast<void*>(c.in));
    char* const out = static_cast<char*>(c.out);
    const std::size_t all = bytes * static_cast<std::size_t>(size_);
    switch (c.kind) {
      case collective::fused:
      case collective::engine:
      case collective::allreduce: {
        gloo::AllreduceOptions o(newer_);
        with_gloo_type(c.type, c.op, [&]<class T>(const gloo::ReductionFunction<T>*) {
          if (in != out) o.setInput(reinterpret_cast<T*>(in), c.count);
          o.setOutput(reinterpret_cast<T*>(out), c.count);
        });
        o.setReduceFunction(gloo_function(c.type, c.op));
        return gloo::allreduce(o);
      }
      case collective::reduce: {
        gloo::ReduceOptions o(newer_);
        with_gloo_type(c.type, c.op, [&]<class T>(const gloo::ReductionFunction<T>*) {
          if (in != out) o.setInput(reinterpret_cast<T*>(in), c.count);
          o.setOutput(reinterpret_cast<T*>(out), c.count);
        });
        o.setReduceFunction(gloo_function(c.type, c.op));
        o.setRoot(c.root);
        return gloo::reduce(o);
      }
      case collective::allgather: {
        gloo::AllgatherOptions o(newer_);
        if (in != out + static_cast<std::size_t>(rank_) * bytes) o.setInput(in, bytes);
        o.setOutput(out, all);
        return gloo::allgather(o);
      }
      case collective::broadcast: {
        gloo::BroadcastOptions o(newer_);
        if (root && in != out) o.setInput(in, bytes);
        o.setOutput(out, bytes);
        o.setRoot(c.root);
        return gloo::broadcast(o);
      }
      case collective::alltoall: {
        gloo::AlltoallOptions o(newer_);
        o.setInput(in, all);
        o.setOutput(out, all);
        return gloo::alltoall(o);
      }
      case collective::gather: {
        gloo::GatherOptions o(newer_);
        o.setInput(in, bytes);
        if (root) o.setOutput(out, all);
        o.setRoot(c.root);
        return gloo::gather(o);
      }
      case collective::scatter: {
        gloo::ScatterOptions o(newer_);
        std::vector<char*> blocks;
        for (int q = 0; root && q != size_; ++q) blocks.push_back(in + static_cast<std::size_t>(q) * bytes);
        if (root) o.setInputs(blocks, bytes);
        o.setOutput(out, bytes);
        o.setRoot(c.root);
        return gloo::scatter(o);
      }
      case collective::send_recv: {
        const auto receive = newer_->createUnboundBuffer(out, bytes);
        const auto send = newer_->createUnboundBuffer(in, bytes);
        constexpr std::uint64_t slot = 1;
        receive->recv((rank_ + size_ - 1) % size_, slot);
        send->send((rank_ + 1) % size_, slot);
        send->waitSend();
        receive->waitRecv();
        return;
      }
      default: throw std::runtime_error("not prepared for " + std::string(name(c.kind)));
    }
  }

  int rank_;
  int size_;
  bool busy_poll_ = false;
  std::size_t limit_ = socket_bytes();
  std::shared_ptr<gloo::transport::Device> meeting_device_;
  std::unique_ptr<gloo::rendezvous::ContextFactory> factory_;  ///< makes contexts over the one in which ranks met
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::Context> newer_;
  std::shared_ptr<gloo::Context> older_;
  std::vector<std::byte> work_;
  std::map<std::tuple<const void*, const void*, std::size_t>, std::unique_ptr<gloo::Algorithm>> algorithms_;
  PageAllocator pages_;
};

}  // namespace
}  // namespace hvd::bench

int main() {
  return hvd::bench::worker_main([](hvd::bench::place at) { return hvd::bench::GlooBackend(at); });
}
