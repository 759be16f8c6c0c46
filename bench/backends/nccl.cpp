// bench/backends/nccl.cpp: hvd on NCCL, and NCCL by itself. Both queue calls on a stream, on the same kind of buffers.
#include <bench/backends/nccl.hpp>

#include <bench/backends/calls.hpp>
#include <bench/backends/gpu.hpp>
#include <bench/backends/kernels.hpp>
#include <bench/backends/plain_nccl.hpp>
#include <bench/cases/inputs.hpp>
#include <bench/rank/worker.hpp>

#include <hvd/transport/nccl.hpp>

#include <bit>
#include <memory>
#include <string>

namespace hvd::bench {
namespace {

using detail::nccl_library;

/// The reason for a combination that neither library has.
std::string lacks(const job& j) {
  using enum collective;
  if (has_model(j.kind)) return "on GPUs hvd-bench-gpu measures many tensors";
  if (is_one_of(j.kind, {scan, exscan, send_recv})) return "NCCL has no " + std::string(name(j.kind));
  if (!reduces(j.kind)) return {};
  try {
    detail::nccl_reduction_of(reduction_for(j.type, j.op, 2), 2, nccl_average::automatic, operation::allreduce);
  } catch (const error& e) {
    return std::string(detail::sentence(e));
  }
  return {};
}

class hvd_on_nccl {
 public:
  hvd_on_nccl(ShmTransport& control, const hvd_settings& settings)
      : comm_(control, take_gpu(control.rank(), settings.ranks_per_gpu)), gpu_(comm_.group()->device()) {}

  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int size() const { return comm_.size(); }
  [[nodiscard]] std::string describe() const {
    return "hvd " + std::string(version) + "; transport nccl; " + gpu_.versions();
  }
  [[nodiscard]] std::string supports(const job& j) const { return lacks(j); }
  void prepare(const job& j) {
    if (reduces(j.kind)) op_ = reduction_for(j.type, j.op, size());
  }
  void* allocate(std::size_t bytes, bool shared) {
    if (!shared) return gpu_.allocate(bytes);
    auto memory = std::make_shared<shared_array<std::byte>>(comm_.alloc_shared<std::byte>(bytes));
    return gpu_.keep({memory, memory->data()});
  }
  void release(void* data) { gpu_.release(data); }
  void run(const call& c) {
    if (c.kind == collective::barrier) return comm_.barrier();
    with_call(c, size(), op_, [&]<class Call>(const Call& made) {
      if constexpr (requires { comm_.queue(made, nullptr); }) on_stream{gpu_.stream()}(comm_, made);
    });
  }
  [[nodiscard]] device_buffers device() { return gpu_.buffers(); }

 private:
  NcclTransport comm_;
  Gpu gpu_;
  reduction op_;
};

/// NCCL's calls as its users write them.
class bare_nccl_calls {
 public:
  bare_nccl_calls(ShmTransport& control, const hvd_settings& settings)
      : rank_(control.rank()), size_(control.size()),
        gpu_(std::make_shared<detail::cuda_device>(take_gpu(rank_, settings.ranks_per_gpu).device)), comm_(control) {
    control.barrier();
  }
  bare_nccl_calls(const bare_nccl_calls&) = delete;
  bare_nccl_calls& operator=(const bare_nccl_calls&) = delete;
  ~bare_nccl_calls() { gpu_.driver().stream_synchronize(gpu_.stream()); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string describe() const { return gpu_.versions(); }
  [[nodiscard]] std::string supports(const job& j) const {
    using enum collective;
    if (std::string why = lacks(j); !why.empty()) return why;
    if (j.kind == barrier) return "NCCL has no barrier";
    if (j.kind == alltoall && j.in_place) return "NCCL has no alltoall in place";
    if (is_one_of(j.kind, {alltoall, gather, scatter}) && nccl_.alltoall == nullptr) {
      return "this NCCL has no " + std::string(name(j.kind));
    }
    if (reduces(j.kind) && (j.type == dtype::complex64 || j.type == dtype::complex128)) {
      return "NCCL has no complex numbers";
    }
    if (reduces(j.kind) && j.op == redop::avg && !std::has_single_bit(static_cast<unsigned>(size_))) {
      return "NCCL multiplies by 1/" + std::to_string(size_) + " rounded, so its averages cannot be checked exactly";
    }
    return {};
  }
  void prepare(const job&) {}
  void* allocate(std::size_t bytes, bool shared) {
    if (!shared || nccl_.alloc == nullptr) return gpu_.allocate(bytes);
    const std::size_t whole =
        (bytes + detail::nccl_window_alignment - 1) / detail::nccl_window_alignment * detail::nccl_window_alignment;
    void* data = nullptr;
    must(nccl_.alloc(&data, whole), "ncclMemAlloc");
    detail::nccl_window window = nullptr;
    if (nccl_.window_register != nullptr) {
      must(nccl_.window_register(comm_.get(), data, whole, &window, detail::nccl_window_symmetric),
           "ncclCommWindowRegister");
    }
    return gpu_.keep({static_cast<std::byte*>(data), [this, comm = comm_.get(), window](std::byte* p) {
                        if (window != nullptr) nccl_.window_deregister(comm, window);
                        nccl_.free(p);
                      }});
  }
  void release(void* data) { gpu_.release(data); }
  void run(const call& c) {
    const int op = op_of(c.op), type = reduces(c.kind) ? detail::nccl_type_of(c.type) : detail::nccl_uint8;
    const std::size_t n = reduces(c.kind) ? c.count : c.count * hvd::size_of(c.type);
    detail::nccl_comm const comm = comm_.get();
    detail::cu_stream const s = gpu_.stream();
    detail::nccl_result code = detail::nccl_success;
    switch (c.kind) {
      case collective::allreduce: code = nccl_.allreduce(c.in, c.out, n, type, op, comm, s); break;
      case collective::reduce: code = nccl_.reduce(c.in, c.out, n, type, op, c.root, comm, s); break;
      case collective::reduce_scatter: code = nccl_.reduce_scatter(c.in, c.out, n, type, op, comm, s); break;
      case collective::allgather: code = nccl_.allgather(c.in, c.out, n, type, comm, s); break;
      case collective::broadcast: code = nccl_.broadcast(c.in, c.out, n, type, c.root, comm, s); break;
      case collective::alltoall: code = nccl_.alltoall(c.in, c.out, n, type, comm, s); break;
      case collective::gather: code = nccl_.gather(c.in, c.out, n, type, c.root, comm, s); break;
      case collective::scatter: code = nccl_.scatter(c.in, c.out, n, type, c.root, comm, s); break;
      default: throw std::runtime_error("not prepared for " + std::string(name(c.kind)));
    }
    must(code, name(c.kind));
  }
  [[nodiscard]] device_buffers device() { return gpu_.buffers(); }

 private:
  static constexpr int op_of(redop op) noexcept {
    switch (op) {
      case redop::prod: return detail::nccl_product;
      case redop::min: return detail::nccl_min;
      case redop::max: return detail::nccl_max;
      case redop::avg: return detail::nccl_average_op;
      case redop::sum: break;
    }
    return detail::nccl_sum;
  }

  const nccl_library& nccl_ = detail::get_nccl();
  int rank_, size_;
  Gpu gpu_;
  plain_communicator comm_;
};

static_assert(Backend<hvd_on_nccl> && Backend<bare_nccl_calls>);

}  // namespace

int serve_nccl(const Stage& stage, ShmTransport& control, const hvd_settings& settings) {
  hvd_on_nccl backend(control, settings);
  return serve(stage, erase(backend));
}

int nccl_process(const Stage& stage, const hvd_settings& settings, int rank) {
  return exit_code_of(stage, rank, [&] {
    pin_to_list(rank);
    ShmTransport control(settings.job, rank, stage.ranks());
    bare_nccl_calls backend(control, settings);
    return serve(stage, erase(backend));
  });
}

}  // namespace hvd::bench
