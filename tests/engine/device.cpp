// tests/engine/device.cpp: an engine whose tensors lie on a device, which works while the engine goes on.
#include <hvd/any_transport.hpp>
#include <hvd/engine.hpp>
#include <hvd/launch.hpp>
#include <hvd/transport/simulated.hpp>
#include <support/processes.hpp>
#include <support/require.hpp>
#include <support/stand_in_device.hpp>
#include <support/timeline_reader.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/resource.h>

namespace device_tests {
namespace {

using hvd::error;
using hvd::error_kind;
using hvd::handle;
using hvd::memory_kind;
using hvd::operation;
using hvd::reduce_op;
using hvd::request;
using hvd::test::device_event;
using hvd::test::device_memory;
using hvd::test::device_stream;
using hvd::test::device_strings;
using hvd::test::require;
using hvd::test::StandInDevice;
using device_engine = hvd::Engine<hvd::ThreadTransport, StandInDevice>;

constexpr std::chrono::seconds only_a_hang{60};
constexpr int device_number = 3;

/// One rank with an engine.
struct rank {
  int number, size;
  device_engine& engine;
  device_strings& strings;

  /// Waits until so many batches are with the device.
  void await_started(int batches) const {
    const auto until = std::chrono::steady_clock::now() + only_a_hang;
    while (strings.started < batches) {
      require(std::chrono::steady_clock::now() < until, "the batches do not start");
      std::this_thread::yield();
    }
  }
};

hvd::engine_options unwatched() {
  hvd::engine_options o;
  o.watch = false;
  return o;
}
hvd::engine_options unfused() {
  hvd::engine_options o = unwatched();
  o.fusion_threshold = 0;
  return o;
}

/// Runs f(rank) on threads. The gates of the devices are closed, if that is asked for; f opens that of its rank.
template <class F>
void on_devices(int size, const hvd::engine_options& options, bool closed, const F& f) {
  CHECK_NOTHROW(hvd::thread_run(size, [&](hvd::ThreadTransport& comm) {
    const auto strings = std::make_shared<device_strings>();
    if (!closed) strings->gate.set();
    device_engine engine(comm, StandInDevice(comm.split(0, comm.rank()), device_number, strings), options);
    f(rank{comm.rank(), comm.size(), engine, *strings});
  }));
}

hvd::tensor on_device(const device_memory& in, std::vector<std::size_t> shape, const device_memory* out = nullptr,
                      device_event* ready = nullptr) {
  hvd::tensor t;
  t.in = in.address();
  t.out = out != nullptr ? out->address() : nullptr;
  t.shape = std::move(shape);
  t.memory = {.kind = memory_kind::device, .device = device_number, .ready = ready};
  return t;
}
request asked(operation kind, std::string name, hvd::tensor t) {
  request r;
  r.kind = kind;
  r.name = std::move(name);
  r.tensors.push_back(std::move(t));
  return r;
}
/// A sum of four elements, in place.
request sum(const std::string& name, const device_memory& m, device_event* ready = nullptr) {
  return asked(operation::allreduce, name, on_device(m, {4}, &m, ready));
}
std::vector<float> four(float x) { return std::vector<float>(4, x); }
float ranks_sum(int size) { return static_cast<float>(size * (size - 1) / 2); }

std::string failure_of(const handle& h, int* culprit = nullptr) {
  try {
    h.wait(only_a_hang);
  } catch (const error& e) {
    if (culprit != nullptr) *culprit = e.rank();
    return std::string(hvd::name(e.kind())) + ": " + std::string(hvd::detail::sentence(e));
  }
  return "nothing";
}
void says(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, [&] { return "not '" + part + "': " + text; });
}

/// The order in which operations end on one rank.
class order {
 public:
  void watch(request& r) {
    r.done = [this, name = r.name](const handle& /*end*/) {
      const std::lock_guard lock(mutex_);
      names_ += name + ' ';
    };
  }
  std::string names() {
    const std::lock_guard lock(mutex_);
    return names_;
  }

 private:
  std::mutex mutex_;
  std::string names_;
};

}  // namespace

TEST_CASE("operations on a device: in place, elsewhere, into memory of the device's") {
  for (const int size : {1, 2, 3, 4}) {
    CAPTURE(size);
    on_devices(size, unwatched(), false, [&](const rank& r) {
      const auto p = static_cast<std::size_t>(size);
      const auto x = static_cast<float>(r.number);
      const device_memory in(four(x)), out(four(-1)), place(four(x)), cast(four(x));
      std::vector<float> ramp(p * 2, x);
      const device_memory rows(std::vector<float>(static_cast<std::size_t>(r.number) * 2, x)), all(ramp);
      hvd::tensor splits = on_device(all, {p, 2});
      splits.splits.assign(p, 1);
      std::vector<handle> ends;
      for (request q : {sum("in place", place), asked(operation::allreduce, "elsewhere", on_device(in, {4}, &out)),
                        asked(operation::allreduce, "new", on_device(in, {4})),
                        asked(operation::broadcast, "cast", on_device(cast, {4}, &cast)),
                        asked(operation::allgather, "rows", on_device(rows, {static_cast<std::size_t>(r.number), 2})),
                        asked(operation::alltoall, "swapped", splits)}) {
        q.root = q.kind == operation::broadcast ? size - 1 : 0;
        ends.push_back(r.engine.submit(std::move(q)));
      }
      for (const handle& h : ends) h.wait(only_a_hang);
      const auto copy = [](const handle& h) { return device_memory::of(h.output().data.get()).copy<float>(); };
      require(place.copy<float>() == four(ranks_sum(size)), "a wrong sum in place");
      require(out.copy<float>() == four(ranks_sum(size)) && in.copy<float>() == four(x), "a wrong sum elsewhere");
      require(copy(ends[2]) == four(ranks_sum(size)), "a wrong sum in new memory");
      require(cast.copy<float>() == four(static_cast<float>(size - 1)), "a wrong broadcast");
      std::vector<float> gathered, from_all;
      for (int q = 0; q != size; ++q) {
        gathered.insert(gathered.end(), static_cast<std::size_t>(q) * 2, static_cast<float>(q));
        from_all.insert(from_all.end(), 2, static_cast<float>(q));
      }
      require(copy(ends[4]) == gathered, "a wrong allgather");
      require(ends[4].output().shape == std::vector<std::size_t>{p * (p - 1) / 2, 2}, "a wrong shape");
      require(copy(ends[5]) == from_all, "a wrong alltoall");
      require(ends[5].output().received_splits == std::vector<std::size_t>(p, 1), "wrong received splits");
    });
  }
}

TEST_CASE("batches of a device overlap, and end in the order in which they were started") {
  for (const int size : {1, 2, 4}) {
    CAPTURE(size);
    std::mutex mutex;
    std::string same;
    on_devices(size, unfused(), true, [&](const rank& r) {
      std::vector<std::unique_ptr<device_memory>> memory;
      order ended;
      std::vector<handle> ends;
      for (int i = 0; i != 4; ++i) {
        memory.push_back(std::make_unique<device_memory>(four(1)));
        const int mine = (i + r.number) % 4;  // in another order on each rank
        request q = sum("t" + std::to_string(mine), *memory.back());
        ended.watch(q);
        ends.push_back(r.engine.submit(std::move(q)));
      }
      r.await_started(4);
      // All four are with the device, and the engine does other things.
      std::vector<float> x = four(2);
      r.engine.allreduce("on the host", x).wait(only_a_hang);
      require(x == four(2.0f * static_cast<float>(size)), "a wrong sum on the host");
      for (const handle& h : ends) require(!h.poll(), "done before the device has done it");
      require(r.engine.size() == size && ended.names().empty(), "something has ended");
      r.strings.gate.set();
      for (const handle& h : ends) h.wait(only_a_hang);
      for (const auto& m : memory) require(m->copy<float>() == four(static_cast<float>(size)), "a wrong sum");
      r.engine.barrier().wait(only_a_hang);
      const std::string names = ended.names();
      const std::lock_guard lock(mutex);
      if (same.empty()) same = names;
      require(names == same && names.size() == 12, [&] { return "another order: " + names + "and " + same; });
    });
  }
}

TEST_CASE("a name whose operation is with a device is refused while a handle holds it, and then is not") {
  on_devices(2, unfused(), true, [&](const rank& r) {
    const device_memory a(four(1)), b(four(2)), c(four(3));
    handle h = r.engine.submit(sum("again", a));
    r.await_started(1);
    bool refused = false;
    try {
      static_cast<void>(r.engine.submit(sum("again", b)));
    } catch (const error& e) {
      refused = e.kind() == error_kind::invalid_argument;
    }
    require(refused, "a name that is held");
    h = {};
    static_cast<void>(r.engine.submit(sum("again", b)));  // nobody waits for it
    h = r.engine.submit(sum("again", c));
    r.await_started(3);
    require(!h.poll(), "done before the device has done it");
    r.strings.gate.set();
    h.wait(only_a_hang);
    require(a.copy<float>() == four(2) && b.copy<float>() == four(4) && c.copy<float>() == four(6), "a wrong sum");
  });
}

TEST_CASE("a wait ends with its batch, though the round that the thread takes part in goes on") {
  std::atomic<device_strings*> of_rank_0{nullptr};
  std::atomic<bool> ended{false}, opened{false};
  on_devices(3, unwatched(), true, [&](const rank& me) {
    const device_memory m(four(static_cast<float>(me.number)));
    std::vector<float> y(1, 1.0f);
    if (me.number == 0) {
      of_rank_0 = &me.strings;
    } else {
      me.strings.gate.set();
    }
    // The root has its part done before rank 0 reads it.
    request r = asked(operation::broadcast, "x", on_device(m, {4}, &m));
    r.root = 2;
    const handle x = me.engine.submit(std::move(r), 0, me.number != 0);
    handle on_host;
    if (me.number == 0) {
      x.wait(only_a_hang);  // this thread drives, and so takes part in the round that rank 1 begins
      ended = true;
    } else {
      x.wait(only_a_hang);
      if (me.number == 1) {
        on_host = me.engine.allreduce("y", y);
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        of_rank_0.load()->gate.set();
        opened = true;
      }
      while (!ended) std::this_thread::yield();  // rank 2 is idle: the round waits for it
    }
    require(m.copy<float>() == four(2.0f), "a wrong broadcast");
    if (me.number != 1) on_host = me.engine.allreduce("y", y);
    on_host.wait(only_a_hang);
    require(y == std::vector<float>{3.0f}, "a wrong sum on the host");
    while (!opened) std::this_thread::yield();  // rank 1 still uses what rank 0 destroys
  });
}

TEST_CASE("a batch that fails ends alone, and in its turn") {
  for (const int size : {1, 2, 3}) {
    CAPTURE(size);
    on_devices(size, unfused(), true, [&](const rank& r) {
      const device_memory a(four(1)), b(four(1)), c(four(1)), d(four(1));
      request product = sum("2 product", b);
      product.op = reduce_op::product;
      order ended;
      std::vector<handle> ends;
      for (request q : {sum("1 sum", a), product, asked(operation::reduce_scatter, "3 scatter", on_device(c, {4})),
                        sum("4 sum", d)}) {
        q.priority = -(q.name.front() - '0');
        ended.watch(q);
        ends.push_back(r.engine.submit(std::move(q)));
      }
      r.await_started(4);
      for (const handle& h : ends) require(!h.poll(), "done out of turn");
      r.strings.gate.set();
      const std::string place = "\" on rank " + std::to_string(r.number) + " of " + std::to_string(size);
      require(failure_of(ends[1]) ==
                  "unsupported: allreduce \"2 product" + place + ": the stand-in device has no product",
              failure_of(ends[1]));
      require(failure_of(ends[2]) ==
                  "unsupported: reduce_scatter \"3 scatter" + place + ": the stand-in device has no reduce_scatter",
              failure_of(ends[2]));
      require(failure_of(ends[0]) == "nothing" && failure_of(ends[3]) == "nothing", "the others failed as well");
      require(a.copy<float>() == four(static_cast<float>(size)) && d.copy<float>() == a.copy<float>(), "a wrong sum");
      request again = sum("2 product", b);
      ended.watch(again);
      r.engine.run(std::move(again));  // the job goes on
      require(r.strings.aborts == 0, "the device was aborted");
    });
  }
}

TEST_CASE("what is submitted at once is fused by memory") {
  hvd::engine_options o = unwatched();
  o.thread = false;  // so that all is there when the first is awaited
  on_devices(3, o, false, [&](const rank& r) {
    const device_memory a(four(1)), b(four(2)), group(four(3)), more(four(4));
    std::vector<float> x = four(5), y = four(6);
    request both = sum("group", group);
    both.tensors.push_back(on_device(more, {4}, &more));
    std::vector<handle> ends;
    ends.push_back(r.engine.submit(sum("a", a)));
    ends.push_back(r.engine.allreduce("x", x));
    ends.push_back(r.engine.submit(sum("b", b)));
    ends.push_back(r.engine.allreduce("y", y));
    ends.push_back(r.engine.submit(std::move(both)));
    for (const handle& h : ends) h.wait(only_a_hang);
    require(r.strings.started == 1, "tensors of the device were not fused");
    require(a.copy<float>() == four(3) && b.copy<float>() == four(6), "a wrong sum on the device");
    require(group.copy<float>() == four(9) && more.copy<float>() == four(12), "a wrong sum of a group");
    require(x == four(15) && y == four(18), "a wrong sum on the host");
  });
}

TEST_CASE("a tensor on the host of one rank and on the device of another is a mismatch on all ranks") {
  on_devices(3, unwatched(), false, [&](const rank& r) {
    const device_memory m(four(1));
    for (int turn = 0; turn != 2; ++turn) {  // the second time the signatures are known
      std::vector<float> x = four(1);
      const handle h = r.number == 1 ? r.engine.allreduce("w", x) : r.engine.submit(sum("w", m));
      require(failure_of(h) ==
                  "mismatch: allreduce \"w\": ranks do not agree: memory device on rank 0, host on rank 1; "
                  "all ranks must submit the same",
              failure_of(h));
    }
    r.engine.run(sum("w", m));
    require(m.copy<float>() == four(3), "a wrong sum");
  });
}

TEST_CASE("what is on no device of the engine is refused at once") {
  on_devices(2, unwatched(), false, [&](const rank& r) {
    const device_memory m(four(1));
    const auto refused = [](const auto& f) -> std::string {
      try {
        f();
      } catch (const error& e) {
        return std::string(hvd::name(e.kind())) + ": " + std::string(hvd::detail::sentence(e));
      }
      return "nothing";
    };
    const std::string who = "allreduce \"w\" on rank " + std::to_string(r.number) + " of 2: ";
    request elsewhere = sum("w", m), mixed = sum("w", m);
    elsewhere.tensors[0].memory.device = 1;
    std::vector<float> x = four(1);
    hvd::tensor host;
    host.in = reinterpret_cast<const std::byte*>(x.data());
    host.shape = {4};
    mixed.tensors.push_back(host);
    says(refused([&] { static_cast<void>(r.engine.submit(elsewhere)); }),
         "invalid_argument: " + who + "the tensor is on device 1; allowed: device 3");
    says(refused([&] { static_cast<void>(r.engine.submit(mixed)); }),
         "invalid_argument: " + who + "tensor 1 is on the host, but tensor 0 on the device; allowed: one kind");
    r.engine.run(sum("w", m));
  });
  CHECK_NOTHROW(hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    hvd::Engine engine(comm, unwatched());
    static_assert(std::is_same_v<decltype(engine), hvd::Engine<hvd::ThreadTransport>>);
    const device_memory m(four(1));
    std::string why;
    try {
      static_cast<void>(engine.submit(sum("w", m)));
    } catch (const error& e) {
      why = std::string(hvd::name(e.kind())) + ": " + std::string(hvd::detail::sentence(e));
    }
    says(why, "unsupported: allreduce \"w\" on rank " + std::to_string(comm.rank()) +
                  " of 2: the tensor is on device 3, and this engine has none; copy it to the host, or make the "
                  "engine with a device");
    engine.barrier().wait(only_a_hang);
  }));
}

TEST_CASE("an engine with a device is refused on simulated ranks") {
  hvd::simulate(1, {}, [](hvd::SimulatedTransport& comm) {
    hvd::any_transport any(comm.split(0, 0));
    const std::shared_ptr<hvd::ThreadTransport::group> group = std::make_shared<hvd::ThreadTransport::group>(1);
    StandInDevice device(hvd::ThreadTransport(group, 0), device_number, std::make_shared<device_strings>());
    CHECK_THROWS_WITH_AS((hvd::Engine<hvd::any_transport, StandInDevice>(any, std::move(device), unwatched())),
                         "hvd: Engine on rank 0 of 1: a device needs ranks that run in real time, not simulated ones",
                         error);
  });
}

TEST_CASE("all ranks have an engine with a device, or none has") {
  CHECK_NOTHROW(hvd::thread_run(2, [](hvd::ThreadTransport& comm) {
    StandInDevice device(comm.split(0, comm.rank()), device_number, std::make_shared<device_strings>());
    std::string why;
    try {
      if (comm.rank() == 0) {
        const device_engine with(comm, std::move(device), unwatched());
      } else {
        const hvd::Engine without(comm, unwatched());
      }
    } catch (const error& e) {
      why = std::string(hvd::name(e.kind())) + ": " + std::string(hvd::detail::sentence(e));
    }
    says(why, "the option device (whether the engine was made with one) is 1 on rank 0 and 0 on rank 1");
  }));
}

TEST_CASE("an engine goes on over another group, with a device of it") {
  CHECK_NOTHROW(hvd::thread_run(3, [](hvd::ThreadTransport& comm) {
    const auto device_of = [](hvd::ThreadTransport& group) {
      const auto strings = std::make_shared<device_strings>();
      strings->gate.set();
      return StandInDevice(group.split(0, group.rank()), device_number, strings);
    };
    device_engine engine(comm, device_of(comm), unwatched());
    const device_memory m(four(1)), other(std::vector<float>(7, 2));
    engine.run(sum("x", m));
    require(m.copy<float>() == four(3), "a wrong sum");
    hvd::ThreadTransport next = comm.split(comm.rank() == 0 ? hvd::no_group : 0, 0);
    if (comm.rank() == 0) return;
    engine.continue_over(next, device_of(next));
    engine.run(asked(operation::allreduce, "x", on_device(other, {7}, &other)));
    require(other.copy<float>() == std::vector<float>(7, 4), "a wrong sum in the next group");
  }));
}

TEST_CASE("a batch begins behind the events of its tensors, and one that is forgotten is found") {
  on_devices(2, unfused(), false, [&](const rank& r) {
    device_memory late(four(-1)), forgotten(four(-1));
    device_event begin, written, other;
    device_stream program;
    program.fill(late, four(static_cast<float>(1 + r.number)), begin, written);
    program.fill(forgotten, four(1), begin, other);
    const handle h = r.engine.submit(sum("late", late, &written));
    r.await_started(1);
    require(!h.poll(), "done before the input was written");
    const device_memory beside(four(1));
    begin.set();
    h.wait(only_a_hang);
    require(late.copy<float>() == four(3), "a wrong sum");
    program.join();
    // The same without the event.
    device_event never;
    device_stream later;
    later.fill(forgotten, four(1), never, other);
    says(failure_of(r.engine.submit(sum("forgotten", forgotten))), "memory is read before it was written");
    never.set();
    r.engine.run(sum("beside", beside));
    require(beside.copy<float>() == four(2), "a wrong sum");
  });
}

TEST_CASE("a lost rank ends all batches, and is named") {
  // By the transport on the host: all devices wait for their programs.
  on_devices(3, unfused(), true, [&](const rank& r) {
    const device_memory a(four(1)), b(four(1));
    const handle first = r.engine.submit(sum("a", a)), second = r.engine.submit(sum("b", b));
    r.await_started(2);
    if (r.number == 2) return r.engine.shutdown();  // while its memory is there
    for (const handle& h : {first, second}) {
      int culprit = -1;
      const std::string why = failure_of(h, &culprit);
      says(why, "peer_lost: allreduce \"");
      says(why, "rank 2 has exited or was killed");
      require(culprit == 2, "a wrong rank");
    }
    require(r.strings.aborts == 1, "the device was not aborted");
    require(a.copy<float>() == four(1) && b.copy<float>() == four(1), "the device has worked on");
    says(failure_of(r.engine.submit(sum("c", a))), "rank 2 has exited");
  });
  // By the device, which knows the rank or not.
  for (const bool anonymous : {false, true}) {
    CAPTURE(anonymous);
    on_devices(3, unfused(), true, [&](const rank& r) {
      r.strings.anonymous = anonymous;
      const device_memory a(four(1));
      const handle h = r.engine.submit(sum("a", a));
      r.await_started(1);
      if (r.number == 2) return r.engine.shutdown();  // while its memory is there
      r.strings.gate.set();
      int culprit = -1;
      const std::string why = failure_of(h, &culprit);
      require(culprit == 2, [&] { return "a wrong rank, " + std::to_string(culprit) + ": " + why; });
      require(r.strings.aborts == 1, "the device was not aborted");
    });
  }
}

TEST_CASE("a rank that leaves with nothing in flight takes no batch with it that all have done") {
  on_devices(3, unfused(), true, [&](const rank& r) {
    const device_memory a(four(1));
    r.strings.gate.set();
    for (int i = 0; i != 10; ++i) r.engine.run(sum("a", a));
    require(a.copy<float>() == four(59049), "a wrong sum");
  });
}

TEST_CASE("process sets have devices of their own") {
  on_devices(3, unfused(), true, [&](const rank& r) {
    const device_memory before(four(1)), in_set(four(static_cast<float>(r.number + 1)));
    const handle h = r.engine.submit(sum("before", before));
    r.await_started(1);
    r.strings.gate.set();
    const int set = r.engine.add_process_set({2, 0});  // the device is split when it has nothing to do
    require(h.poll(), "a set was made while a batch was pending");
    if (r.number != 1) {
      r.engine.run(sum("x", in_set), set);
      require(in_set.copy<float>() == four(4), "a wrong sum in a process set");
      request bad = sum("bad", in_set);
      bad.op = reduce_op::product;
      says(failure_of(r.engine.submit(std::move(bad), set)),
           "on rank " + std::to_string(r.number == 2 ? 0 : 1) + " of 2: the stand-in device has no product");
    } else {
      r.engine.run(sum("x", in_set));
    }
    if (r.number != 1) r.engine.run(sum("x", in_set));
    r.engine.remove_process_set(set);
    r.engine.barrier().wait(only_a_hang);
  });
  // A rank of a set is lost: its number is that of the whole group.
  on_devices(3, unfused(), true, [&](const rank& r) {
    const int set = r.engine.add_process_set({2, 1});
    const device_memory m(four(1));
    if (r.number == 0) return;
    const handle h = r.engine.submit(sum("x", m), set);
    r.await_started(1);
    if (r.number == 2) return r.engine.shutdown();  // while its memory is there
    int culprit = -1;
    says(failure_of(h, &culprit), "rank 2 of all 3 has exited");
    require(culprit == 2, "a wrong rank");
  });
}

TEST_CASE("shutdown waits a moment for the device, and then aborts it") {
  on_devices(2, unfused(), true, [&](const rank& r) {
    const device_memory a(four(1));
    const handle h = r.engine.submit(sum("a", a));
    r.await_started(1);
    r.engine.shutdown();
    require(h.poll(), "in flight after shutdown");
    says(failure_of(h), "shut");
    require(r.strings.aborts == 1, "the device was not aborted");
    require(a.copy<float>() == four(1), "the device has worked on");
  });
  on_devices(2, unfused(), true, [&](const rank& r) {
    const device_memory a(four(1));
    const handle h = r.engine.submit(sum("a", a));
    r.await_started(1);
    r.strings.gate.set();
    r.engine.barrier().wait(only_a_hang);
    r.engine.shutdown();
    require(h.poll(), "in flight after shutdown");
    (void)a.copy<float>();  // the device has ended with it, one way or the other
  });
}

TEST_CASE("a rank that gives up aborts its device") {
  hvd::engine_options o = unfused();
  o.watch = true;
  o.stall_warning = std::chrono::duration<double>(0.05);
  o.stall_shutdown = std::chrono::duration<double>(0.2);
  o.report = [](const std::string&) {};
  on_devices(2, o, true, [&](const rank& r) {
    const device_memory a(four(1));
    const handle h = r.engine.submit(sum("a", a));
    require(failure_of(h) != "nothing", "nobody has given up");
    require(r.strings.aborts == 1, "the device was not aborted");
    require(a.copy<float>() == four(1), "the device has worked on");
  });
}

TEST_CASE("a rank that has joined gives zeros on its device") {
  on_devices(3, unwatched(), false, [&](const rank& r) {
    const device_memory a(four(1));
    if (r.number != 1) {
      r.engine.run(sum("a", a));
      require(a.copy<float>() == four(2), "a wrong sum");
    }
    r.engine.join().wait(only_a_hang);
    const device_memory b(four(1));
    r.engine.run(sum("a", b));
    require(b.copy<float>() == four(3), "a wrong sum after the join");
  });
}

TEST_CASE("an engine that waits for its device leaves the CPU to others") {
  on_devices(2, unfused(), true, [&](const rank& r) {
    const device_memory a(four(1));
    const handle h = r.engine.submit(sum("a", a));
    r.await_started(1);
    r.engine.barrier().wait(only_a_hang);
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::getrusage(RUSAGE_SELF, &after);
    const auto milliseconds = [](const rusage& u) {
      return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000;
    };
    require(milliseconds(after) - milliseconds(before) < 1000, "an engine that waits uses a CPU");
    r.engine.barrier("end").wait(only_a_hang);
    r.strings.gate.set();
    h.wait(only_a_hang);
  });
}

TEST_CASE("the timeline names the device's work") {
  const hvd::test::private_directory folder;
  const std::string path = folder.path() + "/t.json";
  on_devices(2, unwatched(), false, [&](const rank& r) {
    r.engine.start_timeline(path);
    const device_memory a(four(1));
    std::vector<float> x = four(1);
    r.engine.run(sum("a", a));
    r.engine.allreduce("x", x).wait(only_a_hang);
    r.engine.stop_timeline();
  });
  const auto events = hvd::test::timeline_events(path);
  CHECK(hvd::test::count(events, "B", "STAND_IN_ALLREDUCE") == 2);
  CHECK(hvd::test::count(events, "B", "SHM_ALLREDUCE") == 2);
}

}  // namespace device_tests
