// tests/gpu/engine.cpp: engines with a GPU: every operation by name, on tensors of the GPU and of the host.
#include <hvd/algorithm/adasum.hpp>

#include <gpu/engine.hpp>
#include <support/verifiable.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include <unistd.h>

namespace gpu_engine_tests {

using namespace hvd::test;

namespace {

void use_reductions(const auto& r) {
  const auto p = static_cast<float>(r.size());
  const auto a = r.array(33, r.mine()), b = r.array(33, 0.0F);
  r.engine.run(r.sum("sum", a));
  r.has(a, r.total());
  request average = asked(operation::allreduce, "average", {r.at(a, &b)});
  average.op = reduce_op::average;
  average.prescale = 2;
  average.postscale = 0.5;
  r.engine.run(average);
  r.has(b, r.total());
  for (const auto& [op, want] :
       std::map<reduce_op, float>{{reduce_op::min, 1}, {reduce_op::max, p}, {reduce_op::sum, r.total()}}) {
    const auto x = r.array(7, r.mine()), y = r.array(7, 0.0F);
    request one = asked(operation::allreduce, "one", {r.at(x, &y)});
    one.op = op;
    r.engine.run(one);
    r.has(y, want);
    r.has(x, r.mine());
    one.tensors[0].out = nullptr;  // the engine's own
    const handle h = r.engine.run(one);
    same(fetched<float>(h.output()), floats(7, want));
    require(h.output().shape == std::vector<std::size_t>{7} && h.output().type == dtype::float32, "another shape");
  }
  const auto ints = r.array(5, std::int64_t{r.rank() + 2});
  request average_of_ints = r.sum("ints", ints);
  average_of_ints.op = reduce_op::average;
  r.engine.run(average_of_ints);
  r.has(ints, (static_cast<std::int64_t>(r.total()) + r.size()) / r.size());
  const auto nothing = r.array(0, 0.0F);
  r.engine.run(r.sum("nothing", nothing));
}

void use_movements(const auto& r) {
  const auto p = static_cast<std::size_t>(r.size()), me = static_cast<std::size_t>(r.rank());
  const auto a = r.array(12, r.mine());
  request broadcast = asked(operation::broadcast, "broadcast", {r.at(a, &a)});
  broadcast.root = r.size() - 1;
  r.engine.run(broadcast);
  r.has(a, static_cast<float>(r.size()));

  // Rank q has q + 1 rows of 3, and the first one none.
  std::vector<float> mine(me * 3);
  std::iota(mine.begin(), mine.end(), 100 * r.mine());
  const gpu_array<float> rows(r.gpu, mine);
  handle h = r.engine.run(asked(operation::allgather, "allgather", {r.at(rows, nullptr, nullptr, {me, 3})}));
  std::vector<float> want;
  for (std::size_t q = 0; q != p; ++q) {
    for (std::size_t i = 0; i != q * 3; ++i) want.push_back(100 * static_cast<float>(q + 1) + static_cast<float>(i));
  }
  same(fetched<float>(h.output()), want);
  require(h.output().shape == std::vector<std::size_t>{p * (p - 1) / 2, 3}, "another shape of an allgather");

  // p + 1 rows: the first rank gets one more.
  const auto whole = r.array((p + 1) * 2, r.mine());
  request scatter = asked(operation::reduce_scatter, "scatter", {r.at(whole, nullptr, nullptr, {p + 1, 2})});
  scatter.op = reduce_op::average;
  h = r.engine.run(scatter);
  same(fetched<float>(h.output()), floats(me == 0 && p > 0 ? 4 : 2, r.total() / static_cast<float>(p)));
  r.has(whole, r.mine());

  // q + 1 rows to rank q.
  std::vector<std::size_t> splits(p);
  std::iota(splits.begin(), splits.end(), std::size_t{1});
  const auto all = r.array(p * (p + 1) / 2, r.mine());
  request alltoall = asked(operation::alltoall, "alltoall", {r.at(all)});
  alltoall.tensors[0].splits = splits;
  h = r.engine.run(alltoall);
  want.clear();
  for (std::size_t q = 0; q != p; ++q) want.insert(want.end(), me + 1, static_cast<float>(q + 1));
  same(fetched<float>(h.output()), want);
  require(h.output().received_splits == std::vector<std::size_t>(p, me + 1), "other splits");
  const auto even = r.array(2 * p, r.mine());
  h = r.engine.run(asked(operation::alltoall, "even", {r.at(even)}));
  want.clear();
  for (std::size_t q = 0; q != p; ++q) want.insert(want.end(), 2, static_cast<float>(q + 1));
  same(fetched<float>(h.output()), want);

  r.engine.barrier().wait();
}

/// Results in the program's memory: one call of NCCL for a group, and no message about rows that are equal.
void use_outputs(const auto& r) {
  const auto p = static_cast<std::size_t>(r.size()), me = static_cast<std::size_t>(r.rank());
  const auto calls = [] { return standin_gpu::get().calls("ncclAllGather"); };
  const auto a = r.array(6, r.mine()), b = r.array(6 * p, 0.0F), c = r.array(2, 10 * r.mine()),
             d = r.array(2 * p, 0.0F);
  std::vector<float> ones, tens;
  for (std::size_t q = 0; q != p; ++q) {
    ones.insert(ones.end(), 6, static_cast<float>(q + 1));
    tens.insert(tens.end(), 2, static_cast<float>(10 * (q + 1)));
  }
  const auto before = calls();
  const handle h =
      r.engine.run(asked(operation::allgather, "into", {r.at(a, &b, nullptr, {2, 3}), r.at(c, &d, nullptr, {2})}));
  require(calls() - before == 2, "other calls of ncclAllGather");
  same(b.get(r.gpu), ones);
  same(d.get(r.gpu), tens);
  require(h.output(0).data == nullptr && h.output(0).shape == std::vector<std::size_t>{2 * p, 3}, "another result");

  // In place: this rank's part of the output.
  std::vector<float> own(6 * p);
  std::fill_n(own.begin() + static_cast<std::ptrdiff_t>(6 * me), 6, r.mine());
  const gpu_array<float> whole(r.gpu, own);
  hvd::tensor t = r.at(whole, &whole, nullptr, {6});
  t.in += 6 * me * sizeof(float);
  r.engine.run(asked(operation::allgather, "in place", {t}));
  same(whole.get(r.gpu), ones);

  // q + 1 rows to rank q.
  std::vector<std::size_t> splits(p);
  std::iota(splits.begin(), splits.end(), std::size_t{1});
  const auto all = r.array(p * (p + 1) / 2, r.mine()), mine = r.array(p * (me + 1), 0.0F);
  std::vector<float> want;
  for (std::size_t q = 0; q != p; ++q) want.insert(want.end(), me + 1, static_cast<float>(q + 1));
  for (const std::size_t room : {p * (me + 1), p * (me + 1) + 1}) {
    t = r.at(all, &mine);
    t.splits = splits;
    t.out_rows = room;
    const handle swapped = r.engine.run(asked(operation::alltoall, "alltoall", {t}));
    const bool fits = room == p * (me + 1);
    require((swapped.output().data == nullptr) == fits, "memory of the wrong owner");
    same(fits ? mine.get(r.gpu) : fetched<float>(swapped.output()), want);
  }
}

/// Memory of results is used again once the program says after which event.
void use_results_again(const auto& r) {
  const own_stream stream(r.gpu);
  const auto rows = r.array(100 * (static_cast<std::size_t>(r.rank()) + 1), r.mine());
  const auto calls = [] {
    const standin_gpu& gpu = standin_gpu::get();
    return std::pair(gpu.calls("cuMemAlloc_v2"), gpu.calls("cuMemFree_v2"));
  };
  std::vector<float> want;
  for (int q = 0; q != r.size(); ++q)
    want.insert(want.end(), 100 * static_cast<std::size_t>(q + 1), static_cast<float>(q + 1));
  std::vector<std::vector<float>> got(6, std::vector<float>(want.size()));
  auto before = calls();
  for (std::size_t i = 0; i != got.size(); ++i) {
    if (i == 2) before = calls();
    const handle h = r.engine.run(asked(operation::allgather, "rows", {r.at(rows)}));
    stream.read(reinterpret_cast<float*>(h.output().data.get()), want.size(), got[i]);
    hvd::detail::cuda_results::reuse_after(h.output().data, {stream.event(), [](void*) {}});
  }
  require(calls() == before, "a result was allocated or freed");
  stream.synchronise();
  for (const auto& one : got) same(one, want);
}

/// Many at once, in another order on each rank, of several types and lengths, and some on the host.
void use_many(const auto& r) {
  constexpr std::size_t n = 40;
  std::vector<gpu_array<float>> arrays;
  std::vector<gpu_array<std::int32_t>> ints;
  std::vector<std::vector<float>> hosts(n, floats(9, r.mine()));
  for (std::size_t i = 0; i != n; ++i) {
    arrays.push_back(r.array(i * i * i / 2 + 1, r.mine()));
    ints.push_back(r.array(i + 1, static_cast<std::int32_t>(i) + r.rank()));
  }
  const auto large = r.array(400'000, r.mine());
  for (int round = 0; round != 3; ++round) {
    std::vector<handle> handles;
    for (std::size_t k = 0; k != n; ++k) {
      const std::size_t i = (k * 7 + static_cast<std::size_t>(r.rank()) * 11) % n;
      request f = r.sum("f" + std::to_string(i), arrays[i]);
      f.priority = static_cast<int>(i % 3);
      f.op = reduce_op::average;
      handles.push_back(r.engine.submit(std::move(f)));
      handles.push_back(r.engine.submit(r.sum("i" + std::to_string(i), ints[i])));
      handles.push_back(r.engine.allreduce("h" + std::to_string(i), hosts[i], hvd::average));
      if (k == n / 2) handles.push_back(r.engine.submit(r.sum("large", large)));
    }
    for (const handle& h : handles) h.wait(only_a_hang);
  }
  const float mean = r.total() / static_cast<float>(r.size());
  for (const auto& a : arrays) r.has(a, mean);
  for (std::size_t i = 0; i != n; ++i) {
    auto want = static_cast<std::int32_t>(i) * r.size() + r.size() * (r.size() - 1) / 2;
    for (int round = 1; round != 3; ++round) want *= r.size();
    r.has(ints[i], want);
    same(hosts[i], floats(9, mean));
  }
  r.has(large, r.total() * static_cast<float>(r.size() * r.size()));
}

void use_groups(const auto& r) {
  const auto a = r.array(10, r.mine()), b = r.array(300'000, 2 * r.mine()), c = r.array(3, 3 * r.mine());
  r.engine.run(asked(operation::allreduce, "group", {r.at(a, &a), r.at(b, &b), r.at(c, &c)}));
  r.has(a, r.total());
  r.has(b, 2 * r.total());
  r.has(c, 3 * r.total());
  const auto d = r.array(4, r.mine());
  const handle h = r.engine.run(asked(operation::allgather, "gathered", {r.at(d), r.at(d)}));
  require(h.output(0).shape == std::vector<std::size_t>{4 * static_cast<std::size_t>(r.size())} &&
              h.output(1).shape == h.output(0).shape,
          "another shape");
  same(fetched<float>(h.output(1)), fetched<float>(h.output(0)));
}

void use_wires(const auto& r) {
  for (const dtype wire : {dtype::float16, dtype::bfloat16}) {
    const auto a = r.array(40, r.mine()), b = r.array(300'000, r.mine());
    const auto ints = r.array(3, std::int32_t{100'001});
    request q = asked(operation::allreduce, "wire", {r.at(a, &a), r.at(b, &b), r.at(ints, &ints)});
    q.wire = wire;
    r.engine.run(q);
    r.has(a, r.total());
    r.has(b, r.total());
    r.has(ints, 100'001 * r.size());
    const auto third = r.array(5, 1.0F / 3);
    q = asked(operation::allreduce, "third", {r.at(third, &third)});
    q.wire = wire;
    q.op = reduce_op::max;
    r.engine.run(q);
    r.has(third, wire == dtype::float16 ? static_cast<float>(hvd::half(1.0F / 3))
                                        : static_cast<float>(hvd::bfloat16(1.0F / 3)));
  }
  const auto d = r.array(static_cast<std::size_t>(r.size()) * 3 + 1, 1.0 + r.rank());
  request q = asked(operation::reduce_scatter, "double", {r.at(d)});
  q.wire = dtype::float32;
  const handle h = r.engine.run(q);
  same(fetched<double>(h.output()), std::vector<double>(r.rank() == 0 ? 4 : 3, r.total()));
}

void use_adasum(const auto& r) {
  std::vector<float> mine(50);
  for (std::size_t i = 0; i != mine.size(); ++i) mine[i] = order_sensitive<float>(i, r.rank());
  const gpu_array<float> a(r.gpu, mine), b(r.gpu, mine), c(r.gpu, mine.size());
  std::vector<float> host = mine;
  request on_host = asked(operation::allreduce, "host", {hvd::detail::tensor_of(hvd::fused::of(host))});
  on_host.op = reduce_op::adasum;
  r.engine.run(on_host);
  request q = r.sum("device", a);
  q.op = reduce_op::adasum;
  r.engine.run(q);
  same(a.get(r.gpu), host);
  q = asked(operation::allreduce, "apart", {r.at(b, &c)});
  q.op = reduce_op::adasum;
  r.engine.run(q);
  same(b.get(r.gpu), mine);
  same(c.get(r.gpu), host);
  q.name = "allocated";
  q.tensors[0].out = nullptr;
  const handle h = r.engine.run(q);
  same(fetched<float>(h.output()), host);
}

/// Memory of the engine's on the GPU: a part of it is reduced as any tensor, and it outlives what it was made by.
void use_bucket(const auto& r) {
  const std::shared_ptr<std::byte> bucket = r.engine.alloc_device_bucket(400'000 * sizeof(float), r.gpu.device());
  float* const first = reinterpret_cast<float*>(bucket.get());
  std::vector<float> got(400'000);
  r.gpu.template copy_to_host<float>(first, std::span<float>(got));
  same(got, floats(got.size(), 0));
  for (const std::size_t n : {std::size_t{100}, got.size()}) {
    const std::vector<float> mine = floats(n, r.mine());
    r.gpu.template copy_to_device<float>(std::span<const float>(mine), first + (got.size() - n));
    hvd::tensor t;
    t.in = t.out = reinterpret_cast<std::byte*>(first + (got.size() - n));
    t.shape = {n};
    t.memory = {.kind = hvd::memory_kind::device, .device = r.gpu.device(), .ready = nullptr};
    r.engine.run(asked(operation::allreduce, "bucket", {t}));
    got.resize(n);
    r.gpu.template copy_to_host<float>(reinterpret_cast<const float*>(t.in), std::span<float>(got));
    same(got, floats(n, r.total()));
    got.resize(400'000);
  }
  complaint(error_kind::invalid_argument, {"alloc_device_bucket on rank", "is not this engine's"},
            [&] { static_cast<void>(r.engine.alloc_device_bucket(8, r.gpu.device() + 1)); });
}

/// Tensors that lie in registered memory on some ranks alone, or at other offsets: NCCL must not see that they do.
void use_uneven_buckets(const auto& r) {
  constexpr std::size_t n = 300'000, all = 2 * n;  // n: long enough to travel without a copy
  const std::shared_ptr<std::byte> bucket = r.engine.alloc_device_bucket(all * sizeof(float), r.gpu.device());
  auto* const first = reinterpret_cast<float*>(bucket.get());
  const auto own = r.array(n, 0.0F);
  enum where { inside, outside, shifted };
  const auto at = [&](where place) { return place == outside ? own.data() : first + (place == shifted ? n : 0); };
  const auto put = [&](where place, const std::vector<float>& values) {
    r.gpu.template copy_to_device<float>(std::span<const float>(values), at(place));
  };
  const auto get = [&](where place, std::size_t count) {
    std::vector<float> values(count);
    r.gpu.template copy_to_host<float>(at(place), std::span<float>(values));
    return values;
  };
  const auto tensor_of = [&](where place, std::size_t count, bool in_place) {
    hvd::tensor t;
    t.in = reinterpret_cast<const std::byte*>(at(place));
    if (in_place) t.out = reinterpret_cast<std::byte*>(at(place));
    t.shape = {count};
    t.memory = {.kind = hvd::memory_kind::device, .device = r.gpu.device(), .ready = nullptr};
    return t;
  };
  const bool odd = r.rank() % 2 == 1;
  // The same name: in the bucket on all ranks, then not on the odd ones, at another offset there, and so on.
  for (const where of_odd : {inside, outside, shifted, inside, outside}) {
    const where place = odd ? of_odd : inside;
    put(place, floats(n, r.mine()));
    r.engine.run(asked(operation::allreduce, "moves", {tensor_of(place, n, true)}));
    same(get(place, n), floats(n, r.total()));
  }
  for (const where of_odd : {outside, shifted}) {
    const where place = odd ? of_odd : inside;
    const std::string name = of_odd == outside ? " outside" : " shifted";
    put(place, floats(n, r.mine()));
    request broadcast = asked(operation::broadcast, "broadcast" + name, {tensor_of(place, n, true)});
    broadcast.root = r.size() - 1;
    r.engine.run(broadcast);
    same(get(place, n), floats(n, static_cast<float>(r.size())));

    const auto p = static_cast<std::size_t>(r.size());
    put(place, floats(4 * p, r.mine()));
    handle h = r.engine.run(asked(operation::reduce_scatter, "scatter" + name, {tensor_of(place, 4 * p, false)}));
    same(fetched<float>(h.output()), floats(4, r.total()));
    h = r.engine.run(asked(operation::allgather, "gather" + name, {tensor_of(place, 2, false)}));
    std::vector<float> want;
    for (std::size_t q = 0; q != p; ++q) want.insert(want.end(), 2, static_cast<float>(q + 1));
    same(fetched<float>(h.output()), want);
    h = r.engine.run(asked(operation::alltoall, "alltoall" + name, {tensor_of(place, 2 * p, false)}));
    same(fetched<float>(h.output()), want);
  }
}

void use_mismatches(const auto& r) {
  if (r.size() == 1) return;
  const auto a = r.array(10 + static_cast<std::size_t>(r.rank()), r.mine());
  require(failure_of(r.engine.submit(r.sum("shape", a))).kind() == error_kind::mismatch, "shapes may differ");
  const auto b = r.array(10, r.mine());
  request q = r.sum("root", b);
  q.kind = operation::broadcast;
  q.root = r.rank();
  require(failure_of(r.engine.submit(q)).kind() == error_kind::mismatch, "roots may differ");
  std::vector<float> host = floats(10, 1);
  q = r.rank() == 0 ? r.sum("memory", b)
                    : asked(operation::allreduce, "memory", {hvd::detail::tensor_of(hvd::fused::of(host))});
  require(failure_of(r.engine.submit(q)).kind() == error_kind::mismatch, "kinds of memory may differ");
  // A host's address as one of the GPU; another GPU.
  hvd::tensor t = r.at(b, &b);
  t.in = reinterpret_cast<const std::byte*>(host.data());
  complaint(error_kind::invalid_argument, {"allreduce on GPU", "\"wrong\"", "is memory of the host"},
            [&] { static_cast<void>(r.engine.submit(asked(operation::allreduce, "wrong", {t}))); });
  t = r.at(b, &b);
  t.memory.device = r.gpu.device() + 1;
  complaint(error_kind::invalid_argument, {"allreduce \"wrong\" on rank", "is on device", "allowed: device"},
            [&] { static_cast<void>(r.engine.submit(asked(operation::allreduce, "wrong", {t}))); });
  const auto shorts = r.array(3, std::int16_t{1});
  const hvd::error e = failure_of(r.engine.submit(r.sum("shorts", shorts)));
  require(e.kind() == error_kind::unsupported, e.what());
  says(e, "NCCL has no 16-bit integers");
  const auto alone = r.array(2, r.mine());
  r.engine.run(r.sum("after", alone));
  r.has(alone, r.total());
}

/// Groups that overlap, and a second engine, on GPUs that run one kernel after another, in the order of their launches.
/// Ranks submit in different orders.
void use_many_groups(const auto& r) {
  nccl_engine other(r.comm, NcclTransport(r.comm, on_gpu(r.rank())), plain_engine());
  std::vector<std::pair<int, std::vector<int>>> sets{{0, {0, 1, 2}}};
  for (const std::vector<int>& ranks : {std::vector<int>{0, 1}, {1, 2}, {2, 0}}) {
    sets.emplace_back(r.engine.add_process_set(ranks), ranks);
  }
  std::vector<gpu_array<float>> all;
  for (std::size_t i = 0; i != sets.size() + 1; ++i) all.push_back(r.array(i % 2 == 0 ? 100 : 300'000, 0.0F));
  for (int round = 0; round != 15; ++round) {
    const float value = r.mine() + static_cast<float>(round);
    std::vector<handle> handles;
    for (const auto& a : all) a.put(r.gpu, std::vector<float>(a.size(), value));
    for (std::size_t k = 0; k != all.size(); ++k) {
      const std::size_t i = (k + static_cast<std::size_t>(r.rank() + round)) % all.size();
      if (i == sets.size()) {
        handles.push_back(other.submit(r.sum("other", all[i])));
        continue;
      }
      const auto& [id, ranks] = sets[i];
      if (std::find(ranks.begin(), ranks.end(), r.rank()) == ranks.end()) continue;
      handles.push_back(r.engine.submit(r.sum("x", all[i]), id));
      if ((r.rank() + k) % 2 == 0) pause_for(0.001);
    }
    for (const handle& h : handles) h.wait(only_a_hang);
    for (std::size_t i = 0; i != all.size(); ++i) {
      const std::vector<int>& ranks = sets[i % sets.size()].second;  // the other engine has all ranks, as set 0
      float sum = 0.0F;
      for (const int q : ranks) sum += static_cast<float>(q + 1 + round);
      r.has(all[i], std::find(ranks.begin(), ranks.end(), r.rank()) == ranks.end() ? value : sum);
    }
    const auto bucket = round == 7 ? r.engine.alloc_device_bucket(1000, r.gpu.device()) : nullptr;
  }
  r.comm.barrier();
}

void use_process_sets(const auto& r) {
  const int p = r.size();
  std::vector<int> ends{p - 1, 0}, rest;
  for (int q = 1; q != p; ++q) rest.push_back(q);
  if (p == 1) ends = {0};
  const int first = r.engine.add_process_set(ends), second = r.engine.add_process_set(rest.empty() ? ends : rest);
  const bool in_first = r.rank() == 0 || r.rank() == p - 1;
  const auto a = r.array(10, r.mine()), b = r.array(10, r.mine()), c = r.array(10, r.mine());
  std::vector<handle> all;
  if (in_first) all.push_back(r.engine.submit(r.sum("x", a), first));
  if (rest.empty() || r.rank() != 0) all.push_back(r.engine.submit(r.sum("x", b), second));
  all.push_back(r.engine.submit(r.sum("x", c)));
  for (const handle& h : all) h.wait(only_a_hang);
  if (in_first && p > 1) r.has(a, static_cast<float>(p + 1));
  if (r.rank() != 0) r.has(b, r.total() - 1);
  r.has(c, r.total());
  r.engine.remove_process_set(first);
  const auto d = r.array(10, r.mine());
  r.engine.run(r.sum("y", d));
  r.has(d, r.total());
}

/// The last rank has nothing after the first step: it gives zeros, to tensors that are packed and to long ones, also
/// where those of the others lie in registered memory.
void use_join(const auto& r) {
  const bool last = r.rank() == r.size() - 1;
  const auto p = static_cast<float>(r.size());
  constexpr std::size_t n = 300'000;
  const std::shared_ptr<std::byte> bucket = r.engine.alloc_device_bucket(n * sizeof(float), r.gpu.device());
  auto* const in_bucket = reinterpret_cast<float*>(bucket.get());
  for (int step = 0; step != 3; ++step) {
    if (step > 0 && last) break;
    const auto a = r.array(20, r.mine()), b = r.array(300'000 + 100'000 * static_cast<std::size_t>(step), r.mine()),
               c = r.array(21, r.mine());
    const std::string name = std::to_string(step);
    std::vector<handle> all;
    all.push_back(r.engine.submit(r.sum("a" + name, a)));
    all.push_back(r.engine.submit(r.sum("b" + name, b)));
    request average = r.sum("c" + name, c);
    average.op = reduce_op::average;
    average.prescale = 2;
    all.push_back(r.engine.submit(std::move(average)));
    std::vector<float> values = floats(n, r.mine());
    r.gpu.template copy_to_device<float>(std::span<const float>(values), in_bucket);
    hvd::tensor t;
    t.in = t.out = bucket.get();
    t.shape = {n};
    t.memory = {.kind = hvd::memory_kind::device, .device = r.gpu.device(), .ready = nullptr};
    all.push_back(r.engine.submit(asked(operation::allreduce, "bucket", {t})));
    for (const handle& h : all) h.wait(only_a_hang);
    const float sum = step == 0 ? r.total() : r.total() - p;
    r.gpu.template copy_to_host<float>(in_bucket, std::span<float>(values));
    same(values, floats(n, sum));
    r.has(a, sum);
    r.has(b, sum);
    r.has(c, 2 * sum / p);
  }
  const handle h = r.engine.join();
  h.wait(only_a_hang);
  require(r.size() == 1 || h.last_joined() != r.size() - 1, "another rank has joined last");
  const auto d = r.array(5, r.mine());
  r.engine.run(r.sum("after", d));
  r.has(d, r.total());
}

template <class E>
void use_all(const engine_rank<E>& r) {
  use_reductions(r);
  use_movements(r);
  use_outputs(r);
  use_results_again(r);
  use_groups(r);
  use_wires(r);
  use_mismatches(r);
  use_adasum(r);
  use_bucket(r);
  use_uneven_buckets(r);
  use_many(r);
}

}  // namespace

TEST_CASE("an engine with a GPU: every operation") {
  for (const int size : {1, 2, 3}) {
    on_engines<nccl_engine>(size, {}, plain_engine(), [](const auto& r) { use_all(r); });
  }
}
TEST_CASE("an engine with a GPU tunes itself by its batches") {
  const auto log = std::filesystem::temp_directory_path() / ("hvd-autotune-gpu-" + std::to_string(::getpid()) + ".csv");
  hvd::engine_options options = plain_engine();
  options.autotune = true;
  options.autotune_log = log.string();
  options.autotune_warmup = 1;
  options.autotune_steps = 1;
  options.autotune_samples = 6;
  on_engines<nccl_engine>(2, {}, options, [](const auto& r) {
    const auto a = r.array(100, r.mine()), b = r.array(50, r.mine());
    for (int step = 0; step != 100; ++step) {
      const handle one = r.engine.submit(r.sum("a", a)), other = r.engine.submit(r.sum("b", b));
      one.wait(only_a_hang);
      other.wait(only_a_hang);
      if (step == 0) r.has(a, r.total());
    }
  });
  std::ifstream file(log);
  std::set<std::string> settings;
  for (std::string line; std::getline(file, line);) settings.insert(line.substr(0, line.rfind(',')));
  std::filesystem::remove(log);
  CHECK(settings.size() > 3);
}
TEST_CASE("an engine whose GPU is connected on demand: every operation") {
  for (const int size : {1, 3}) {
    on_engines<demand_engine>(size, {}, plain_engine(), [](const auto& r) { use_all(r); });
  }
}
TEST_CASE("an engine with a GPU: in progress, with NCCL 2.18, without its thread, unfused") {
  on_engines<nccl_engine>(2, in_progress, plain_engine(), [](const auto& r) { use_all(r); });
  on_engines<nccl_engine>(2, old_library(), plain_engine(), [](const auto& r) { use_all(r); });
  hvd::engine_options options = plain_engine();
  options.thread = false;
  on_engines<nccl_engine>(2, {}, options, [](const auto& r) { use_all(r); });
  options = plain_engine();
  options.fusion_threshold = 0;
  on_engines<demand_engine>(2, {}, options, [](const auto& r) { use_all(r); });
}
TEST_CASE("an engine with a GPU: process sets") {
  for (const int size : {1, 2, 4}) {
    on_engines<nccl_engine>(size, {}, plain_engine(), [](const auto& r) { use_process_sets(r); });
    on_engines<demand_engine>(size, {}, plain_engine(), [](const auto& r) { use_process_sets(r); });
  }
  on_engines<nccl_engine>(3, in_progress, plain_engine(), [](const auto& r) { use_process_sets(r); });
}
TEST_CASE("an engine with a GPU: all groups launch in one order on all ranks") {
  for (environment variables : {environment{}, in_progress}) {
    variables["HVD_STANDIN_NCCL_SERIAL"] = "1";
    on_engines<nccl_engine>(3, variables, plain_engine(), [](const auto& r) { use_many_groups(r); });
    on_engines<demand_engine>(3, variables, plain_engine(), [](const auto& r) { use_many_groups(r); });
  }
}
TEST_CASE("an engine with a GPU: a rank that has joined gives zeros") {
  for (const int size : {2, 4}) {
    on_engines<nccl_engine>(size, {}, plain_engine(), [](const auto& r) { use_join(r); });
  }
  on_engines<demand_engine>(2, in_progress, plain_engine(), [](const auto& r) { use_join(r); });
}

}  // namespace gpu_engine_tests
