// tests/gpu/standin/nccl.cpp: libnccl-standin.so, a stand-in for NCCL, for tests on machines without a GPU. It works on
// libcuda-standin.so, and between processes. This file has the operations and groups.
#include "gpu/standin/nccl.hpp"

#include <hvd/cuda/driver.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

namespace hvd::standin {

std::size_t operation::bytes_in(const communicator& c) const {
  const std::size_t each = count * bytes_of(type);
  switch (what) {
    case kind::recv: return 0;
    case kind::broadcast: return c.rank == peer ? each : 0;
    case kind::scatter: return c.rank == peer ? each * static_cast<std::size_t>(c.size) : 0;
    case kind::reduce_scatter:
    case kind::alltoall: return each * static_cast<std::size_t>(c.size);
    default: return each;
  }
}

std::size_t operation::bytes_out(const communicator& c) const {
  const std::size_t each = count * bytes_of(type);
  switch (what) {
    case kind::send: return 0;
    case kind::reduce: return c.rank == peer ? each : 0;
    case kind::gather: return c.rank == peer ? each * static_cast<std::size_t>(c.size) : 0;
    case kind::allgather:
    case kind::alltoall: return each * static_cast<std::size_t>(c.size);
    default: return each;
  }
}

namespace {

thread_local int depth = 0;
thread_local nccl_result group_error = nccl_success;
thread_local std::vector<std::unique_ptr<batch>> group;

// HVD_STANDIN_NCCL_FAIL=WHICH:N:CODE: the N-th operation of this process (WHICH is "call"), or the N-th call of the
// function WHICH, never ends, and the communicator's state becomes CODE.
int code_to_fail_with(const char* symbol) {
  static const auto wanted = [] {
    const char* const text = std::getenv("HVD_STANDIN_NCCL_FAIL");
    std::tuple<std::string, int, int> t;
    char which[64] = {};
    if (text != nullptr && std::sscanf(text, "%63[^:]:%d:%d", which, &std::get<1>(t), &std::get<2>(t)) == 3) {
      std::get<0>(t) = which;
    }
    return t;
  }();
  static std::atomic<int> count{0};
  const auto& [which, n, code] = wanted;
  if (which != "call" && which != symbol) return 0;
  return ++count == n ? code : 0;
}

// In the stream, at once: hvd_standin_enqueue takes the ranges that race detection compares.
nccl_result put(std::unique_ptr<batch> b) {
  std::vector<hvd_standin_range> ranges;
  std::string name;
  static constexpr const char* names[] = {"ncclAllReduce", "ncclReduce",   "ncclBroadcast", "ncclReduceScatter",
                                          "ncclAllGather", "ncclAlltoAll", "ncclGather",    "ncclScatter",
                                          "ncclSend",      "ncclRecv"};
  for (const operation& o : b->operations) {
    const std::size_t in = o.bytes_in(*b->on), out = o.bytes_out(*b->on);
    if (in != 0) ranges.push_back({reinterpret_cast<std::uint64_t>(o.in), in, 0});
    // The root of a broadcast in place only sends.
    const bool unchanged = o.what == kind::broadcast && in != 0 && o.in == o.out;
    if (out != 0 && !unchanged) ranges.push_back({reinterpret_cast<std::uint64_t>(o.out), out, 1});
    if (o.how.on_device != 0) ranges.push_back({o.how.on_device, bytes_of(o.type), 0});
    name = name.empty() ? names[static_cast<int>(o.what)] : "a group of NCCL";
  }
  void* const stream = b->stream;
  const std::shared_ptr<communicator> c = b->on;
  batch* const raw = b.release();
  const auto body = [](void* argument) {
    const std::unique_ptr<batch> mine(static_cast<batch*>(argument));
    run(*mine);
  };
  launches& order = launches::of(c->device);
  const std::lock_guard lock(order.mutex);
  order.not_over.insert(raw->launch = ++order.last);
  const int code = find_gpu()->enqueue(stream, name.c_str(), body, raw, ranges.data(), ranges.size());
  if (code == cu_success) return nccl_success;
  order.not_over.erase(raw->launch);
  delete raw;
  return failed(nccl_unhandled_cuda_error, "the work was not queued: CUDA error " + std::to_string(code));
}

nccl_result launch(std::vector<std::unique_ptr<batch>> all) {
  static const bool later = number_of("HVD_STANDIN_NCCL_IN_PROGRESS", 0) != 0;
  nccl_result result = nccl_success;
  for (auto& b : all) {
    const std::shared_ptr<communicator> c = b->on;
    {
      const std::lock_guard lock(c->mutex);
      b->ticket = c->queued++;
    }
    if (!std::exchange(c->connected, true)) {  // here, even if the communicator does not block
      std::vector<std::byte> of_all;
      if (!c->exchange("", 1, of_all)) return nccl_internal_error;
    }
    if (!later || c->blocking) {
      const nccl_result code = put(std::move(b));
      if (code != nccl_success) result = code;
      continue;
    }
    // So a caller that takes what it was told for success has its event recorded before the operation.
    begin_job(c);
    if (result == nccl_success) result = nccl_in_progress;
    cu_context context = nullptr;
    find_gpu()->function<decltype(cuda_driver::context_current)>("cuCtxGetCurrent")(&context);
    std::thread([c, context, mine = std::move(b)]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      find_gpu()->function<decltype(cuda_driver::context_set)>("cuCtxSetCurrent")(context);
      const nccl_result code = put(std::move(mine));
      int expected = nccl_in_progress;
      c->state.compare_exchange_strong(expected, code);
    }).detach();
  }
  return result;
}

in_window find_window(communicator& c, const void* address, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uint64_t>(address);
  const std::lock_guard lock(c.mutex);
  const auto found = c.windows.upper_bound(at);
  if (bytes == 0 || found == c.windows.end() || at < found->second.begin) return {};
  return {true, found->second.symmetric ? found->second.number << 48 | (at - found->second.begin) : 0};
}

bool on_device(const void* address, std::size_t bytes, const communicator& c) {
  return bytes == 0 || find_gpu()->memory(reinterpret_cast<std::uint64_t>(address), bytes) == c.device;
}

nccl_result checked(const char* symbol, operation& o, int op, const std::shared_ptr<communicator>& c, void* stream) {
  if (const nccl_result code = injected(symbol); code != nccl_success) return code;
  if (const nccl_result code = ready(c); code != nccl_success) return code;
  if (!valid_type(o.type))
    return failed(nccl_invalid_argument, std::string(symbol) + ": invalid type " + std::to_string(o.type));
  if (o.peer < 0 || o.peer >= c->size) {
    return failed(nccl_invalid_argument, std::string(symbol) + ": invalid root or peer " + std::to_string(o.peer));
  }
  if (op > nccl_average_op) {
    const std::lock_guard lock(c->mutex);
    const auto found = c->ops.find(op);
    if (found == c->ops.end() || found->second.type != o.type) {
      return failed(nccl_invalid_argument, std::string(symbol) + ": invalid reduction " + std::to_string(op));
    }
    o.how = found->second;
  } else if (op < 0) {
    return failed(nccl_invalid_argument, std::string(symbol) + ": invalid reduction " + std::to_string(op));
  } else {
    o.how = {.op = op, .type = o.type};
  }
  if (!on_device(o.in, o.bytes_in(*c), *c) || !on_device(o.out, o.bytes_out(*c), *c)) {
    return failed(nccl_invalid_argument,
                  std::string(symbol) + ": a buffer is not in the memory of the communicator's device");
  }
  if (find_gpu()->stream_device(stream) != c->device) {
    return failed(nccl_invalid_argument, std::string(symbol) + ": the stream is not of the communicator's device");
  }
  return nccl_success;
}

nccl_result add(const char* symbol, operation o, int op, nccl_comm handle, void* stream) {
  const auto c = find(handle);
  if (const nccl_result code = checked(symbol, o, op, c, stream); code != nccl_success) {
    if (depth != 0 && group_error == nccl_success) group_error = code;
    return code;
  }
  o.in_at = find_window(*c, o.in, o.bytes_in(*c));
  o.out_at = find_window(*c, o.out, o.bytes_out(*c));
  batch* to = nullptr;
  for (const auto& b : group) {
    if (b->on != c) continue;
    to = b.get();
    if (b->stream != stream) {
      find_gpu()->violation("a group has one communicator on several streams, which the stand-in does not know");
      return group_error = nccl_invalid_usage;
    }
  }
  if (to == nullptr) to = group.emplace_back(std::make_unique<batch>(batch{.on = c, .stream = stream})).get();
  to->operations.push_back(o);
  if (const int code = code_to_fail_with(symbol); code != 0) to->fails_with = code;
  return depth != 0 ? nccl_success : launch(std::exchange(group, {}));
}

}  // namespace

}  // namespace hvd::standin

using namespace hvd::standin;

#pragma GCC visibility push(default)
extern "C" {

nccl_result ncclGroupStart() {
  ++depth;
  return nccl_success;
}
nccl_result ncclGroupEnd() {
  if (depth == 0) return failed(nccl_invalid_usage, "ncclGroupEnd: not in a group call.");
  if (--depth != 0) return nccl_success;
  auto all = std::exchange(group, {});
  if (const nccl_result code = std::exchange(group_error, nccl_success); code != nccl_success) return code;
  if (const nccl_result code = injected("ncclGroupEnd"); code != nccl_success) return code;
  return launch(std::move(all));
}

nccl_result ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op, nccl_comm comm,
                          void* stream) {
  return add("ncclAllReduce", {.what = kind::allreduce, .in = in, .out = out, .count = count, .type = type}, op, comm,
             stream);
}
nccl_result ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root, nccl_comm comm,
                       void* stream) {
  return add("ncclReduce", {.what = kind::reduce, .in = in, .out = out, .count = count, .type = type, .peer = root}, op,
             comm, stream);
}
nccl_result ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, nccl_comm comm,
                          void* stream) {
  return add("ncclBroadcast",
             {.what = kind::broadcast, .in = in, .out = out, .count = count, .type = type, .peer = root}, 0, comm,
             stream);
}
nccl_result ncclReduceScatter(const void* in, void* out, std::size_t each, int type, int op, nccl_comm comm,
                              void* stream) {
  return add("ncclReduceScatter", {.what = kind::reduce_scatter, .in = in, .out = out, .count = each, .type = type}, op,
             comm, stream);
}
nccl_result ncclAllGather(const void* in, void* out, std::size_t each, int type, nccl_comm comm, void* stream) {
  return add("ncclAllGather", {.what = kind::allgather, .in = in, .out = out, .count = each, .type = type}, 0, comm,
             stream);
}
nccl_result ncclSend(const void* in, std::size_t count, int type, int peer, nccl_comm comm, void* stream) {
  return add("ncclSend", {.what = kind::send, .in = in, .count = count, .type = type, .peer = peer}, 0, comm, stream);
}
nccl_result ncclRecv(void* out, std::size_t count, int type, int peer, nccl_comm comm, void* stream) {
  return add("ncclRecv", {.what = kind::recv, .out = out, .count = count, .type = type, .peer = peer}, 0, comm, stream);
}
#if !defined(HVD_STANDIN_NCCL_OLD)
nccl_result ncclAlltoAll(const void* in, void* out, std::size_t each, int type, nccl_comm comm, void* stream) {
  return add("ncclAlltoAll", {.what = kind::alltoall, .in = in, .out = out, .count = each, .type = type}, 0, comm,
             stream);
}
nccl_result ncclGather(const void* in, void* out, std::size_t each, int type, int root, nccl_comm comm, void* stream) {
  return add("ncclGather", {.what = kind::gather, .in = in, .out = out, .count = each, .type = type, .peer = root}, 0,
             comm, stream);
}
nccl_result ncclScatter(const void* in, void* out, std::size_t each, int type, int root, nccl_comm comm, void* stream) {
  return add("ncclScatter", {.what = kind::scatter, .in = in, .out = out, .count = each, .type = type, .peer = root}, 0,
             comm, stream);
}
#endif

}  // extern "C"

// Their types are those of hvd's table.
[[maybe_unused]] static void fill_table(nccl_library& t) {
  t.allreduce = ncclAllReduce;
  t.reduce = ncclReduce;
  t.broadcast = ncclBroadcast;
  t.reduce_scatter = ncclReduceScatter;
  t.allgather = ncclAllGather;
  t.send = ncclSend;
  t.recv = ncclRecv;
  t.group_start = ncclGroupStart;
  t.group_end = ncclGroupEnd;
#if !defined(HVD_STANDIN_NCCL_OLD)
  t.alltoall = ncclAlltoAll;
  t.gather = ncclGather;
  t.scatter = ncclScatter;
#endif
}
