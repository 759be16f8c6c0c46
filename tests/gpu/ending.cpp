// tests/gpu/ending.cpp: how communicators end: with work that is late, with work that never ends, and beside threads.
#include <hvd/hvd.hpp>

#include <gpu/engine.hpp>

#include <atomic>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

namespace gpu_ending_tests {

using namespace hvd::test;

namespace {

/// An older NCCL of this version, with more variables.
environment version(const char* number, const environment& others = {}) {
  environment all = old_library();
  all["HVD_STANDIN_NCCL_VERSION"] = number;
  all.insert(others.begin(), others.end());
  return all;
}

/// A collective that is queued behind the program's own work, which takes this long.
class late_sum {
 public:
  late_sum(NcclTransport& gpu, double seconds) : array_(gpu, floats(100, 1)), stream_(gpu) {
    must(standin_gpu::get().hold(stream_.get()));
    hvd::allreduce(gpu, array_.span(), hvd::sum, hvd::on_stream{stream_.get()});
    release_ = std::thread([this, seconds] {
      pause_for(seconds);
      must(standin_gpu::get().release(stream_.get()));
    });
  }
  late_sum(const late_sum&) = delete;
  late_sum& operator=(const late_sum&) = delete;
  ~late_sum() {
    if (release_.joinable()) release_.join();
  }
  [[nodiscard]] std::vector<float> get() {
    release_.join();
    std::vector<float> values;
    stream_.read(array_, values);
    stream_.synchronise();
    return values;
  }

 private:
  gpu_array<float> array_;
  own_stream stream_;
  std::thread release_;
};

}  // namespace

TEST_CASE("the limit for the start is longer on GPUs") {
  // hvdrun sets the variable to the host's limit.
  for (const auto& [variable, seconds] : {std::pair{"30", 120.0}, {"200", 200.0}}) {
    ::setenv("HOROVOD_START_TIMEOUT", variable, 1);
    CHECK(hvd::nccl_options::from_environment().start_timeout.count() == seconds);
  }
  ::unsetenv("HOROVOD_START_TIMEOUT");
}

TEST_CASE("the end of a transport waits for work that is late, and not for long after an exception") {
  on_gpus(2, {}, [](NcclTransport& other, ShmTransport& comm) {
    std::optional<NcclTransport> gpu(std::in_place, comm, on_gpu(comm.rank()));
    late_sum sum(*gpu, comm.rank() == 0 ? 3.0 : 0.0);
    gpu.reset();
    require(sum.get() == floats(100, 2), "the collective was ended early");
    other.barrier();
  });
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    NcclTransport other(comm, on_gpu(comm.rank()));
    const double start = now();
    std::optional<late_sum> sum;
    try {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      sum.emplace(gpu, 6.0);
      throw std::runtime_error("a mistake of the program");
    } catch (const std::runtime_error&) {
    }
    require(now() - start > 1.5, "it did not wait at all");
    comm.barrier();
  });
  // A collective that the other rank never calls.
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    NcclTransport other(comm, on_gpu(comm.rank()));
    const gpu_array<float> a(other, floats(100, 1));
    const own_stream stream(other);
    const double start = now();
    try {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      gpu.barrier();  // connects
      if (comm.rank() == 0) {
        hvd::allreduce(gpu, a.span(), hvd::sum, hvd::on_stream{stream.get()});
        throw std::runtime_error("a mistake of the program");
      }
      comm.barrier();
    } catch (const std::runtime_error&) {
      stream.synchronise();
      require(now() - start < 8, "the collective was not ended");
      comm.barrier();
    }
  });
}

TEST_CASE("ranks leave others out without an error before, also with calls under way") {
  for (const environment& variables : {environment{}, in_progress}) {
    on_ranks(3, variables, -1, [](ShmTransport& comm, report&) {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      const gpu_array<float> a(gpu, floats(10, 1));
      const own_stream stream(gpu);
      gpu.barrier();  // connects
      if (comm.rank() != 1) {
        hvd::allreduce(gpu, a.span(), hvd::sum, hvd::on_stream{stream.get()});  // in vain
        NcclTransport left = gpu.without({1});
        const gpu_array<float> b(left, floats(10, static_cast<float>(comm.rank() + 1)));
        hvd::allreduce(left, b.span());
        require(b.get(left) == floats(10, 4), "a wrong sum");
        complaint(error_kind::aborted, {"go on without others"}, [&] { gpu.barrier(); });
      }
      comm.barrier();
    });
  }
}

TEST_CASE("ranks that cannot go on without others are told so at once") {
  // An error of NCCL's thread that makes the smaller communicator.
  on_ranks(3, {}, -1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    if (comm.rank() != 1) {
      const double start = now();
      standin_gpu::get().fail_next("ncclCommInitRankFunc", 2);
      complaint(error_kind::system,
                {"without on rank ", ": NCCL 2.28.9 says unhandled system error",
                 "; make a new NcclTransport over a transport of the remaining ranks"},
                [&] { static_cast<void>(gpu.without({1})); });
      require(now() - start < 20, "it took as long as a rank that does not come");
      complaint(error_kind::unsupported, {"has aborted the communicator; make a new NcclTransport"},
                [&] { static_cast<void>(gpu.without({1})); });
    }
    comm.barrier();
  });
  // What a network has noticed stays an error of the communicator.
  on_ranks(3, {{"HVD_STANDIN_NCCL_REMOTE_ERROR", "1"}}, 1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    gpu.barrier();
    if (comm.rank() == 1) ::raise(SIGKILL);
    complaint(error_kind::peer_lost, {"barrier on rank ", "says remote process exited"}, [&] { gpu.barrier(); });
    complaint(error_kind::peer_lost,
              {"without on rank ", "; make a new NcclTransport over a transport of the remaining ranks"},
              [&] { static_cast<void>(gpu.without({1})); });
  });
  // A rank that is left does not come.
  on_ranks(3, {}, -1, [](ShmTransport& comm, report&) {
    hvd::nccl_options options = on_gpu(comm.rank());
    NcclTransport connected(comm, options);
    options.start_timeout = std::chrono::milliseconds(500);
    NcclTransport gpu = connected.split(0, 0);
    NcclTransport short_limit(comm, options);
    if (comm.rank() == 0) {
      complaint(error_kind::timeout, {"without on rank 0 of 2: the remaining ranks did not arrive within 0.5 s"},
                [&] { static_cast<void>(short_limit.without({1})); });
    }
    comm.barrier();
  });
}

TEST_CASE("an engine's error does not wait for kernels of another communicator that never end") {
  on_ranks(3, {}, 2, [&](ShmTransport& comm, report&) {
    hvd::nccl_options options = on_gpu(comm.rank());
    NcclTransport own(comm, options);
    options.timeout = std::chrono::seconds(1);
    NcclTransport other(comm, options);
    other.barrier();  // connects
    const gpu_array<float> a(own, floats(50, 1)), b(own, floats(50, 1));
    const own_stream stream(own);
    std::atomic<bool> freed = false;
    {
      nccl_engine engine(comm, NcclTransport(comm, on_gpu(comm.rank())), plain_engine());
      engine.run(asked(operation::allreduce, "first", {tensor_at(own.device(), a, &a)}));
      request r = asked(operation::allreduce, "sum", {tensor_at(own.device(), a, &a)});
      r.keep = std::shared_ptr<void>(nullptr, [&](void*) { freed = true; });
      if (comm.rank() == 2) {
        must(standin_gpu::get().hold(stream.get()));
        r.tensors.front().memory.ready = stream.event();
      }
      const handle h = engine.submit(std::move(r));
      h.wait_queued(only_a_hang);
      if (comm.rank() == 2) ::raise(SIGKILL);
      hvd::allreduce(other, b.span(), hvd::sum, hvd::on_stream{stream.get()});  // hangs
      const double start = now();
      const hvd::error e = failure_of(h);
      require(e.kind() == error_kind::peer_lost && e.rank() == 2, e.what());
      require(now() - start < 8, "the error came late");
      const hvd::error later =
          failure_of(engine.submit(asked(operation::allreduce, "later", {tensor_at(own.device(), a, &a)})));
      require(later.rank() == 2, later.what());
      require(freed, "memory is kept that the GPU does not use");
      // Before the engine ends: it frees memory, for which the driver waits with its context.
      complaint(error_kind::timeout, {"barrier on rank "}, [&] { other.barrier(); });
    }
  });
}

TEST_CASE("before NCCL 2.26 the thread that made a call joins it") {
  for (const environment& variables :
       {version("22105", in_progress), version("22105"), version("21806", in_progress)}) {
    on_gpus(2, variables, [](NcclTransport& gpu, ShmTransport& comm) {
      NcclTransport beside(comm, on_gpu(comm.rank()));
      NcclTransport part = gpu.split(0, -comm.rank());
      const gpu_array<float> a(gpu, floats(10, 1)), b(gpu, floats(300'000, 1));
      const own_stream stream(gpu);
      for (int i = 0; i != 3; ++i) {
        for (NcclTransport* const t : {&gpu, &beside, &part}) {
          hvd::allreduce(*t, a.span(), hvd::average, hvd::on_stream{stream.get()});
        }
        std::thread([&] { hvd::allreduce(beside, a.span(), hvd::average, hvd::on_stream{stream.get()}); }).join();
      }
      stream.synchronise();
      same(a.get(gpu), floats(10, 1));
      nccl_engine engine(comm, NcclTransport(comm, on_gpu(comm.rank())), plain_engine());
      for (int i = 0; i != 3; ++i) {
        engine.run(
            asked(operation::allreduce, "pair", {tensor_at(gpu.device(), a, &a), tensor_at(gpu.device(), b, &b)}));
        hvd::allreduce(gpu, a.span(), hvd::average);
      }
      same(a.get(gpu), floats(10, 8));  // sums of two, three times
      comm.barrier();
    });
  }
}

TEST_CASE("versions of NCCL that connect ranks inside of the first call do it at the start") {
  on_ranks(2, version("22304"), -1, [](ShmTransport& comm, report&) {
    hvd::nccl_options options = on_gpu(comm.rank());
    options.timeout = std::chrono::milliseconds(500);
    NcclTransport gpu(comm, options);
    const gpu_array<float> a(gpu, floats(10, 1));
    if (comm.rank() == 0) {
      complaint(error_kind::timeout, {"has waited 0.5 s for other ranks"}, [&] { hvd::allreduce(gpu, a.span()); });
    }
    comm.barrier();
  });
}

TEST_CASE("registered memory that the program drops while its engine is at work is freed when that ends") {
  on_gpus(2, {}, [](NcclTransport& gpu, ShmTransport& comm) {
    const gpu_array<float> a(gpu, floats(10, 1));
    const own_stream stream(gpu);
    NcclTransport given(comm, on_gpu(comm.rank()));
    auto registered = given.alloc_shared<float>(1000);
    {
      nccl_engine engine(comm, std::move(given), plain_engine());
      must(standin_gpu::get().hold(stream.get()));
      const handle h =
          engine.submit(asked(operation::allreduce, "sum", {tensor_at(gpu.device(), a, &a, stream.event())}));
      h.wait_queued(only_a_hang);
      registered = {};
      must(standin_gpu::get().release(stream.get()));
      h.wait(only_a_hang);
      comm.barrier();
    }
    same(a.get(gpu), floats(10, 2));
  });
}

}  // namespace gpu_ending_tests
