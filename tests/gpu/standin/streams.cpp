// tests/gpu/standin/streams.cpp: streams as threads, and the clocks that tell which works are ordered.
//
// Whether two works are ordered is decided when they are queued, from the events, waits and synchronisations so far,
// and not from when they happen to run. So a forgotten event is found each time.
#include "gpu/standin/cuda.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace hvd::standin {

stream* machine::find_stream(void* handle) {
  // Null, and the runtime's names of the default streams, which have no legacy semantics here: they are ordered with
  // other streams by events only.
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {
    if (current() == nullptr) return nullptr;
    if (!current()->standard) current()->standard = add_stream(*current());
    return current()->standard.get();
  }
  const auto found = streams.find(handle);
  if (found == streams.end()) return nullptr;
  if (found->second->destroyed) {
    violation("stream " + std::to_string(found->second->number) + " is used after it was destroyed");
    return nullptr;
  }
  return found->second.get();
}

event* machine::find_event(void* handle) {
  const auto found = events.find(handle);
  if (found == events.end()) return nullptr;
  if (found->second->destroyed) {
    violation("an event is used after it was destroyed");
    return nullptr;
  }
  return found->second.get();
}

std::shared_ptr<stream> machine::add_stream(context& owner) {
  auto s = std::make_shared<stream>();
  s->number = ++last_stream;
  s->owner = &owner;
  streams.emplace(s.get(), s);
  std::thread([this, s] { work_off(s); }).detach();
  return s;
}

void machine::touch(stream& on, const work& w, const range& r, bool& complained) {
  allocation* const a = find_memory(r.address);
  if (a == nullptr || r.bytes == 0) return;
  const std::size_t first = r.address - a->begin, last = first + r.bytes;
  // Parts end where the range does.
  for (const std::size_t at : {first, last}) {
    if (at >= a->bytes) continue;
    const auto before = std::prev(a->parts.upper_bound(at));
    if (before->first != at) a->parts.emplace(at, before->second);
  }
  const auto number = static_cast<std::size_t>(on.number);
  const auto ordered = [&](const access& earlier) {
    const auto of = static_cast<std::size_t>(earlier.stream);
    return earlier.time == 0 || (of < on.past.size() && earlier.time <= on.past[of]);
  };
  const auto complain = [&](const access& earlier, const char* does) {
    violation("stream " + std::to_string(on.number) + " (" + w.name + ") " + (r.writes ? "writes" : "reads") +
              " memory that stream " + std::to_string(earlier.stream) + " (" + earlier.name + ") " + does +
              ", and no event orders them");
  };
  for (auto part = a->parts.lower_bound(first); part != a->parts.end() && part->first < last; ++part) {
    auto& [write, reads] = part->second;
    if (!ordered(write) && !std::exchange(complained, true)) complain(write, "writes");
    const access now{on.number, on.past[number], w.name};
    if (r.writes) {
      for (const access& read : reads) {
        if (!ordered(read) && !std::exchange(complained, true)) complain(read, "reads");
      }
      reads.clear();
      write = now;
    } else {
      std::erase_if(reads, [&](const access& read) { return ordered(read); });
      reads.push_back(now);
    }
  }
}

bool machine::check(const stream& on, const work& w) {
  for (const range& r : w.touches) {
    const std::string who = "stream " + std::to_string(on.number) + " (" + w.name + ") ";
    if (r.bytes == 0 || find_live(r.address, r.bytes) != nullptr) continue;
    const allocation* const a = find_memory(r.address);
    violation(who + (a == nullptr ? "touches what is no memory of a device"
                     : a->freed   ? "touches memory that was freed"
                                  : "touches memory beyond the end of what was allocated"));
    return false;
  }
  return true;
}

cu_result machine::enqueue(stream& on, work&& w) {
  if (on.graph) return on.graph->broken ? cu_capture_invalidated : cu_success;
  if (!check(on, w)) return cu_invalid_value;
  merge(on.past, host_clock());
  if (w.await) merge(on.past, w.await->past);
  const auto number = static_cast<std::size_t>(on.number);
  if (on.past.size() <= number) on.past.resize(number + 1);
  ++on.past[number];
  bool complained = false;  // once for each work
  // Reads first: a work may write what it has read.
  for (const bool writes : {false, true}) {
    for (const range& r : w.touches) {
      if (r.writes == writes) touch(on, w, r, complained);
    }
  }
#if defined(__SANITIZE_THREAD__)
  if (complained) w.run = nullptr;  // it would be reported a second time, as a race of this library's
#endif
  if (w.reaches) w.reaches->past = on.past;
  on.queue.push_back(std::move(w));
  changed.notify_all();
  return cu_success;
}

void machine::synchronise(std::unique_lock<std::mutex>& lock, stream& with) {
  const auto all = std::make_shared<mark>();
  enqueue(with, {.name = "synchronisation", .reaches = all});
  wait(lock, [&] { return all->reached; });
  merge(host_clock(), all->past);
}

void machine::synchronise_all(std::unique_lock<std::mutex>& lock, const char* symbol, const context* of,
                              unsigned limit_ms) {
  ++host_synchronisations;
  std::vector<std::shared_ptr<mark>> marks;
  for (auto& [handle, s] : streams) {
    if (s->destroyed || s->graph || (of != nullptr && s->owner != of)) continue;
    enqueue(*s, {.name = symbol, .reaches = marks.emplace_back(std::make_shared<mark>())});
  }
  holder = std::this_thread::get_id();
  // The system's clock, because ThreadSanitizer follows waits on no other.
  const auto limit = std::chrono::system_clock::now() + std::chrono::milliseconds(limit_ms);
  for (const auto& one : marks) {
    const auto reached = [&] { return one->reached; };
    if (limit_ms == 0) wait(lock, reached);
    if (limit_ms == 0 || changed.wait_until(lock, limit, reached)) merge(host_clock(), one->past);
  }
  holder = {};
  changed.notify_all();
}

bool machine::disturb() {
  bool any = false;
  for (const auto& g : graphs) {
    const bool own = g->thread == std::this_thread::get_id() && g->mode != cu_capture_relaxed;
    const bool others = g->mode == 0 && capture_mode() == 0;
    if (capture_mode() == cu_capture_relaxed || (!own && !others)) continue;
    any = g->broken = true;
  }
  return any;
}

bool machine::begin(const stream& on, work& w) {
  if (w.touches.empty()) return true;
  if (!check(on, w)) {
    w.touches.clear();
    return false;
  }
  for (const range& r : w.touches) {
    if (r.bytes != 0) ++find_memory(r.address)->users;
  }
  return true;
}

void machine::end(const work& w) {
  for (const range& r : w.touches) {
    if (r.bytes == 0) continue;
    allocation& a = *find_memory(r.address);
    if (--a.users == 0 && a.freed) {
      violation("memory was freed while " + w.name + " used it");
      poison(a);
    }
  }
}

void machine::work_off(const std::shared_ptr<stream>& s) {
  std::uint64_t random = 88172645463325252u + static_cast<std::uint64_t>(s->number);
  std::unique_lock lock(mutex);
  for (;;) {
    wait(lock, [&] { return !s->queue.empty() || s->destroyed; });
    if (s->queue.empty()) return;
    work& w = s->queue.front();  // a deque's elements stay where they are
    if (w.await) wait(lock, [&] { return w.await->reached; });
    if (w.run) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      if (delay_us != 0) {
        const auto pause = std::chrono::microseconds(random % (delay_us + 1));
        lock.unlock();
        std::this_thread::sleep_for(pause);
        lock.lock();
      }
      if (begin(*s, w)) {
        lock.unlock();
        in_host_function = w.host_function;
        w.run();
        w.run = nullptr;  // what it holds ends here, before others see that it is over
        in_host_function = false;
        lock.lock();
        end(w);
      }
    }
    if (w.reaches) {
      w.reaches->reached = true;
      w.reaches->when = std::chrono::steady_clock::now();
    }
    s->queue.pop_front();
    changed.notify_all();
  }
}

}  // namespace hvd::standin
