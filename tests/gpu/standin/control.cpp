// tests/gpu/standin/control.cpp: what tests see and steer of the stand-in for the CUDA driver; see gpu/standin.hpp.
#include "gpu/standin/cuda.hpp"

#include <cstdio>
#include <utility>

#pragma GCC visibility push(default)

using namespace hvd::standin;

namespace {

template <class F>
auto locked(F&& body) {
  machine& m = machine::get();
  const std::lock_guard lock(m.mutex);
  return body(m);
}

}  // namespace

extern "C" {

void* hvd_standin_host(std::uint64_t address) {
  return locked([&](machine& m) { return m.alias(address); });
}
std::uint64_t hvd_standin_violations(char* last, std::size_t length) {
  return locked([&](machine& m) {
    if (last != nullptr && length != 0) std::snprintf(last, length, "%s", m.last_violation.c_str());
    return m.violations;
  });
}
void hvd_standin_clear_violations() {
  locked([&](machine& m) {
    m.violations = 0;
    m.last_violation.clear();
  });
}
void hvd_standin_violation(const char* sentence) {
  locked([&](machine& m) { m.violation(sentence); });
}
std::uint64_t hvd_standin_host_synchronisations() {
  return locked([&](machine& m) { return m.host_synchronisations; });
}
std::uint64_t hvd_standin_calls(const char* symbol) {
  return locked([&](machine& m) {
    const auto found = m.calls.find(symbol);
    return found == m.calls.end() ? 0 : found->second;
  });
}
void hvd_standin_fail_next(const char* symbol, int code) {
  locked([&](machine& m) { m.failures[symbol].push_back(code); });
}
int hvd_standin_take_failure(const char* symbol) {
  return locked([&](machine& m) {
    ++m.calls[symbol];
    return m.take_failure(symbol);
  });
}

int hvd_standin_hold(void* handle) {
  return locked([&](machine& m) {
    stream* const s = m.find_stream(handle);
    if (s == nullptr) return cu_invalid_handle;
    const auto gate = s->gates.emplace_back(std::make_shared<mark>());
    return m.enqueue(*s, {.name = "a test's gate", .await = gate});
  });
}
int hvd_standin_release(void* handle) {
  return locked([&](machine& m) {
    stream* const s = m.find_stream(handle);
    if (s == nullptr || s->gates.empty()) return cu_invalid_handle;
    s->gates.front()->reached = true;
    s->gates.pop_front();
    m.changed.notify_all();
    return cu_success;
  });
}
std::uint64_t hvd_standin_pending(void* handle) {
  return locked([&](machine& m) {
    const stream* const s = m.find_stream(handle);
    return s == nullptr ? 0 : s->queue.size();
  });
}
int hvd_standin_enqueue(void* handle, const char* name, void (*f)(void*), void* argument,
                        const hvd_standin_range* ranges, std::size_t count) {
  return locked([&](machine& m) {
    stream* const s = m.find_stream(handle);
    if (s == nullptr) return cu_invalid_handle;
    work w{.name = name, .run = [=] { f(argument); }};
    for (std::size_t i = 0; i != count; ++i)
      w.touches.push_back({ranges[i].address, ranges[i].bytes, ranges[i].writes != 0});
    return m.enqueue(*s, std::move(w));
  });
}
int hvd_standin_free_now(std::uint64_t address) {
  return locked([&](machine& m) {
    const allocation* const a = m.find_live(address, 1);
    return a == nullptr ? cu_invalid_value : m.release(address, a->device >= 0);
  });
}
void hvd_standin_thread_clocks(int on) {
  locked([&](machine& m) { m.thread_clocks = on != 0; });
}

int hvd_standin_alloc(std::uint64_t* address, std::size_t bytes, std::size_t alignment) {
  return call("hvd_standin_alloc", needs::context,
              [&](machine& m, auto&) { return m.allocate(*address, bytes, alignment, current()->device); });
}
int hvd_standin_memory(std::uint64_t address, std::size_t bytes) {
  return locked([&](machine& m) {
    const allocation* const a = m.find_live(address, bytes);
    return a == nullptr ? -2 : a->device;
  });
}
int hvd_standin_current_device() { return current() == nullptr ? -1 : current()->device; }
int hvd_standin_stream_device(void* handle) {
  return locked([&](machine& m) {
    const stream* const s = m.find_stream(handle);
    return s == nullptr ? -1 : s->owner->device;
  });
}

}  // extern "C"
