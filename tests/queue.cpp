// tests/queue.cpp: calls in the background run in their order, and messages at the same time.
#include <hvd/hvd.hpp>

#include <support/front_door.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace hvd::test;
using namespace std::chrono_literals;
using hvd::any_transport;

namespace {

/// f(queue) on every rank of groups of 1, 2 and 3 ranks.
template <class F>
void on_queues(const F& f, const hvd::queue_options& options = {}) {
  everywhere([&](auto& comm) {
    hvd::queue calls(std::move(comm), options);
    f(calls);
  });
}

}  // namespace

TEST_CASE("queue: calls run in the order in which they are made, whoever waits, and for whatever") {
  on_queues([](hvd::queue& calls) {
    const int p = calls.size();
    std::vector<int> values(1000, 1);
    std::vector<hvd::handle> all;
    for (int i = 0; i != 5; ++i) {
      all.push_back(calls.run([&](any_transport& comm) { hvd::allreduce(comm, values); }, {.quick = i % 2 == 0}));
    }
    all[2].wait();
    all[4].wait();
    CHECK(all[0].poll());
    int expected = 1;
    for (int i = 0; i != 5; ++i) expected *= p;
    CHECK(values == std::vector<int>(1000, expected));
    for (const hvd::handle& h : all) h.wait();  // again, or for the first time

    // Without a wait, the queue's thread runs them.
    std::vector<int> more(3, calls.rank());
    const hvd::handle last = calls.run([&](any_transport& comm) { hvd::broadcast(comm, more, p - 1); });
    while (!last.poll()) std::this_thread::sleep_for(1ms);
    CHECK(more == std::vector<int>(3, p - 1));
    CHECK_FALSE(last.failed());

    const int sum = calls.call([&](any_transport& comm) {
      int x = comm.rank() + 1;
      hvd::allreduce(comm, std::span(&x, 1));
      return x;
    });
    CHECK(sum == p * (p + 1) / 2);
  });
}

TEST_CASE("queue: a call on the caller's thread comes after those in the background") {
  on_queues([](hvd::queue& calls) {
    std::vector<int> order;
    const hvd::handle first = calls.run([&](any_transport& comm) {
      comm.barrier();
      order.push_back(1);
    });
    const auto here = std::this_thread::get_id();
    calls.call([&](any_transport& comm) {
      comm.barrier();
      order.push_back(2);
      CHECK(std::this_thread::get_id() == here);
    });
    CHECK(order == std::vector<int>{1, 2});
    CHECK(first.poll());
  });
}

TEST_CASE("queue: an error ends its call alone, and a callback sees it") {
  on_queues([](hvd::queue& calls) {
    std::vector<int> values(4, 1);
    std::atomic<int> seen{0};
    const hvd::handle bad =
        calls.run([&](any_transport& comm) { hvd::allreduce(comm, values, std::span(values).first(3)); });
    bad.then([&](const hvd::handle& h) { seen = h.failed() ? 1 : 2; });
    const hvd::handle odd = calls.run([](any_transport&) { throw std::runtime_error("not hvd's"); });
    const hvd::handle good = calls.run([&](any_transport& comm) { hvd::allreduce(comm, values); });
    CHECK(complaint([&] { bad.wait(); }) == doctest::Contains("output has 3 elements; allowed: 4"));
    CHECK(bad.failed());
    CHECK(complaint([&] { odd.wait(); }) == "no_memory: hvd: not hvd's");
    good.wait();
    CHECK(seen == 1);
    CHECK(values == std::vector<int>(4, calls.size()));
    good.then([&](const hvd::handle& h) { seen = h.failed() ? 3 : 4; });
    CHECK(seen == 4);  // it is done: at once
    CHECK_THROWS_AS(calls.call([](any_transport&) { throw std::out_of_range("here"); }), std::out_of_range);
    CHECK(calls.call([](any_transport& comm) { return comm.size(); }) == calls.size());
  });
}

TEST_CASE("queue: a wait with a limit, and what it keeps alive") {
  on_queues([](hvd::queue& calls) {
    std::atomic<bool> go{false};
    auto kept = std::make_shared<int>(1);
    const std::weak_ptr<int> watched = kept;
    const hvd::handle slow = calls.run(
        [&](any_transport&) {
          while (!go) std::this_thread::sleep_for(1ms);
        },
        {.keep = std::exchange(kept, nullptr)});
    CHECK(complaint([&] { slow.wait(1ms); }) == doctest::Contains("is not done after 0.001 s; it stays in flight"));
    CHECK(complaint([&] { slow.wait(std::chrono::duration<double>(std::nan(""))); }) ==
          doctest::Contains("the time limit is not a number"));
    CHECK_FALSE(slow.poll());
    CHECK_FALSE(watched.expired());
    go = true;
    slow.wait(1h);
    CHECK(watched.expired());
  });
}

TEST_CASE("queue: many threads") {
  on_queues([](hvd::queue& calls) {
    std::atomic<int> sum{0};
    std::vector<std::thread> threads;
    for (int t = 0; t != 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i != 50; ++i) {
          const hvd::handle h = calls.run([&](any_transport& comm) { sum += comm.size(); }, {.quick = true});
          calls.call([&](any_transport& comm) { sum += comm.size(); });
          h.wait();
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(sum == 400 * calls.size());
  });
}

TEST_CASE("queue: messages with tags, in any order, beside a call that waits for them") {
  on_queues(
      [](hvd::queue& calls) {
        const int p = calls.size(), me = calls.rank(), next = (me + 1) % p, before = (me + p - 1) % p;
        int x = me;
        if (p == 1) {
          CHECK(complaint([&] { static_cast<void>(calls.send(std::span(&x, 1), 0)); }) ==
                "invalid_argument: hvd: send on rank 0 of 1: cannot send to rank 0 of the group; allowed: another rank "
                "of "
                "it");
          return;
        }
        for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{300'000}}) {
          const std::vector<float> a = ramp(me, n), b = ramp(me + 10, n);
          std::vector<float> c(n), d(n);
          std::vector<int> ones(1, 1);
          const hvd::handle get_b = calls.recv(d, before, 2), get_a = calls.recv(c, hvd::queue::any_rank, 1);
          const hvd::handle beside = calls.run([&](any_transport& comm) { hvd::allreduce(comm, ones); });
          const hvd::handle put_a = calls.send(a, next, 1), put_b = calls.send(b, next, 2);
          get_a.wait();
          get_b.wait(1h);
          put_a.wait();
          put_b.wait();
          beside.wait();
          CHECK(c == ramp(before, n));
          CHECK(d == ramp(before + 10, n));
          CHECK(get_a.source() == before);
          CHECK(put_a.source() == -1);
          CHECK(ones[0] == p);
        }
        // Limits, lengths and peers.
        std::array<int, 2> two{};
        CHECK(complaint([&] { calls.recv(two, before, 99, 1ms).wait(); }) == doctest::Contains("timeout: "));
        CHECK(complaint([&] { static_cast<void>(calls.recv(two, before, 99, -1s)); }) ==
              doctest::Contains("recv: the timeout is -1 s"));
        const hvd::handle put = calls.send(std::span(&x, 1), next, 3);
        CHECK(complaint([&] { calls.recv(two, before, 3).wait(); }) == doctest::Contains("expected 8 bytes from rank"));
        put.wait();
        CHECK(complaint([&] { static_cast<void>(calls.recv(two, p)); }) ==
              doctest::Contains("cannot receive from rank"));
        CHECK(complaint([&] { static_cast<void>(calls.send(two, me)); }) == doctest::Contains("cannot send to rank"));
        calls.call([](any_transport& comm) { comm.barrier(); });
      },
      {.messages = true});
  hvd::thread_run(2, [](auto& comm) {
    hvd::queue calls(std::move(comm));
    int x = 0;
    CHECK(complaint([&] { static_cast<void>(calls.recv(std::span(&x, 1), 1 - calls.rank())); }) ==
          doctest::Contains("this queue has no messages; make it with {.messages = true}"));
  });
}

TEST_CASE("queue: after close, and after an abort") {
  on_queues(
      [](hvd::queue& calls) {
        std::vector<int> values(5, 1);
        const hvd::handle before = calls.run([&](any_transport& comm) { hvd::allreduce(comm, values); });
        calls.close(100s);
        CHECK(before.poll());
        CHECK(values[0] == calls.size());
        before.wait();
        const char* const left = "aborted: hvd: this process has left the group, or is about to";
        CHECK(complaint([&] { static_cast<void>(calls.run([](any_transport&) {})); }) == left);
        CHECK(complaint([&] { calls.call([](any_transport&) {}); }) == left);
      },
      {.messages = true});
  hvd::thread_run(2, [](auto& comm) {
    hvd::queue calls(std::move(comm), {.messages = true});
    int x = 0;
    std::vector<int> values(1, 1);
    if (calls.rank() == 0) {  // the other rank never calls
      const hvd::handle waits = calls.run([&](any_transport& c) { hvd::allreduce(c, values); });
      const hvd::handle receives = calls.recv(std::span(&x, 1), 1);
      calls.abort();
      CHECK(complaint([&] { waits.wait(); }) == doctest::Contains("aborted"));
      CHECK(complaint([&] { receives.wait(); }) == doctest::Contains("aborted"));
    } else {
      CHECK(complaint([&] { calls.recv(std::span(&x, 1), 0).wait(); }) == doctest::Contains("aborted"));
    }
  });
}

TEST_CASE("queue: the program can interrupt a wait on its own thread") {
  static std::atomic<bool> wanted{false};
  hvd::thread_run(2, [](auto& comm) {
    hvd::queue calls(std::move(comm), {.interrupted = {[](void*) { return wanted.load(); }}});
    std::vector<int> values(1, 1);
    if (calls.rank() == 0) {
      std::thread later([] {
        std::this_thread::sleep_for(20ms);
        wanted = true;
      });
      CHECK(complaint([&] { calls.call([&](any_transport& c) { hvd::allreduce(c, values); }); }) ==
            doctest::Contains("aborted"));
      later.join();
    } else {
      while (!wanted) std::this_thread::sleep_for(1ms);
    }
  });
  wanted = false;
}

TEST_CASE("queue: close ends while other threads do its work") {
  hvd::thread_run(2, [](auto& comm) {
    hvd::queue calls(std::move(comm), {.messages = true});
    std::atomic<bool> begun{false}, closing{false};
    int x = calls.rank();
    if (calls.rank() == 0) {
      std::thread waits([&] {
        const hvd::handle h = calls.recv(std::span(&x, 1), 1);
        begun = true;
        h.wait();
      });
      while (!begun) std::this_thread::yield();
      std::thread closes([&] {
        closing = true;
        calls.close(100s);
      });
      while (!closing) std::this_thread::yield();
      waits.join();
      closes.join();
      CHECK(x == 1);
    } else {
      std::this_thread::sleep_for(20ms);
      calls.send(std::span(&x, 1), 0).wait();
    }
  });
  // A call in the background that comes after the one that a closing thread runs.
  hvd::queue calls{hvd::SelfTransport()};
  std::atomic<bool> running{false}, go{false};
  const hvd::handle slow = calls.run(
      [&](any_transport&) {
        running = true;
        while (!go) std::this_thread::sleep_for(1ms);
      },
      {.quick = true});
  const hvd::handle second = calls.run([](any_transport&) {}, {.quick = true});
  std::thread waits([&] {
    try {
      calls.call([](any_transport&) {});
    } catch (const hvd::error& e) {
      CHECK(e.kind() == hvd::error_kind::aborted);
    }
  });
  while (!running) std::this_thread::yield();
  std::thread closes([&] { calls.close(100s); });
  std::this_thread::sleep_for(5ms);
  go = true;
  waits.join();
  closes.join();
  CHECK(slow.poll());
  CHECK(second.poll());
  CHECK_FALSE(second.failed());
}

TEST_CASE("queue: what is thrown, and tags") {
  hvd::queue calls{hvd::SelfTransport()};
  const hvd::handle odd = calls.run([](any_transport&) { throw 42; });
  CHECK(complaint([&] { odd.wait(); }) == "no_memory: hvd: an exception that does not derive from std::exception");
  int x = 0;
  CHECK(complaint([&] { static_cast<void>(calls.send(std::span(&x, 1), 1, -1)); }) ==
        "invalid_argument: hvd: send on rank 0 of 1: tag -1 is negative; allowed: 0 and above");
}
