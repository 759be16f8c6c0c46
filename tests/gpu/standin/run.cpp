// tests/gpu/standin/run.cpp: what a work of the stand-in for NCCL does on its stream's thread.
#include "gpu/standin/nccl.hpp"

#include <chrono>
#include <cstring>
#include <thread>

namespace hvd::standin {

namespace {

std::byte* on_host(const void* address) {
  return static_cast<std::byte*>(find_gpu()->host(reinterpret_cast<std::uint64_t>(address)));
}

// Moves bytes until all are there or the communicator is aborted. A peer that is gone is not noticed, as inside of a
// host, unless HVD_STANDIN_NCCL_REMOTE_ERROR asks for what a network notices.
bool moved(communicator& c, std::vector<mesh::transfer>& all) {
  static const bool noticing = number_of("HVD_STANDIN_NCCL_REMOTE_ERROR", 0) != 0;
  auto last = std::chrono::steady_clock::now();
  const auto stop = [&] {
    if (noticing && c.network == nccl_success) {
      const auto now = std::chrono::steady_clock::now();
      if (now - last > std::chrono::milliseconds(5)) {
        last = now;
        if (c.all->find_gone(all) >= 0) c.network = nccl_remote_error;
      }
    }
    return c.stop.load();
  };
  return c.all->move(mesh::of_streams, all, stop, [&](const std::string& how) {
    find_gpu()->violation(("NCCL's ranks do not do the same: " + how).c_str());
  });
}

bool run_collective(communicator& c, const operation& o) {
  const auto n = static_cast<std::size_t>(c.size);
  const std::size_t each = o.count * bytes_of(o.type);
  const bool root = o.peer == c.rank;
  std::byte* const out = o.bytes_out(c) == 0 ? nullptr : on_host(o.out);
  // A copy: the buffers may be the same.
  std::vector<std::byte> in;
  if (o.bytes_in(c) != 0) in.assign(on_host(o.in), on_host(o.in) + o.bytes_in(c));
  std::vector<std::vector<std::byte>> of(n);  // what comes from each rank
  std::vector<mesh::transfer> transfers;
  std::uint64_t tag = static_cast<std::uint64_t>(o.what) << 32 | static_cast<std::uint64_t>(o.type) << 16 |
                      static_cast<std::uint64_t>(o.how.op) << 8 | static_cast<std::uint64_t>(o.peer);
  // Of the buffers that all ranks have.
  const bool all_read = o.what == kind::allreduce || o.what == kind::allgather || o.what == kind::reduce_scatter;
  const bool all_write = all_read || o.what == kind::broadcast;
  if (all_read && o.in_at.yes) tag |= std::uint64_t{1} << 40;
  if (all_write && o.out_at.yes) tag |= std::uint64_t{1} << 41;
  // Other ranks compute addresses in the buffers that they reach into: an allgather in place may read anywhere.
  const bool others_read = all_read && o.what != kind::allgather;
  const bool others_write = all_write && o.what != kind::reduce_scatter;
  const std::uint64_t note = (others_read ? o.in_at.offset * 31 : 0) + (others_write ? o.out_at.offset : 0);
  const auto send = [&](std::size_t to, std::size_t offset) {
    transfers.push_back({.send = true,
                         .peer = static_cast<int>(to),
                         .data = in.data() + offset,
                         .bytes = each,
                         .tag = tag,
                         .note = note});
  };
  const auto recv = [&](std::size_t from) {
    of[from].resize(each);
    transfers.push_back({.peer = static_cast<int>(from), .data = of[from].data(), .bytes = each, .tag = tag});
  };
  const auto peer = static_cast<std::size_t>(o.peer);
  for (std::size_t q = 0; q != n; ++q) {
    switch (o.what) {
      case kind::allreduce:
      case kind::allgather: send(q, 0), recv(q); break;
      case kind::reduce_scatter:
      case kind::alltoall: send(q, q * each), recv(q); break;
      case kind::broadcast:
        if (root) send(q, 0);
        break;
      case kind::scatter:
        if (root) send(q, q * each);
        break;
      case kind::reduce:
      case kind::gather:
        if (root) recv(q);
        break;
      case kind::send:
      case kind::recv: break;
    }
  }
  if (o.what == kind::broadcast || o.what == kind::scatter) recv(peer);
  if (o.what == kind::reduce || o.what == kind::gather) send(peer, 0);
  if (!moved(c, transfers)) return false;
  if (out == nullptr || each == 0) return true;
  for (const mesh::transfer& t : transfers) {
    if (t.send || t.header.note == note) continue;
    std::memset(out, 0xEE, o.bytes_out(c));  // each rank reads and writes elsewhere in the others' windows
    return true;
  }
  reduction how = o.how;
  if (how.on_device != 0) std::memcpy(how.factor.data(), find_gpu()->host(how.on_device), bytes_of(o.type));
  switch (o.what) {
    case kind::allreduce:
    case kind::reduce_scatter:
    case kind::reduce: reduce(of, out, o.type, how); break;
    case kind::broadcast:
    case kind::scatter: std::memcpy(out, of[peer].data(), each); break;
    default:
      for (std::size_t q = 0; q != n; ++q) std::memcpy(out + q * each, of[q].data(), each);
  }
  return true;
}

bool run_operations(batch& b) {
  communicator& c = *b.on;
  // Sends and receives of a group progress side by side, after its collectives.
  std::vector<mesh::transfer> transfers;
  for (const operation& o : b.operations) {
    if (o.what == kind::send || o.what == kind::recv) {
      const bool send = o.what == kind::send;
      const void* const at = send ? o.in : o.out;
      const std::size_t bytes = o.count * bytes_of(o.type);
      transfers.push_back(
          {.send = send, .peer = o.peer, .data = bytes == 0 ? nullptr : on_host(at), .bytes = bytes, .tag = ~0u});
    } else if (!run_collective(c, o)) {
      return false;
    }
  }
  return moved(c, transfers);
}

}  // namespace

launches& launches::of(int device) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, launches>;
  const std::lock_guard lock(mutex);
  return all[device];
}

void run(batch& b) {
  communicator& c = *b.on;
  bool done = false;
  launches& before = launches::of(c.device);
  if (number_of("HVD_STANDIN_NCCL_SERIAL", 0) != 0) {
    std::unique_lock lock(before.mutex);
    while (*before.not_over.begin() != b.launch && !c.stop) {
      before.changed.wait_until(lock, std::chrono::system_clock::now() + std::chrono::milliseconds(10));
    }
  }
  {
    std::unique_lock lock(c.mutex);
    c.changed.wait(lock, [&] { return c.over == b.ticket || c.stop; });
  }
  if (b.fails_with != 0 && !c.stop) {
    c.state = b.fails_with;
    std::unique_lock lock(c.mutex);
    c.changed.wait(lock, [&] { return c.stop.load(); });
  }
  if (!c.stop) done = run_operations(b);
  if (!done) {
    // What an aborted operation leaves behind is nothing that anybody may use.
    for (const operation& o : b.operations) {
      if (o.bytes_out(c) != 0) std::memset(on_host(o.out), 0xEE, o.bytes_out(c));
    }
  }
  {
    const std::lock_guard lock(c.mutex);
    ++c.over;
    c.changed.notify_all();
  }
  const std::lock_guard lock(before.mutex);
  before.not_over.erase(b.launch);
  before.changed.notify_all();
}

}  // namespace hvd::standin
