// tests/gpu/faults.cpp: lost ranks, errors of NCCL and of the driver, and GPUs that are full: what each rank is told.
#include <hvd/hvd.hpp>

#include <gpu/engine.hpp>

#include <cmath>
#include <csignal>
#include <optional>
#include <thread>

namespace gpu_faults_tests {

using namespace hvd::test;

namespace {

nccl_engine make_engine(ShmTransport& comm) {
  return nccl_engine(comm, NcclTransport(comm, on_gpu(comm.rank())), plain_engine());
}

}  // namespace

TEST_CASE("a rank that is killed under way is named by all others, although NCCL hangs") {
  for (const environment& variables :
       {environment{}, environment{{"HVD_STANDIN_NCCL_REMOTE_ERROR", "1"}}, in_progress, old_library()}) {
    on_ranks(3, variables, 2, [](ShmTransport& comm, report&) {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      nccl_engine engine = make_engine(comm);
      const gpu_array<float> a(gpu, floats(50, 1)), b(gpu, floats(300'000, 1));
      const own_stream stream(gpu);
      engine.run(asked(operation::allreduce, "first", {tensor_at(gpu.device(), a, &a)}));
      void* ready = nullptr;
      if (comm.rank() == 2) {
        must(standin_gpu::get().hold(stream.get()));
        ready = stream.event();
      }
      const handle one = engine.submit(asked(operation::allreduce, "a", {tensor_at(gpu.device(), a, &a, ready)}));
      const handle two = engine.submit(asked(operation::allreduce, "b", {tensor_at(gpu.device(), b, &b, ready)}));
      one.wait_queued(only_a_hang);
      two.wait_queued(only_a_hang);
      comm.barrier();  // else a slow rank hears of the loss while it still queues
      if (comm.rank() == 2) ::kill(::getpid(), SIGKILL);
      const double start = now();
      for (const handle& h : {one, two}) {
        const hvd::error e = failure_of(h);
        require(e.kind() == error_kind::peer_lost && e.rank() == 2, e.what());
      }
      require(now() - start < 10, "it took too long");
      const hvd::error later = complaint(error_kind::peer_lost, {}, [&] {
        engine.submit(asked(operation::allreduce, "later", {tensor_at(gpu.device(), a, &a)})).wait(only_a_hang);
      });
      require(later.rank() == 2, later.what());
    });
  }
}

TEST_CASE("a rank that is killed is noticed while a thread of the program waits in the driver for its collective") {
  enum class waiting { in_synchronize, in_free, also_the_engine };
  for (const waiting how : {waiting::in_synchronize, waiting::in_free, waiting::also_the_engine}) {
    for (const environment& variables : {how == waiting::in_free ? in_progress : environment{}, old_library()}) {
      if (how == waiting::in_synchronize && !variables.empty()) continue;
      CAPTURE(static_cast<int>(how));
      on_ranks(3, variables, 2, [&](ShmTransport& comm, report&) {
        const standin_gpu& standin = standin_gpu::get();
        NcclTransport gpu(comm, on_gpu(comm.rank()));
        nccl_engine engine = make_engine(comm);
        const gpu_array<float> a(gpu, floats(50, 1)), b(gpu, floats(60, 1));
        std::optional<gpu_array<float>> c(std::in_place, gpu, floats(10, 1));
        const own_stream stream(gpu);
        const auto sum = [&](const char* name, const gpu_array<float>& x, void* ready) {
          return engine.submit(asked(operation::allreduce, name, {tensor_at(gpu.device(), x, &x, ready)}));
        };
        sum("first", a, nullptr).wait(only_a_hang);
        void* ready = nullptr;
        if (comm.rank() == 2) {
          must(standin.hold(stream.get()));
          ready = stream.event();
        }
        const handle one = sum("a", a, ready);
        one.wait_queued(only_a_hang);
        comm.barrier();
        if (comm.rank() == 2) {
          pause_for(1);
          if (how == waiting::also_the_engine) sum("b", b, ready).wait_queued(only_a_hang);
          pause_for(0.5);
          ::raise(SIGKILL);
        }
        const handle two = how == waiting::also_the_engine ? sum("b", b, nullptr) : handle();
        const std::jthread waits([&] {
          const hvd::detail::cuda_device::scope current(*gpu.group()->device());
          if (how == waiting::in_free) return c.reset();
          must(standin.function<int (*)()>("cuCtxSynchronize")());
        });
        const double start = now();
        const hvd::error e = failure_of(one);
        require(e.kind() == error_kind::peer_lost && e.rank() == 2, e.what());
        if (how == waiting::also_the_engine) require(failure_of(two).rank() == 2, "another rank");
        require(now() - start < 8, "it took too long");
      });
    }
  }
}

TEST_CASE("an engine whose GPU fails says so, although the end of its work is never reached") {
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    nccl_engine engine = make_engine(comm);
    const gpu_array<float> a(gpu, floats(50, 1));
    const own_stream stream(gpu);
    void* ready = nullptr;
    if (comm.rank() == 1) {
      must(standin_gpu::get().hold(stream.get()));
      ready = stream.event();
    }
    const handle h = engine.submit(asked(operation::allreduce, "a", {tensor_at(gpu.device(), a, &a, ready)}));
    h.wait_queued(only_a_hang);
    comm.barrier();
    if (comm.rank() == 1) standin_gpu::get().fail_next("cuEventQuery", 700);
    const hvd::error e = failure_of(h);
    require(e.rank() == 1, e.what());
    if (comm.rank() == 1) {
      says(e, "CUDA_ERROR_ILLEGAL_ADDRESS");
      must(standin_gpu::get().release(stream.get()));
    }
  });
}

TEST_CASE("an engine with a GPU: what is saved after `settle` is no rubbish of an aborted collective") {
  for (const environment& variables :
       {environment{}, environment{{"HVD_STANDIN_NCCL_REMOTE_ERROR", "1"}}, in_progress, old_library()}) {
    on_ranks(3, variables, 2, [](ShmTransport& comm, report&) {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      nccl_engine engine = make_engine(comm);
      engine.settle();  // nothing to wait for
      const gpu_array<float> a(gpu, floats(50, 1)), b(gpu, floats(300'000, 1)), c(gpu, floats(60, 1));
      const own_stream stream(gpu);
      const auto step = [&](void* ready) {
        std::vector<handle> all;
        // Two that are packed, and a long one that is divided after it was reduced in place.
        all.push_back(
            engine.submit(asked(operation::allreduce, "a",
                                {tensor_at(gpu.device(), a, &a, ready), tensor_at(gpu.device(), c, &c, ready)})));
        request average = asked(operation::allreduce, "b", {tensor_at(gpu.device(), b, &b, ready)});
        average.op = reduce_op::average;
        all.push_back(engine.submit(std::move(average)));
        for (const handle& h : all) h.wait_queued(only_a_hang);
        for (const handle& h : all) stream.wait_for(h.device_event());
      };
      std::vector<float> saved, lost, lost_packed;
      step(nullptr);
      engine.settle();
      stream.read(a, saved);
      stream.synchronise();
      same(saved, floats(50, 3));
      stream.read(b, saved);
      stream.synchronise();
      same(saved, floats(300'000, 1));
      // A step in which a rank is lost: as a program sees it, all calls return.
      void* ready = nullptr;
      const own_stream other(gpu);
      if (comm.rank() == 2) {
        must(standin_gpu::get().hold(other.get()));
        ready = other.event();
      }
      step(ready);
      comm.barrier();
      if (comm.rank() == 2) ::kill(::getpid(), SIGKILL);
      // An operation that not all ranks have submitted is nothing to wait for.
      if (comm.rank() == 0)
        static_cast<void>(engine.submit(asked(operation::allreduce, "never", {tensor_at(gpu.device(), a, &a)})));
      stream.read(b, lost);
      stream.read(a, lost_packed);
      const double start = now();
      for (int i = 0; i != 2; ++i) {
        const hvd::error e = complaint(error_kind::peer_lost, {}, [&] { engine.settle(); });
        require(e.rank() == 2, e.what());
      }
      require(now() - start < 10, "it took too long");
      stream.synchronise();
      for (const float x : lost) require(std::isnan(x), "rubbish that looks like an average");
      for (const float x : lost_packed) require(std::isnan(x), "rubbish that looks like a sum");
    });
  }
}

TEST_CASE("an engine with a GPU: a rank that leaves when all work is done spoils no results") {
  on_ranks(2, {}, 1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    nccl_engine engine = make_engine(comm);
    const gpu_array<float> a(gpu, floats(50, 1));
    const handle h = engine.submit(asked(operation::allreduce, "a", {tensor_at(gpu.device(), a, &a)}));
    h.wait_queued(only_a_hang);
    engine.settle();
    comm.barrier();
    if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
    failure_of(engine.submit(asked(operation::allreduce, "b", {tensor_at(gpu.device(), a, &a)})));
    engine.settle();
    same(a.get(gpu), floats(50, 2));
  });
}

TEST_CASE("a transport alone: its own deadline ends the wait, and every call after it says so") {
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    hvd::nccl_options options = on_gpu(comm.rank());
    options.timeout = std::chrono::milliseconds(300);
    NcclTransport gpu(comm, options);
    const gpu_array<float> a(gpu, floats(10, 1));
    auto registered = gpu.alloc_shared<float>(10);
    hvd::FusionBuffer<NcclTransport> fusion(gpu);
    if (comm.rank() == 0) {
      const std::string text =
          "allreduce on rank 0 of 2 has waited 0.3 s for other ranks, on GPU-5a7d1000-0000-4000-8000-000000000000 "
          "(0000:01:00.0), and given up; NCCL does not report which one is missing: look for a rank that has ended or "
          "is "
          "in another call (HVD_TIMEOUT sets the limit)";
      complaint(error_kind::timeout, {text}, [&] { hvd::allreduce(gpu, a.span()); });
      complaint(error_kind::timeout, {text}, [&] { gpu.barrier(); });
      complaint(error_kind::timeout, {text}, [&] { hvd::broadcast(gpu, a.span(), 0, hvd::on_stream{}); });
      complaint(error_kind::timeout, {text}, [&] { static_cast<void>(gpu.alloc_shared<int>(3)); });
      complaint(error_kind::timeout, {text}, [&] { static_cast<void>(gpu.split(0, 0)); });
      complaint(error_kind::timeout, {text}, [&] { hvd::send(gpu, a.input(), 1); });
      complaint(error_kind::timeout, {text}, [&] { fusion.allreduce(hvd::tensors(a.span())); });
    }
    comm.barrier();
    comm.barrier();
  });
  // A batch of a list, and one that needs a buffer.
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    hvd::nccl_options options = on_gpu(comm.rank());
    options.timeout = std::chrono::milliseconds(300);
    NcclTransport gpu(comm, options);
    const gpu_array<float> a(gpu, floats(10, 1)), b(gpu, floats(20, 1));
    if (comm.rank() == 0) {
      hvd::FusionBuffer<NcclTransport> fusion(gpu);
      complaint(error_kind::timeout, {"on rank 0 of 2 has waited 0.3 s for other ranks"},
                [&] { fusion.allreduce(hvd::tensors(a.span(), b.span())); });
      complaint(error_kind::timeout, {"has waited 0.3 s"}, [&] { fusion.allreduce(hvd::tensors(a.span())); });
    }
    comm.barrier();
  });
}

TEST_CASE("a transport alone: the ranks that are left go on without one that is lost") {
  for (const environment& variables : {environment{}, in_progress}) {
    on_ranks(3, variables, 1, [](ShmTransport& comm, report&) {
      hvd::nccl_options options = on_gpu(comm.rank());
      options.timeout = std::chrono::milliseconds(500);
      NcclTransport gpu(comm, options);
      const gpu_array<float> a(gpu, floats(10, 1));
      hvd::allreduce(gpu, a.span());
      if (comm.rank() == 1) ::raise(SIGKILL);
      complaint(error_kind::timeout, {"has waited 0.5 s"}, [&] { hvd::allreduce(gpu, a.span()); });
      complaint(error_kind::timeout, {"has waited 0.5 s"}, [&] { static_cast<void>(gpu.alloc_shared<int>(3)); });
      complaint(error_kind::invalid_argument, {"rank 3 cannot be left out; allowed: other ranks"},
                [&] { static_cast<void>(gpu.without({3})); });
      complaint(error_kind::invalid_argument, {"rank 1 is named twice"}, [&] {
        static_cast<void>(gpu.without({1, 1}));
      });
      NcclTransport left = gpu.without({1});
      require(left.size() == 2 && left.rank() == comm.rank() / 2, "another place");
      const gpu_array<float> b(left, floats(10, static_cast<float>(comm.rank() + 1)));
      hvd::allreduce(left, b.span());
      require(b.get(left) == floats(10, 4), "a wrong sum");
      complaint(error_kind::timeout, {"has waited 0.5 s"}, [&] { gpu.barrier(); });
    });
  }
  // Before NCCL 2.28.7 an error aborts the communicator.
  on_ranks(2, old_library(), -1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    complaint(error_kind::unsupported, {"without: NCCL 2.18.6 cannot leave ranks out (2.27 can); make a new "},
              [&] { static_cast<void>(gpu.without({1 - comm.rank()})); });
    comm.barrier();
  });
}

TEST_CASE("a transport alone: errors that NCCL has found by itself") {
  // On one rank, and nothing is known on the other but its deadline.
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    if (comm.rank() == 1) ::setenv("HVD_STANDIN_NCCL_FAIL", "ncclAllReduce:2:3", 1);
    hvd::nccl_options options = on_gpu(comm.rank());
    if (comm.rank() == 0) options.timeout = std::chrono::milliseconds(500);
    NcclTransport gpu(comm, options);
    const gpu_array<float> a(gpu, floats(10, 1));
    hvd::allreduce(gpu, a.span());
    const error_kind kind = comm.rank() == 1 ? error_kind::system : error_kind::timeout;
    const std::string text = comm.rank() == 1 ? "NCCL 2.28.9 says internal error" : "has waited 0.5 s";
    complaint(kind, {"allreduce on rank", text}, [&] { hvd::allreduce(gpu, a.span()); });
    complaint(kind, {"allreduce on rank", text}, [&] { hvd::allreduce(gpu, a.span()); });
    complaint(kind, {text}, [&] { gpu.barrier(); });
    comm.barrier();
  });
  on_ranks(2, {{"HVD_STANDIN_NCCL_REMOTE_ERROR", "1"}}, 1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    gpu.barrier();
    if (comm.rank() == 1) ::kill(::getpid(), SIGKILL);
    for (int i = 0; i != 2; ++i) {
      complaint(error_kind::peer_lost, {"barrier on rank 0 of 2: NCCL 2.28.9 says remote process exited"},
                [&] { gpu.barrier(); });
    }
  });
  // A call that NCCL refuses ends that call alone, if it is refused on all ranks.
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    const gpu_array<float> a(gpu, floats(10, 1));
    standin_gpu::get().fail_next("ncclAllReduce", 5);
    complaint(error_kind::invalid_argument, {"allreduce on rank", "NCCL 2.28.9 says invalid usage"},
              [&] { hvd::allreduce(gpu, a.span()); });
    standin_gpu::get().fail_next("ncclGroupEnd", 2);
    complaint(error_kind::system, {"NCCL 2.28.9 says unhandled system error"}, [&] { hvd::allreduce(gpu, a.span()); });
    hvd::allreduce(gpu, a.span());
    same(a.get(gpu), floats(10, 2));
  });
}

TEST_CASE("an error on one rank ends the engines of all, with its cause") {
  struct fault {
    const char* symbol;
    int code;
    error_kind kind;
    const char* text;
  };
  for (const fault& f : {fault{"ncclAllReduce", 1, error_kind::system, "NCCL 2.28.9 says unhandled cuda error"},
                         fault{"ncclGroupEnd", 5, error_kind::invalid_argument, "says invalid usage"},
                         fault{"cuEventRecord", 999, error_kind::system, "cuEventRecord failed: CUDA_ERROR_UNKNOWN"},
                         fault{"cuStreamWriteValue32_v2", 1, error_kind::system, "cuStreamWriteValue32 failed"},
                         fault{"cuEventQuery", 719, error_kind::system, "CUDA_ERROR_LAUNCH_FAILED"},
                         fault{"cuMemsetD8Async", 2, error_kind::no_memory, "cuMemsetD8Async failed"}}) {
    CAPTURE(std::string(f.symbol));
    on_ranks(3, {}, -1, [&](ShmTransport& comm, report&) {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      nccl_engine engine = make_engine(comm);
      const gpu_array<float> a(gpu, floats(50, 1)), b(gpu, floats(300'000, 1));
      const double start = now();
      if (comm.rank() == 1) standin_gpu::get().fail_next(f.symbol, f.code);
      const handle one = engine.submit(
          asked(operation::allreduce, "a", {tensor_at(gpu.device(), a, &a), tensor_at(gpu.device(), b, &b)}));
      const hvd::error e = failure_of(one);
      if (comm.rank() == 1) {
        require(e.kind() == f.kind, e.what());
        says(e, f.text);
      } else {
        require(e.rank() == 1, e.what());
      }
      require(now() - start < 15, "it took too long");
      failure_of(engine.submit(asked(operation::allreduce, "later", {tensor_at(gpu.device(), a, &a)})));
    });
  }
  // An error that NCCL finds later.
  on_ranks(2, {}, -1, [&](ShmTransport& comm, report&) {
    if (comm.rank() == 1) ::setenv("HVD_STANDIN_NCCL_FAIL", "ncclAllReduce:1:3", 1);
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    nccl_engine engine = make_engine(comm);
    const gpu_array<float> a(gpu, floats(50, 1));
    const hvd::error e = failure_of(engine.submit(asked(operation::allreduce, "a", {tensor_at(gpu.device(), a, &a)})));
    if (comm.rank() == 1) says(e, "NCCL 2.28.9 says internal error");
  });
}

TEST_CASE("an engine whose GPU is full") {
  for (environment variables : {environment{}, in_progress}) {
    variables["HVD_STANDIN_MEMORY"] = "4000000";
    // The buffer: all ranks are told, and go on.
    on_engines<nccl_engine>(3, variables, plain_engine(), [](const auto& r) {
      const auto a = r.array(200'000, r.mine()), b = r.array(1000, r.mine());
      std::optional<gpu_array<char>> hog;
      if (r.rank() == 2) hog.emplace(r.gpu, 3'000'000);
      const hvd::error e = failure_of(r.engine.submit(asked(operation::allreduce, "pair", {r.at(a, &a), r.at(b, &b)})));
      require(e.kind() == error_kind::no_memory && e.rank() == 2, e.what());
      says(e, "bytes left");
      r.engine.run(r.sum("b", b));
      r.has(b, r.total());
      hog.reset();
      r.comm.barrier();
      r.engine.run(asked(operation::allreduce, "pair", {r.at(a, &a), r.at(b, &b)}));
      r.has(a, r.total());
    });
    // A result: this rank alone has none, and nobody waits for it.
    on_ranks(3, variables, -1, [](ShmTransport& comm, report&) {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      nccl_engine engine = make_engine(comm);
      const gpu_array<float> a(gpu, floats(100'000, 1));
      std::optional<gpu_array<char>> hog;
      if (comm.rank() == 1) hog.emplace(gpu, 3'000'000);
      const hvd::error e = failure_of(engine.submit(asked(operation::allgather, "all", {tensor_at(gpu.device(), a)})));
      require(e.rank() == 1, e.what());
      if (comm.rank() == 1) require(e.kind() == error_kind::no_memory, e.what());
      hog.reset();
    });
  }
}

TEST_CASE("an engine ends with batches under way") {
  on_ranks(2, {}, -1, [](ShmTransport& comm, report&) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    const gpu_array<float> a(gpu, floats(50, 1)), b(gpu, floats(300'000, 1));
    const own_stream stream(gpu);
    handle one, two;
    std::thread release;
    {
      nccl_engine engine = make_engine(comm);
      void* ready = nullptr;
      if (comm.rank() == 0) {
        must(standin_gpu::get().hold(stream.get()));
        ready = stream.event();
        release = std::thread([&] {
          pause_for(1.5);
          must(standin_gpu::get().release(stream.get()));
        });
      }
      one = engine.submit(asked(operation::allreduce, "a", {tensor_at(gpu.device(), a, &a, ready)}));
      two = engine.submit(asked(operation::allreduce, "b", {tensor_at(gpu.device(), b, &b, ready)}));
      one.wait_queued(only_a_hang);
      two.wait_queued(only_a_hang);
      if (comm.rank() == 0) failure_of(one);
    }
    for (const handle& h : {one, two}) {
      const hvd::error e = failure_of(h);
      require(comm.rank() == 0 || e.kind() == error_kind::aborted, e.what());
    }
    require(one.device_event() != nullptr, "the event is gone");
    if (release.joinable()) release.join();
  });
}

}  // namespace gpu_faults_tests
