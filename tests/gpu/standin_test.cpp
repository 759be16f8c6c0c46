// tests/gpu/standin_test.cpp: the stand-in for the CUDA driver does what the driver does, and finds what is wrong.
#include <hvd/cuda/copy.hpp>
#include <hvd/cuda/driver.hpp>

#include "gpu/standin_rank.hpp"

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/wait.h>

using namespace hvd::test;
using namespace hvd::detail;

namespace {

int visible(const environment& variables) {
  children one(1);
  one.start(0, [&](report& r) {
    set_environment(variables);
    const cuda_search& found = cuda_search::result();
    if (found.usable) {
      int count = 0;
      must(found.table.device_count(&count));
      r.progress = count;
    } else {
      require(found.why.find("shows no GPU") != std::string::npos, found.why);
      require(!variables.contains("CUDA_VISIBLE_DEVICES") ||
                  found.why.find("CUDA_VISIBLE_DEVICES is") != std::string::npos,
              found.why);
    }
  });
  CHECK(one.wait(20.0));
  CHECK(one.status(0) == 0);
  return one[0].progress;
}

}  // namespace

TEST_CASE("gpu standin: which devices a process sees") {
  const auto shown = [](const char* list, const char* gpus = "4") {
    return visible({{"CUDA_VISIBLE_DEVICES", list}, {"HVD_STANDIN_GPUS", gpus}});
  };
  CHECK(visible({}) == 2);
  CHECK(visible({{"HVD_STANDIN_GPUS", "0"}}) == 0);
  CHECK(shown("") == 0);
  CHECK(shown("0,2") == 2);
  CHECK(shown("3") == 1);
  CHECK(shown("4") == 0);
  CHECK(shown("0,9,1") == 1);
  CHECK(shown("-1") == 0);
  CHECK(shown("1,-1,2") == 1);
  CHECK(shown("nonsense") == 0);
  CHECK(shown("0,0") == 1);
  CHECK(shown("GPU-5a7d1000-0000-4000-8000-000000000001,GPU-5a7d1000-0000-4000-8000-000000000000") == 2);
  CHECK(shown("GPU-5a7d") == 0);  // of four
  CHECK(shown("GPU-5a7d", "1") == 1);
  CHECK(shown("GPU-ffff") == 0);
  CHECK(shown("MIG-5a7d2000-0000-4000-8000-000000000000") == 0);
  CHECK(visible({{"HVD_STANDIN_MIG", "1"}}) == 1);
  CHECK(visible({{"HVD_STANDIN_MIG", "1"},
                 {"CUDA_VISIBLE_DEVICES",
                  "MIG-5a7d2000-0000-4000-8000-000000000001,MIG-5a7d2000-0000-4000-8000-000000000002"}}) == 1);
}

TEST_CASE("gpu standin: what a device says of itself") {
  in_process({{"CUDA_VISIBLE_DEVICES", "1,0"}}, [] {
    const cuda_driver& cu = get_cuda();
    cu_uuid uuid{};
    must(cu.device_uuid(&uuid, 0));
    require(uuid.bytes == std::array<unsigned char, 16>{0x5a, 0x7d, 0x10, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1},
            "");
    char text[64];
    must(cu.device_pci(text, sizeof text, 0));
    require(text == std::string_view("0000:02:00.0"), text);
    must(cu.device_name(text, sizeof text, 0));
    require(text == std::string_view("hvd stand-in GPU"), text);
    cu_device device = -1;
    must(cu.device_get(&device, 2), cu_invalid_device);
    must(cu.device_get(&device, 1));
    require(cu.text(cu_out_of_memory) == "CUDA_ERROR_OUT_OF_MEMORY (out of memory)", cu.text(cu_out_of_memory));
  });
}

TEST_CASE("gpu standin: calls without a context, and after fork") {
  in_process({}, [] {
    const cuda_driver& cu = get_cuda();
    cu_pointer address = 0;
    must(cu.alloc(&address, 16), 201);
    must(cu.stream_synchronize(nullptr), 201);
    cu_context context = nullptr, now = nullptr;
    must(cu.primary_retain(&context, 1));
    must(cu.context_push(context));
    must(cu.alloc(&address, 16));
    must(cu.context_current(&now));
    require(now == context, "another context");
    must(cu.context_pop(&now));
    must(cu.context_current(&now));
    require(now == nullptr, "a context is left");
    const pid_t child = ::fork();
    if (child == 0) {
      int count = 0;
      ::_exit(cu.device_count(&count) == 3 && cu.init(0) == 3 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    must(status);
    must(cu.primary_release(1));
    must(cu.context_set(context));
    must(cu.alloc(&address, 16), 201);
  });
}

TEST_CASE("gpu standin: memory") {
  in_process({{"HVD_STANDIN_MEMORY", "1000000"}}, [] {
    const on_device d;
    cu_pointer address = 0;
    must(d.cu.alloc(&address, 0), cu_invalid_value);
    must(d.cu.alloc(&address, 1'000'001), cu_out_of_memory);
    const cu_pointer first = d.alloc(600'000);
    must(d.cu.alloc(&address, 600'000), cu_out_of_memory);
    std::size_t free = 0, total = 0;
    must(d.cu.memory_info(&free, &total));
    require(free == 400'000 && total == 1'000'000, "wrong sizes");
    require(first % 512 == 0, "not aligned");
    auto* const bytes = static_cast<unsigned char*>(d.gpu.host(first));
    require(bytes[0] == 0xCB && bytes[599'999] == 0xCB, "new memory has no pattern");

    unsigned type = 0;
    int ordinal = -1;
    must(d.cu.pointer_attribute(&type, cu_pointer_memory_type, first + 599'999));
    require(type == cu_memory_device, "no device memory");
    must(d.cu.pointer_attribute(&ordinal, cu_pointer_device_ordinal, first));
    require(ordinal == 0, "another device");
    must(d.cu.pointer_attribute(&type, cu_pointer_memory_type, first + 600'000), cu_invalid_value);
    must(d.cu.pointer_attribute(&type, cu_pointer_memory_type, reinterpret_cast<cu_pointer>(&type)), cu_invalid_value);
    void* locked = nullptr;
    must(d.cu.alloc_host(&locked, 100, 0));
    must(d.cu.pointer_attribute(&type, cu_pointer_memory_type, reinterpret_cast<cu_pointer>(locked)));
    require(type == cu_memory_host, "no host memory");
    must(d.cu.free_host(locked));

    must(d.cu.free(first));
    require(bytes[0] == 0xFB && bytes[599'999] == 0xFB, "freed memory is not poisoned");
    must(d.cu.pointer_attribute(&type, cu_pointer_memory_type, first), cu_invalid_value);
    const cu_pointer second = d.alloc(600'000);
    require(second != first, "an address was reused");
    d.no_violation();
    must(d.cu.free(first), cu_invalid_value);
    d.one_violation("freed twice");
    must(d.cu.fill_bytes(first, 0, 4, d.a), cu_invalid_value);
    d.one_violation("touches memory that was freed");
    must(d.cu.fill_bytes(second + 599'999, 0, 2, d.a), cu_invalid_value);
    d.one_violation("beyond the end");
  });
}

TEST_CASE("gpu standin: the host cannot touch a device's memory") {
  in_process(
      {}, [] { *reinterpret_cast<volatile char*>(on_device().alloc(100)) = 1; }, true);
}

TEST_CASE("gpu standin: streams run later and in order, and events complete when they are reached") {
  in_process({}, [] {
    const on_device d;
    const cu_event e = d.event(0), f = d.event(0);
    must(d.cu.event_query(e));  // never recorded
    must(d.cu.event_synchronize(e));
    must(d.gpu.hold(d.a));
    must(d.cu.event_record(f, d.a), 0);
    const cu_pointer address = d.put(std::vector<int>{1, 2, 3}, d.a);
    must(d.cu.event_record(e, d.a));
    must(d.cu.event_query(e), cu_not_ready);
    must(d.cu.stream_query(d.a), cu_not_ready);
    float milliseconds = -1.0f;
    must(d.cu.event_elapsed(&milliseconds, f, e), cu_not_ready);
    must(d.cu.stream_wait(d.b, e, 0));
    must(d.cu.event_record(e, d.b));  // the wait is for the record before this one
    std::atomic<int> called = 0;
    must(d.cu.call_host(
        d.b, [](void* p) { ++*static_cast<std::atomic<int>*>(p); }, &called));
    pause_for(0.01);
    require(called == 0 && static_cast<unsigned char*>(d.gpu.host(address))[0] == 0xCB, "it ran too early");
    must(d.gpu.release(d.a));
    must(d.cu.stream_synchronize(d.b));
    require(called == 1, "not called");
    must(d.cu.event_query(e));
    must(d.cu.event_elapsed(&milliseconds, f, e));
    require(milliseconds >= 0.0f && milliseconds < 10000.0f, std::to_string(milliseconds));
    require(d.get<int>(address, 3, nullptr) == std::vector<int>{1, 2, 3}, "wrong values");
    d.no_violation();
    must(d.cu.stream_destroy(d.a));
    must(d.cu.stream_synchronize(d.a), 400);
    d.one_violation("after it was destroyed");
  });
}

TEST_CASE("gpu standin: the host waits for copies to memory that is not page-locked, and for no others") {
  in_process({}, [] {
    const on_device d;
    const cu_pointer address = d.put(std::vector<int>{7}, d.a);
    void* locked = nullptr;
    must(d.cu.alloc_host(&locked, sizeof(int), 0));
    must(d.cu.copy_to_host(locked, address, sizeof(int), d.a));
    require(d.gpu.host_synchronisations() == 0, "the host waited");
    require(d.get<int>(address, 1, d.a)[0] == 7, "wrong");
    require(d.gpu.host_synchronisations() == 1, "the host did not wait");
    require(*static_cast<int*>(locked) == 7, "wrong");
    d.no_violation();
    // Page-locked memory is read when the copy runs: no other stream may write it meanwhile.
    must(d.cu.copy_to_device(address, locked, sizeof(int), d.a));
    must(d.cu.copy_to_host(locked, d.put(std::vector<int>{8}, d.b), sizeof(int), d.b));
    d.one_violation("stream 2 (cuMemcpyDtoHAsync_v2) writes memory that stream 1 (cuMemcpyHtoDAsync_v2) reads");
  });
}

TEST_CASE("gpu standin: works that no event orders") {
  in_process({}, [] {
    const on_device d;
    const cu_pointer x = d.alloc(100), y = d.alloc(100);
    const auto fill = [&](cu_pointer p, cu_stream s) { must(d.cu.fill_bytes(p, 1, 50, s)); };
    const auto read = [&](cu_pointer p, cu_stream s, cu_pointer to) { must(d.cu.copy_on_device(to, p, 50, s)); };
    // A forgotten event, even if the other work was over long ago.
    fill(x, d.a);
    pause_for(0.02);
    read(x, d.b, y);
    d.one_violation(
        "stream 2 (cuMemcpyDtoDAsync_v2) reads memory that stream 1 (cuMemsetD8Async) writes, and no event");
    d.order(d.a, d.b);
    read(x, d.b, y);
    d.no_violation();
    // A buffer that is reused while another stream reads it.
    fill(x, d.a);
    d.one_violation("stream 1 (cuMemsetD8Async) writes memory that stream 2 (cuMemcpyDtoDAsync_v2) reads");
    d.order(d.b, d.a);
    fill(x, d.a);
    d.no_violation();
    // An event that was recorded too early.
    const cu_event e = d.event();
    must(d.cu.event_record(e, d.a));
    fill(x, d.a);
    must(d.cu.stream_wait(d.b, e, 0));
    read(x, d.b, y);
    d.one_violation("reads memory");
    // The wrong stream: it waits, but another one reads.
    d.order(d.a, d.b);
    must(d.cu.copy_on_device(y + 50, x, 50, nullptr));
    d.one_violation("stream 3");
    // Other bytes of the same allocation.
    d.order(d.b, d.a);
    fill(y, d.a);
    must(d.cu.fill_bytes(y + 50, 1, 50, nullptr));
    d.no_violation();
    must(d.cu.fill_bytes(y + 49, 1, 51, nullptr));
    d.one_violation("writes memory that stream 1");
    // Through the host, by a wait and by looking until it is over.
    must(d.cu.stream_synchronize(nullptr));
    fill(x, d.a);
    must(d.cu.stream_synchronize(d.a));
    fill(x, d.b);
    fill(y, d.b);
    must(d.cu.event_record(e, d.b));
    while (d.cu.event_query(e) != 0) pause_for(0.0001);
    fill(x, d.a);
    fill(y, d.a);
    d.no_violation();
    // Over a third stream.
    d.order(d.a, nullptr);
    d.order(nullptr, d.b);
    fill(x, d.b);
    d.no_violation();
  });
}

TEST_CASE("gpu standin: each thread of the host for itself, where a test wants it so") {
  in_process({{"HVD_STANDIN_THREAD_CLOCKS", "1"}}, [] {
    const on_device d;
    const cu_pointer x = d.alloc(100);
    must(d.cu.fill_bytes(x, 1, 100, d.a));
    std::thread([&] { must(d.cu.stream_synchronize(d.a)); }).join();
    must(d.cu.fill_bytes(x, 1, 100, d.b));
    d.one_violation("writes memory that stream 1");
    d.gpu.thread_clocks(0);
    must(d.cu.fill_bytes(x, 1, 100, d.a));
    d.one_violation("writes memory that stream 2");
    std::thread([&] { must(d.cu.stream_synchronize(d.a)); }).join();
    must(d.cu.fill_bytes(x, 1, 100, d.b));
    d.no_violation();
  });
}

TEST_CASE("gpu standin: a word that a stream writes behind its work") {
  in_process({}, [] {
    const on_device d;
    const cu_pointer x = d.alloc(100);
    void* page = nullptr;
    must(d.cu.alloc_host(&page, 4, 0));
    auto& word = *static_cast<std::uint32_t*>(page);
    word = 0;
    const auto at = reinterpret_cast<cu_pointer>(page);
    must(d.cu.stream_write(d.a, at + 1, 7, 0), cu_invalid_value);
    must(d.cu.stream_write(d.a, at, 7, 1), cu_invalid_value);
    must(d.gpu.hold(d.a));
    must(d.cu.fill_bytes(x, 1, 100, d.a));
    must(d.cu.stream_write(d.a, at, 7, 0));
    pause_for(0.02);
    require(std::atomic_ref(word).load() == 0, "it was written too early");
    must(d.gpu.release(d.a));
    while (std::atomic_ref(word).load() != 7) pause_for(0.0001);
    must(d.cu.fill_bytes(x, 2, 100, d.b));  // the host has seen it
    d.no_violation();
  });
}

TEST_CASE("gpu standin: calls wait while another thread holds the context") {
  in_process({}, [] {
    const on_device d;
    const cu_pointer x = d.alloc(100);
    const cu_event e = d.event();
    for (const bool frees : {false, true}) {
      must(d.gpu.hold(d.a));
      must(d.cu.event_record(e, d.a));
      std::thread waits([&] {
        must(d.cu.context_set(d.context));
        must(frees ? d.cu.free(x) : d.gpu.function<int (*)()>("cuCtxSynchronize")());
      });
      pause_for(0.05);
      std::atomic<bool> returned = false;
      std::thread asks([&] {
        d.cu.event_query(e);
        returned = true;
      });
      pause_for(0.05);
      require(!returned, "a query did not wait");
      cu_context now = nullptr;
      must(d.cu.context_push(d.context));
      must(d.cu.context_pop(&now));
      must(d.gpu.release(d.a));
      asks.join();
      waits.join();
    }
  });
}

TEST_CASE("gpu standin: captures of CUDA graphs, and what breaks them") {
  in_process({}, [] {
    const on_device d;
    const auto begin = d.gpu.function<int (*)(void*, int)>("cuStreamBeginCapture_v2");
    const auto end = d.gpu.function<int (*)(void*, void**)>("cuStreamEndCapture");
    const cu_pointer x = d.alloc(100);
    const cu_event e = d.event();
    must(d.cu.event_record(e, d.b));
    void* graph = nullptr;
    const auto elsewhere = [&](int mode) {
      int code = -1;
      std::thread([&] {
        must(d.cu.exchange_capture_mode(&mode));
        while ((code = d.cu.event_query(e)) == cu_not_ready) pause_for(0.001);
      }).join();
      return code;
    };
    constexpr int global = 0, of_thread = 1, relaxed = cu_capture_relaxed, unsupported = 900, invalidated = 901;
    for (const int mode : {global, of_thread, relaxed}) {
      for (const int other : {global, of_thread, relaxed}) {
        const bool breaks = mode == global && other == global;
        must(begin(d.a, mode));
        must(d.cu.fill_bytes(x, 1, 100, d.a));  // does not run
        must(elsewhere(other), breaks ? unsupported : 0);
        must(end(d.a, &graph), breaks ? invalidated : 0);
      }
      must(begin(d.a, mode));
      must(d.cu.event_query(e), mode == relaxed ? 0 : unsupported);
      must(end(d.a, &graph), mode == relaxed ? 0 : invalidated);
    }
    int status = -1;
    must(begin(d.a, relaxed));
    must(d.cu.stream_capturing(d.a, &status));
    require(status == 1, "no capture");
    must(d.cu.event_record(e, d.a));
    must(d.cu.event_query(e), cu_captured_event);
    must(end(d.a, &graph), invalidated);
    must(begin(d.a, relaxed));
    must(d.cu.event_record(e, d.a));
    must(d.cu.stream_wait(d.b, e, 0));  // takes part from now on
    must(end(d.a, &graph), 904);
    must(d.cu.stream_capturing(d.a, &status));
    require(status == cu_capture_none, "still a capture");
    must(d.cu.fill_bytes(x, 2, 100, d.a));
    require(d.get<unsigned char>(x, 100, d.a) == std::vector<unsigned char>(100, 2), "captured works have run");
    d.no_violation();
  });
}

TEST_CASE("gpu standin: memory that is freed before its works are over") {
  in_process({}, [] {
    const on_device d;
    cu_pointer x = d.alloc(100);
    must(d.gpu.hold(d.a));
    must(d.cu.fill_bytes(x, 1, 100, d.a));
    must(d.gpu.free_now(x));
    must(d.gpu.release(d.a));
    must(d.cu.stream_synchronize(d.a));
    d.one_violation("touches memory that was freed");
    // cuMemFree itself waits.
    x = d.alloc(100);
    must(d.cu.fill_bytes(x, 1, 100, d.a));
    must(d.cu.free(x));
    d.no_violation();
  });
  in_process({{"HVD_STANDIN_FREE_LIMIT_MS", "20"}}, [] {
    const on_device d;
    const cu_pointer x = d.alloc(100);
    must(d.gpu.hold(d.a));
    must(d.cu.fill_bytes(x, 1, 100, d.a));
    must(d.cu.free(x));
    must(d.gpu.release(d.a));
    must(d.cu.stream_synchronize(d.a));
    d.one_violation("touches memory that was freed");
  });
}

TEST_CASE("gpu standin: a violation ends the process where a test wants it so") {
  in_process(
      {{"HVD_STANDIN_STRICT", "1"}}, [] { on_device().gpu.violation("on purpose"); }, true);
}

TEST_CASE("gpu standin: a test's own works, errors and counters") {
  in_process({}, [] {
    const on_device d;
    const cu_pointer x = d.put(std::vector<int>{1}, d.a);
    struct argument {
      const standin_gpu& gpu;
      cu_pointer at;
    } work{d.gpu, x};
    const hvd_standin_range ranges[] = {{x, sizeof(int), 1}};
    const auto f = [](void* p) {
      const auto& w = *static_cast<argument*>(p);
      *static_cast<int*>(w.gpu.host(w.at)) += 41;
    };
    must(d.gpu.enqueue(d.a, "own", f, &work, ranges, 1));
    require(d.get<int>(x, 1, d.a)[0] == 42, "wrong");
    d.no_violation();
    must(d.gpu.enqueue(d.b, "own", f, &work, ranges, 0));
    must(d.gpu.enqueue(d.b, "own", f, &work, ranges, 1));
    must(d.cu.copy_on_device(d.alloc(4), x, 4, d.a));
    d.one_violation("stream 1 (cuMemcpyDtoDAsync_v2) reads memory that stream 2 (own) writes");

    d.gpu.fail_next("cuMemAlloc_v2", cu_out_of_memory);
    d.gpu.fail_next("cuMemAlloc_v2", 719);
    cu_pointer y = 0;
    must(d.cu.alloc(&y, 4), cu_out_of_memory);
    must(d.cu.alloc(&y, 4), 719);
    must(d.cu.alloc(&y, 4));
    require(d.gpu.calls("cuMemAlloc_v2") == 5, std::to_string(d.gpu.calls("cuMemAlloc_v2")));
    // In a host function nothing of CUDA may be called.
    std::pair<const cuda_driver*, std::atomic<int>> result{&d.cu, -1};
    must(d.cu.call_host(
        d.a,
        [](void* p) {
          auto& r = *static_cast<decltype(result)*>(p);
          r.second = r.first->stream_query(nullptr);
        },
        &result));
    must(d.cu.stream_synchronize(d.a));
    must(result.second, 800);
  });
}

TEST_CASE("gpu standin: kernels") {
  in_process({}, [] {
    const on_device d;
    cu_module module = nullptr;
    cu_function fill = nullptr;
    must(d.cu.module_load(&module, ".version 8.0"));
    must(d.cu.module_function(&fill, module, "no such kernel"), cu_not_found);
    must(d.cu.module_function(&fill, module, "hvd_standin_fill"));
    cu_pointer x = d.alloc(400);
    std::uint64_t count = 100;
    std::uint32_t value = 77;
    void* parameters[] = {&x, &count, &value};
    must(d.gpu.hold(d.a));
    must(d.cu.launch(fill, 1, 1, 1, 256, 1, 1, 0, d.a, parameters, nullptr));
    value = 78;  // parameters are copied
    must(d.gpu.release(d.a));
    require(d.get<std::uint32_t>(x, 100, d.a) == std::vector<std::uint32_t>(100, 77), "wrong");
    must(d.cu.launch(fill, 1, 1, 1, 2048, 1, 1, 0, d.a, parameters, nullptr), cu_invalid_value);
    d.no_violation();

    // hvd's own.
    cuda_copies copies(d.cu);
    const cu_pointer from = d.put(std::vector<float>(10'000, 3.0f), d.a), to = d.alloc(40'000);
    const auto at = [](cu_pointer p) { return reinterpret_cast<std::byte*>(p); };
    const std::vector<device_part> parts{{at(from), at(to), 9'000}, {at(from) + 36'000, at(to) + 36'000, 1'000}};
    copies(parts, hvd::dtype::float32, hvd::dtype::float32, 2.0, 4, d.a);
    require(d.get<float>(to, 10'000, d.a) == std::vector<float>(10'000, 1.5f), "wrong");
    copies(parts, hvd::dtype::float32, hvd::dtype::float32, 2.0, 4, d.a);
    d.no_violation();
    copies(parts, hvd::dtype::float32, hvd::dtype::float32, 2.0, 4, d.b);
    d.one_violation("(hvd_copy_floats) ");
  });
}
