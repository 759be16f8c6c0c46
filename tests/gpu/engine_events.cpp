// tests/gpu/engine_events.cpp: an engine's work on the GPU is ordered with the program's own by events alone, several
// batches at a time; and the mistakes that a program can make with them are found on the stand-ins.
#include <hvd/hvd.hpp>

#include <gpu/engine.hpp>
#include <support/timeline_reader.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace gpu_engine_events_tests {

using namespace hvd::test;

namespace {

/// Steps of a program that never waits: it fills tensors on its stream, gives them to the engine, and reads the results
/// on its stream.
void steps(const auto& r) {
  constexpr int rounds = 12;
  std::vector<std::vector<float>> got(3 * rounds);
  const auto a = r.array(100, 0.0F), b = r.array(300'000, 0.0F), c = r.array(77, 0.0F), d = r.array(77, 0.0F);
  const own_stream stream(r.gpu);
  std::uint64_t before = 0;
  for (int i = 0; i != rounds; ++i) {
    if (i == 2) before = standin_gpu::get().host_synchronisations();  // the buffers have their lengths
    const auto x = r.mine() * static_cast<float>(i + 1);
    stream.fill(a, x);
    stream.fill(b, x);
    stream.fill(c, x);
    void* const ready = stream.event();
    // The same names in each step, although the GPU may be at work on those before.
    request pair = asked(operation::allreduce, "pair", {r.at(a, &a, ready), r.at(b, &b, ready)});
    pair.op = reduce_op::average;
    pair.postscale = static_cast<double>(r.size());
    const handle one = r.engine.submit(std::move(pair));
    request apart = asked(operation::allreduce, "apart", {r.at(c, &d, ready)});
    apart.wire = i % 2 == 0 ? hvd::dtype::user : hvd::dtype::bfloat16;
    const handle two = r.engine.submit(std::move(apart));
    one.wait_queued(only_a_hang);
    two.wait_queued(only_a_hang);
    require(one.device_event() != nullptr && two.device_event() != nullptr, "no event");
    stream.wait_for(one.device_event());
    stream.wait_for(two.device_event());
    const auto at = static_cast<std::size_t>(3 * i);
    stream.read(a, got[at]);
    stream.read(b, got[at + 1]);
    stream.read(d, got[at + 2]);
  }
  require(standin_gpu::get().host_synchronisations() == before, "a step has waited for the GPU");
  stream.synchronise();
  for (int i = 0; i != rounds; ++i) {
    const float want = r.total() * static_cast<float>(i + 1);
    const auto at = static_cast<std::size_t>(3 * i);
    same(got[at], floats(100, want));
    same(got[at + 1], floats(300'000, want));
    same(got[at + 2], floats(77, want));
  }
}

/// Batches that the program's own work holds up are under way together, and end in their order.
void hold_several(const auto& r) {
  const own_stream stream(r.gpu);
  const auto a = r.array(10, 0.0F), b = r.array(300'000, 0.0F), c = r.array(20, 0.0F), d = r.array(8, r.mine());
  must(standin_gpu::get().hold(stream.get()));
  stream.fill(a, r.mine());
  stream.fill(b, r.mine());
  stream.fill(c, r.mine());
  void* const ready = stream.event();
  std::vector<handle> all;
  all.push_back(r.engine.submit(r.sum("a", a, ready)));
  all.back().wait_queued(only_a_hang);
  all.push_back(r.engine.submit(r.sum("b", b, ready)));
  all.back().wait_queued(only_a_hang);
  all.push_back(r.engine.submit(r.sum("c", c, ready)));
  all.back().wait_queued(only_a_hang);
  // What needs no event is behind them on the GPU, and what lies on the host is not.
  all.push_back(r.engine.submit(r.sum("d", d)));
  all.back().wait_queued(only_a_hang);
  std::vector<float> host = floats(5, r.mine());
  const handle on_host = r.engine.allreduce("host", host);
  on_host.wait(only_a_hang);
  same(host, floats(5, r.total()));
  require(on_host.device_event() == nullptr, "an event of the host");
  for (const handle& h : all) require(!h.poll() && h.device_event() != nullptr, "a batch is done before its input");
  must(standin_gpu::get().release(stream.get()));
  for (const handle& h : all) h.wait(only_a_hang);
  r.has(a, r.total());
  r.has(b, r.total());
  r.has(c, r.total());
  r.has(d, r.total());
  // A name may come again when all of its work is queued, and a wait has told so.
  must(standin_gpu::get().hold(stream.get()));
  stream.fill(a, r.mine());
  const handle first = r.engine.submit(r.sum("again", a, stream.event()));
  first.wait_queued(only_a_hang);
  const handle second = r.engine.submit(r.sum("again", a));
  second.wait_queued(only_a_hang);
  require(!first.poll() && !second.poll(), "done before the input");
  must(standin_gpu::get().release(stream.get()));
  second.wait(only_a_hang);
  require(first.poll(), "out of order");
  r.has(a, r.total() * static_cast<float>(r.size()));
  const auto e = r.array(4, r.mine());
  request gather = asked(operation::allgather, "gather", {r.at(e)});
  const handle gathered = r.engine.submit(std::move(gather));
  gathered.wait_queued(only_a_hang);
  stream.wait_for(gathered.device_event());
  gathered.wait(only_a_hang);
  require(fetched<float>(gathered.output()).size() == 4 * static_cast<std::size_t>(r.size()), "another length");
}

/// The mistakes: each is found, and the engine goes on.
void mistakes(const auto& r) {
  const standin_gpu& standin = standin_gpu::get();
  const own_stream stream(r.gpu), other(r.gpu);
  for (const std::size_t n : {std::size_t{40}, std::size_t{300'000}}) {  // packed, and not
    const auto a = r.array(n, r.mine()), b = r.array(n, r.mine()), c = r.array(3, r.mine());
    const auto reduce = [&](const char* name, void* ready) {
      return r.engine.submit(asked(operation::allreduce, name, {r.at(a, &b, ready), r.at(c, &c, ready)}));
    };
    std::vector<float> got;
    // Where the engine could see that the GPU is done, and the mistake would be none, the program's stream is held.
    const auto settle = [&](const handle& h) {
      h.wait(only_a_hang);
      stream.synchronise();
      other.synchronise();
      r.comm.barrier();
    };
    // A request without the event of its input.
    must(standin.hold(stream.get()));
    stream.fill(a, r.mine());
    handle h = reduce("no event", nullptr);
    h.wait(only_a_hang);
    must(standin.release(stream.get()));
    settle(h);
    found_violation();
    // An event of another stream.
    stream.fill(a, r.mine());
    h = reduce("another stream's event", other.event());
    settle(h);
    found_violation();
    // An event that was recorded too early.
    void* const early = stream.event();
    stream.fill(a, r.mine());
    h = reduce("an early event", early);
    settle(h);
    found_violation();
    // The output is read before it is there.
    must(standin.hold(stream.get()));
    stream.fill(a, r.mine());
    h = reduce("read", stream.event());
    h.wait_queued(only_a_hang);
    stream.read(b, got);
    must(standin.release(stream.get()));
    settle(h);
    found_violation();
    // The input is written while it is read.
    must(standin.hold(stream.get()));
    stream.fill(a, r.mine());
    h = reduce("written", stream.event());
    h.wait_queued(only_a_hang);
    stream.fill(a, 0.0F);
    must(standin.release(stream.get()));
    settle(h);
    found_violation();
    // With all events it is right.
    stream.fill(a, r.mine());
    stream.fill(b, 0.0F);
    h = reduce("right", stream.event());
    h.wait_queued(only_a_hang);
    stream.wait_for(h.device_event());
    stream.read(b, got);
    stream.fill(a, 0.0F);
    settle(h);
    same(got, floats(n, r.total()));
    no_violations();
  }
  // Memory that is freed while a batch uses it.
  must(standin.hold(stream.get()));
  hvd::detail::cu_pointer freed = 0;
  hvd::tensor t;
  {
    const auto device = r.gpu.group()->device();
    const hvd::detail::cuda_device::scope current(*device);
    must(device->driver().alloc(&freed, 400));
    t.in = t.out = reinterpret_cast<std::byte*>(freed);
    t.shape = {100};
    t.memory = {.kind = hvd::memory_kind::device, .device = r.gpu.device(), .ready = stream.event()};
  }
  const handle h = r.engine.submit(asked(operation::allreduce, "freed", {t}));
  h.wait_queued(only_a_hang);
  must(standin.free_now(freed));
  must(standin.release(stream.get()));
  h.wait(only_a_hang);
  found_violation();
  standin.fail_next("ncclCommFinalize", 1);  // as after an illegal access; the stand-in's collective never ran
}

}  // namespace

TEST_CASE("an engine with a GPU: steps that never wait for the GPU") {
  for (const int size : {1, 2, 3}) {
    on_engines<nccl_engine>(size, {}, plain_engine(), [](const auto& r) { steps(r); });
  }
  on_engines<demand_engine>(2, in_progress, plain_engine(), [](const auto& r) { steps(r); });
}
TEST_CASE("an engine with a GPU: several batches under way") {
  hvd::engine_options options = plain_engine();
  on_engines<nccl_engine>(2, {}, options, [](const auto& r) { hold_several(r); });
  options.thread = false;
  on_engines<nccl_engine>(2, {}, options, [](const auto& r) { hold_several(r); });
  on_engines<demand_engine>(3, in_progress, plain_engine(), [](const auto& r) { hold_several(r); });
}
TEST_CASE("an engine with a GPU: missing and wrong events are found") {
  // No windows, whose end would be a mistake too: a collective on freed memory never ends.
  on_engines<nccl_engine>(2, {{"HVD_STANDIN_NCCL_WINDOWS", "0"}}, plain_engine(), [](const auto& r) { mistakes(r); });
}

TEST_CASE("an engine with a GPU: the program captures CUDA graphs meanwhile, without collectives") {
  for (const environment& variables : {environment{}, in_progress}) {
    on_engines<nccl_engine>(2, variables, plain_engine(), [](const auto& r) {
      const standin_gpu& standin = standin_gpu::get();
      const auto begin = standin.function<int (*)(void*, int)>("cuStreamBeginCapture_v2");
      const auto end = standin.function<int (*)(void*, void**)>("cuStreamEndCapture");
      constexpr int global = 0;
      const own_stream stream(r.gpu), captured(r.gpu);
      void* graph = nullptr;
      for (int i = 0; i != 10; ++i) {
        // The buffer grows, and a stream is held up, while the capture goes on; one is submitted before it, one in it.
        const std::size_t n = std::size_t{100} << i;
        const auto a = r.array(n, r.mine()), b = r.array(n, r.mine());
        must(standin.hold(stream.get()));
        const handle before =
            r.engine.submit(asked(operation::allreduce, "a", {r.at(a, &a, stream.event()), r.at(b, &b)}));
        const auto c = r.array(n, r.mine());
        r.comm.barrier();
        must(begin(captured.get(), global));
        const handle within = r.engine.submit(r.sum("c", c));
        within.wait_queued(only_a_hang);
        must(standin.release(stream.get()));
        before.wait(only_a_hang);
        within.wait(only_a_hang);
        auto d = r.gpu.template alloc_shared<float>(10);
        hvd::broadcast(r.gpu, d, 0);
        must(end(captured.get(), &graph));
        r.has(a, r.total());
        r.has(b, r.total());
        r.has(c, r.total());
      }
      // Collectives in the capture are refused, and the next ones work.
      const auto a = r.array(100, r.mine());
      must(begin(captured.get(), global));
      complaint(error_kind::invalid_argument,
                {"allreduce on rank ", ": the stream is being captured into a CUDA graph, and collectives in CUDA ",
                 "graphs are not supported; call it outside of the capture"},
                [&] { hvd::allreduce(r.gpu, a.span(), hvd::sum, hvd::on_stream{captured.get()}); });
      complaint(error_kind::invalid_argument, {"is being captured into a CUDA graph"},
                [&] { hvd::broadcast(r.gpu, a.span(), 0, hvd::on_stream{captured.get()}); });
      must(end(captured.get(), &graph));
      must(begin(captured.get(), global));
      complaint(error_kind::invalid_argument,
                {"tensor \"a\": its event was recorded in a stream that is being captured into a CUDA graph"},
                [&] { static_cast<void>(r.engine.submit(r.sum("a", a, captured.event()))); });
      end(captured.get(), &graph);
      r.engine.run(r.sum("a", a));
      r.has(a, r.total());
      hvd::allreduce(r.gpu, a.span(), hvd::sum, hvd::on_stream{captured.get()});
      captured.synchronise();
      r.has(a, r.total() * static_cast<float>(r.size()));
    });
  }
}

TEST_CASE("an engine with a GPU: what it has made may outlive it") {
  on_gpus(2, {}, [](hvd::NcclTransport& gpu, ShmTransport& comm) {
    const own_stream stream(gpu);
    handle kept, gathered;
    const gpu_array<float> a(gpu, floats(10, 1)), b(gpu, floats(10, 2));
    {
      auto engine = std::make_unique<nccl_engine>(comm, hvd::NcclTransport(comm, on_gpu(comm.rank())), plain_engine());
      kept = engine->submit(asked(operation::allreduce, "kept", {tensor_at(gpu.device(), a, &a)}));
      gathered = engine->submit(asked(operation::allgather, "gathered", {tensor_at(gpu.device(), b)}));
      kept.wait_queued(only_a_hang);
      gathered.wait(only_a_hang);
      kept.wait(only_a_hang);
      comm.barrier();
    }
    stream.wait_for(kept.device_event());
    std::vector<float> got, got_too;
    stream.read(a, got);
    stream.read(reinterpret_cast<float*>(gathered.output().data.get()), 20, got_too);
    stream.synchronise();
    same(got, floats(10, 2));
    same(got_too, floats(20, 2));
    kept = {};
    gathered = {};
  });
}

TEST_CASE("an engine on demand: a job without GPUs is as it was") {
  const std::string job = new_job();
  in_processes(2, {{"HVD_CUDA_LIBRARY", "/no/such/driver"}}, [&](int rank) {
    ShmTransport comm(job, rank, 2, patient());
    demand_engine engine(comm, hvd::NcclOnDemand(), plain_engine());
    std::vector<float> x = floats(10, 1);
    engine.allreduce("x", x).wait(only_a_hang);
    same(x, floats(10, 2));
    hvd::tensor t;
    t.in = t.out = reinterpret_cast<std::byte*>(x.data());
    t.shape = {10};
    t.memory.kind = hvd::memory_kind::device;
    complaint(error_kind::unsupported, {"no CUDA driver was found; looked for /no/such/driver"},
              [&] { static_cast<void>(engine.submit(asked(operation::allreduce, "gpu", {t}))); });
    engine.allreduce("x", x).wait(only_a_hang);
    same(x, floats(10, 4));
    comm.barrier();
  });
}
TEST_CASE("an engine on demand: ranks that cannot be connected are told, and go on without GPUs") {
  on_hosts(2, {}, [](ShmTransport& comm) {
    if (comm.rank() == 1) ::setenv("HVD_NCCL_LIBRARY", "/no/such/nccl", 1);
    demand_engine engine(comm, hvd::NcclOnDemand(on_gpu(-1)), plain_engine());
    {
      const auto device = std::make_shared<hvd::detail::cuda_device>(comm.rank());
      const auto memory = hvd::detail::cuda_memory(device, 40);
      hvd::tensor t;
      t.in = t.out = memory.get();
      t.shape = {10};
      t.memory = {.kind = hvd::memory_kind::device, .device = comm.rank(), .ready = nullptr};
      for (int i = 0; i != 2; ++i) {
        const hvd::error e = failure_of(engine.submit(asked(operation::allreduce, "gpu", {t})));
        require(e.kind() == error_kind::unsupported, e.what());
        says(e, "rank 1 on ");
        says(e, "NCCL was not found; looked for /no/such/nccl");
      }
    }
    std::vector<float> x = floats(10, 1);
    engine.allreduce("x", x).wait(only_a_hang);
    same(x, floats(10, 2));
    comm.barrier();
  });
}
TEST_CASE("an engine on demand: a rank that has joined and finds no GPU for itself is named on the others") {
  for (const bool launched : {false, true}) {  // whether a launcher has said which rank this is
    on_gpus(3, {}, [&](hvd::NcclTransport& gpu, ShmTransport& comm) {
      const bool without = comm.rank() == 1;
      if (launched) {
        ::setenv("HOROVOD_RANK", std::to_string(comm.rank()).c_str(), 1);
        ::setenv("HOROVOD_SIZE", "3", 1);
      }
      if (without) ::setenv("HVD_PIN", "list:0,9,2", 1);
      demand_engine engine(comm, hvd::NcclOnDemand(on_gpu(-1)), plain_engine());
      const auto sum = [&](const gpu_array<float>& a) {
        return engine.submit(asked(operation::allreduce, "gpu", {tensor_at(gpu.device(), a, &a)}));
      };
      const gpu_array<float> a(gpu, floats(10, 1));
      std::vector<float> x = floats(10, 1);
      if (!without) {
        const double start = now();
        for (int i = 0; i != 2; ++i) {
          const hvd::error e = failure_of(sum(a));
          require(e.kind() == error_kind::invalid_argument && e.rank() == 1, e.what());
          says(e, "NcclTransport: rank 1 on ");
          says(e, "pin list:0,9,2: rank 1 (local rank 1 of 3) does not see \"9\"");
        }
        require(now() - start < 10, "it took too long");
        engine.allreduce("x", x).wait(only_a_hang);
        same(x, floats(10, 2));
      }
      engine.join().wait(only_a_hang);
      x = floats(10, 1);
      engine.allreduce("x", x).wait(only_a_hang);
      same(x, floats(10, 3));
      sum(a).wait(only_a_hang);  // now each rank's tensor says where it is
      same(a.get(gpu), floats(10, 3));
      comm.barrier();
    });
  }
}
TEST_CASE("an engine on demand: a rank that joins before its first tensor gives zeros, on its own GPU from then on") {
  // By local rank, as the policy of its environment says, and as its thread is pinned.
  for (const std::string policy : {"", "list:2,0,1", "pinned"}) {
    on_gpus(3, {}, [&](hvd::NcclTransport&, ShmTransport& comm) {
      std::optional<hvd::PinGuard> guard;
      if (policy == "pinned") {
        guard.emplace(hvd::pin(hvd::topology::discover(), hvd::parse_pin("list:1,2,0"), hvd::local_place::of(comm)));
      } else if (!policy.empty()) {
        ::setenv("HVD_PIN", policy.c_str(), 1);
      }
      const int device = (comm.rank() + (policy == "pinned" ? 1 : policy.empty() ? 0 : 2)) % 3;
      hvd::NcclTransport gpu(comm, on_gpu(device));
      demand_engine engine(comm, hvd::NcclOnDemand(on_gpu(-1)), plain_engine());
      const auto sum = [&](const gpu_array<float>& a, int on) {
        return engine.submit(asked(operation::allreduce, "gpu", {tensor_at(on, a, &a)}));
      };
      const gpu_array<float> a(gpu, floats(10, 1)), b(gpu, floats(300'000, 1));
      if (comm.rank() != 1) {
        for (const gpu_array<float>& one : {a, b}) {
          sum(one, device).wait(only_a_hang);
          same(one.get(gpu), floats(one.size(), 2));
        }
      }
      engine.join().wait(only_a_hang);
      complaint(error_kind::invalid_argument, {"is on device", "allowed: device " + std::to_string(device)},
                [&] { sum(a, (device + 1) % 3); });
      const gpu_array<float> c(gpu, floats(10, 1));
      sum(c, device).wait(only_a_hang);
      same(c.get(gpu), floats(10, 3));
      comm.barrier();
    });
  }
}
TEST_CASE("an engine on demand: the first tensor chooses the GPU") {
  on_hosts(2, {{"HVD_STANDIN_GPUS", "3"}}, [](ShmTransport& comm) {
    hvd::NcclTransport gpu(comm, on_gpu(2 - comm.rank()));
    demand_engine engine(comm, hvd::NcclOnDemand(on_gpu(0)), plain_engine());
    const gpu_array<float> a(gpu, floats(10, 1));
    engine.submit(asked(operation::allreduce, "a", {tensor_at(gpu.device(), a, &a)})).wait(only_a_hang);
    same(a.get(gpu), floats(10, 2));
    complaint(error_kind::invalid_argument, {"is on device 0; allowed: device " + std::to_string(gpu.device())},
              [&] { static_cast<void>(engine.submit(asked(operation::allreduce, "b", {tensor_at(0, a, &a)}))); });
    comm.barrier();
  });
}

TEST_CASE("an engine with a GPU: the timeline names NCCL's collectives") {
  const std::string path = "/tmp/hvd-gpu-timeline-" + hvd::detail::hex(hvd::detail::random_word());
  on_engines<nccl_engine>(2, {}, plain_engine(), [&](const auto& r) {
    if (r.rank() == 0) r.engine.start_timeline(path);
    const auto a = r.array(10, r.mine());
    r.engine.run(r.sum("a", a));
    r.engine.run(asked(operation::allgather, "g", {r.at(a)}));
    request adasum = r.sum("s", a);
    adasum.op = reduce_op::adasum;
    r.engine.run(adasum);
    std::vector<float> host = floats(3, 1);
    r.engine.allreduce("h", host).wait(only_a_hang);
    if (r.rank() == 0) r.engine.stop_timeline();
  });
  const auto events = timeline_events(path);
  CHECK(count(events, "B", "NCCL_ALLREDUCE") == 1);
  CHECK(count(events, "B", "NCCL_ALLGATHER") == 1);
  CHECK(count(events, "B", "SHM_ALLREDUCE") == 2);
  CHECK(count(events, "B", "GPU") == 2);  // not for Adasum, which the host runs
  std::remove(path.c_str());
}

TEST_CASE("an engine with a GPU: the timeline has the time of the GPU, in which it waits for another rank") {
  const std::string path = "/tmp/hvd-gpu-timeline-" + hvd::detail::hex(hvd::detail::random_word());
  constexpr std::chrono::milliseconds late(200);
  on_engines<nccl_engine>(2, {}, plain_engine(), [&](const auto& r) {
    if (r.rank() == 0) r.engine.start_timeline(path);
    const auto a = r.array(10, r.mine()), b = r.array(300'000, r.mine());
    const own_stream stream(r.gpu);
    must(standin_gpu::get().hold(stream.get()));
    const handle h = r.engine.submit(
        asked(operation::allreduce, "pair", {r.at(a, &a, r.rank() == 1 ? stream.event() : nullptr), r.at(b, &b)}));
    h.wait_queued(only_a_hang);
    std::this_thread::sleep_for(late);
    must(standin_gpu::get().release(stream.get()));
    h.wait(only_a_hang);
    r.has(a, r.total());
    r.has(b, r.total());
    if (r.rank() == 0) r.engine.stop_timeline();
  });
  double from = -1, to = -1, whole = -1;
  for (const auto& e : timeline_events(path)) {
    const std::string name = e.value("name", "");
    if (name == "NCCL_ALLREDUCE") whole = e.at("ts").get<double>();
    if (name == "GPU") from = e.at("ts").get<double>();
    if (e.at("ph") == "E" && from >= 0 && to < 0) to = e.at("ts").get<double>();
  }
  CHECK(whole >= 0);
  CHECK(from >= whole);
  CHECK(to - from >= std::chrono::duration<double, std::micro>(late).count() * 0.9);
  std::remove(path.c_str());
}

}  // namespace gpu_engine_events_tests
