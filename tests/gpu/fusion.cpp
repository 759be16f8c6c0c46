// tests/gpu/fusion.cpp: many tensors of a GPU in one collective, compared with the same tensors on the host.
#include <hvd/fusion/device.hpp>
#include <hvd/hvd.hpp>

#include <gpu/ranks.hpp>
#include <support/verifiable.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpu_fusion_tests {

using namespace hvd::test;
using hvd::dynamic_op;
using hvd::fused;
using hvd::FusionBuffer;

namespace {

/// A tensor of a list.
struct item {
  dtype type;
  std::size_t count;
  bool in_place = true;
  dtype wire = type;
};

/// Values that any order of additions leaves exact, also in 16 bits and as their average; or, for wide types, some that
/// show the order.
template <class T>
std::vector<T> values(std::size_t n, int rank, int size, bool exact, std::size_t seed) {
  std::vector<T> all(n);
  for (std::size_t i = 0; i != n; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      all[i] = exact ? input<T>(hvd::average, i + seed, rank, size) : order_sensitive<T>(i + seed, rank);
    } else {
      all[i] = input<T>(hvd::average, i + seed, rank, size);
    }
  }
  return all;
}
std::vector<std::byte> bytes_of(const item& t, std::size_t count, int rank, int size, std::size_t seed) {
  std::vector<std::byte> bytes(count * size_of(t.type));
  const auto fill = [&](const auto& from) {
    if (count != 0) std::memcpy(bytes.data(), from.data(), bytes.size());
  };
  const bool exact = t.wire != t.type;
  switch (t.type) {
    case dtype::float32: fill(values<float>(count, rank, size, exact, seed)); break;
    case dtype::float64: fill(values<double>(count, rank, size, exact, seed)); break;
    case dtype::float16: fill(values<hvd::half>(count, rank, size, exact, seed)); break;
    case dtype::bfloat16: fill(values<hvd::bfloat16>(count, rank, size, exact, seed)); break;
    case dtype::int32: fill(values<std::int32_t>(count, rank, size, exact, seed)); break;
    case dtype::int64: fill(values<std::int64_t>(count, rank, size, exact, seed)); break;
    case dtype::uint8: fill(values<std::uint8_t>(count, rank, size, exact, seed)); break;
    default: require(false, "a type that the test does not know");
  }
  return bytes;
}

/// The memory of a list, on the host and on the GPU.
class lists {
 public:
  /// `in` and `out`: elements of each tensor on this rank.
  lists(NcclTransport& gpu, const std::vector<item>& items, const std::vector<std::size_t>& in,
        const std::vector<std::size_t>& out)
      : gpu_(gpu) {
    for (std::size_t t = 0; t != items.size(); ++t) {
      const std::size_t unit = size_of(items[t].type);
      std::vector<std::byte> given = bytes_of(items[t], in[t], gpu.rank(), gpu.size(), t);
      auto there = std::make_shared<gpu_array<std::byte>>(gpu, given);
      std::shared_ptr<gpu_array<std::byte>> there_out = there;
      fused f{nullptr, nullptr, in[t], items[t].type, items[t].wire};
      sides_.push_back({std::move(given), {}, there, there_out, items[t].in_place});
      side& s = sides_.back();
      if (!s.in_place) {
        s.out.assign(out[t] * unit, std::byte{0x77});
        s.there_out = std::make_shared<gpu_array<std::byte>>(gpu, s.out);
      }
      s.form = f;
    }
    for (side& s : sides_) {
      fused f = s.form;
      f.in = s.in.data();
      f.out = s.in_place ? s.in.data() : s.out.data();
      on_host.push_back(f);
      f.in = s.there->data();
      f.out = s.there_out->data();
      on_gpu.push_back(f);
    }
  }
  /// Both have the same bytes now.
  void compare(const std::string& what) {
    for (std::size_t t = 0; t != sides_.size(); ++t) {
      const side& s = sides_[t];
      const std::string which = what + ", tensor " + std::to_string(t) + " of " + std::string(hvd::name(s.form.type)) +
                                " as " + std::string(hvd::name(s.form.wire));
      require(s.there->get(gpu_) == s.in, which + (s.in_place ? ": another result" : ": the input was changed"));
      require(s.in_place || s.there_out->get(gpu_) == s.out, which + ": another result");
    }
  }
  std::vector<fused> on_host, on_gpu;

 private:
  struct side {
    std::vector<std::byte> in, out;
    std::shared_ptr<gpu_array<std::byte>> there, there_out;
    bool in_place;
    fused form{};
  };
  NcclTransport& gpu_;
  std::vector<side> sides_;
};

/// Short and long ones, of several types.
std::vector<item> mixed() {
  using enum dtype;
  return {{float32, 7},
          {float32, 0},
          {float32, 30'001},
          {int32, 1},
          {float64, 129, false},
          {float32, 1, false},
          {int64, 33},
          {float32, 262'144, false},
          {uint8, 5},
          {float64, 140'000},
          {float16, 65, false},
          {bfloat16, 1000},
          {float32, 4096},
          {int32, 7'000, false},
          {float16, 60'001}};
}
std::vector<item> converted() {
  using enum dtype;
  return {{float32, 7, true, float16},
          {float32, 33, false, bfloat16},
          {float64, 129, true, float32},
          {float32, 280'001, false, float16},
          {float32, 12},
          {float64, 15'000, true, float32},
          {float64, 0, true, float32},
          {int32, 40},
          {float32, 28'000, true, bfloat16}};
}
std::vector<std::size_t> counts_of(const std::vector<item>& items) {
  std::vector<std::size_t> counts;
  for (const item& t : items) counts.push_back(t.count);
  return counts;
}

void check_allreduce(NcclTransport& gpu, ShmTransport& comm, const std::vector<item>& items, const dynamic_op& op,
                     std::size_t threshold) {
  lists l(gpu, items, counts_of(items), counts_of(items));
  FusionBuffer<ShmTransport> host(comm, threshold);
  FusionBuffer<NcclTransport> there(gpu, threshold);
  host.allreduce(l.on_host, op);
  there.allreduce(l.on_gpu, op);
  l.compare(std::string(hvd::name(op.op)) + " with a threshold of " + std::to_string(threshold));
}

/// How many elements of a tensor each rank has.
std::vector<std::vector<std::size_t>> shares(const std::vector<item>& items, int size, bool even) {
  std::vector<std::vector<std::size_t>> all;
  for (const item& t : items) {
    auto& of = all.emplace_back(static_cast<std::size_t>(size), t.count / static_cast<std::size_t>(size));
    if (!even) of.back() += t.count % static_cast<std::size_t>(size), of.front() = of.front() / 2;
  }
  return all;
}
std::size_t sum_of(const std::vector<std::size_t>& counts) {
  std::size_t all = 0;
  for (const std::size_t n : counts) all += n;
  return all;
}

void check_blocks(NcclTransport& gpu, ShmTransport& comm, std::vector<item> items, bool even, std::size_t threshold) {
  for (item& t : items) t.in_place = false;
  const auto counts = shares(items, gpu.size(), even);
  std::vector<std::size_t> whole, own;
  for (const auto& of : counts) {
    whole.push_back(sum_of(of));
    own.push_back(of[static_cast<std::size_t>(gpu.rank())]);
  }
  FusionBuffer<ShmTransport> host(comm, threshold);
  FusionBuffer<NcclTransport> there(gpu, threshold);
  for (const dynamic_op op :
       {dynamic_op(hvd::sum), dynamic_op(hvd::average), dynamic_op(hvd::scaled(hvd::sum, 2.0, 0.5))}) {
    lists l(gpu, items, whole, own);
    host.reduce_scatter(l.on_host, counts, op);
    there.reduce_scatter(l.on_gpu, counts, op);
    l.compare("reduce_scatter");
  }
  for (item& t : items) t.wire = t.type;
  lists l(gpu, items, own, whole);
  host.allgather(l.on_host, counts);
  there.allgather(l.on_gpu, counts);
  l.compare("allgather");
}

void check_all(NcclTransport& gpu, ShmTransport& comm) {
  const auto check = [&](const dynamic_op& op, std::size_t threshold) {
    auto items = mixed();
    // Sums of 16-bit floats are rounded after each step by NCCL, and on the host at the end.
    if (gpu.size() > 2) std::erase_if(items, [](const item& t) { return size_of(t.type) == 2; });
    check_allreduce(gpu, comm, items, op, threshold);
    check_allreduce(gpu, comm, converted(), op, threshold);
  };
  check(hvd::sum, hvd::default_fusion_threshold);
  check(hvd::average, 5000);
  check(hvd::scaled(hvd::average, 0.5, 4.0), hvd::default_fusion_threshold);
  check(hvd::scaled(hvd::sum, 2.0), 5000);
  check(hvd::max, 0);
}

}  // namespace

TEST_CASE("fusion: the bits of the host") {
  for (const int size : {1, 2, 3}) on_gpus(size, {}, check_all);
}
TEST_CASE("fusion: in progress, and with NCCL 2.18") {
  on_gpus(2, in_progress, [](NcclTransport& gpu, ShmTransport& comm) {
    check_allreduce(gpu, comm, mixed(), hvd::average, 5000);
    check_allreduce(gpu, comm, converted(), hvd::scaled(hvd::sum, 2.0), hvd::default_fusion_threshold);
    check_blocks(gpu, comm, converted(), false, 5000);
  });
  on_gpus(2, old_library(), [](NcclTransport& gpu, ShmTransport& comm) {
    check_allreduce(gpu, comm, mixed(), hvd::average, 5000);
    check_blocks(gpu, comm, mixed(), false, 5000);
  });
}
TEST_CASE("fusion: blocks") {
  for (const int size : {2, 3}) {
    on_gpus(size, {}, [](NcclTransport& gpu, ShmTransport& comm) {
      auto items = mixed();
      if (gpu.size() > 2) std::erase_if(items, [](const item& t) { return size_of(t.type) == 2; });
      check_blocks(gpu, comm, items, true, hvd::default_fusion_threshold);
      check_blocks(gpu, comm, items, false, 0);
      check_blocks(gpu, comm, converted(), false, hvd::default_fusion_threshold);
    });
  }
}
TEST_CASE("fusion: every way to average") {
  for (const hvd::nccl_average how : {hvd::nccl_average::pre_mul, hvd::nccl_average::nccl_avg}) {
    on_hosts(2, {}, [how](ShmTransport& comm) {
      hvd::nccl_options options = on_gpu(comm.rank());
      options.average = how;
      NcclTransport gpu(comm, options);
      // Halves are exact.
      std::vector<item> items{{dtype::float32, 1000},
                              {dtype::float64, 1},
                              {dtype::float32, 300'000},
                              {dtype::int32, 77},
                              {dtype::float32, 50, false, dtype::float32}};
      check_allreduce(gpu, comm, items, hvd::average, hvd::default_fusion_threshold);
      check_allreduce(gpu, comm, items, hvd::scaled(hvd::average, 2.0, 0.5), 5000);
      check_blocks(gpu, comm, items, false, hvd::default_fusion_threshold);
    });
  }
}

TEST_CASE("fusion: lists by the free functions, and a buffer that is kept") {
  on_gpus(2, {}, [](NcclTransport& gpu, ShmTransport&) {
    const float mine = static_cast<float>(gpu.rank() + 1);
    const gpu_array<float> a(gpu, floats(100, mine)), b(gpu, floats(300'000, 2 * mine));
    const gpu_array<std::int32_t> c(gpu, std::vector<std::int32_t>(9, gpu.rank()));
    hvd::allreduce(gpu, hvd::tensors(a.span(), b.span(), c.span()), hvd::sum);
    same(a.get(gpu), floats(100, 3));
    same(b.get(gpu), floats(300'000, 6));
    same(c.get(gpu), std::vector<std::int32_t>(9, 1));
    a.put(gpu, floats(100, mine));
    c.put(gpu, std::vector<std::int32_t>(9, gpu.rank()));
    hvd::broadcast(gpu, hvd::tensors(a.span(), c.span()), 1);
    same(a.get(gpu), floats(100, 2));
    same(c.get(gpu), std::vector<std::int32_t>(9, 1));

    FusionBuffer<NcclTransport> kept(gpu, 1 << 20);
    require(kept.bytes() == 0, "a buffer before it is needed");
    std::size_t bytes = 0;
    for (int round = 0; round != 6; ++round) {
      const std::size_t n = 10U << (round % 3 * 4);
      const gpu_array<float> x(gpu, floats(n, mine)), y(gpu, floats(n + 1, mine));
      kept.allreduce(hvd::tensors(x.span(), y.span()));
      same(x.get(gpu), floats(n, 3));
      same(y.get(gpu), floats(n + 1, 3));
      require(kept.bytes() >= bytes, "the buffer has shrunk");
      bytes = kept.bytes();
    }
    kept.release();
    require(kept.bytes() == 0, "the buffer was not freed");
    kept.allreduce(hvd::tensors(a.span(), b.span()));
    auto bucket = kept.bucket<float>(1000);
    gpu.copy_to_device<float>(std::span<const float>(floats(1000, mine)), bucket.data());
    kept.allreduce(hvd::tensors(bucket));
    std::vector<float> got(1000);
    gpu.copy_to_host<float>(bucket.data(), std::span<float>(got));
    same(got, floats(1000, 3));
  });
}

TEST_CASE("fusion: a GPU that is full ends a call on all ranks, and the next one works") {
  for (environment variables : {environment{}, in_progress}) {
    variables["HVD_STANDIN_MEMORY"] = "4000000";
    on_gpus(3, variables, [](NcclTransport& gpu, ShmTransport&) {
      FusionBuffer<NcclTransport> fusion(gpu);
      const gpu_array<float> a(gpu, floats(200'000, 1)), b(gpu, floats(1000, 1));
      std::optional<gpu_array<char>> hog;
      if (gpu.rank() == 2) hog.emplace(gpu, 3'000'000);
      const hvd::error e =
          complaint(error_kind::no_memory, {"bytes left"}, [&] { fusion.allreduce(hvd::tensors(a.span(), b.span())); });
      require(e.rank() == 2, "another rank is blamed");
      fusion.allreduce(hvd::tensors(b.span(), gpu_array<float>(gpu, 0).span()));
      same(b.get(gpu), floats(1000, 3));
      hog.reset();
      fusion.allreduce(hvd::tensors(a.span(), b.span()));
      same(a.get(gpu), floats(200'000, 3));
      same(b.get(gpu), floats(1000, 9));
    });
  }
}

TEST_CASE("fusion: what is refused") {
  on_gpus(2, {}, [](NcclTransport& gpu, ShmTransport&) {
    FusionBuffer<NcclTransport> fusion(gpu);
    const gpu_array<float> a(gpu, floats(10, 1)), b(gpu, floats(10, 1));
    std::vector<float> host(10, 1);
    complaint(error_kind::invalid_argument, {"allreduce on rank", "is memory of the host"},
              [&] { fusion.allreduce(hvd::tensors(a.span(), host)); });
    complaint(error_kind::invalid_argument, {"broadcast on rank", "is memory of the host"},
              [&] { fusion.broadcast(hvd::tensors(a.span(), host), 0); });
    const gpu_array<std::int16_t> shorts(gpu, 4);
    complaint(error_kind::unsupported, {"allreduce of int16 by sum: NCCL has no 16-bit integers"},
              [&] { fusion.allreduce(hvd::tensors(a.span(), shorts.span())); });
    fusion.broadcast(hvd::tensors(a.span(), shorts.span()), 0);
    complaint(error_kind::unsupported, {"adasum on rank", "messages, which this transport does not support"},
              [&] { fusion.allreduce(hvd::tensors(a.span()), reduce_op::adasum); });
    fusion.allreduce(hvd::tensors(a.span(), b.span()));
    same(b.get(gpu), floats(10, 2));
  });
}

}  // namespace gpu_fusion_tests
