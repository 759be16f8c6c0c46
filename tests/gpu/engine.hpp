// tests/gpu/engine.hpp: one rank of an engine with a GPU, and requests on tensors of that GPU.
#pragma once

#include <hvd/gpu.hpp>

#include <gpu/ranks.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvd::test {

using hvd::handle;
using hvd::operation;
using hvd::request;

inline engine_options plain_engine() {
  engine_options o;
  o.watch = false;
  return o;
}
inline constexpr std::chrono::seconds only_a_hang{30};

/// A tensor on a GPU, for a request.
template <class T>
tensor tensor_at(int device, const gpu_array<T>& in, const std::type_identity_t<gpu_array<T>>* out = nullptr,
                 void* ready = nullptr, std::vector<std::size_t> shape = {}) {
  tensor t;
  t.in = reinterpret_cast<const std::byte*>(in.data());
  t.out = out != nullptr ? reinterpret_cast<std::byte*>(out->data()) : nullptr;
  t.type = dtype_of<T>;
  t.shape = shape.empty() ? std::vector<std::size_t>{in.size()} : std::move(shape);
  t.memory = {.kind = memory_kind::device, .device = device, .ready = ready};
  return t;
}
inline request asked(operation kind, std::string name, std::vector<tensor> tensors) {
  request r;
  r.kind = kind;
  r.name = std::move(name);
  r.tensors = std::move(tensors);
  return r;
}

/// What the engine has allocated for a result, read by the host.
template <class T>
std::vector<T> fetched(const result& r) {
  std::size_t n = 1;
  for (const std::size_t d : r.shape) n *= d;
  std::vector<T> values(n);
  const own_stream stream(0);
  if (n != 0) {
    const standin_gpu& gpu = standin_gpu::get();
    const void* const at = gpu.host(detail::to_device(r.data.get()));
    require(at != nullptr, "the result lies on no GPU");
    std::memcpy(values.data(), at, n * sizeof(T));
  }
  return values;
}

/// The error that an operation ends with.
inline error failure_of(const handle& h, std::source_location where = std::source_location::current()) {
  try {
    h.wait(only_a_hang);
  } catch (const error& e) {
    return e;
  }
  require(false, "the operation has ended without an error", where);
  std::abort();
}

/// One rank: a GPU, an engine, and the number that its tensors have.
template <class Engine>
struct engine_rank {
  ShmTransport& comm;
  Engine& engine;
  NcclTransport& gpu;  ///< of the test's own, for copies

  [[nodiscard]] int rank() const { return comm.rank(); }
  [[nodiscard]] int size() const { return comm.size(); }
  [[nodiscard]] float mine() const { return static_cast<float>(rank() + 1); }
  [[nodiscard]] float total() const { return static_cast<float>(size() * (size() + 1) / 2); }
  template <class T = float>
  [[nodiscard]] gpu_array<T> array(std::size_t n, T value) const {
    return gpu_array<T>(gpu, std::vector<T>(n, value));
  }
  template <class T>
  [[nodiscard]] tensor at(const gpu_array<T>& in, const std::type_identity_t<gpu_array<T>>* out = nullptr,
                          void* ready = nullptr, std::vector<std::size_t> shape = {}) const {
    return tensor_at(gpu.device(), in, out, ready, std::move(shape));
  }
  /// A sum in place.
  template <class T>
  [[nodiscard]] request sum(std::string name, const gpu_array<T>& a, void* ready = nullptr) const {
    return asked(operation::allreduce, std::move(name), {at(a, &a, ready)});
  }
  template <class T>
  void has(const gpu_array<T>& a, T value, std::source_location where = std::source_location::current()) const {
    same(a.get(gpu), std::vector<T>(a.size(), value), where);
  }
};

using nccl_engine = Engine<ShmTransport, NcclTransport>;
using demand_engine = Engine<ShmTransport, NcclOnDemand>;

/// f(engine_rank) on `count` ranks, each with an engine.
template <class E, class F>
void on_engines(int count, const environment& variables, const engine_options& options, F f) {
  on_gpus(count, variables, [&](NcclTransport& gpu, ShmTransport& comm) {
    E engine = [&] {
      if constexpr (std::same_as<E, nccl_engine>) {
        return E(comm, NcclTransport(comm, on_gpu(comm.rank())), options);
      } else {
        return E(comm, NcclOnDemand(on_gpu(-1)), options);
      }
    }();
    f(engine_rank<E>{comm, engine, gpu});
    comm.barrier();  // an engine that ends ends those of the others
  });
}

}  // namespace hvd::test
