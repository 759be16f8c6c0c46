// tests/gpu/standin_nccl_test.cpp: the stand-in for NCCL does what NCCL does, good and bad.
#include <hvd/dtype.hpp>

#include "gpu/standin_rank.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

using namespace hvd::test;
using namespace hvd::detail;

namespace {

// Not through hvd's table, which is filled once: the parent of all ranks leaves that to them.
nccl_unique_id new_id() {
  nccl_unique_id id;
  decltype(nccl_library::unique_id) make = nullptr;
  dynamic_library::find("libnccl.so.2", "HVD_NCCL_LIBRARY").look_up(make, "ncclGetUniqueId");
  must(make(&id));
  return id;
}

nccl_result settled(nccl_comm comm, nccl_result code, double seconds = 20.0) {
  for (const double limit = now() + seconds; code == nccl_in_progress && now() < limit; pause_for(0.0002)) {
    must(get_nccl().comm_async_error(comm, &code));
  }
  return code;
}

nccl_config nonblocking() {
  nccl_config c;
  c.blocking = 0;
  return c;
}

struct nccl_rank : on_device {
  const nccl_library& nc = get_nccl();
  int rank, size;
  nccl_comm comm = nullptr;

  nccl_rank(const nccl_unique_id& id, int r, int n, int device, nccl_result expected = nccl_success)
      : on_device(device), rank(r), size(n) {
    nccl_config c = nonblocking();
    const nccl_result code = nc.comm_init(&comm, n, id, r, &c);
    must(settled(comm, code), expected);
  }
  [[nodiscard]] static void* at(cu_pointer p) { return reinterpret_cast<void*>(p); }
  void done(nccl_result code) const { must(settled(comm, code)); }
  /// Of a call that returns success before it is complete.
  void later(nccl_result code) const {
    must(code);
    done(nccl_in_progress);
  }
  void end() {
    no_violation();
    done(nc.comm_finalize(comm));
    must(nc.comm_destroy(std::exchange(comm, nullptr)));
  }
};

/// Runs f(nccl_rank&) on `size` ranks, each on a GPU of its own.
template <class F>
void on_ranks(int size, environment variables, F f) {
  const nccl_unique_id id = new_id();
  variables.emplace("HVD_STANDIN_GPUS", "4");
  in_processes(size, variables, [&](int rank) {
    nccl_rank r(id, rank, size, rank);
    f(r);
  });
}

template <class T>
void reductions(const nccl_rank& r, int type) {
  const auto value = [](int rank, int i) { return static_cast<T>(static_cast<float>(rank + 1 + i % 3)); };
  const auto as_float = [](T x) { return static_cast<float>(x); };
  constexpr int count = 1000;
  std::vector<T> mine(count);
  for (int i = 0; i != count; ++i) mine[static_cast<std::size_t>(i)] = value(r.rank, i);
  for (const int op : {nccl_sum, nccl_product, nccl_max, nccl_min, nccl_average_op}) {
    const cu_pointer x = r.put(mine, r.a);
    r.done(r.nc.allreduce(r.at(x), r.at(x), count, type, op, r.comm, r.a));
    const std::vector<T> result = r.get<T>(x, count, r.a);
    for (int i = 0; i != count; ++i) {
      float expected = as_float(value(0, i));
      for (int q = 1; q != r.size; ++q) {
        const float next = as_float(value(q, i));
        expected = op == nccl_product ? expected * next
                   : op == nccl_max   ? std::max(expected, next)
                   : op == nccl_min   ? std::min(expected, next)
                                      : expected + next;
      }
      const float got = as_float(result[static_cast<std::size_t>(i)]);
      if (op == nccl_average_op) expected /= static_cast<float>(r.size);
      if (op == nccl_average_op && std::is_integral_v<T>) expected = static_cast<float>(static_cast<int>(expected));
      const float tolerance = op == nccl_average_op && !std::is_integral_v<T> ? 0.02f * expected : 0.0f;
      require(std::abs(got - expected) <= tolerance, [&] {
        return "type " + std::to_string(type) + " op " + std::to_string(op) + ": " + std::to_string(got) + ", not " +
               std::to_string(expected);
      });
    }
  }
}

}  // namespace

TEST_CASE("nccl standin: reductions of all types") {
  on_ranks(3, {}, [](nccl_rank& r) {
    reductions<std::int8_t>(r, nccl_int8);
    reductions<std::uint8_t>(r, nccl_uint8);
    reductions<std::int32_t>(r, nccl_int32);
    reductions<std::uint32_t>(r, nccl_uint32);
    reductions<std::int64_t>(r, nccl_int64);
    reductions<std::uint64_t>(r, nccl_uint64);
    reductions<hvd::half>(r, nccl_float16);
    reductions<float>(r, nccl_float32);
    reductions<double>(r, nccl_float64);
    reductions<hvd::bfloat16>(r, nccl_bfloat16);
    r.end();
  });
}

TEST_CASE("nccl standin: collectives, and sends and receives of a group side by side") {
  on_ranks(3, {}, [](nccl_rank& r) {
    constexpr std::size_t n = 50'000;  // more than a channel holds
    const auto filled = [](int value, std::size_t count = 50'000) { return std::vector<int>(count, value); };
    const auto expect = [&](cu_pointer p, std::vector<int> values, std::size_t skip = 0) {
      require(r.get<int>(p + skip * 4, values.size(), r.a) == values, "wrong values");
    };
    const auto blocks = [&](int first, int step) {
      std::vector<int> all;
      for (int q = 0; q != r.size; ++q) all.insert(all.end(), n, first + q * step);
      return all;
    };
    const cu_pointer one = r.put(filled(r.rank), r.a), all = r.put(blocks(10 * r.rank, 1), r.a);
    const cu_pointer out = r.alloc(n * 4), wide = r.alloc(n * 12);
    r.done(r.nc.broadcast(r.at(one), r.at(out), n, nccl_int32, 1, r.comm, r.a));
    expect(out, filled(1));
    r.done(r.nc.reduce(r.at(one), r.at(out), n, nccl_int32, nccl_sum, 2, r.comm, r.a));
    expect(out, filled(r.rank == 2 ? 3 : 1));
    r.done(r.nc.allgather(r.at(one), r.at(wide), n, nccl_int32, r.comm, r.a));
    expect(wide, blocks(0, 1));
    r.done(r.nc.reduce_scatter(r.at(all), r.at(out), n, nccl_int32, nccl_sum, r.comm, r.a));
    expect(out, filled(30 + 3 * r.rank));
    r.done(r.nc.alltoall(r.at(all), r.at(wide), n, nccl_int32, r.comm, r.a));
    expect(wide, blocks(r.rank, 10));
    r.done(r.nc.gather(r.at(one), r.at(wide), n, nccl_int32, 0, r.comm, r.a));
    expect(wide, r.rank == 0 ? blocks(0, 1) : blocks(r.rank, 10));
    r.done(r.nc.scatter(r.at(all), r.at(out), n, nccl_int32, 2, r.comm, r.a));
    expect(out, filled(20 + r.rank));

    must(r.nc.group_start());
    for (int q = 0; q != r.size; ++q) {
      const auto offset = static_cast<std::size_t>(q) * n * 4;
      must(r.nc.send(r.at(all + offset), n, nccl_int32, q, r.comm, r.a));
      must(r.nc.recv(r.at(wide + offset), n, nccl_int32, q, r.comm, r.a));
    }
    must(r.nc.allreduce(r.at(one), r.at(one), n, nccl_int32, nccl_max, r.comm, r.a));
    const auto before = r.gpu.pending(r.a);
    r.done(r.nc.group_end());
    require(r.gpu.pending(r.a) <= before + 1, "a group is more than one work");
    expect(wide, blocks(r.rank, 10));
    expect(one, filled(2));

    // In place, and nothing at all.
    r.done(r.nc.allreduce(r.at(one), r.at(one), 0, nccl_int32, nccl_sum, r.comm, r.a));
    must(r.cu.copy_to_device(wide + static_cast<std::size_t>(r.rank) * n * 4, filled(r.rank + 5).data(), n * 4, r.a));
    r.done(
        r.nc.allgather(r.at(wide + static_cast<std::size_t>(r.rank) * n * 4), r.at(wide), n, nccl_int32, r.comm, r.a));
    expect(wide, blocks(5, 1));
    r.end();
  });
}

TEST_CASE("nccl standin: sums of elements that are multiplied first") {
  on_ranks(2, {}, [](nccl_rank& r) {
    const cu_pointer x = r.put(std::vector<float>{1.0f, 2.0f}, r.a);
    float factor = 0.5f;
    int op = -1;
    must(r.nc.pre_mul_sum(&op, &factor, nccl_float32, nccl_scalar_on_host, r.comm));
    r.done(r.nc.allreduce(r.at(x), r.at(x), 2, nccl_float32, op, r.comm, r.a));
    must(r.nc.op_destroy(op, r.comm));
    require(r.get<float>(x, 2, r.a) == std::vector<float>{1.0f, 2.0f}, "wrong");
    must(r.nc.allreduce(r.at(x), r.at(x), 2, nccl_float32, op, r.comm, r.a), nccl_invalid_argument);
    const cu_pointer scalar = r.put(std::vector<float>{3.0f}, r.b);
    must(r.nc.pre_mul_sum(&op, r.at(scalar), nccl_float32, nccl_scalar_on_device, r.comm));
    r.order(r.b, r.a);
    r.done(r.nc.allreduce(r.at(x), r.at(x), 2, nccl_float32, op, r.comm, r.a));
    must(r.nc.op_destroy(op, r.comm));
    require(r.get<float>(x, 2, r.a) == std::vector<float>{6.0f, 12.0f}, "wrong");
    r.end();
  });
}

TEST_CASE("nccl standin: bad arguments") {
  on_ranks(2, {}, [](nccl_rank& r) {
    const cu_pointer x = r.alloc(400);
    std::vector<float> host(100);
    const auto refused = [&](const void* in, void* out, std::size_t count, int type, int op, cu_stream stream) {
      must(r.nc.allreduce(in, out, count, type, op, r.comm, stream), nccl_invalid_argument);
    };
    refused(host.data(), r.at(x), 100, nccl_float32, nccl_sum, r.a);
    refused(r.at(x), host.data(), 100, nccl_float32, nccl_sum, r.a);
    refused(r.at(x), r.at(x), 101, nccl_float32, nccl_sum, r.a);
    refused(r.at(x), r.at(x), 100, 10, nccl_sum, r.a);
    refused(r.at(x), r.at(x), 100, nccl_float32, 5, r.a);
    must(r.nc.broadcast(r.at(x), r.at(x), 100, nccl_float32, 2, r.comm, r.a), nccl_invalid_argument);
    require(std::string(r.nc.last_error(r.comm)).find("invalid root") != std::string::npos, r.nc.last_error(r.comm));
    const on_device other(3);
    refused(r.at(other.alloc(400)), r.at(x), 100, nccl_float32, nccl_sum, r.a);
    refused(r.at(x), r.at(x), 100, nccl_float32, nccl_sum, other.a);
    must(r.cu.context_set(r.context));
    // An error in a group is that of its end, too.
    must(r.nc.group_start());
    refused(host.data(), r.at(x), 100, nccl_float32, nccl_sum, r.a);
    must(r.nc.group_end(), nccl_invalid_argument);
    must(r.nc.group_end(), nccl_invalid_usage);
    nccl_config config;
    config.magic = 1;
    nccl_comm comm = nullptr;
    must(r.nc.comm_init(&comm, 2, new_id(), 0, &config), nccl_invalid_argument);
    must(r.nc.comm_init(&comm, 2, new_id(), 2, nullptr), nccl_invalid_argument);
    r.end();
    must(r.nc.comm_destroy(comm));
  });
}

TEST_CASE("nccl standin: an event that is recorded before the operation is in the stream") {
  on_ranks(2, in_progress, [](nccl_rank& r) {
    const cu_pointer x = r.put(std::vector<int>{1}, r.a);
    must(r.nc.allreduce(r.at(x), r.at(x), 1, nccl_int32, nccl_sum, r.comm, r.a), nccl_in_progress);
    r.order(r.a, r.b);  // wrong: it is too early
    r.done(nccl_in_progress);
    must(r.cu.fill_bytes(x, 0, 4, r.b));
    r.one_violation("stream 2 (cuMemsetD8Async) writes memory that stream 1 (ncclAllReduce) ");
    // The state must be looked at before the next operation.
    must(r.nc.group_start());
    must(r.nc.allreduce(r.at(x), r.at(x), 1, nccl_int32, nccl_sum, r.comm, r.a), nccl_success);
    r.order(r.b, r.a);
    must(r.nc.group_end(), nccl_in_progress);
    r.done(nccl_in_progress);
    must(r.cu.stream_synchronize(r.a));
    r.end();
  });
}

TEST_CASE("nccl standin: two ranks on one GPU") {
  const auto both = [](environment first, environment second, nccl_result expected, int devices = 1) {
    const nccl_unique_id id = new_id();
    in_processes(2, {}, [&](int rank) {
      set_environment(rank == 0 ? first : second);
      nccl_rank r(id, rank, 2, rank % devices, expected);
      must(r.nc.comm_abort(r.comm));
    });
  };
  both({}, {}, nccl_success, 2);
  both({}, {}, nccl_invalid_usage);
  both({{"NCCL_HOSTID", "a"}}, {{"NCCL_HOSTID", "b"}}, nccl_success);
  both({{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}}, {{"NCCL_MULTI_RANK_GPU_ENABLE", "1"}}, nccl_invalid_usage);
  const environment newer{{"HVD_STANDIN_NCCL_VERSION", "23007"}};
  both(newer, newer, nccl_invalid_usage);
  const environment allowed{{"HVD_STANDIN_NCCL_VERSION", "23007"}, {"NCCL_MULTI_RANK_GPU_ENABLE", "1"}};
  both(allowed, allowed, nccl_success);
  both({}, newer, nccl_invalid_usage, 2);  // versions differ
  // Two instances of one GPU: the same place on the bus, other UUIDs.
  const auto mig = [](environment e, const char* last) {
    e["HVD_STANDIN_MIG"] = "1";
    e["CUDA_VISIBLE_DEVICES"] = std::string("MIG-5a7d2000-0000-4000-8000-00000000000") + last;
    return e;
  };
  both(mig({}, "0"), mig({}, "1"), nccl_invalid_usage);
  both(mig(newer, "0"), mig(newer, "1"), nccl_success);
}

TEST_CASE("nccl standin: old and broken libraries") {
  in_process(old_library(), [] {
    const nccl_search& found = nccl_search::result();
    require(found.usable && found.version == 21806, found.why);
    require(found.table.comm_split != nullptr && found.table.alloc == nullptr && found.table.comm_revoke == nullptr &&
                found.table.alltoall == nullptr && found.table.last_error != nullptr,
            "an old library has something new");
  });
  in_process({{"HVD_NCCL_LIBRARY", std::getenv("HVD_STANDIN_NCCL_BROKEN_LIBRARY")}}, [] {
    const nccl_search& found = nccl_search::result();
    require(!found.usable && found.why.find("has no ncclRedOpDestroy") != std::string::npos, found.why);
  });
  in_process({}, [] { require(nccl_search::result().version == 22809, "another version"); });
  // That there was none is not remembered: a framework that is loaded later may bring it.
  const std::string library = std::getenv("HVD_NCCL_LIBRARY");
  in_process({{"HVD_NCCL_LIBRARY", "/nothing"}}, [&] {
    require(!nccl_search::result().usable, "there is none");
    ::setenv("HVD_NCCL_LIBRARY", library.c_str(), 1);
    const nccl_search& found = nccl_search::result();
    require(found.version == 22809 && &found == &nccl_search::result(), "it is not looked for again");
  });
}

TEST_CASE("nccl standin: a peer that dies is not noticed, and abort ends the wait") {
  for (const bool network : {false, true}) {
    const nccl_unique_id id = new_id();
    in_processes(2, {{"HVD_STANDIN_NCCL_REMOTE_ERROR", network ? "1" : "0"}}, [&](int rank) {
      nccl_rank r(id, rank, 2, rank);
      if (rank == 1) return;  // _exit
      const cu_pointer x = r.put(std::vector<int>{1}, r.a);
      r.done(r.nc.allreduce(r.at(x), r.at(x), 1, nccl_int32, nccl_sum, r.comm, r.a));
      nccl_result state = nccl_success;
      for (const double limit = now() + (network ? 20.0 : 0.2); state == nccl_success && now() < limit;) {
        pause_for(0.01);
        must(r.nc.comm_async_error(r.comm, &state));
      }
      must(r.cu.stream_query(r.a), cu_not_ready);
      must(state, network ? nccl_remote_error : nccl_success);
      // A revocation ends the operation, and not the proxies' error.
      must(r.nc.comm_revoke(r.comm, 0), nccl_in_progress);
      must(settled(r.comm, nccl_in_progress), network ? nccl_remote_error : nccl_success);
      must(r.nc.comm_abort(r.comm));
      require(r.get<unsigned>(x, 1, r.a)[0] == 0xEEEEEEEE, "the operation has not ended");
      must(r.nc.allreduce(r.at(x), r.at(x), 1, nccl_int32, nccl_sum, r.comm, r.a), nccl_invalid_argument);
      must(r.nc.comm_async_error(r.comm, &state), nccl_invalid_argument);
      r.no_violation();
    });
  }
}

TEST_CASE("nccl standin: a rank that never comes, and abort") {
  in_process({}, [] {
    const on_device d;
    const nccl_library& nc = get_nccl();
    nccl_config config = nonblocking();
    nccl_comm comm = nullptr;
    must(nc.comm_init(&comm, 2, new_id(), 0, &config), nccl_in_progress);
    pause_for(0.05);
    nccl_result state = -1;
    must(nc.comm_async_error(comm, &state));
    must(state, nccl_in_progress);
    must(nc.comm_abort(comm));
  });
}

TEST_CASE("nccl standin: ranks that do not do the same") {
  on_ranks(2, {}, [](nccl_rank& r) {
    const cu_pointer x = r.put(std::vector<int>(8, 1), r.a);
    const std::size_t count = r.rank == 0 ? 8 : 4;
    r.done(r.nc.allreduce(r.at(x), r.at(x), count, nccl_int32, nccl_sum, r.comm, r.a));
    for (int i = 0; i != 5000 && r.violations() == 0; ++i) pause_for(0.001);
    r.one_violation("NCCL's ranks do not do the same");
    pause_for(0.1);
    must(r.cu.stream_query(r.a), cu_not_ready);
    must(r.nc.comm_abort(r.comm));
    must(r.cu.stream_synchronize(r.a));
  });
}

TEST_CASE("nccl standin: errors that a test wants") {
  on_ranks(2, {{"HVD_STANDIN_NCCL_FAIL", "call:2:3"}}, [](nccl_rank& r) {
    const cu_pointer x = r.put(std::vector<int>{1}, r.a);
    for (int i = 0; i != 2; ++i) {
      r.done(r.nc.allreduce(r.at(x), r.at(x), 1, nccl_int32, nccl_sum, r.comm, r.a));
    }
    nccl_result state = 0;
    for (int i = 0; i != 5000 && state == 0; ++i, pause_for(0.001)) must(r.nc.comm_async_error(r.comm, &state));
    must(state, nccl_internal_error);
    must(r.cu.stream_query(r.a), cu_not_ready);
    must(r.nc.allreduce(r.at(x), r.at(x), 1, nccl_int32, nccl_sum, r.comm, r.a), nccl_internal_error);
    must(r.nc.comm_abort(r.comm));
    must(r.cu.stream_synchronize(r.a));
    r.gpu.fail_next("ncclCommInitRankConfig", nccl_system_error);
    nccl_comm comm = nullptr;
    must(r.nc.comm_init(&comm, 1, new_id(), 0, nullptr), nccl_system_error);
  });
}

TEST_CASE("nccl standin: parts of a communicator") {
  on_ranks(4, {}, [](nccl_rank& r) {
    nccl_config config = nonblocking();
    nccl_comm half = nullptr, none = nullptr, three = nullptr;
    r.later(r.nc.comm_split(r.comm, r.rank % 2, -r.rank, &half, &config));
    must(settled(half, nccl_in_progress));
    const cu_pointer x = r.put(std::vector<int>{r.rank}, r.a), all = r.alloc(16);
    must(settled(half, r.nc.allgather(r.at(x), r.at(all), 1, nccl_int32, half, r.a)));
    require(r.get<int>(all, 2, r.a) == std::vector<int>{r.rank % 2 + 2, r.rank % 2}, "wrong order");
    r.later(r.nc.comm_split(r.comm, r.rank == 0 ? nccl_split_no_color : 7, 0, &none, &config));
    require((none == nullptr) == (r.rank == 0), "a part without color");
    if (none != nullptr) {
      must(settled(none, nccl_in_progress));
      must(r.nc.comm_destroy(none));
    }
    must(r.nc.comm_destroy(half));

    if (r.rank == 2) return;
    // The others wait for rank 2 in vain, and go on without it.
    r.done(r.nc.allreduce(r.at(x), r.at(x), 1, nccl_int32, nccl_sum, r.comm, r.a));
    int gone = 2;
    must(r.nc.comm_revoke(r.comm, 0), nccl_in_progress);
    must(r.cu.stream_synchronize(r.a));
    must(r.nc.comm_shrink(r.comm, &gone, 1, &three, &config, 0), nccl_invalid_argument);
    r.done(nccl_in_progress);
    must(r.nc.comm_revoke(r.comm, 0), nccl_invalid_argument);
    must(r.nc.comm_finalize(r.comm), nccl_invalid_usage);
    r.later(r.nc.comm_shrink(r.comm, &gone, 1, &three, &config, 0));
    must(settled(three, nccl_in_progress));
    must(r.cu.copy_to_device(x, &r.rank, 4, r.a));
    must(settled(three, r.nc.allgather(r.at(x), r.at(all), 1, nccl_int32, three, r.a)));
    require(r.get<int>(all, 3, r.a) == std::vector<int>{0, 1, 3}, "wrong ranks");
    must(r.nc.comm_abort(r.comm));
    must(r.nc.comm_destroy(three));
    r.no_violation();
  });
}

TEST_CASE("nccl standin: registered memory on some ranks alone hangs, and other offsets give wrong data") {
  constexpr std::size_t n = 1024, bytes = 4 * n * sizeof(float);
  const auto registered = [](nccl_rank& r, int flags) {
    void* x = nullptr;
    must(r.nc.alloc(&x, bytes));
    nccl_window window = nullptr;
    r.later(r.nc.window_register(r.comm, x, bytes, &window, flags));
    return reinterpret_cast<cu_pointer>(x);
  };
  const auto sum = [](nccl_rank& r, cu_pointer at) {
    const std::vector<float> mine(n, static_cast<float>(r.rank + 1));
    must(r.cu.copy_to_device(at, mine.data(), n * sizeof(float), r.a));
    r.done(r.nc.allreduce(r.at(at), r.at(at), n, nccl_float32, nccl_sum, r.comm, r.a));
  };
  on_ranks(2, {}, [&](nccl_rank& r) {
    for (const int flags : {nccl_window_default, nccl_window_symmetric}) {
      const cu_pointer x = registered(r, flags);
      sum(r, x + n * sizeof(float));
      require(r.get<float>(x + n * sizeof(float), n, r.a) == std::vector<float>(n, 3), "a wrong sum");
      const cu_pointer other = x + static_cast<unsigned>(r.rank) * n * sizeof(float);
      sum(r, other);
      require((r.get<float>(other, n, r.a) == std::vector<float>(n, 3)) == (flags == nccl_window_default),
              "offsets matter in symmetric windows, and in no others");
    }
    r.end();
  });
  on_ranks(2, {}, [&](nccl_rank& r) {
    const cu_pointer x = registered(r, nccl_window_symmetric);
    sum(r, r.rank == 0 ? x : r.alloc(bytes));
    pause_for(0.2);
    must(r.cu.stream_query(r.a), cu_not_ready);
    must(r.nc.comm_abort(std::exchange(r.comm, nullptr)));
    must(r.cu.stream_synchronize(r.a));
    r.one_violation("or of memory that is registered on some ranks alone");
  });
}

TEST_CASE("nccl standin: registered memory") {
  on_ranks(2, {}, [](nccl_rank& r) {
    void* x = nullptr;
    must(r.nc.alloc(&x, 10'000));
    require(reinterpret_cast<std::uintptr_t>(x) % 4096 == 0, "not aligned");
    nccl_window window = nullptr, other = nullptr;
    must(r.nc.window_register(r.comm, r.at(r.alloc(10'000)), 10'000, &other, nccl_window_symmetric),
         nccl_invalid_argument);
    r.later(r.nc.window_register(r.comm, x, 10'000, &window, nccl_window_symmetric));
    require(window != nullptr, "no window");
    must(r.nc.window_deregister(r.comm, window));
    void* handle = nullptr;
    must(r.nc.comm_register(r.comm, x, 10'000, &handle));
    must(r.nc.comm_deregister(r.comm, handle));
    must(r.nc.comm_deregister(r.comm, handle), nccl_invalid_argument);
    must(r.nc.free(x));
    r.end();
  });
}
