// tests/engine/conformance.hpp: what the engine must get right on every transport.
//
// A launcher `Run` has `sizes`, `run(size, f)` and `real_time`: whether ranks run at the same time, so that a thread of
// the engine can make progress; if not, those who wait do.
#pragma once

#include <engine/operations.hpp>
#include <hvd/allreduce.hpp>
#include <hvd/barrier.hpp>
#include <transport/launchers.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hvd::test {

template <class Run>
engine_options options_for() {
  engine_options o;
  o.thread = Run::real_time;
  return o;
}

/// That all ranks have the same text.
void same_on_all(Transport auto& comm, const std::string& text) {
  const std::uint64_t hash = std::hash<std::string>{}(text);
  std::uint64_t both[] = {hash, ~hash};
  hvd::allreduce(comm, both, hvd::max);
  require(both[0] == hash && both[1] == ~hash, [&] { return "ranks have different texts, this one: " + text; });
}

/// Submits all in an order of this rank's own, and finishes them in another.
template <class E>
void run_shuffled(E& engine, std::vector<attempt>& all, std::uint64_t seed, int process_set = 0) {
  std::mt19937_64 random(mix({seed, static_cast<std::uint64_t>(engine.rank())}));
  std::shuffle(all.begin(), all.end(), random);
  for (attempt& a : all) a.submit(engine, process_set);
  std::shuffle(all.begin(), all.end(), random);
  for (const attempt& a : all) a.finish();
}

/// Every operation, on every type and with every reduction for which it is defined.
inline std::vector<task> every_task(int p, std::uint64_t seed) {
  std::vector<task> all;
  const auto add = [&](task t) {
    t.seed = mix({seed, all.size()});
    t.name = std::string(hvd::name(t.kind)) + " " + std::to_string(all.size());
    all.push_back(std::move(t));
  };
  for (int i = 0; i != dtype_count; ++i) {
    const auto type = static_cast<dtype>(i);
    for (int o = 0; o != 6; ++o) {
      const auto op = static_cast<reduce_op>(o);
      if (!defined(op, type)) continue;
      add({.types = {type}, .rows = 5, .width = 3, .op = op});
      if (type != dtype::boolean) add({.types = {type}, .rows = 4, .op = op, .prescale = 0.5, .postscale = 2.0});
      if (op != reduce_op::adasum)
        add({.kind = operation::reduce_scatter, .types = {type}, .rows = 6, .width = 2, .op = op});
    }
    add({.kind = operation::allgather, .types = {type}, .rows = 4, .width = 3});
    add({.kind = operation::broadcast, .types = {type}, .rows = 7, .root = i % p});
    add({.kind = operation::alltoall, .types = {type}, .rows = 2, .width = 2});
    add({.kind = operation::alltoall, .types = {type}, .rows = 3, .even = false});
  }
  // Groups, of several types; nothing at all; more than a small threshold.
  add({.types = {dtype::float32, dtype::int64, dtype::float16, dtype::float32}, .rows = 50});
  add({.kind = operation::allgather, .types = {dtype::int8, dtype::float64, dtype::int8}, .rows = 3});
  add({.kind = operation::broadcast, .types = {dtype::boolean, dtype::uint16}, .rows = 3, .root = p - 1});
  add({.kind = operation::reduce_scatter, .types = {dtype::float32, dtype::bfloat16}, .rows = 1});
  add({.kind = operation::alltoall, .types = {dtype::float32, dtype::uint8}, .rows = 2, .even = false});
  for (const operation kind : {operation::allreduce, operation::allgather, operation::broadcast,
                               operation::reduce_scatter, operation::alltoall}) {
    add({.kind = kind, .rows = 0});
    add({.kind = kind, .rows = 3000, .width = 2});
  }
  add({.kind = operation::barrier, .types = {}});
  return all;
}

template <class Run>
void conformance_operations() {
  for (const std::size_t threshold : {std::size_t{0}, std::size_t{300}, std::size_t{128} << 20}) {
    for (const int size : Run::sizes) {
      CAPTURE(threshold);
      CAPTURE(size);
      Run::run(size, [&](auto& comm) {
        engine_options opts = options_for<Run>();
        opts.fusion_threshold = threshold;
        Engine engine(comm, opts);
        for (std::uint64_t step = 0; step != 3; ++step) {
          std::vector<attempt> all;
          for (const task& t : every_task(size, step)) all.emplace_back(t, comm.rank(), size);
          run_shuffled(engine, all, step);
        }
      });
    }
  }
}

template <class Run>
void conformance_front_doors() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      const int rank = comm.rank();
      require(engine.rank() == rank && engine.size() == size, "a wrong place");
      const auto p = static_cast<float>(size);
      std::vector<float> x = {1.0f, static_cast<float>(rank)}, mean = {p * static_cast<float>(rank)};
      std::int32_t number = rank;
      std::vector<std::int32_t> mine(static_cast<std::size_t>(rank), rank),
          blocks(static_cast<std::size_t>(size), rank);
      const handle sum = engine.allreduce("x", x), average = engine.allreduce("mean", mean, reduce_op::average),
                   cast = engine.broadcast("number", std::span(&number, 1), size - 1),
                   all = engine.allgather("all", mine), part = engine.reduce_scatter("part", blocks),
                   swapped = engine.alltoall("swapped", blocks), met = engine.barrier();
      for (const handle& h : {met, swapped, part, all, cast, average, sum}) h.wait();
      const float ranks_sum = p * (p - 1) / 2;
      require(x[0] == p && x[1] == ranks_sum && mean[0] == ranks_sum, "wrong sums");
      require(number == size - 1, "a wrong broadcast");
      const auto numbers = [](const handle& h) {
        return std::vector<std::int32_t>(reinterpret_cast<const std::int32_t*>(h.output().data.get()),
                                         reinterpret_cast<const std::int32_t*>(h.output().data.get()) +
                                             h.output().shape.at(0));
      };
      std::vector<std::int32_t> gathered, from_all;
      for (int r = 0; r != size; ++r) {
        gathered.insert(gathered.end(), static_cast<std::size_t>(r), r);
        from_all.push_back(r);
      }
      require(numbers(all) == gathered, "a wrong allgather");
      require(numbers(part) == std::vector<std::int32_t>{size * (size - 1) / 2}, "a wrong reduce_scatter");
      require(numbers(swapped) == from_all, "a wrong alltoall");
      require(sum.last_joined() == -1, "an allreduce is not a join");
      // Reductions as the blocking calls take them, and lists.
      std::vector<double> scaled(300, rank);
      std::vector<std::int32_t> largest = {rank};
      auto owner = std::make_shared<std::vector<float>>(3, 1.0f);
      const std::weak_ptr<void> owned = owner;
      const std::span<float> kept(*owner);
      const handle halves = engine.allreduce("scaled", scaled, hvd::scaled(hvd::average, 0.5, 4.0)),
                   most = engine.allreduce("largest", largest, hvd::max, {.priority = 2}),
                   last = engine.allreduce("kept", kept, hvd::sum, {.keep = std::move(owner)}),
                   listed = engine.allreduce("list", hvd::tensors(x, blocks, std::span(scaled).first(0)), hvd::max),
                   given = engine.broadcast("given", hvd::tensors(mean, std::span(&number, 1)), 0);
      for (const handle& h : {given, listed, last, most, halves}) h.wait();
      require(scaled[299] == p - 1 && largest[0] == size - 1, "wrong by operation objects");
      require(x[0] == p && x[1] == ranks_sum && blocks[0] == size - 1, "a wrong list");
      require(owned.expired(), "an operation that is done keeps its memory");
      // A scalar.
      double one = 0.5;
      request r{.name = "scalar"};
      r.tensors.push_back({.in = reinterpret_cast<std::byte*>(&one), .type = dtype::float64});
      const handle scalar = engine.run(std::move(r));
      require(scalar.output().shape.empty() && *reinterpret_cast<double*>(scalar.output().data.get()) == 0.5 * size,
              "a wrong scalar");
    });
  }
}

/// Random values are added in one order on all ranks.
template <class Run>
void conformance_same_bits() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      std::mt19937 random(static_cast<unsigned>(comm.rank()));
      std::vector<std::vector<float>> x(10, std::vector<float>(1001));
      std::vector<handle> all;
      for (auto& v : x) {
        for (float& value : v) value = static_cast<float>(random()) * 0x1p-31f - 1.0f;
      }
      for (std::size_t i = 0; i != x.size(); ++i) {
        const std::size_t mine = (i + static_cast<std::size_t>(comm.rank())) % x.size();
        all.push_back(engine.allreduce("x" + std::to_string(mine), x[mine],
                                       mine % 3 == 0 ? reduce_op::adasum : reduce_op::average));
      }
      std::string bits;
      for (const handle& h : all) h.wait();
      for (const auto& v : x) bits.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
      same_on_all(comm, bits);
    });
  }
}

/// Reductions whose tensors travel as another type. 1 + 2^-12 and 1 + 2^-30 are 1 as float16 or bfloat16, and as float.
template <class Run>
void conformance_wire() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      const auto p = static_cast<std::size_t>(size);
      for (const std::size_t n : {std::size_t{1}, std::size_t{7}, std::size_t{40000}}) {
        for (const dtype wire : {dtype::user, dtype::float16, dtype::bfloat16, dtype::float32}) {
          std::vector<float> x(n, 1.0f + 0x1p-12f), y(n, 1.0f + 0x1p-12f);
          std::vector<double> z(n, 1.0 + 0x1p-30);
          std::vector<std::int32_t> whole(n, 100000);
          request r{.kind = operation::allreduce, .name = "group", .postscale = 0.5, .wire = wire};
          const auto add = [&](auto& v, dtype type) {
            auto* const bytes = reinterpret_cast<std::byte*>(v.data());
            r.tensors.push_back({.in = bytes, .out = bytes, .type = type, .shape = {n}});
          };
          add(x, dtype::float32);
          add(z, dtype::float64);
          add(whole, dtype::int32);
          request alone{.kind = operation::allreduce, .name = "alone", .op = reduce_op::average, .wire = wire};
          alone.tensors.push_back({.in = reinterpret_cast<const std::byte*>(y.data()), .shape = {n}});
          request part{.kind = operation::reduce_scatter, .name = "part", .wire = wire};
          part.tensors.push_back({.in = reinterpret_cast<const std::byte*>(y.data()), .shape = {n}});
          const handle a = engine.submit(r), b = engine.submit(alone), c = engine.submit(part);
          for (const handle& h : {a, b, c}) h.wait(long_enough);
          const bool narrow = wire == dtype::float16 || wire == dtype::bfloat16;
          const float one = narrow ? 1.0f : 1.0f + 0x1p-12f;
          const double half = static_cast<double>(p) / 2;
          const auto floats = [](const handle& h) {
            const hvd::result& got = h.output();
            const auto* const first = reinterpret_cast<const float*>(got.data.get());
            return std::vector<float>(first, first + got.shape.front());
          };
          const std::string which = " as " + std::string(name(wire)) + ", " + std::to_string(n) + " elements";
          require(x == std::vector<float>(n, static_cast<float>(half) * one), "float32" + which);
          require(z == std::vector<double>(n, half * (wire == dtype::float32 ? 1.0 : 1.0 + 0x1p-30)),
                  "float64" + which);
          require(whole == std::vector<std::int32_t>(n, static_cast<std::int32_t>(50000 * p)), "int32" + which);
          require(floats(b) == std::vector<float>(n, one), "an average" + which);
          const std::size_t mine = n / p + (static_cast<std::size_t>(comm.rank()) < n % p ? 1 : 0);
          require(floats(c) == std::vector<float>(mine, static_cast<float>(p) * one), "reduce_scatter" + which);
        }
      }
    });
  }
}

template <class Run>
void conformance_adasum() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      // Orthogonal ones add up, equal ones are kept; each tensor by itself, also when they are fused.
      std::vector<float> apart(static_cast<std::size_t>(size)), same = {1.0f, 2.0f};
      apart[static_cast<std::size_t>(comm.rank())] = 3.0f;
      const handle a = engine.allreduce("apart", apart, reduce_op::adasum),
                   b = engine.allreduce("same", same, reduce_op::adasum);
      a.wait();
      b.wait();
      require(apart == std::vector<float>(static_cast<std::size_t>(size), 3.0f), "a wrong sum of orthogonal vectors");
      require(same == std::vector<float>{1.0f, 2.0f}, "a wrong sum of equal vectors");
    });
  }
}

/// Shapes that change on some ranks first and come back; priorities; what is asked of handles.
template <class Run>
void conformance_changes() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      engine_options opts = options_for<Run>();
      opts.cache_capacity = 3;
      Engine engine(comm, opts);
      for (std::uint64_t step = 0; step != 12; ++step) {
        std::vector<attempt> all;
        for (std::size_t i = 0; i != 5; ++i) {
          // Tensor i changes in every step that i divides.
          all.emplace_back(
              task{.name = "t" + std::to_string(i), .rows = 1 + (i == 0 ? 0 : step / i % 3), .seed = mix({step, i})},
              comm.rank(), size);
        }
        run_shuffled(engine, all, step);
      }
    });
    Run::run(size, [&](auto& comm) {
      engine_options opts;
      opts.thread = false;  // so that all is there when the first is awaited
      opts.fusion_threshold = 0;
      Engine engine(comm, opts);
      std::vector<int> order;
      std::vector<handle> all;
      std::vector<float> x(4, 1.0f);
      for (const int priority : {0, 5, -3, 5, 1}) {
        const int i = static_cast<int>(all.size());
        request r{.name = "t" + std::to_string(i), .priority = priority};
        r.done = [&order, i](const handle& h) {
          require(h.poll(), "a callback before the end");
          order.push_back(i);
        };
        r.tensors.push_back({.in = reinterpret_cast<std::byte*>(x.data()), .shape = {4}});
        all.push_back(engine.submit(std::move(r)));
        require(!all.back().poll(), "done without anybody to do it");
      }
      all[2].wait();
      for (const handle& h : all) require(h.poll(), "one ready operation has not run");
      require(order == std::vector<int>{1, 3, 4, 0, 2}, "a wrong order of priorities");
    });
  }
}

/// Callbacks that submit again, and that wait, which they must not.
template <class Run>
void conformance_callbacks() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      constexpr std::size_t times = 20;
      double x = 1.0;
      std::mutex mutex;
      std::vector<handle> submitted;
      std::atomic<std::size_t> begun = 0;  // counts before `submit`, because a callback may run before it returns
      std::atomic<bool> refused = false;
      std::function<void(const handle&)> again;
      const auto next = [&] {
        ++begun;
        request r{.name = "again"};  // the name is free in the callback
        r.tensors.push_back(
            {.in = reinterpret_cast<std::byte*>(&x), .out = reinterpret_cast<std::byte*>(&x), .type = dtype::float64});
        r.done = again;
        const handle h = engine.submit(std::move(r));
        const std::lock_guard lock(mutex);
        submitted.push_back(h);
        return h;
      };
      again = [&](const handle& h) {
        h.wait();  // is done, so that there is nothing to wait for
        if (begun == times) return;
        const handle more = next();
        try {
          more.wait(long_enough);
        } catch (const error& e) {
          if (e.kind() == error_kind::invalid_argument) refused = true;
        }
      };
      next();
      for (std::size_t i = 0; i != times;) {
        handle h;
        {
          const std::lock_guard lock(mutex);
          if (i < submitted.size()) h = submitted[i++];  // else the callback is about to submit it
        }
        h.wait(long_enough);
      }
      engine.barrier("end").wait(long_enough);
      double expected = 1.0;
      for (std::size_t i = 0; i != times; ++i) expected *= size;
      require(x == expected, "a wrong number of callbacks");
      require(refused, "a callback could wait");
    });
  }
}

/// A name in flight, waits with a limit, requests that are refused at once.
template <class Run>
void conformance_refused_here() {
  for (const int size : Run::sizes) {
    if (size == 1) continue;
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      const auto thrown = [](const auto& f) {
        try {
          f();
        } catch (const error& e) {
          return std::string(hvd::name(e.kind())) + ": " + std::string(detail::sentence(e));
        }
        return std::string();
      };
      float x = 1.0f, y = 1.0f;
      const std::string place = "\" on rank " + std::to_string(comm.rank()) + " of " + std::to_string(size);
      if (comm.rank() == 0) {
        const handle h = engine.allreduce("x", std::span(&x, 1));
        require(!h.poll(), "done without the others");
        require(thrown([&] { static_cast<void>(engine.allreduce("x", std::span(&y, 1))); }) ==
                    "invalid_argument: allreduce \"x" + place +
                        ": the previous operation of this name was not waited for; wait for it first, or give each "
                        "tensor its own name",
                "a name twice in flight");
        require(thrown([&] { static_cast<void>(engine.barrier("x")); }).starts_with("invalid_argument: barrier \"x"),
                "a name twice");
        require(thrown([&] { (void)h.output(); }).starts_with("invalid_argument"), "an output before the end");
        if (Run::real_time) {
          require(thrown([&] { h.wait(std::chrono::milliseconds(20)); }) ==
                      "timeout: allreduce \"x" + place + " is not done after 0.02 s; it stays in flight",
                  "a wait without a limit");
          require(thrown([&] { h.wait(std::chrono::seconds(0)); }).starts_with("timeout"), "a wait of no time");
          require(thrown([&] { h.wait(std::chrono::seconds(-1)); }).starts_with("timeout"),
                  "a wait of less than no time");
          require(thrown([&] { h.wait(std::chrono::duration<double>(std::nan(""))); }).starts_with("invalid_argument"),
                  "a wait of a time that is not a number");
          require(!h.poll(), "done without the others");
        }
        comm.barrier();
        h.wait();
      } else {
        comm.barrier();
        engine.allreduce("x", std::span(&x, 1)).wait();
      }
      require(x == static_cast<float>(size) && y == 1.0f, "a wrong sum");
      // A group is refused as a whole, and leaves nothing.
      request group{.name = "group"};
      group.tensors.push_back({.in = reinterpret_cast<std::byte*>(&x)});
      group.tensors.push_back({.in = nullptr, .shape = {3}});
      require(thrown([&] { static_cast<void>(engine.submit(group)); }).find("tensor 1 is null but has 3 elements") !=
                  std::string::npos,
              "a bad group was taken");
      group.tensors.pop_back();
      group.wire = dtype::int32;
      require(thrown([&] {
                static_cast<void>(engine.submit(group));
              }).find("the wire type is int32; allowed: float16, bfloat16 and float32") != std::string::npos,
              "int32 on the wire");
      group.wire = dtype::user;
      engine.run(group);
      for (const int set : {-1, 1, 99}) {
        require(thrown([&] { static_cast<void>(engine.barrier("b", set)); }) ==
                    "invalid_argument: there is no process set " + std::to_string(set) +
                        "; 0 is all ranks, others come from add_process_set",
                "a process set that is not there");
      }
      require(thrown([&] { engine.remove_process_set(0); }).starts_with("invalid_argument"), "set 0 was removed");
      require(thrown([&] { engine.add_process_set({}); }).starts_with("invalid_argument"), "an empty process set");
      engine.barrier("end").wait();
    });
  }
}

/// Names that come again: all ranks are refused, or none, whether the operation before has ended or not.
template <class Run>
void conformance_names() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      const int rank = comm.rank();
      const auto refused = [](const auto& f) {
        try {
          f();
        } catch (const error& e) {
          return e.kind() == error_kind::invalid_argument &&
                 detail::sentence(e).find("not waited for") != std::string::npos;
        }
        return false;
      };
      float x = 1.0f, y = 1.0f;
      const auto submit = [&] { return engine.allreduce("x", std::span(&x, 1)); };
      const auto all_right = [&](std::uint64_t steps) {  // and the ranks are in step
        for (std::uint64_t step = 0; step != steps; ++step) {
          std::vector<attempt> all;
          for (std::size_t i = 0; i != 5; ++i) {
            all.emplace_back(task{.name = "t" + std::to_string(i), .rows = 3, .seed = mix({step, i})}, rank, size);
          }
          run_shuffled(engine, all, step);
        }
      };
      // Rank 0 comes last: the first one cannot have ended on the others.
      if (rank == 0) comm.barrier();
      handle h = submit();
      for (int i = 0; i != 10; ++i) require(refused(submit), "a name that is held, in flight");
      if (rank != 0) comm.barrier();
      // After two operations in turn all before them have ended.
      for (int i = 0; i != 2; ++i) engine.barrier().wait(long_enough);
      require(engine.metrics().in_flight == 0, "in flight behind a barrier");
      require(refused(submit), "a name that is held, and done");
      handle copy = h;
      h = {};
      require(refused(submit), "a name that a copy holds");
      require(refused([&] { static_cast<void>(engine.barrier("x")); }), "a name that another operation holds");
      copy = {};
      x = 1.0f;
      h = submit();
      h.wait(long_enough);
      h = submit();
      if (!Run::real_time) h.wait(long_enough);  // there nobody else drives
      while (!h.poll()) std::this_thread::yield();
      submit().wait(long_enough);
      h = {};
      require(x == static_cast<float>(size * size * size), "a wrong sum");
      all_right(20);

      // One rank waits and goes on, and the others do not: these are refused, and all goes on.
      h = submit();
      if (rank == 0) h.wait(long_enough);
      if (rank != 0) require(refused(submit), "a name that is held, on some ranks");
      if (rank != 0) h.wait(long_enough);
      submit().wait(long_enough);

      // Nobody holds these: each runs with its like, in the order of the program. Their shapes differ.
      if (rank == 0) comm.barrier();
      std::vector<std::vector<float>> dropped(40);
      for (std::size_t i = 0; i != dropped.size(); ++i) {
        dropped[i].assign(1 + i % 3, static_cast<float>(i));
        static_cast<void>(engine.allreduce("dropped", dropped[i]));
      }
      h = engine.allreduce("dropped", std::span(&y, 1));
      if (rank != 0) comm.barrier();
      all_right(20);
      h.wait(long_enough);
      require(y == static_cast<float>(size), "a wrong sum");
      for (std::size_t i = 0; i != dropped.size(); ++i) {
        for (const float value : dropped[i])
          require(value == static_cast<float>(i) * static_cast<float>(size), "a sum");
      }
      // A mismatch ends one of them.
      std::vector<float> different(rank % 2 == 0 ? 1 : 2, 1.0f);
      h = engine.allreduce("x", different);
      h.let_go();
      y = 1.0f;
      const handle behind = engine.allreduce("x", std::span(&y, 1));
      behind.wait(long_enough);
      require(y == static_cast<float>(size), "a wrong sum behind a mismatch");
      if (size > 1) require(attempt::failure_of(h).starts_with("mismatch: "), "no mismatch");

      // Joins are held like names; what waits behind another one when its rank joins comes first.
      const handle joined = engine.join();
      require(refused([&] { static_cast<void>(engine.join()); }), "a join that is held");
      joined.wait(long_enough);
      std::vector<float> last(3, 1.0f);
      if (rank != 0) {
        for (float& value : last) static_cast<void>(engine.allreduce("last", std::span(&value, 1)));
      }
      engine.join().wait(long_enough);
      if (rank != 0) require(last == std::vector<float>(3, static_cast<float>(size - 1)), "a join came first");
      all_right(2);
      // Names that are used once, more than are remembered.
      for (int i = 0; i != 200; ++i) engine.barrier("once " + std::to_string(i)).wait(long_enough);
    });
  }
}

/// Each field differs on one rank: the same text on all ranks, and the job goes on.
template <class Run>
void conformance_mismatches() {
  const std::vector<std::pair<std::string, std::function<void(task&)>>> changes = {
      {"operation", [](task& t) { t.kind = operation::broadcast; }},
      {"number of tensors", [](task& t) { t.types.push_back(dtype::float32); }},
      {"element type", [](task& t) { t.types[0] = dtype::int32; }},
      {"shape", [](task& t) { t.rows = 7; }},
      {"type on the wire", [](task& t) { t.wire = dtype::float16; }},
      {"reduction", [](task& t) { t.op = reduce_op::max; }},
      {"prescale factor", [](task& t) { t.prescale = 3.0; }},
      {"postscale factor", [](task& t) { t.postscale = 3.0; }},
  };
  for (const int size : Run::sizes) {
    if (size == 1) continue;
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      const int rank = comm.rank();
      std::uint64_t seed = 0;
      for (int turn = 0; turn != 2; ++turn) {  // the second time the signatures are known
        for (const auto& [field, change] : changes) {
          const int odd = static_cast<int>(++seed) % size;
          task good{.name = "t", .rows = 3, .seed = seed}, mine = good, beside{.name = "beside", .seed = seed};
          if (rank == odd) change(mine);
          attempt a(mine, rank, size), b(beside, rank, size);
          a.submit(engine);
          b.submit(engine);
          b.finish();
          const std::string why = a.failure();
          require(why.starts_with("mismatch: ") &&
                      why.find("\"t\": ranks do not agree: " + field) != std::string::npos &&
                      why.find("on rank " + std::to_string(odd == 0 ? 0 : odd)) != std::string::npos,
                  [&] { return "not about the " + field + ": " + why; });
          same_on_all(comm, why);
          attempt once_more(good, rank, size);
          once_more.submit(engine);
          once_more.finish();
        }
        attempt root({.kind = operation::broadcast, .name = "root", .root = rank == 0 ? 0 : 1}, rank, size);
        root.submit(engine);
        const std::string why = root.failure();
        require(why.find("root 0 on rank 0, 1 on rank 1") != std::string::npos, why);
        same_on_all(comm, why);
      }
    });
  }
}

/// Ranks that have no more data.
template <class Run>
void conformance_join() {
  for (const std::size_t capacity : {std::size_t{0}, std::size_t{1}, std::size_t{1024}}) {
    for (const int size : Run::sizes) {
      CAPTURE(capacity);
      CAPTURE(size);
      Run::run(size, [&](auto& comm) {
        engine_options opts = options_for<Run>();
        opts.cache_capacity = capacity;
        Engine engine(comm, opts);
        const int rank = comm.rank();
        for (int last = 0; last != size; ++last) {
          // Rank (last + k) % size has k + 1 batches less than the last.
          const int batches = size - (rank - last + size) % size;
          for (int batch = 0; batch != batches; ++batch) {
            std::vector<int> absent;
            for (int r = 0; r != size; ++r) {
              if (size - (r - last + size) % size <= batch) absent.push_back(r);
            }
            const auto seed = static_cast<std::uint64_t>(last * 100 + batch);
            std::vector<attempt> all;
            for (const reduce_op op : {reduce_op::sum, reduce_op::average, reduce_op::adasum}) {
              all.emplace_back(task{.name = std::string(hvd::name(op)), .rows = 100, .op = op, .seed = seed}, rank,
                               size);
            }
            for (attempt& a : all) a.submit(engine);
            engine.barrier().wait(long_enough);
            for (const attempt& a : all) a.finish(absent);
            if (absent.empty()) continue;
            for (const task& t :
                 {task{.name = "min", .op = reduce_op::min}, task{.kind = operation::allgather, .name = "g"},
                  task{.kind = operation::broadcast, .name = "b"}, task{.kind = operation::alltoall, .name = "a"},
                  task{.kind = operation::reduce_scatter, .name = "s"}}) {
              attempt spoiled(t, rank, size);
              spoiled.submit(engine);
              const std::string why = spoiled.failure();
              require(why.starts_with("unsupported: ") &&
                          why.find("cannot run after a rank has joined") != std::string::npos,
                      why);
            }
          }
          const handle h = engine.join();
          h.wait(long_enough);
          require(h.last_joined() == last, [&] {
            return "joined last: " + std::to_string(h.last_joined()) + " instead of " + std::to_string(last);
          });
        }
        attempt after({.kind = operation::allgather, .name = "after", .rows = 3}, rank, size);
        after.submit(engine);
        after.finish();
      });
    }
  }
}

/// Groups of ranks with operations of their own.
template <class Run>
void conformance_process_sets() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      const int rank = comm.rank();
      int number = 0;
      for (int turn = 0; turn != 3; ++turn) {
        std::vector<std::vector<int>> lists;
        for (int r = 0; r != size; ++r) lists.push_back({r});
        lists.emplace_back();
        for (int r = size; r != 0; --r) lists.back().push_back(r - 1);  // all, in another order
        for (int r = 0; r + 1 < size; ++r) lists.push_back({r + 1, r});
        std::vector<int> ids;
        for (const auto& list : lists) {
          ids.push_back(engine.add_process_set(list));
          require(ids.back() == ++number, "a wrong number of a process set");
          require(engine.process_set(number) == list, "wrong ranks of a process set");
        }
        std::vector<attempt> all;
        for (std::size_t i = 0; i != lists.size(); ++i) {
          const auto place = std::find(lists[i].begin(), lists[i].end(), rank);
          if (place == lists[i].end()) {
            std::string why;
            try {
              static_cast<void>(engine.barrier("b", ids[i]));
            } catch (const error& e) {
              why = e.what();
            }
            require(why == "hvd: this rank is not in process set " + std::to_string(ids[i]), "a set without this rank");
            continue;
          }
          const int p = static_cast<int>(lists[i].size());
          for (const operation kind : {operation::allgather, operation::allreduce, operation::broadcast}) {
            // The same names in all sets, and roots that are ranks of the set.
            all.emplace_back(
                task{.kind = kind, .name = std::string(hvd::name(kind)), .rows = 5, .root = p - 1, .seed = i},
                static_cast<int>(place - lists[i].begin()), p);
            all.back().submit(engine, ids[i]);
          }
        }
        for (const attempt& a : all) a.finish();
        for (const int id : ids) engine.remove_process_set(id);
        std::string why;
        try {
          static_cast<void>(engine.barrier("b", ids.back()));
        } catch (const error& e) {
          why = e.what();
        }
        require(why.find("there is no process set") != std::string::npos, "a removed set is still there");
      }
      if (size == 1) return;
      // Different lists: an error on all ranks, and the next one is fine.
      std::string why;
      try {
        engine.add_process_set({rank == 0 ? 0 : 1});
      } catch (const error& e) {
        why = e.what();
        require(e.kind() == error_kind::mismatch, why);
      }
      require(!why.empty(), "different process sets under one number");
      same_on_all(comm, why);
      require(engine.add_process_set({0, 1}) == number + 1, "a wrong number after a mismatch");
    });
  }
}

/// A process set that waits for one of its ranks keeps no other from going on.
template <class Run>
void conformance_independent_sets() {
  for (const int size : Run::sizes) {
    if (size < 2) continue;
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine engine(comm, options_for<Run>());
      const int rank = comm.rank();
      const int stuck = engine.add_process_set({0, 1}), free = engine.add_process_set({1, 0});
      float x = 1.0f;
      handle waiting;
      if (rank == 0) waiting = engine.allreduce("x", std::span(&x, 1), hvd::sum, {.process_set = stuck});
      for (std::uint64_t step = 0; step != 10; ++step) {
        attempt world({.name = "w", .seed = step}, rank, size);
        world.submit(engine);
        if (rank < 2) {
          attempt pair({.name = "w", .seed = step + 100}, 1 - rank, 2);
          pair.submit(engine, free);
          pair.finish();
        }
        world.finish();
      }
      if (rank == 0) require(!waiting.poll(), "done without the other rank");
      comm.barrier();
      if (rank == 1) waiting = engine.allreduce("x", std::span(&x, 1), hvd::sum, {.process_set = stuck});
      if (rank < 2) {
        waiting.wait(long_enough);
        require(x == 2.0f, "a wrong sum");
        // What is in flight when a set is removed ends.
        if (rank == 0) waiting = engine.allreduce("x", std::span(&x, 1), hvd::sum, {.process_set = stuck});
      }
      engine.remove_process_set(stuck);
      // Of kind aborted here, or peer_lost where the other rank was first to go.
      if (rank == 0) require(!attempt::failure_of(waiting).empty(), "in flight in a set that was removed");
      engine.barrier("end").wait(long_enough);
    });
  }
}

/// Threads that submit and wait at the same time; two engines at a time.
template <class Run>
void conformance_threads() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      Engine first(comm, options_for<Run>()), second(comm, options_for<Run>());
      std::vector<std::string> failures(4);
      std::vector<std::thread> threads;
      for (std::size_t i = 0; i != failures.size(); ++i) {
        threads.emplace_back([&, i] {
          try {
            auto& engine = i < 3 ? first : second;
            for (std::uint64_t step = 0; step != 20; ++step) {
              std::vector<attempt> all;
              for (std::uint64_t t = 0; t != 5; ++t) {
                const std::uint64_t seed = mix({step, t, i});
                const std::string name = std::to_string(i) + "/" + std::to_string(t);
                all.emplace_back(random_task(seed, size, name, 100), comm.rank(), size);
              }
              run_shuffled(engine, all, step);
            }
          } catch (const std::exception& e) {
            failures[i] = e.what();
          }
        });
      }
      for (std::thread& t : threads) t.join();
      for (const std::string& f : failures) require(f.empty(), f);
    });
  }
}

/// Engines that end with something in flight; what is asked of them later; and a new one over the same transport.
template <class Run>
void conformance_shutdown() {
  for (const int size : Run::sizes) {
    CAPTURE(size);
    Run::run(size, [&](auto& comm) {
      handle left, join;
      std::atomic<int> called = 0;
      float x = 1.0f;
      auto kept = std::make_shared<int>(1);
      const auto ask = [&](const std::string& name) {
        request r{.name = name};
        r.tensors.push_back({.in = reinterpret_cast<std::byte*>(&x)});
        r.keep = kept;
        r.done = [&](const handle& h) { called += h.poll() ? 1 : 100; };
        return r;
      };
      const bool alone = size == 1;
      {
        Engine engine(comm, options_for<Run>());
        engine.run(ask("done"));
        require(called == 1, "no callback");
        comm.barrier();
        if (!alone && comm.rank() == 0) {
          left = engine.submit(ask("left"));
          join = engine.join();
        }
        engine.shutdown();
        std::string late;
        try {
          static_cast<void>(engine.submit(ask("late")));
        } catch (const error& e) {
          late = std::string(hvd::name(e.kind())) + ": " + std::string(detail::sentence(e));
        }
        require(late == "aborted: the engine was shut down", late);
        engine.shutdown();
      }
      if (!alone && comm.rank() == 0) {
        for (const handle& h : {left, join}) {  // peer_lost where another rank was first to go
          const std::string why = attempt::failure_of(h);
          require(why == "aborted: the engine was shut down" || why.starts_with("peer_lost"), why);
        }
      }
      require(called == (!alone && comm.rank() == 0 ? 2 : 1), "a callback of what was aborted is missing");
      require(kept.use_count() == 1, "something is kept longer than it is in flight");
      Engine next(comm, options_for<Run>());
      require(next.run(ask("x")).output().shape.empty(), "a wrong output");
    });
  }
}

/// A rank that ends its engine while others wait for it: an error on them, and on what they submit later.
template <class Run>
void conformance_left() {
  for (const int size : Run::sizes) {
    if (size == 1) continue;
    for (const bool known : {false, true}) {
      CAPTURE(size);
      CAPTURE(known);
      Run::run(size, [&](auto& comm) {
        float x = 1.0f;
        {
          Engine engine(comm, options_for<Run>());
          if (known) engine.allreduce("x", std::span(&x, 1)).wait(long_enough);
          comm.barrier();
          if (comm.rank() != size - 1) {
            for (const char* name : {"x", "y"}) {
              const std::string why = attempt::failure_of(engine.allreduce(name, std::span(&x, 1)));
              // None of the others, who end as well.
              const std::string lost = detail::joined({"peer_lost: allreduce \"", name, "\" on rank ", comm.rank(),
                                                       " of ", size, ": rank ", size - 1, " has exited"});
              require(why.starts_with(lost), why);
            }
          }
        }
        comm.barrier();  // the owner's transport is as it was
      });
    }
  }
}

/// Open files, mappings, and resident pages of this process.
struct holdings {
  std::size_t files = 0, mappings = 0, pages = 0;
  static holdings now() {
    holdings h;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++h.files;
    std::ifstream maps("/proc/self/maps"), memory("/proc/self/statm");
    for (std::string line; std::getline(maps, line);) ++h.mappings;
    std::size_t all = 0;
    memory >> all >> h.pages;
    return h;
  }
};

/// Engines made and destroyed again and again, `times` after a beginning in which caches fill.
template <class Run>
void conformance_again(int size, int times) {
  Run::run(size, [&](auto& comm) {
    const auto one = [&] {
      Engine engine(comm, options_for<Run>());
      float x = 1.0f;
      engine.allreduce("x", std::span(&x, 1)).wait(long_enough);
      require(x == static_cast<float>(size), "a wrong sum");
    };
    for (int i = 0; i != 50; ++i) one();
    // Ranks that are threads hold the same.
    const auto look = [&] {
      comm.barrier();
      const holdings h = Run::one_process && comm.rank() != 0 ? holdings{} : holdings::now();
      comm.barrier();
      return h;
    };
    const holdings before = look();
    for (int i = 0; i != times; ++i) one();
    const holdings after = look();
    require(after.files <= before.files, "files stay open");
    require(after.mappings <= before.mappings + 30, [&] {
      return "mappings stay: " + std::to_string(before.mappings) + ", then " + std::to_string(after.mappings);
    });
    // A sanitizer keeps what was freed.
    require(sanitized || after.pages <= before.pages + 2048, [&] {
      return "memory stays: " + std::to_string(before.pages) + " pages, then " + std::to_string(after.pages);
    });
    comm.barrier();
  });
}

}  // namespace hvd::test
