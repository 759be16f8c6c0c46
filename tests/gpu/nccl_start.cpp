// tests/gpu/nccl_start.cpp: how ranks are connected by NCCL, and what keeps them from it: the same sentence on all of
// them.
#include <hvd/hvd.hpp>

#include <gpu/ranks.hpp>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gpu_nccl_start_tests {

using namespace hvd::test;

namespace {

std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

/// Ranks that get no GPU, for a reason that all of them say. `rank_1` is the environment of that rank alone.
void refused(int ranks, environment variables, const environment& rank_1, hvd::nccl_options options, error_kind kind,
             std::vector<std::string> texts, int culprit = -1) {
  CAPTURE(texts[0]);
  const std::string job = new_job();
  variables.emplace("HVD_STANDIN_GPUS", std::to_string(ranks));
  in_processes(ranks, variables, [&](int rank) {
    if (rank == 1) set_environment(rank_1);
    ShmTransport comm(job, rank, ranks, patient());
    const int wanted = options.device;
    options.timeout = options.start_timeout = std::chrono::seconds(40);
    options.device = wanted == -1 ? rank : wanted;
    const hvd::error e = complaint(kind, {}, [&] { NcclTransport gpu(comm, options); });
    for (const std::string& text : texts) says(e, text);
    require(culprit < 0 || e.rank() == culprit, "another rank is blamed");
    // The ranks go on without a GPU.
    std::vector<int> one(1, 1);
    hvd::allreduce(comm, one);
    require(one[0] == ranks, "the transport on the host is of no use any more");
  });
}

void works(NcclTransport& gpu) {
  const gpu_array<float> a(gpu, floats(10, static_cast<float>(gpu.rank())));
  hvd::allreduce(gpu, a.span());
  same(a.get(gpu), floats(10, static_cast<float>(gpu.size() * (gpu.size() - 1) / 2)));
}

}  // namespace

TEST_CASE("start: no driver, no GPU") {
  refused(2, {{"HVD_CUDA_LIBRARY", "/no/such/driver"}}, {}, {}, error_kind::unsupported,
          {"hvd: NcclTransport: rank 0 on ", ": no CUDA driver was found; looked for /no/such/driver"}, 0);
  refused(2, {{"HVD_CUDA_LIBRARY", "libm.so.6"}}, {}, {}, error_kind::unsupported,
          {"libm.so.6 has no cuInit: it is not a CUDA driver"});
  refused(2, {{"HVD_STANDIN_GPUS", "0"}}, {}, {}, error_kind::unsupported,
          {"the CUDA driver (", ") shows no GPU to this process"});
  for (const char* const visible : {"", "none", "7"}) {
    refused(2, {{"CUDA_VISIBLE_DEVICES", visible}}, {}, {}, error_kind::unsupported,
            {"shows no GPU to this process; CUDA_VISIBLE_DEVICES is \"" + std::string(visible) + "\""});
  }
  refused(3, {}, {{"HVD_STANDIN_GPUS", "0"}}, {}, error_kind::unsupported,
          {"hvd: NcclTransport: rank 1 on ", "shows no GPU to this process"}, 1);
}

TEST_CASE("start: a GPU that is not there") {
  hvd::nccl_options options;
  options.device = 9;
  refused(2, {}, {}, options, error_kind::invalid_argument,
          {"there is no GPU 9; this process sees 2, numbered from 0 (CUDA_VISIBLE_DEVICES limits what it sees)"});
  refused(2, {}, {{"CUDA_VISIBLE_DEVICES", "0"}}, {}, error_kind::invalid_argument,
          {"NcclTransport: rank 1 on ", "there is no GPU 1; this process sees 1"}, 1);
}

TEST_CASE("start: no NCCL, or not all of it") {
  refused(2, {{"HVD_NCCL_LIBRARY", "/no/such/nccl"}}, {}, {}, error_kind::unsupported,
          {"NCCL was not found; looked for /no/such/nccl"}, 0);
  refused(3, {}, {{"HVD_NCCL_LIBRARY", "/no/such/nccl"}}, {}, error_kind::unsupported,
          {"NcclTransport: rank 1 on ", "NCCL was not found"}, 1);
  refused(2, {{"HVD_NCCL_LIBRARY", text_of("HVD_STANDIN_NCCL_BROKEN_LIBRARY")}}, {}, {}, error_kind::unsupported,
          {" has no ncclRedOpDestroy: it is not NCCL, or older than 2.18.6; install a newer one"});
}

TEST_CASE("start: NCCL 2.18.6 is the oldest, and has all but registered memory") {
  environment older = old_library();
  older["HVD_STANDIN_NCCL_VERSION"] = "21805";
  refused(2, older, {}, {}, error_kind::unsupported,
          {"NcclTransport: rank 0 on ", "NCCL 2.18.5 (",
           ") is older than 2.18.6; install a newer one, or name it in "
           "HVD_NCCL_LIBRARY"},
          0);
  on_gpus(3, old_library(), [](NcclTransport& gpu, ShmTransport&) {
    require(NcclTransport::library() == "2.18.6", NcclTransport::library());
    works(gpu);
    auto memory = gpu.alloc_shared<float>(100);
    hvd::allreduce(gpu, memory);
    NcclTransport part = gpu.split(gpu.rank() == 0 ? -3 : 5, 0);
    works(part);
  });
}

TEST_CASE("start: several ranks on one GPU") {
  hvd::nccl_options options;
  options.device = 0;
  refused(3, {}, {}, options, error_kind::invalid_argument,
          {"NcclTransport: ranks 0, 1 and 2 on host ", " have one GPU, GPU-5a7d1000-0000-4000-8000-000000000000 (",
           "; start fewer ranks on this host, pin each to a GPU of its own (hvd::pin, hvdrun --pin), pin with shared "
           "(NCCL 2.30 or newer), or use a transport on the host"});
  options.ranks_per_device = 2;
  refused(3, {{"HVD_STANDIN_NCCL_VERSION", "23000"}}, {}, options, error_kind::invalid_argument,
          {"ranks 0, 1 and 2 on ", "which shared:2 allows for 2 ranks only"});
  refused(2, {}, {}, options, error_kind::unsupported,
          {"several ranks on one GPU need NCCL 2.30 or newer, and this is 2.28.9 ("});
  for (const environment& variables :
       {environment{{"HVD_STANDIN_NCCL_VERSION", "23000"}}, environment{{"HVD_STANDIN_NCCL_VERSION", "23007"}}}) {
    on_hosts(4, variables, [](ShmTransport& comm) {
      hvd::nccl_options shared = on_gpu(comm.rank() / 2);
      shared.ranks_per_device = 2;
      NcclTransport gpu(comm, shared);
      works(gpu);
    });
  }
  const auto mig = [](const char* last) {
    return environment{{"HVD_STANDIN_MIG", "1"},
                       {"CUDA_VISIBLE_DEVICES", std::string("MIG-5a7d2000-0000-4000-8000-00000000000") + last}};
  };
  options.ranks_per_device = 1;
  refused(2, mig("0"), mig("1"), options, error_kind::unsupported,
          {"NcclTransport: ranks 0 and 1 on host ", " have two instances (MIG) of one GPU, at 0000:",
           "that needs NCCL 2.30 or newer, and this is 2.28.9; use instances of different GPUs"},
          1);
  // Of old, each rank poses as a host.
  on_hosts(2, {}, [](ShmTransport& comm) {
    ::setenv("NCCL_HOSTID", comm.rank() == 0 ? "a" : "b", 1);
    hvd::nccl_options shared = on_gpu(0);
    shared.ranks_per_device = 2;
    NcclTransport gpu(comm, shared);
    works(gpu);
  });
}

TEST_CASE("start: ranks that differ") {
  refused(3, {}, {{"HVD_STANDIN_NCCL_VERSION", "22907"}}, {}, error_kind::mismatch,
          {"NcclTransport: rank 0 on ", " and NCCL 2.28.9, rank 1 on ", " and NCCL 2.29.7; give all ranks the same"},
          1);
}

TEST_CASE("start: one rank fails inside of NCCL, and all say why") {
  for (const environment& variables : {environment{}, in_progress}) {
    on_hosts(3, variables, [](ShmTransport& comm) {
      hvd::nccl_options options = on_gpu(comm.rank());
      options.start_timeout = std::chrono::milliseconds(300);
      if (comm.rank() == 1) standin_gpu::get().fail_next("ncclCommInitRankConfig", 2);
      const hvd::error e =
          complaint(error_kind::system, {"NcclTransport: rank 1 on ", "connecting on rank 1 of 3: NCCL 2.28."},
                    [&] { NcclTransport gpu(comm, options); });
      require(e.rank() == 1, "another rank is blamed");
      if (comm.rank() == 2) standin_gpu::get().fail_next("cuStreamCreateWithPriority", 2);
      complaint(error_kind::no_memory, {"NcclTransport: rank 2 on ", "cuStreamCreateWithPriority failed"},
                [&] { NcclTransport gpu(comm, on_gpu(comm.rank())); });
      if (comm.rank() == 0) standin_gpu::get().fail_next("ncclGetUniqueId", 3);
      complaint(error_kind::system, {"NcclTransport: rank 0 on ", "ncclGetUniqueId failed: internal error"},
                [&] { NcclTransport gpu(comm, on_gpu(comm.rank())); });
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      works(gpu);
    });
  }
}

TEST_CASE("start: what a transport tells of itself") {
  on_gpus(2, {}, [](NcclTransport& gpu, ShmTransport& comm) {
    require(gpu.rank() == comm.rank() && gpu.size() == 2 && gpu.device() == comm.rank(), "another place");
    require(gpu.device_uuid() == "GPU-5a7d1000-0000-4000-8000-00000000000" + std::to_string(comm.rank()),
            gpu.device_uuid());
    require(NcclTransport::library() == "2.28.9", NcclTransport::library());
  });
  // The device of the current context; none is current: the first.
  on_hosts(2, {}, [](ShmTransport& comm) {
    const auto device = std::make_shared<hvd::detail::cuda_device>(comm.rank());
    const hvd::detail::cuda_device::scope current(*device);
    NcclTransport gpu(comm);
    require(gpu.device() == comm.rank(), "another device than the current one");
    works(gpu);
  });
}

TEST_CASE("start: often, and one group beside another") {
  on_hosts(2, {}, [](ShmTransport& comm) {
    for (int i = 0; i != 5; ++i) {
      NcclTransport gpu(comm, on_gpu(comm.rank()));
      NcclTransport beside(comm, on_gpu(comm.rank()));
      works(gpu);
      works(beside);
      works(gpu);
    }
  });
}

}  // namespace gpu_nccl_start_tests
