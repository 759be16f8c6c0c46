// bench/backends/hvd.cpp: hvd over its transports. Calls go to the algorithms as the front doors hand them on.
#include <bench/backends/hvd.hpp>

#include <bench/backends/algorithms.hpp>
#include <bench/backends/calls.hpp>
#include <bench/backends/hvd_engine.hpp>
#include <bench/backends/kernels.hpp>
#include <bench/backends/nccl.hpp>
#include <bench/cases/inputs.hpp>
#include <bench/rank/pages.hpp>
#include <bench/rank/worker.hpp>

#include <hvd/fusion.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport/self.hpp>

#include <map>
#include <memory>
#include <span>
#include <vector>

namespace hvd::bench {
namespace {

template <class T>
class hvd_backend {
 public:
  hvd_backend(T& comm, const hvd_settings& settings) : comm_(comm), settings_(settings) {}

  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int size() const { return comm_.size(); }
  [[nodiscard]] std::string describe() const {
    return "hvd " + std::string(version) + "; transport " + settings_.transport + "; algorithm " +
           (settings_.algorithm.empty() ? "automatic" : settings_.algorithm);
  }
  [[nodiscard]] std::string supports(const job& j) const {
    if (reduces(j.kind) && !defined(j.type, j.op)) {
      return "hvd has no " + std::string(name(j.op)) + " of " + std::string(type_name(j.type));
    }
    return answers(parse_algorithm(j.algorithm), j.kind)
               ? std::string()
               : std::string(j.algorithm) + " on " + settings_.transport + " cannot do " + std::string(name(j.kind));
  }
  void prepare(const job& j) {
    algorithm_ = parse_algorithm(j.algorithm);
    if (reduces(j.kind)) op_ = reduction_for(j.type, j.op, comm_.size());
  }
  [[nodiscard]] std::unique_ptr<NamedReductions> named(const job& j) { return make_named(comm_, j); }
  void fuse(const job& j, std::span<const std::span<std::byte>> gradients) {
    fusion_.threshold(j.fusion_bytes);
    tensors_.clear();
    for (const auto g : gradients) tensors_.push_back({g.data(), g.data(), g.size() / hvd::size_of(j.type), j.type});
    fusion_.allreduce(tensors_, reduce_op_of(j.op));
  }
  void* allocate(std::size_t bytes, bool shared) {
    if (!shared) return pages_.allocate(bytes);
    auto memory = comm_.template alloc_shared<std::byte>(bytes);
    void* const data = memory.data();
    shared_.emplace(data, std::move(memory));
    return data;
  }
  void release(void* data) {
    if (!pages_.release(data)) shared_.erase(data);
  }
  void run(const call& c) {
    if (c.kind == collective::barrier) return comm_.barrier();
    if (c.kind == collective::send_recv) {
      const auto* const in = static_cast<const std::byte*>(c.in);
      const std::size_t bytes = c.count * hvd::size_of(c.type);
      const int p = comm_.size(), r = comm_.rank();
      return comm_.exchange(in, bytes, (r + 1) % p, static_cast<std::byte*>(c.out), bytes, (r + p - 1) % p);
    }
    with_call(c, comm_.size(), op_, [&]<class Call>(const Call& made) {
      std::visit(
          [&]<class A>(const A& a) {
            // supports() has refused the others.
            if constexpr (Answers<A, T, Call>) a(comm_, made);
          },
          algorithm_);
    });
  }

 private:
  static bool answers(const any_algorithm& algorithm, collective kind) {
    bool yes = true;  // without a call there is no algorithm
    with_call(call{.kind = kind}, 1, reduction(), [&]<class Call>(const Call&) {
      yes = std::visit([]<class A>(const A&) { return Answers<A, T, Call>; }, algorithm);
    });
    return yes;
  }

  T& comm_;
  const hvd_settings& settings_;
  any_algorithm algorithm_;
  reduction op_;
  PageAllocator pages_;
  FusionBuffer<T> fusion_{comm_};
  std::vector<fused> tensors_;
  std::map<void*, shared_array<std::byte>> shared_;
};

static_assert(Backend<hvd_backend<ShmTransport>> && Backend<hvd_backend<ThreadTransport>> &&
              Backend<hvd_backend<SelfTransport>>);

template <class T>
int serve_hvd(const Stage& stage, T& comm, const hvd_settings& settings) {
  hvd_backend<T> backend(comm, settings);
  return serve(stage, erase(backend));
}

}  // namespace

std::string check_algorithm(std::string_view text) {
  try {
    parse_algorithm(text);
    return {};
  } catch (const std::exception& e) {
    return e.what();
  }
}

std::string tunables_of(std::string_view algorithm) {
  return std::visit([](const auto& a) { return tunables_of(a); }, parse_algorithm(algorithm));
}

int hvd_process(const Stage& stage, const hvd_settings& settings, int rank) {
  return exit_code_of(stage, rank, [&]() -> int {
    if (settings.transport == "thread") {
      std::atomic<int> worst{0};
      thread_run(stage.ranks(), [&](ThreadTransport& comm) {
        pin_to_list(comm.rank());
        const int mine = serve_hvd(stage, comm, settings);
        if (mine != 0) worst = mine;
      });
      return worst;
    }
    if (settings.transport == "self") {
      pin_to_list(0);
      SelfTransport comm;
      return serve_hvd(stage, comm, settings);
    }
    pin_to_list(rank);
    ShmTransport comm(settings.job, rank, stage.ranks());
    return settings.transport == "nccl" ? serve_nccl(stage, comm, settings) : serve_hvd(stage, comm, settings);
  });
}

}  // namespace hvd::bench
