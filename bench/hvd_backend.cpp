// bench/hvd_backend.cpp: hvd over its transports. Calls go to the algorithms as the front doors hand them on.
#include <bench/hvd_backend.hpp>

#include <bench/algorithms.hpp>
#include <bench/hvd_engine.hpp>
#include <bench/inputs.hpp>
#include <bench/kernels.hpp>
#include <bench/pages.hpp>
#include <bench/worker.hpp>

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
    if (j.kind == collective::barrier || j.kind == collective::send_recv) return {};
    const any_algorithm a = parse_algorithm(j.algorithm);
    return std::visit([&](const auto& x) { return answers(x, j.kind) ? std::string() : refusal(j); }, a);
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
    fusion_.allreduce(tensors_, dynamic(j.op));
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
    const auto* in = static_cast<const std::byte*>(c.in);
    auto* out = static_cast<std::byte*>(c.out);
    const std::size_t unit = hvd::size_of(c.type);
    const auto blocks = [&] { return partition(comm_.size(), c.count, unit); };
    switch (c.kind) {
      case collective::fused:
      case collective::engine:
      case collective::allreduce: return invoke(allreduce_call{in, out, c.count, op_});
      case collective::reduce: return invoke(reduce_call{in, out, c.count, op_, c.root});
      case collective::reduce_scatter: return invoke(reduce_scatter_call{in, out, blocks(), op_});
      case collective::allgather: return invoke(allgather_call{in, out, blocks()});
      case collective::broadcast: return invoke(broadcast_call{in, out, c.count * unit, c.root});
      case collective::alltoall: {
        const partition even = blocks();
        return invoke(alltoall_call{in, out, even, even});
      }
      case collective::gather: return invoke(gather_call{in, out, blocks(), c.root});
      case collective::scatter: return invoke(scatter_call{in, out, blocks(), c.root});
      case collective::send_recv: {
        const int p = comm_.size(), r = comm_.rank();
        return comm_.exchange(in, c.count * unit, (r + 1) % p, out, c.count * unit, (r + p - 1) % p);
      }
      case collective::barrier: return comm_.barrier();
    }
  }

 private:
  template <class A>
  static constexpr bool answers(const A&, collective kind) {
    switch (kind) {
      case collective::fused:
      case collective::engine:
      case collective::allreduce: return Answers<A, T, allreduce_call>;
      case collective::reduce: return Answers<A, T, reduce_call>;
      case collective::reduce_scatter: return Answers<A, T, reduce_scatter_call>;
      case collective::allgather: return Answers<A, T, allgather_call>;
      case collective::broadcast: return Answers<A, T, broadcast_call>;
      case collective::alltoall: return Answers<A, T, alltoall_call>;
      case collective::gather: return Answers<A, T, gather_call>;
      case collective::scatter: return Answers<A, T, scatter_call>;
      default: return true;
    }
  }
  static reduce_op dynamic(redop op) {
    switch (op) {
      case redop::prod: return reduce_op::product;
      case redop::min: return reduce_op::min;
      case redop::max: return reduce_op::max;
      case redop::avg: return reduce_op::average;
      case redop::sum: break;
    }
    return reduce_op::sum;
  }
  [[nodiscard]] std::string refusal(const job& j) const {
    return std::string(j.algorithm) + " on " + settings_.transport + " cannot do " + std::string(name(j.kind));
  }
  template <class Call>
  void invoke(const Call& c) {
    std::visit(
        [&](const auto& a) {
          // supports() has said no to the others.
          if constexpr (Answers<std::remove_cvref_t<decltype(a)>, T, Call>) a(comm_, c);
        },
        algorithm_);
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
  int code = 0;
  try {
    if (settings.transport == "thread") {
      std::atomic<int> worst{0};
      thread_run(stage.ranks(), [&](ThreadTransport& comm) {
        pin_to_list(comm.rank());
        const int mine = serve_hvd(stage, comm, settings);
        if (mine != 0) worst = mine;
      });
      code = worst;
    } else if (settings.transport == "self") {
      pin_to_list(0);
      SelfTransport comm;
      code = serve_hvd(stage, comm, settings);
    } else {
      pin_to_list(rank);
      ShmTransport comm(settings.job, rank, stage.ranks());
      code = serve_hvd(stage, comm, settings);
    }
  } catch (const stage_ended&) {
    code = 3;
  } catch (const std::exception& e) {
    report_start_failure(stage, rank, e.what());
    code = 1;
  }
  return code;
}

}  // namespace hvd::bench
