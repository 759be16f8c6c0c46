// 08_thread_pool.cpp: collectives in a thread pool. Here: gradients are reduced while the next ones are computed.
//
// Two rules. A transport belongs to one thread at a time. And all ranks make the same calls on it in the same order,
// which a pool whose workers take the next task from one queue does not do. So every worker has a transport and a queue
// of its own, and the task's number, which is the same on all ranks, says whose it is.
#include <hvd/hvd.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

/// A thread that runs tasks in the order in which they were given, all with the same transport.
template <class Comm>
class Worker {
 public:
  using task = std::packaged_task<void(Comm&)>;  // keeps an exception for the future

  explicit Worker(Comm comm) : comm_(std::move(comm)), thread_([this] { run(); }) {}
  Worker(const Worker&) = delete;
  ~Worker() {
    push({});  // the end
    thread_.join();
  }
  std::future<void> submit(std::function<void(Comm&)> f) {
    task t(std::move(f));
    std::future<void> done = t.get_future();
    push(std::move(t));
    return done;
  }

 private:
  void push(task t) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(t));
    wake_.notify_one();
  }
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return !tasks_.empty(); });
      task next = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      if (!next.valid()) return;
      next(comm_);
    }
  }

  Comm comm_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<task> tasks_;
  std::thread thread_;  // the last: it uses the others
};

/// Works on any transport, so ranks may be processes or threads.
template <class Comm>
void train(Comm& comm) {
  std::vector<std::vector<float>> buckets(8, std::vector<float>(10000));
  {
    // split is collective: all ranks make the transports in the same order, and before the workers start.
    std::deque<Worker<Comm>> pool;
    for (int w = 0; w != 3; ++w) pool.emplace_back(comm.split(0, comm.rank()));

    std::vector<std::future<void>> reduced;
    for (std::size_t b = 0; b != buckets.size(); ++b) {
      buckets[b].assign(buckets[b].size(), static_cast<float>(b) + static_cast<float>(comm.rank()));  // "backward"
      reduced.push_back(pool[b % pool.size()].submit([&, b](Comm& c) { hvd::allreduce(c, buckets[b], hvd::average); }));
    }
    for (std::future<void>& f : reduced) f.get();  // throws what the task threw
  }
  if (comm.rank() != 0) return;
  for (const std::vector<float>& bucket : buckets) std::printf(" %g", bucket[0]);
  std::printf("\n");
}

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? hvd::parse_integer("ranks", argv[1], 1, 256) : 2;
  // Processes are forked before this one has threads; each starts its own.
  if (const int code = hvd::fork_run(ranks, train<hvd::ShmTransport>); code != 0) return code;
  hvd::thread_run(ranks, train<hvd::ThreadTransport>);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 2;
}
