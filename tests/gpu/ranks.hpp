// tests/gpu/ranks.hpp: ranks with stand-in GPUs: processes that agree over shared memory and are connected by NCCL.
//
// The parent never uses CUDA, which does not survive a fork: each case has processes, and an environment, of its own.
#pragma once

#include <hvd/detail/random_word.hpp>
#include <hvd/detail/text_hash.hpp>
#include <hvd/transport/nccl.hpp>
#include <hvd/transport/shm.hpp>

#include <gpu/standin_rank.hpp>

#include <doctest/doctest.h>

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hvd::test {

// For tests in namespaces of their own, which use this one.
using hvd::dtype;
using hvd::error_kind;
using hvd::NcclTransport;
using hvd::reduce_op;
using hvd::ShmTransport;

/// A deadline that only a hang reaches.
inline sharing_options patient() {
  sharing_options o;
  o.failure.timeout = std::chrono::seconds(40);
  return o;
}
inline nccl_options on_gpu(int device) {
  nccl_options o;
  o.device = device;
  o.timeout = std::chrono::seconds(40);
  return o;
}

/// The name of a job that no other has.
inline std::string new_job() { return "gpu-" + detail::hex(detail::random_word()); }

inline std::vector<float> floats(std::size_t n, float x) { return std::vector<float>(n, x); }

/// At the end of a process: no work on a GPU was unordered, and no memory was used after its end.
inline void no_violations(std::source_location where = std::source_location::current()) {
  const standin_gpu& gpu = standin_gpu::get();
  require(
      gpu.violations(nullptr, 0) == 0, [&] { return gpu.last_violation(); }, where);
}
/// A mistake of the test's own was found.
inline void found_violation(std::source_location where = std::source_location::current()) {
  const standin_gpu& gpu = standin_gpu::get();
  require(gpu.violations(nullptr, 0) != 0, "a mistake was not found", where);
  gpu.clear_violations();
}

/// f(ShmTransport) on `count` ranks, each a process that sees `count` GPUs, and checks that it ends without a
/// violation. What a rank throws fails the test.
template <class F>
void on_hosts(int count, environment variables, F f) {
  const std::string job = new_job();
  variables.emplace("HVD_STANDIN_GPUS", std::to_string(count));
  variables.emplace("HVD_STANDIN_DELAY_US", "50");
  CAPTURE(count);
  in_processes(count, variables, [&](int rank) {
    ShmTransport comm(job, rank, count, patient());
    f(comm);
    no_violations();
    comm.barrier();
  });
}
/// f(NcclTransport, ShmTransport), rank r on GPU r.
template <class F>
void on_gpus(int count, const environment& variables, F f) {
  on_hosts(count, variables, [&](ShmTransport& comm) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    f(gpu, comm);
  });
}

/// Ranks of which some end before the others; f(comm, report), without the barrier at the end.
template <class F>
void on_ranks(int count, environment variables, int killed, const F& f) {
  const std::string job = new_job();
  variables.emplace("HVD_STANDIN_GPUS", std::to_string(count));
  variables.emplace("HVD_STANDIN_DELAY_US", "50");
  children all(count);
  all.start_all([&](int rank, report& mine) {
    set_environment(variables);
    ShmTransport comm(job, rank, count, patient());
    f(comm, mine);
    no_violations();
  });
  CHECK(all.wait(60.0));
  for (int i = 0; i != count; ++i) {
    CAPTURE(i);
    CAPTURE(all[i].text());
    CHECK((i == killed ? WIFSIGNALED(all.status(i)) : all.status(i) == 0));
  }
}

/// The error that f throws, which is of this kind and has all of these texts.
template <class F>
error complaint(error_kind kind, std::initializer_list<std::string_view> texts, const F& f,
                std::source_location where = std::source_location::current()) {
  try {
    f();
  } catch (const error& e) {
    const std::string_view what = e.what();
    require(
        e.kind() == kind, [&] { return "another error, " + std::string(name(e.kind())) + ": " + e.what(); }, where);
    for (const std::string_view text : texts) {
      require(
          what.find(text) != what.npos, [&] { return "it does not say \"" + std::string(text) + "\": " + e.what(); },
          where);
    }
    return e;
  }
  require(false, "nothing was thrown", where);
  std::abort();
}

/// What f throws has this text.
inline void says(const error& e, std::string_view text, std::source_location where = std::source_location::current()) {
  require(std::string_view(e.what()).find(text) != std::string_view::npos, e.what(), where);
}

template <class T>
void same(const std::vector<T>& got, const std::vector<T>& want,
          std::source_location where = std::source_location::current()) {
  require(got.size() == want.size(), "another length", where);
  for (std::size_t i = 0; i != got.size(); ++i) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    const auto number = [](const T& x) {
      if constexpr (requires { static_cast<double>(x); }) return std::to_string(static_cast<double>(x));
      return std::string("of another type");
    };
    require(false, "element " + std::to_string(i) + " is " + number(got[i]) + ", not " + number(want[i]), where);
  }
}

/// Memory of a rank's GPU with elements, as a program of its own has it.
template <class T>
class gpu_array {
 public:
  gpu_array(NcclTransport& gpu, std::size_t n)
      : owner_(detail::cuda_memory(gpu.group()->device(), n * sizeof(T))), n_(n) {}
  gpu_array(NcclTransport& gpu, const std::vector<T>& values) : gpu_array(gpu, values.size()) { put(gpu, values); }

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(owner_.get()); }
  [[nodiscard]] std::size_t size() const { return n_; }
  [[nodiscard]] std::span<T> span() const { return {data(), n_}; }
  [[nodiscard]] std::span<const T> input() const { return {data(), n_}; }
  [[nodiscard]] detail::cu_pointer address() const { return detail::to_device(owner_.get()); }
  void put(NcclTransport& gpu, const std::vector<T>& values) const {
    gpu.copy_to_device<T>(std::span<const T>(values), data());
  }
  [[nodiscard]] std::vector<T> get(NcclTransport& gpu) const {
    std::vector<T> values(n_);
    gpu.copy_to_host<T>(data(), std::span<T>(values));
    return values;
  }
  [[nodiscard]] const std::shared_ptr<std::byte>& owner() const { return owner_; }

 private:
  std::shared_ptr<std::byte> owner_;
  std::size_t n_;
};

/// A stream of the program's own, beside those of hvd.
class own_stream {
 public:
  explicit own_stream(NcclTransport& gpu) : own_stream(gpu.device()) {}
  explicit own_stream(int device) : device_(std::make_shared<detail::cuda_device>(device)) {
    const detail::cuda_device::scope current(*device_);
    must(cu_.stream_create(&stream_, detail::cu_stream_non_blocking, 0));
  }
  own_stream(const own_stream&) = delete;
  own_stream& operator=(const own_stream&) = delete;
  /// Waits: what is queued may use memory of the test.
  ~own_stream() {
    cu_.stream_synchronize(stream_);
    cu_.stream_destroy(stream_);
  }

  [[nodiscard]] detail::cu_stream get() const { return stream_; }
  void synchronise() const { must(cu_.stream_synchronize(stream_)); }
  void wait_for(void* event) const { must(cu_.stream_wait(stream_, event, 0)); }
  [[nodiscard]] void* event() const {
    const detail::cuda_device::scope current(*device_);
    void* e = nullptr;
    must(cu_.event_create(&e, detail::cu_event_disable_timing));
    must(cu_.event_record(e, stream_));
    return e;
  }
  /// Queues a work that sets all elements to `value`.
  template <class T>
  void fill(const gpu_array<T>& a, T value) const {
    work(a.owner(), a.size() * sizeof(T), true,
         [n = a.size(), value](std::byte* at) { std::fill_n(reinterpret_cast<T*>(at), n, value); });
  }
  /// Queues a work that copies all elements to `to`, which is there after `synchronise`.
  template <class T>
  void read(T* from, std::size_t n, std::vector<T>& to) const {
    to.resize(n);
    const hvd_standin_range range{detail::to_device(from), n * sizeof(T), 0};
    enqueue("a test's reading", range, [from, n, &to] {
      std::copy_n(reinterpret_cast<const T*>(standin_gpu::get().host(detail::to_device(from))), n, to.begin());
    });
  }
  template <class T>
  void read(const gpu_array<T>& a, std::vector<T>& to) const {
    read(a.data(), a.size(), to);
  }

 private:
  template <class F>
  void work(const std::shared_ptr<std::byte>& memory, std::size_t bytes, bool writes, F f) const {
    const detail::cu_pointer at = detail::to_device(memory.get());
    enqueue("a test's work", {at, bytes, writes ? 1 : 0},
            [at, f] { f(static_cast<std::byte*>(standin_gpu::get().host(at))); });
  }
  template <class F>
  void enqueue(const char* name, hvd_standin_range range, F f) const {
    auto* const body = new F(std::move(f));
    const auto run = [](void* argument) {
      const std::unique_ptr<F> mine(static_cast<F*>(argument));
      (*mine)();
    };
    must(standin_gpu::get().enqueue(stream_, name, run, body, &range, 1));
  }

  std::shared_ptr<detail::cuda_device> device_;
  const detail::cuda_driver& cu_ = detail::get_cuda();
  detail::cu_stream stream_ = nullptr;
};

}  // namespace hvd::test
