// tests/gpu/nccl_calls.cpp: calls of NcclTransport on streams of the program's own, messages, memory, and what is
// refused.
#include <hvd/hvd.hpp>

#include <gpu/ranks.hpp>

#include <complex>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpu_nccl_calls_tests {

using namespace hvd::test;
using hvd::on_stream;

namespace {

float number(NcclTransport& gpu) { return static_cast<float>(gpu.rank() + 1); }
/// 1 + 2 + ... over all ranks.
float total(NcclTransport& gpu) { return static_cast<float>(gpu.size() * (gpu.size() + 1) / 2); }

/// A collective between works of the program's own, with nothing but the stream's order.
void between_works(NcclTransport& gpu) {
  const own_stream stream(gpu);
  const on_stream how{stream.get()};
  const std::size_t n = 33, p = static_cast<std::size_t>(gpu.size());
  const float mine = number(gpu), sum = total(gpu), count = static_cast<float>(gpu.size());
  const int last = gpu.size() - 1;
  const bool is_last = gpu.rank() == last;
  const gpu_array<float> a(gpu, n), b(gpu, n), wide(gpu, n * p), wide_too(gpu, n * p);
  std::vector<float> got, got_too;
  const auto check = [&](const gpu_array<float>& at, const std::vector<float>& want) {
    stream.read(at, got);
    stream.fill(at, -1.0F);  // what follows must not be seen by what came before
    stream.synchronise();
    same(got, want);
  };

  stream.fill(a, mine);
  hvd::allreduce(gpu, a.span(), hvd::sum, how);
  check(a, floats(n, sum));

  stream.fill(a, mine);
  hvd::allreduce(gpu, a.input(), b.span(), hvd::scaled(hvd::average, 2.0, 3.0), how);
  stream.fill(a, 99.0F);
  check(b, floats(n, sum * 6 / count));

  stream.fill(a, mine);
  hvd::reduce(gpu, a.input(), b.span(), hvd::scaled(hvd::max, 0.5), last, how);
  stream.fill(a, 99.0F);
  if (is_last) check(b, floats(n, count / 2));

  stream.fill(a, mine);
  hvd::broadcast(gpu, a.span(), last, how);
  check(a, floats(n, count));

  std::vector<float> ranks;
  for (std::size_t r = 0; r != p; ++r) ranks.insert(ranks.end(), n, static_cast<float>(r + 1));
  stream.fill(a, mine);
  hvd::allgather(gpu, a.input(), wide.span(), how);
  stream.fill(a, 99.0F);
  check(wide, ranks);

  stream.fill(wide, mine);
  hvd::reduce_scatter(gpu, wide.input(), a.span(), hvd::average, how);
  stream.fill(wide, 99.0F);
  check(a, floats(n, sum / count));

  stream.fill(wide, mine);
  hvd::alltoall(gpu, wide.input(), wide_too.span(), how);
  check(wide_too, ranks);
  stream.fill(wide, mine);
  hvd::alltoall(gpu, wide.span(), how);
  check(wide, ranks);

  stream.fill(a, mine);
  hvd::gather(gpu, a.input(), wide.span(), last, how);
  stream.fill(a, 99.0F);
  if (is_last) check(wide, ranks);

  stream.fill(wide, mine);
  hvd::scatter(gpu, wide.input(), a.span(), last, how);
  stream.fill(wide, 99.0F);
  check(a, floats(n, count));

  // Several one after another, and their results together.
  stream.fill(a, mine);
  stream.fill(b, mine);
  for (int i = 0; i != 3; ++i) hvd::allreduce(gpu, a.span(), hvd::scaled(hvd::sum, 0.5), how);
  hvd::alltoall(gpu, wide.span(), how);
  hvd::allreduce(gpu, b.span(), hvd::max, how);
  stream.read(a, got);
  stream.read(b, got_too);
  stream.synchronise();
  same(got, floats(n, sum * count * count / 8));
  same(got_too, floats(n, count));
}

/// The mistakes that a program can make with on_stream are found, so that their absence says something.
void mistakes(NcclTransport& gpu) {
  const own_stream stream(gpu), other(gpu);
  const gpu_array<float> a(gpu, floats(50, number(gpu)));
  std::vector<float> got;
  hvd::allreduce(gpu, a.span(), hvd::sum, on_stream{stream.get()});
  other.read(a, got);  // no event
  found_violation();
  stream.synchronise();
  other.synchronise();
  other.fill(a, 1.0F);
  hvd::allreduce(gpu, a.span(), hvd::sum, on_stream{stream.get()});  // no event
  found_violation();
  stream.synchronise();
  other.synchronise();
  // With one it is right.
  other.fill(a, number(gpu));
  stream.wait_for(other.event());
  hvd::allreduce(gpu, a.span(), hvd::sum, on_stream{stream.get()});
  other.wait_for(stream.event());
  other.read(a, got);
  other.synchronise();
  same(got, floats(50, total(gpu)));
  no_violations();
}

void messages(NcclTransport& gpu) {
  const int p = gpu.size(), next = (gpu.rank() + 1) % p, before = (gpu.rank() + p - 1) % p;
  for (const std::size_t n : {0U, 1U, 7U, 1000U}) {
    const gpu_array<std::uint8_t> out(gpu, std::vector<std::uint8_t>(n, static_cast<std::uint8_t>(gpu.rank() + 1)));
    const gpu_array<std::uint8_t> in(gpu, n);
    for (const bool sends : {gpu.rank() % 2 == 0, gpu.rank() % 2 != 0}) {
      if (sends && (p % 2 == 0 || gpu.rank() != p - 1)) hvd::send(gpu, out.input(), next);
      if (!sends && (p % 2 == 0 || gpu.rank() != 0)) hvd::recv(gpu, in.span(), before);
    }
    if (p % 2 == 0) same(in.get(gpu), std::vector<std::uint8_t>(n, static_cast<std::uint8_t>(before + 1)));
    gpu.barrier();
  }
}

void works(NcclTransport& gpu) {
  const gpu_array<float> a(gpu, floats(10, number(gpu)));
  hvd::allreduce(gpu, a.span());
  same(a.get(gpu), floats(10, total(gpu)));
}

}  // namespace

TEST_CASE("NCCL: collectives on a stream are ordered with the program's own work") {
  for (const int size : {1, 2, 4}) on_gpus(size, {}, [](NcclTransport& gpu, auto&) { between_works(gpu); });
  on_gpus(3, in_progress, [](NcclTransport& gpu, auto&) { between_works(gpu); });
}
TEST_CASE("NCCL: a missing event is found") {
  on_gpus(2, {}, [](NcclTransport& gpu, auto&) { mistakes(gpu); });
}
TEST_CASE("NCCL: messages") {
  for (const int size : {2, 4}) on_gpus(size, {}, [](NcclTransport& gpu, auto&) { messages(gpu); });
}

TEST_CASE("NCCL: memory for all ranks") {
  for (const environment& variables : {environment{}, in_progress, environment{{"HVD_STANDIN_NCCL_WINDOWS", "0"}}}) {
    on_gpus(2, variables, [](NcclTransport& gpu, ShmTransport&) {
      hvd::shared_array<double> none = gpu.alloc_shared<double>(0);
      require(none.size() == 0, "elements of nothing");
      std::optional<hvd::shared_array<float>> a(gpu.alloc_shared<float>(1000)), b(gpu.alloc_shared<float>(3));
      std::vector<float> zeros(1000, 1.0F);
      gpu.copy_to_host<float>(a->data(), std::span<float>(zeros));
      same(zeros, floats(1000, 0.0F));
      gpu.copy_to_device<float>(std::span<const float>(floats(1000, number(gpu))), a->data());
      hvd::allreduce(gpu, *a);
      gpu.copy_to_host<float>(a->data(), std::span<float>(zeros));
      same(zeros, floats(1000, total(gpu)));
      a.reset();  // in another order than they were made
      NcclTransport part = gpu.split(0, 0);
      auto in_part = part.alloc_shared<std::int32_t>(7);
      hvd::allreduce(part, in_part);
      b.reset();
      complaint(error_kind::no_memory, {"alloc_shared on rank", "more than can be addressed"},
                [&] { static_cast<void>(gpu.alloc_shared<double>(std::size_t{1} << 61)); });
      works(gpu);
    });
  }
}

TEST_CASE("NCCL: one rank's GPU is full, and all ranks are told") {
  for (environment variables : {environment{}, in_progress}) {
    variables["HVD_STANDIN_MEMORY"] = "1000000";
    on_gpus(3, variables, [](NcclTransport& gpu, ShmTransport&) {
      std::optional<gpu_array<char>> hog;
      if (gpu.rank() == 1) hog.emplace(gpu, 900'000);
      const hvd::error e =
          complaint(error_kind::no_memory, {"bytes left"}, [&] { static_cast<void>(gpu.alloc_shared<char>(500'000)); });
      require(e.rank() == 1, "another rank is blamed");
      if (gpu.rank() == 1) says(e, "lower the fusion threshold");
      works(gpu);
      hog.reset();
      static_cast<void>(gpu.alloc_shared<char>(500'000));
    });
  }
}

TEST_CASE("NCCL: memory that is not the GPU's is refused on every rank, and the group goes on") {
  on_hosts(2, {{"HVD_STANDIN_GPUS", "4"}}, [](ShmTransport& comm) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    const std::string rank = std::to_string(gpu.rank());
    std::vector<float> host(10);
    const std::string remedy = " is memory of the host, but memory of GPU " + rank +
                               " is needed: copy it there, or use a transport on the host";
    const gpu_array<float> mine(gpu, floats(10, number(gpu)));
    complaint(error_kind::invalid_argument, {"hvd: allreduce on rank " + rank + " of 2: the input at 0x", remedy},
              [&] { hvd::allreduce(gpu, host); });
    complaint(error_kind::invalid_argument, {"hvd: allreduce on rank " + rank + " of 2: the output at 0x", remedy},
              [&] { hvd::allreduce(gpu, mine.input(), host); });
    complaint(error_kind::invalid_argument, {"broadcast on rank " + rank, remedy},
              [&] { hvd::broadcast(gpu, host, 0, on_stream{}); });
    complaint(error_kind::invalid_argument, {"send on rank " + rank, remedy}, [&] { hvd::send(gpu, host, 0); });
    complaint(error_kind::invalid_argument, {"copy_to_device on rank " + rank, remedy},
              [&] { gpu.copy_to_device<float>(std::span<const float>(host), host.data()); });
    complaint(error_kind::invalid_argument, {"copy_to_host on rank " + rank, remedy},
              [&] { gpu.copy_to_host<float>(host.data(), std::span<float>(host)); });
    {
      const auto device = std::make_shared<hvd::detail::cuda_device>(gpu.rank() + 2);
      const auto theirs = hvd::detail::cuda_memory(device, 40);
      complaint(error_kind::invalid_argument,
                {"allreduce on rank " + rank + " of 2: the input at 0x",
                 " is memory of GPU " + std::to_string(gpu.rank() + 2) + "; this rank's is GPU " + rank},
                [&] { hvd::allreduce(gpu, reinterpret_cast<float*>(theirs.get()), 10); });
    }
    const gpu_array<std::int16_t> shorts(gpu, 4);
    complaint(
        error_kind::unsupported,
        {"allreduce of int16 by sum: NCCL has no 16-bit integers; convert to int32, or use a transport on the host"},
        [&] { hvd::allreduce(gpu, shorts.span()); });
    hvd::broadcast(gpu, shorts.span(), 0);  // it can move them
    const gpu_array<std::complex<float>> complex(gpu, 4);
    complaint(error_kind::unsupported, {"allreduce of complex64 by product: NCCL can only add complex numbers"},
              [&] { hvd::allreduce(gpu, complex.span(), hvd::product); });
    complaint(error_kind::unsupported, {"NCCL supports neither your own types nor your own operations"},
              [&] { hvd::allreduce(gpu, mine.span(), [](float x, float y) { return x > y ? x : y; }); });
    struct pair {
      float x, y;
    };
    const gpu_array<pair> pairs(gpu, 3);
    const auto first = [](pair x, pair) { return x; };
    complaint(error_kind::unsupported, {"NCCL supports neither your own types nor your own operations"},
              [&] { hvd::allreduce(gpu, pairs.span(), first); });
    hvd::broadcast(gpu, pairs.span(), 0);
    works(gpu);
  });
}

TEST_CASE("NCCL: the stream of the calling thread is refused") {
  on_gpus(2, {}, [](NcclTransport& gpu, auto&) {
    const gpu_array<float> a(gpu, floats(10, number(gpu)));
    void* const per_thread = reinterpret_cast<void*>(hvd::detail::cu_stream_per_thread);
    complaint(error_kind::invalid_argument, {"allreduce on rank", "of 2: the stream is cudaStreamPerThread"},
              [&] { hvd::allreduce(gpu, a.span(), hvd::sum, on_stream{per_thread}); });
    complaint(error_kind::invalid_argument, {"alltoall on rank", "of 2: the stream is cudaStreamPerThread"},
              [&] { hvd::alltoall(gpu, a.span(), on_stream{per_thread}); });
    works(gpu);
  });
}
TEST_CASE("NCCL: a stream of another GPU is refused") {
  on_hosts(2, {{"HVD_STANDIN_GPUS", "4"}}, [](ShmTransport& comm) {
    NcclTransport gpu(comm, on_gpu(comm.rank()));
    const own_stream theirs(gpu.device() + 2);
    const gpu_array<float> mine(gpu, floats(10, number(gpu)));
    complaint(error_kind::invalid_argument, {"allreduce on rank", "of 2: NCCL 2.28.9 says invalid argument"},
              [&] { hvd::allreduce(gpu, mine.span(), hvd::sum, on_stream{theirs.get()}); });
    works(gpu);
  });
}

TEST_CASE("NCCL: what is made of a transport may outlive it") {
  on_hosts(2, {}, [](ShmTransport& comm) {
    std::optional<NcclTransport> gpu(std::in_place, comm, on_gpu(comm.rank()));
    hvd::shared_array<float> kept = gpu->alloc_shared<float>(100);
    std::optional<NcclTransport> part(gpu->split(0, 0));
    hvd::shared_array<float> of_part = part->alloc_shared<float>(10);
    const gpu_array<float> plain(*gpu, 10);
    gpu.reset();
    works(*part);
    hvd::allreduce(*part, kept);
    part.reset();
    std::optional<NcclTransport> again(std::in_place, comm, on_gpu(comm.rank()));
    hvd::allreduce(*again, kept);
    works(*again);
    NcclTransport moved = std::move(*again);
    again.reset();
    works(moved);
  });
}

TEST_CASE("NCCL: work that is on a stream is done although the transport has ended") {
  on_hosts(2, {}, [](ShmTransport& comm) {
    std::optional<NcclTransport> gpu(std::in_place, comm, on_gpu(comm.rank()));
    const own_stream stream(*gpu);
    const gpu_array<float> a(*gpu, 20);
    std::vector<float> got;
    const float want = total(*gpu);
    stream.fill(a, number(*gpu));
    hvd::allreduce(*gpu, a.span(), hvd::scaled(hvd::sum, 1.0, 2.0), on_stream{stream.get()});
    stream.read(a, got);
    gpu.reset();
    stream.synchronise();
    same(got, floats(20, 2 * want));
  });
}

TEST_CASE("NCCL: a forked child is told that CUDA does not work there") {
  on_gpus(2, {}, [](NcclTransport& gpu, ShmTransport& comm) {
    works(gpu);  // from now on it has a thread
    children child(1);
    child.start(0, [&](report&) {
      const std::string sentence = "this process was forked after CUDA was initialised";
      complaint(error_kind::invalid_argument, {sentence}, [&] { gpu.barrier(); });
      complaint(error_kind::invalid_argument, {sentence}, [&] { static_cast<void>(gpu.alloc_shared<float>(1)); });
      complaint(error_kind::invalid_argument, {sentence}, [&] { hvd::detail::cuda_device device(0); });
      const NcclTransport ends = std::move(gpu);  // in which nothing may hang
    });
    require(child.wait(20.0) && child.status(0) == 0, child[0].text());
    comm.barrier();
    works(gpu);
  });
}

TEST_CASE("NCCL: nothing waits for the GPU in collectives on streams") {
  on_gpus(2, {}, [](NcclTransport& gpu, ShmTransport&) {
    const own_stream stream(gpu);
    const gpu_array<float> a(gpu, floats(100, 0.0F));
    const standin_gpu& standin = standin_gpu::get();
    std::uint64_t before = 0;
    for (int i = 0; i != 20; ++i) {
      if (i == 3) before = standin.host_synchronisations();
      hvd::allreduce(gpu, a.span(), hvd::scaled(hvd::average, 1.0, 2.0), on_stream{stream.get()});
    }
    require(standin.host_synchronisations() == before, "a wait for the device");
    stream.synchronise();
  });
}

}  // namespace gpu_nccl_calls_tests
