// tests/support/stand_in_device.hpp: a device for engines, made of threads: it stands in for a GPU and its library.
//
// Its memory has addresses that end the process when the host uses them. Its streams are threads, so that work really
// runs later, and so do its events. What waits for no event reads too early, and that is found out.
#pragma once

#include <hvd/algorithm/automatic.hpp>
#include <hvd/collective/front_door.hpp>
#include <hvd/dynamic_op.hpp>
#include <hvd/engine/device.hpp>
#include <hvd/transport/thread.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>

namespace hvd::test {

/// Elements on the device. The host has their address, and may copy them while no stream uses them.
class device_memory {
 public:
  explicit device_memory(std::size_t bytes)
      : bytes_(bytes), reserved_(bytes == 0 ? 1 : bytes), real_(bytes),
        address_(::mmap(nullptr, reserved_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (address_ == MAP_FAILED) throw std::bad_alloc();
    const std::lock_guard lock(all().mutex);
    all().at[reinterpret_cast<std::uintptr_t>(address_)] = this;
  }
  template <class E>
  explicit device_memory(const std::vector<E>& values) : device_memory(values.size() * sizeof(E)) {
    if (bytes_ != 0) std::memcpy(real_.data(), values.data(), bytes_);
  }
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  ~device_memory() {
    if (users != 0) {
      std::fputs("the stand-in device: memory ends while a stream uses it\n", stderr);
      std::abort();
    }
    {
      const std::lock_guard lock(all().mutex);
      all().at.erase(reinterpret_cast<std::uintptr_t>(address_));
    }
    ::munmap(address_, reserved_);
  }

  [[nodiscard]] std::byte* address() const noexcept { return static_cast<std::byte*>(address_); }
  template <class E>
  [[nodiscard]] std::vector<E> copy() const {
    if (users != 0) throw std::logic_error("the host copies memory that a stream still uses");
    std::vector<E> values(bytes_ / sizeof(E));
    if (bytes_ != 0) std::memcpy(values.data(), real_.data(), bytes_);
    return values;
  }

  /// For streams: the memory at an address that they were given.
  static device_memory& of(const std::byte* address) {
    const std::lock_guard lock(all().mutex);
    const auto found = all().at.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == all().at.end()) throw error(error_kind::system, "the stand-in device: no memory has this address");
    return *found->second;
  }
  [[nodiscard]] std::byte* real() noexcept { return real_.data(); }

  std::atomic<int> users{0};   ///< works that are queued or run
  std::atomic<int> writes{0};  ///< of the program's own streams among them: who waits for their events finds 0

 private:
  struct registry {
    std::mutex mutex;
    std::map<std::uintptr_t, device_memory*> at;
  };
  static registry& all() {
    static registry r;
    return r;
  }

  std::size_t bytes_, reserved_;
  std::vector<std::byte> real_;
  void* address_;
};

class device_event {
 public:
  void set() {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();  // under the lock: who sees `done_` may destroy this
  }
  /// False if it was given up before.
  bool wait(const std::atomic<bool>& given_up) {
    std::unique_lock lock(mutex_);
    while (!done_ && !given_up) changed_.wait_for(lock, std::chrono::milliseconds(5));
    return done_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

/// Runs works one after the other, on a thread of its own.
class device_stream {
 public:
  device_stream() : thread_([this] { run(); }) {}
  device_stream(const device_stream&) = delete;
  device_stream& operator=(const device_stream&) = delete;
  ~device_stream() {
    given_up = true;
    join();
  }

  void enqueue(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      works_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  /// Fills memory with one value, behind `after`; then `done` is set.
  void fill(device_memory& memory, std::vector<float> values, device_event& after, device_event& done) {
    ++memory.users;
    ++memory.writes;
    enqueue([this, &memory, values = std::move(values), &after, &done] {
      after.wait(given_up);
      std::memcpy(memory.real(), values.data(), values.size() * sizeof(float));
      --memory.writes;
      --memory.users;
      done.set();
    });
  }
  /// Returns when all that is queued has run.
  void join() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::atomic<bool> given_up{false};  ///< works that wait return, and the others find it

 private:
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !works_.empty(); });
        if (works_.empty()) return;
        work = std::move(works_.front());
        works_.pop_front();
      }
      work();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> works_;
  bool ending_ = false;
  std::thread thread_;
};

/// What a test does to the device of one rank, and sees of it; shared with the devices that are split off.
struct device_strings {
  device_event gate;            ///< batches begin behind it
  std::atomic<int> started{0};  ///< batches
  std::atomic<int> aborts{0};
  std::atomic<bool> anonymous{false};  ///< does not tell which rank was lost
};

/// The device of one rank. Its collectives are those of a group of threads. It has no reduce_scatter, which `start`
/// says, and no product, which is found only when the work runs.
class StandInDevice {
 public:
  static constexpr std::string_view timeline_name = "STAND_IN";

  struct batch {
    std::atomic<bool> done{false};
    std::optional<error> problem{};
    std::vector<std::shared_ptr<device_memory>> own{};  // results, zeros
  };
  using pending = std::shared_ptr<batch>;

  StandInDevice(ThreadTransport group, int index, std::shared_ptr<device_strings> strings)
      : in_(std::make_unique<inner>(std::move(group), index, std::move(strings))) {}
  StandInDevice(StandInDevice&&) = default;
  StandInDevice& operator=(StandInDevice&&) = default;

  [[nodiscard]] int index() const noexcept { return in_->index; }

  pending start(std::span<const detail::work> works, const received_rows& rows) {
    const detail::signature& first = works.front().what;
    if (first.kind == operation::reduce_scatter) {
      ++in_->strings->started;
      throw error(error_kind::unsupported, "the stand-in device has no reduce_scatter");
    }
    auto b = std::make_shared<batch>();
    std::vector<part> parts;
    for (const detail::work& w : works) {
      for (std::size_t t = 0; t != w.what.types.size(); ++t) {
        parts.push_back(part_of(*b, w, t, rows.empty() ? std::vector<std::size_t>() : rows[parts.size()]));
      }
    }
    for (const part& p : parts) {
      ++p.in->users;
      ++p.out->users;
    }
    ++in_->strings->started;
    in_->stream.enqueue([inner = in_.get(), b, parts = std::move(parts), kind = first.kind, op = first.op,
                         root = first.root, prescale = first.prescale, postscale = first.postscale] {
      try {
        inner->wait(parts);
        if (kind == operation::allreduce && op == reduce_op::product) {
          throw error(error_kind::unsupported, "the stand-in device has no product");
        }
      } catch (const error& e) {  // of this batch alone
        b->problem.emplace(detail::again(e));
      }
      try {
        if (!b->problem) {
          for (const part& p : parts) inner->run(p, kind, op, root, prescale, postscale);
        }
      } catch (const error& e) {
        inner->lose(e);
        b->problem.emplace(detail::again(e));
      }
      for (const part& p : parts) {
        --p.in->users;
        --p.out->users;
      }
      b->done = true;
    });
    return b;
  }
  bool poll(pending& b) {
    if (!b->done) return false;
    if (b->problem) throw detail::again(*b->problem);
    return true;
  }
  void check() {
    const std::lock_guard lock(in_->mutex);
    if (in_->lost) throw detail::again(*in_->lost);
  }
  bool abort() noexcept {
    ++in_->strings->aborts;
    in_->stream.given_up = true;
    in_->comm.peers().set_abort(error_kind::aborted, in_->comm.rank());
    in_->stream.join();
    return true;
  }
  StandInDevice split(int color, int key) { return {in_->comm.split(color, key), in_->index, in_->strings}; }

 private:
  /// One tensor of a batch.
  struct part {
    device_memory* in;
    device_memory* out;
    device_event* ready;
    dtype type;
    std::size_t count;                       // elements; in one row where ranks may have different numbers of rows
    std::vector<std::size_t> send, receive;  // elements for and from each rank, of alltoall; of allgather the latter
  };
  struct inner {
    inner(ThreadTransport c, int i, std::shared_ptr<device_strings> s)
        : comm(std::move(c)), index(i), strings(std::move(s)) {}

    void wait(const std::vector<part>& parts) {
      for (const part& p : parts) {
        if (p.ready != nullptr) p.ready->wait(stream.given_up);
      }
      strings->gate.wait(stream.given_up);
      if (stream.given_up) throw error(error_kind::aborted, "the stand-in device was aborted");
      for (const part& p : parts) {
        if (p.in->writes != 0) {
          throw error(error_kind::system,
                      "the stand-in device: memory is read before it was written; an event is missing");
        }
      }
    }
    void run(const part& p, operation kind, reduce_op op, int root, double prescale, double postscale) {
      const std::size_t each = size_of(p.type);
      const std::byte* const in = p.in->real();
      std::byte* const out = p.out->real();
      if (kind == operation::allreduce) {
        const reduction r = make_reduction(p.type, op, comm.size(), prescale, postscale);
        detail::run(comm, allreduce_call{in, out, p.count, r}, automatic<>{});
      } else if (kind == operation::broadcast) {
        detail::run(comm, broadcast_call{in, out, p.count * each, root}, automatic<>{});
      } else if (kind == operation::allgather) {
        detail::run(comm, allgather_call{in, out, partition(p.receive, each)}, automatic<>{});
      } else {
        detail::run(comm, alltoall_call{in, out, partition(p.send, each), partition(p.receive, each)}, automatic<>{});
      }
    }
    void lose(const error& e) {
      const std::lock_guard lock(mutex);
      lost.emplace(e.kind(), "the stand-in device: " + std::string(detail::sentence(e)),
                   strings->anonymous ? -1 : e.rank());
    }

    ThreadTransport comm;
    int index;
    std::shared_ptr<device_strings> strings;
    std::mutex mutex;
    std::optional<error> lost;
    device_stream stream;  // its thread uses all of the others
  };

  part part_of(batch& b, const detail::work& w, std::size_t t, const std::vector<std::size_t>& rows) {
    const std::size_t count = rows.empty() ? w.what.elements(t) : w.what.row_elements(t);
    part p{nullptr, nullptr, nullptr, w.what.types[t], count, {}, {}};
    const auto fresh = [&](std::size_t elements) {
      return b.own.emplace_back(std::make_shared<device_memory>(elements * size_of(p.type)));
    };
    if (w.mine == nullptr) {  // this rank has joined
      p.in = p.out = fresh(p.count).get();
      return p;
    }
    const tensor& mine = w.mine->tensors[t];
    p.in = &device_memory::of(mine.in);
    p.ready = static_cast<device_event*>(mine.memory.ready);
    result& r = w.end->results[t];
    r.type = p.type;
    r.shape = mine.shape;
    std::size_t all = p.count;
    if (!rows.empty()) {
      r.shape.front() = 0;
      for (const std::size_t n : rows) r.shape.front() += n;
      all = r.shape.front() * p.count;
      for (const std::size_t n : rows) p.receive.push_back(n * p.count);
    }
    if (w.what.kind == operation::alltoall) {
      r.received_splits = rows;
      for (const std::size_t n : mine.splits) p.send.push_back(n * p.count);
    }
    const bool fits = w.what.kind != operation::alltoall || r.shape.front() == mine.out_rows;
    if (mine.out != nullptr && fits) {
      p.out = &device_memory::of(mine.out);
    } else {
      const auto memory = fresh(all);
      p.out = memory.get();
      r.data = {memory, memory->address()};
    }
    return p;
  }

  std::unique_ptr<inner> in_;
};
static_assert(Device<StandInDevice>);

}  // namespace hvd::test
