// tests/gpu/standin/queue.cpp: the functions of the stand-in for the CUDA driver that queue works and wait for them.
#include "gpu/standin/cuda.hpp"

#include <atomic>
#include <cstring>
#include <utility>

#pragma GCC visibility push(default)

using namespace hvd::standin;
using lock_type = std::unique_lock<std::mutex>;

namespace {

// The body of a function on a stream. Without a current context only null is no stream.
template <class F>
cu_result on_stream(const char* symbol, needs what, cu_stream handle, F&& body) {
  return call(symbol, what, [&](machine& m, lock_type& lock) {
    stream* const s = m.find_stream(handle);
    if (s == nullptr) return current() == nullptr && handle == nullptr ? cu_invalid_context : cu_invalid_handle;
    return body(m, lock, *s);
  });
}
template <class F>
cu_result on_event(const char* symbol, cu_event handle, F&& body) {
  return call(symbol, needs::driver, [&](machine& m, lock_type& lock) {
    event* const e = m.find_event(handle);
    return e == nullptr ? cu_invalid_handle : body(m, lock, *e);
  });
}

bool is_device(machine& m, std::uint64_t address) {
  const allocation* const a = m.find_memory(address);
  return a != nullptr && a->device >= 0;
}

}  // namespace

extern "C" {

cu_result cuMemcpyHtoDAsync_v2(cu_pointer to, const void* from, std::size_t bytes, cu_stream handle) {
  const char* const symbol = "cuMemcpyHtoDAsync_v2";
  return on_stream(symbol, needs::context, handle, [&](machine& m, auto&, stream& s) {
    if (bytes == 0) return cu_success;
    const auto source = reinterpret_cast<std::uint64_t>(from);
    if (!is_device(m, to) || from == nullptr || is_device(m, source)) return cu_invalid_value;
    work w{.name = symbol, .touches = {{to, bytes, true}}};
    std::byte* const target = m.alias(to);
    if (m.find_live(source, bytes) != nullptr) {
      w.touches.push_back({source, bytes, false});
      w.run = [=] { std::memcpy(target, from, bytes); };
    } else {  // the driver, too, takes what is not page-locked before it returns
      const auto* const first = static_cast<const std::byte*>(from);
      w.run = [target, staged = std::vector<std::byte>(first, first + bytes)] {
        std::memcpy(target, staged.data(), staged.size());
      };
    }
    return m.enqueue(s, std::move(w));
  });
}

cu_result cuMemcpyDtoHAsync_v2(void* to, cu_pointer from, std::size_t bytes, cu_stream handle) {
  const char* const symbol = "cuMemcpyDtoHAsync_v2";
  return on_stream(symbol, needs::context, handle, [&](machine& m, lock_type& lock, stream& s) {
    if (bytes == 0) return cu_success;
    const auto target = reinterpret_cast<std::uint64_t>(to);
    if (!is_device(m, from) || to == nullptr || is_device(m, target)) return cu_invalid_value;
    work w{.name = symbol, .touches = {{from, bytes, false}}};
    w.run = [=, source = m.alias(from)] { std::memcpy(to, source, bytes); };
    const bool locked = m.find_live(target, bytes) != nullptr;
    if (locked) w.touches.push_back({target, bytes, true});
    const cu_result code = m.enqueue(s, std::move(w));
    // The driver returns when such a copy is over.
    if (code == cu_success && !locked) {
      ++m.host_synchronisations;
      m.synchronise(lock, s);
    }
    return code;
  });
}

cu_result cuMemcpyDtoDAsync_v2(cu_pointer to, cu_pointer from, std::size_t bytes, cu_stream handle) {
  const char* const symbol = "cuMemcpyDtoDAsync_v2";
  return on_stream(symbol, needs::context, handle, [&](machine& m, auto&, stream& s) {
    if (bytes == 0) return cu_success;
    if (!is_device(m, to) || !is_device(m, from)) return cu_invalid_value;
    work w{.name = symbol, .touches = {{from, bytes, false}, {to, bytes, true}}};
    w.run = [target = m.alias(to), source = m.alias(from), bytes] { std::memmove(target, source, bytes); };
    return m.enqueue(s, std::move(w));
  });
}

cu_result cuMemsetD8Async(cu_pointer to, unsigned char value, std::size_t bytes, cu_stream handle) {
  return on_stream("cuMemsetD8Async", needs::context, handle, [&](machine& m, auto&, stream& s) {
    if (bytes == 0) return cu_success;
    if (!is_device(m, to)) return cu_invalid_value;
    work w{.name = "cuMemsetD8Async", .touches = {{to, bytes, true}}};
    w.run = [target = m.alias(to), value, bytes] { std::memset(target, value, bytes); };
    return m.enqueue(s, std::move(w));
  });
}

cu_result cuStreamCreateWithPriority(cu_stream* handle, unsigned, int priority) {
  return call("cuStreamCreateWithPriority", needs::context, [&](machine& m, auto&) {
    ++m.calls["streams of priority " + std::to_string(priority)];
    return *handle = m.add_stream(*current()).get(), cu_success;
  });
}
cu_result cuStreamDestroy_v2(cu_stream handle) {
  return on_stream("cuStreamDestroy_v2", needs::driver, handle, [&](machine& m, auto&, stream& s) {
    if (reinterpret_cast<std::uintptr_t>(handle) <= 2) return cu_invalid_handle;
    s.destroyed = true;  // what is queued still runs
    m.changed.notify_all();
    return cu_success;
  });
}
cu_result cuStreamSynchronize(cu_stream handle) {
  return on_stream("cuStreamSynchronize", needs::driver, handle, [&](machine& m, lock_type& lock, stream& s) {
    if (s.graph) return s.graph->broken = true, cu_capture_unsupported;
    ++m.host_synchronisations;
    m.synchronise(lock, s);
    return cu_success;
  });
}
cu_result cuStreamQuery(cu_stream handle) {
  return on_stream("cuStreamQuery", needs::driver, handle, [&](machine& m, auto&, stream& s) {
    if (s.graph) return s.graph->broken = true, cu_capture_unsupported;
    if (!s.queue.empty()) return cu_not_ready;
    merge(m.host_clock(), s.past);
    return cu_success;
  });
}
cu_result cuStreamWaitEvent(cu_stream handle, cu_event other, unsigned) {
  return on_stream("cuStreamWaitEvent", needs::driver, handle, [&](machine& m, auto&, stream& s) {
    const event* const e = m.find_event(other);
    if (e == nullptr) return cu_invalid_handle;
    if (e->graph && !s.graph) return s.graph = e->graph, cu_success;  // the stream takes part in the capture
    if (s.graph && s.graph != e->graph) return s.graph->broken = true, cu_capture_isolation;
    // The last record at this time; an event that was never recorded is nothing to wait for.
    return e->last ? m.enqueue(s, {.name = "cuStreamWaitEvent", .await = e->last}) : cu_success;
  });
}
cu_result cuStreamGetCtx(cu_stream handle, cu_context* context) {
  return on_stream("cuStreamGetCtx", needs::driver, handle, [&](machine&, auto&, stream& s) {
    *context = reinterpret_cast<cu_context>(s.owner);
    return cu_success;
  });
}
cu_result cuStreamBeginCapture_v2(cu_stream handle, int mode) {
  return on_stream("cuStreamBeginCapture_v2", needs::driver, handle, [&](machine& m, auto&, stream& s) {
    if (s.graph || handle == nullptr) return cu_capture_unsupported;
    s.graph = m.graphs.emplace_back(std::make_shared<capture>(capture{std::this_thread::get_id(), mode}));
    return cu_success;
  });
}
cu_result cuStreamEndCapture(cu_stream handle, void** graph) {
  return on_stream("cuStreamEndCapture", needs::driver, handle, [&](machine& m, auto&, stream& s) {
    const std::shared_ptr<capture> ended = std::exchange(s.graph, nullptr);
    if (!ended) return cu_invalid_value;
    std::erase(m.graphs, ended);
    cu_result code = ended->broken ? cu_capture_invalidated : cu_success;
    for (auto& [other, one] : m.streams) {
      if (one->graph == ended) one->graph = nullptr, code = cu_capture_unjoined;
    }
    *graph = code == cu_success ? ended.get() : nullptr;
    return code;
  });
}
cu_result cuStreamIsCapturing(cu_stream handle, int* status) {
  return on_stream("cuStreamIsCapturing", needs::driver, handle, [&](machine&, auto&, stream& s) {
    *status = !s.graph ? cu_capture_none : s.graph->broken ? 2 : 1;
    return cu_success;
  });
}
cu_result cuThreadExchangeStreamCaptureMode(int* mode) {
  return call("cuThreadExchangeStreamCaptureMode", needs::driver, [&](auto&...) {
    if (mode == nullptr || *mode < 0 || *mode > cu_capture_relaxed) return cu_invalid_value;
    std::swap(*mode, capture_mode());
    return cu_success;
  });
}
cu_result cuStreamWriteValue32_v2(cu_stream handle, cu_pointer to, std::uint32_t value, unsigned flags) {
  return on_stream("cuStreamWriteValue32_v2", needs::driver, handle, [&](machine& m, auto&, stream& s) {
    if (flags != 0 || to % sizeof value != 0 || m.find_live(to, sizeof value) == nullptr) return cu_invalid_value;
    const auto before = std::make_shared<mark>();
    m.enqueue(s, {.name = "cuStreamWriteValue32_v2", .reaches = before});
    work w{.name = "cuStreamWriteValue32_v2", .touches = {{to, sizeof value, true}}};
    w.run = [&m, before, word = reinterpret_cast<std::uint32_t*>(m.alias(to)), value] {
      {
        // Whether the host reads the word cannot be seen: it counts as read at once.
        const std::lock_guard lock(m.mutex);
        merge(m.process_clock, before->past);
      }
      std::atomic_ref(*word).store(value, std::memory_order_release);
    };
    return m.enqueue(s, std::move(w));
  });
}
cu_result cuLaunchHostFunc(cu_stream handle, void (*function)(void*), void* argument) {
  return on_stream("cuLaunchHostFunc", needs::driver, handle, [&](machine& m, auto&, stream& s) {
    if (function == nullptr) return cu_invalid_value;
    // The host's code runs when all before it is over, and so it is known to the host.
    const auto before = std::make_shared<mark>();
    m.enqueue(s, {.name = "cuLaunchHostFunc", .reaches = before});
    work w{.name = "cuLaunchHostFunc", .host_function = true};
    w.run = [&m, before, function, argument] {
      {
        const std::lock_guard lock(m.mutex);
        merge(m.host_clock(), before->past);
      }
      function(argument);
    };
    return m.enqueue(s, std::move(w));
  });
}

cu_result cuEventCreate(cu_event* handle, unsigned flags) {
  return call("cuEventCreate", needs::context, [&](machine& m, auto&) {
    auto e = std::make_shared<event>();
    e->owner = current();
    e->timing = (flags & cu_event_disable_timing) == 0;
    *handle = e.get();
    m.events.emplace(e.get(), e);
    return cu_success;
  });
}
cu_result cuEventDestroy_v2(cu_event handle) {
  return on_event("cuEventDestroy_v2", handle, [&](machine&, auto&, event& e) {
    e.destroyed = true;
    e.last = nullptr;
    return cu_success;
  });
}
cu_result cuEventRecord(cu_event handle, cu_stream on) {
  return on_event("cuEventRecord", handle, [&](machine& m, auto&, event& e) {
    stream* const s = m.find_stream(on);
    if (s == nullptr) return current() == nullptr ? cu_invalid_context : cu_invalid_handle;
    if (s->owner != e.owner) return cu_invalid_handle;
    e.graph = s->graph;
    if (s->graph) return e.last = nullptr, m.enqueue(*s, {.name = "cuEventRecord"});
    e.last = std::make_shared<mark>();
    return m.enqueue(*s, {.name = "cuEventRecord", .reaches = e.last});
  });
}
cu_result cuEventQuery(cu_event handle) {
  return on_event("cuEventQuery", handle, [&](machine& m, auto&, event& e) {
    if (e.graph) return e.graph->broken = true, cu_captured_event;
    if (!e.last) return cu_success;
    if (!e.last->reached) return cu_not_ready;
    merge(m.host_clock(), e.last->past);
    return cu_success;
  });
}
cu_result cuEventSynchronize(cu_event handle) {
  return on_event("cuEventSynchronize", handle, [&](machine& m, lock_type& lock, event& e) {
    ++m.host_synchronisations;
    const std::shared_ptr<mark> last = e.last;
    if (!last) return cu_success;
    m.wait(lock, [&] { return last->reached; });
    merge(m.host_clock(), last->past);
    return cu_success;
  });
}
cu_result cuEventElapsedTime(float* milliseconds, cu_event start, cu_event end) {
  return on_event("cuEventElapsedTime", start, [&](machine& m, auto&, event& first) {
    const event* const last = m.find_event(end);
    if (last == nullptr || !first.last || !last->last || !first.timing || !last->timing) return cu_invalid_handle;
    if (!first.last->reached || !last->last->reached) return cu_not_ready;
    *milliseconds = std::chrono::duration<float, std::milli>(last->last->when - first.last->when).count();
    return cu_success;
  });
}
// What CUDA 13's header makes of the name above.
cu_result cuEventElapsedTime_v2(float* milliseconds, cu_event start, cu_event end) {
  return cuEventElapsedTime(milliseconds, start, end);
}

cu_result cuModuleLoadData(cu_module* module, const void* image) {
  return call("cuModuleLoadData", needs::context, [&](auto&...) {
    if (module == nullptr || image == nullptr) return cu_invalid_value;
    *module = reinterpret_cast<cu_module>(current());
    return cu_success;
  });
}
cu_result cuModuleUnload(cu_module module) {
  return call("cuModuleUnload", needs::context,
              [&](auto&...) { return module == nullptr ? cu_invalid_handle : cu_success; });
}
cu_result cuModuleGetFunction(cu_function* function, cu_module module, const char* name) {
  return call("cuModuleGetFunction", needs::context, [&](auto&...) {
    if (module == nullptr || name == nullptr) return cu_invalid_value;
    const kernel* const found = find_kernel(name);
    *function = reinterpret_cast<cu_function>(const_cast<kernel*>(found));
    return found == nullptr ? cu_not_found : cu_success;
  });
}
cu_result cuLaunchKernel(cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z, unsigned, cu_stream handle, void** parameters,
                         void** extra) {
  return on_stream("cuLaunchKernel", needs::context, handle, [&](machine& m, auto&, stream& s) {
    if (function == nullptr) return cu_invalid_handle;
    const std::size_t threads = std::size_t{block_x} * block_y * block_z;
    if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024) return cu_invalid_value;
    if (grid_y > 65535 || grid_z > 65535 || extra != nullptr || s.owner != current()) return cu_invalid_value;
    const auto& k = *reinterpret_cast<const kernel*>(function);
    launch l{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, {}};
    for (std::size_t i = 0; i != k.parameters.size(); ++i) {
      const auto* const first = static_cast<const std::byte*>(parameters[i]);
      l.parameters.emplace_back(first, first + k.parameters[i]);
    }
    work w{.name = std::string(k.name), .touches = k.touches(l)};
    for (const range& r : w.touches) {
      const allocation* const a = m.find_memory(r.address);
      if (a == nullptr || a->device < 0 || a->device == s.owner->device) continue;
      m.violation("kernel " + w.name + " touches memory of another device");
      return cu_invalid_value;
    }
    w.run = [&k, l = std::move(l)] { k.run(l); };
    return m.enqueue(s, std::move(w));
  });
}

}  // extern "C"

// Their types are those of hvd's table.
[[maybe_unused]] static void fill_table(cuda_driver& t) {
  t.copy_to_device = cuMemcpyHtoDAsync_v2;
  t.copy_to_host = cuMemcpyDtoHAsync_v2;
  t.copy_on_device = cuMemcpyDtoDAsync_v2;
  t.fill_bytes = cuMemsetD8Async;
  t.stream_create = cuStreamCreateWithPriority;
  t.stream_destroy = cuStreamDestroy_v2;
  t.stream_synchronize = cuStreamSynchronize;
  t.stream_query = cuStreamQuery;
  t.stream_wait = cuStreamWaitEvent;
  t.stream_context = cuStreamGetCtx;
  t.stream_capturing = cuStreamIsCapturing;
  t.stream_write = cuStreamWriteValue32_v2;
  t.exchange_capture_mode = cuThreadExchangeStreamCaptureMode;
  t.call_host = cuLaunchHostFunc;
  t.event_create = cuEventCreate;
  t.event_destroy = cuEventDestroy_v2;
  t.event_record = cuEventRecord;
  t.event_query = cuEventQuery;
  t.event_synchronize = cuEventSynchronize;
  t.event_elapsed = cuEventElapsedTime;
  t.module_load = cuModuleLoadData;
  t.module_unload = cuModuleUnload;
  t.module_function = cuModuleGetFunction;
  t.launch = cuLaunchKernel;
}
