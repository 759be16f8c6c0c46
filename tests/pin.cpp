// tests/pin.cpp: policies on recorded topologies, devices that ranks compare, and the CPUs of this process.
#include <hvd/pin.hpp>

#include <hvd/launch.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

namespace pin_tests {
namespace {

using cpus = std::vector<int>;
using hvd::cpu_binding;
using hvd::local_place;
using hvd::placement;
using hvd::topology;
namespace pinning = hvd::pinning;

std::string uuid(int n) { return "GPU-8932f93" + std::to_string(n) + "-d72c-4106-c12f-20bd9faed9f6"; }
std::string address(int n) { return "0000:" + std::to_string(10 + n) + ":00.0"; }

cpus range(int first, int count) {
  cpus all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), first);
  return all;
}

// A host of `nodes` NUMA nodes with four cores of one CPU each, and GPUs on the nodes given (-1: unknown). CUDA numbers
// them as they are listed; on the PCI bus they are the other way round if `reversed`.
topology make_host(int nodes, const std::vector<int>& gpu_nodes, bool reversed = false) {
  topology host;
  host.cpu_ids = range(0, 4 * nodes);
  host.cpus = 4 * nodes;
  for (const int cpu : host.cpu_ids) host.cores.push_back({cpu});
  for (int n = 0; n < nodes; ++n) host.numa_nodes.push_back({n, range(4 * n, 4)});
  const int count = static_cast<int>(gpu_nodes.size());
  for (int i = 0; i < count; ++i) {
    const int node = gpu_nodes[static_cast<std::size_t>(i)];
    host.gpus.push_back({.ordinal = i,
                         .uuid = uuid(i),
                         .pci = address(reversed ? count - 1 - i : i),
                         .name = "NVIDIA H200",
                         .numa_node = node,
                         .cpus = node < 0 ? cpus{} : range(4 * node, 4),
                         .memory = std::size_t{1} << 30});
  }
  if (count == 0) host.no_gpus = "no CUDA driver was found";
  return host;
}

// A host whose process may run on these CPUs alone.
topology masked(topology host, const cpus& allowed) {
  host.cpu_ids = hvd::detail::common(host.cpu_ids, allowed);
  std::vector<cpus> cores;
  for (const cpus& core : host.cores)
    if (cpus both = hvd::detail::common(core, allowed); !both.empty()) cores.push_back(both);
  host.cores = cores;
  for (auto& node : host.numa_nodes) node.cpus = hvd::detail::common(node.cpus, allowed);
  std::erase_if(host.numa_nodes, [](const auto& node) { return node.cpus.empty(); });
  return host;
}

local_place at(int local_rank, int local_size) { return {local_rank, local_rank, local_size}; }

// The ordinals that a policy gives all ranks of a host.
template <class Policy>
std::vector<int> ordinals(const topology& host, const Policy& policy, int ranks) {
  std::vector<int> all;
  for (int r = 0; r < ranks; ++r) all.push_back(policy(host, at(r, ranks)).ordinal);
  return all;
}

// The CPUs that a policy gives all ranks of a host.
std::vector<cpus> bound(const topology& host, std::string_view policy, int ranks) {
  std::vector<cpus> all;
  for (int r = 0; r < ranks; ++r) all.push_back(placement_of(host, hvd::parse_pin(policy), at(r, ranks)).cpus);
  return all;
}

template <class F>
std::string complaint(F&& f) {
  try {
    f();
  } catch (const hvd::error& e) {
    return e.what();
  }
  return "none";
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

const std::vector<int> eight_gpus{0, 0, 0, 0, 1, 1, 1, 1};

}  // namespace

TEST_CASE("pin: by local rank, as CUDA numbers them") {
  for (int gpus = 1; gpus <= 8; ++gpus) {
    const topology host = make_host(2, std::vector<int>(static_cast<std::size_t>(gpus), 0));
    for (int r = 0; r < gpus; ++r) {
      const placement p = pinning::by_local_rank{}(host, at(r, gpus));
      CHECK(p.ordinal == r);
      CHECK(p.device == hvd::device_id{uuid(r), address(r)});
      CHECK(p.max_ranks == 1);
    }
  }
  CHECK(pinning::by_local_rank{}(make_host(1, {0, 0}), at(1, 2)).reason == "local rank 1");
}

TEST_CASE("pin: more ranks than GPUs is an error that names policy, rank, GPUs and remedies") {
  topology host = make_host(1, {0, 0});
  host.visible_devices = "3,5";
  CHECK(
      complaint([&] { pinning::by_local_rank{}(host, {.rank = 6, .local_rank = 2, .local_size = 4}); }) ==
      "hvd: pin by_local_rank: rank 6 (local rank 2 of 4) has no GPU left; 2 GPUs are visible to it: 0 is " + uuid(0) +
          " (0000:10:00.0), 1 is " + uuid(1) +
          " (0000:11:00.0); CUDA_VISIBLE_DEVICES is \"3,5\"; start at most 2 ranks on this host, pin with shared (NCCL "
          "2.30 or newer), or use a transport on the host");
  for (const char* policy : {"compact", "scatter"})
    CHECK(has(complaint([&] { placement_of(host, hvd::parse_pin(policy), at(2, 3)); }),
              "rank 2 (local rank 2 of 3) has no GPU left"));
}

TEST_CASE("pin: a rank that sees one GPU takes it, whatever its local rank") {
  const topology host = make_host(1, {0});
  CHECK(ordinals(host, pinning::by_local_rank{}, 4) == std::vector<int>{0, 0, 0, 0});
  CHECK(ordinals(host, pinning::scatter{}, 2) == std::vector<int>{0, 0});
  CHECK(pinning::by_local_rank{}(host, at(3, 4)).reason == "the only visible GPU");
}

TEST_CASE("pin: a host without GPUs is no error until a device is named") {
  const topology host = make_host(2, {});
  for (const char* policy :
       {"by_local_rank", "round_robin", "compact", "scatter", "numa_near", "current", "from_scheduler"}) {
    const placement p = placement_of(host, hvd::parse_pin(policy), at(1, 2));
    CHECK(!p.device);
    CHECK(p.ordinal == -1);
    CHECK(p.reason == "no CUDA driver was found");
  }
  CHECK(complaint([&] { placement_of(host, hvd::parse_pin("list:0,1"), at(1, 2)); }) ==
        "hvd: pin list:0,1: rank 1 (local rank 1 of 2) does not see \"1\": no GPU is visible to it (no CUDA driver was "
        "found); name a visible one by ordinal, UUID or PCI address");
  CHECK(bound(host, "cpus=exclusive", 2) == std::vector<cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("pin: round robin, compact and scatter") {
  CHECK(ordinals(make_host(1, {0, 0}), pinning::round_robin{}, 5) == std::vector<int>{0, 1, 0, 1, 0});
  // CUDA's order goes to and fro between the nodes.
  const topology mixed = make_host(2, {1, 0, 1, 0});
  CHECK(ordinals(mixed, pinning::compact{}, 4) == std::vector<int>{1, 3, 0, 2});
  CHECK(ordinals(mixed, pinning::scatter{}, 4) == std::vector<int>{1, 0, 3, 2});
  // On a node the order is that of the bus; GPUs of unknown node come last.
  const topology backwards = make_host(4, {0, 2, 0, -1, 3}, true);
  CHECK(ordinals(backwards, pinning::compact{}, 5) == std::vector<int>{2, 0, 1, 4, 3});
  CHECK(ordinals(backwards, pinning::scatter{}, 5) == std::vector<int>{2, 1, 4, 3, 0});
  const topology unknown = make_host(1, {-1, -1, -1});
  CHECK(ordinals(unknown, pinning::scatter{}, 3) == std::vector<int>{0, 1, 2});
}

TEST_CASE("pin: the GPU nearest to the CPUs of the rank") {
  const topology host = make_host(2, eight_gpus);
  const topology second = masked(host, {4, 5});
  CHECK(ordinals(second, pinning::numa_near{}, 4) == std::vector<int>{4, 5, 6, 7});
  CHECK(pinning::numa_near{}(second, at(1, 4)).reason == "near to 2 of its 2 CPUs, on NUMA node 1");
  // More CPUs on one node than on the other; and as many, where the local rank decides alone.
  CHECK(pinning::numa_near{}(masked(host, {0, 4, 5}), at(0, 1)).ordinal == 4);
  CHECK(ordinals(host, pinning::numa_near{}, 8) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7});
  // Unknown nodes, and CPUs near to none.
  CHECK(pinning::numa_near{}(make_host(1, {-1, -1}), at(1, 2)).ordinal == 1);
  CHECK(pinning::numa_near{}(make_host(1, {-1, -1}), at(1, 2)).reason ==
        "by local rank: no GPU is known to be near to its CPUs");
  CHECK(pinning::numa_near{}(masked(make_host(3, {0, -1}), {8}), at(1, 2)).ordinal == 1);
}

TEST_CASE("pin: a list of ordinals, UUIDs, their beginnings and PCI addresses") {
  const topology host = make_host(2, {0, 0, 1, 1});
  const auto first = [&](const std::string& device) { return pinning::list{{device}}(host, at(0, 1)).ordinal; };
  CHECK(first("2") == 2);
  CHECK(first(uuid(3)) == 3);
  CHECK(first("GPU-8932f931") == 1);
  CHECK(first("gpu-8932F931") == 1);
  CHECK(first("0000:12:00.0") == 2);
  CHECK(first("00000000:12:00.0") == 2);  // as NVML writes it
  CHECK(first("12:00.0") == 2);
  CHECK(ordinals(host, pinning::list{{"3", "GPU-8932f930"}}, 2) == std::vector<int>{3, 0});
  CHECK(pinning::list{{"12:00.0"}}(host, at(0, 1)).reason == "\"12:00.0\" in the list");
  CHECK(complaint([&] { first("GPU-8932f93"); }) ==
        "hvd: pin list:GPU-8932f93: rank 0 (local rank 0 of 1) cannot tell which device \"GPU-8932f93\" is: " +
            uuid(0) + " (0000:10:00.0) or " + uuid(1) + " (0000:11:00.0); write more of the UUID");
  CHECK(has(complaint([&] { first("7"); }), "does not see \"7\": 4 GPUs are visible to it: 0 is GPU-89"));
  CHECK(has(complaint([&] { first("nonsense"); }), "does not see \"nonsense\""));
  CHECK(complaint([&] { pinning::list{{"0"}}(host, at(1, 2)); }) ==
        "hvd: pin list:0: rank 1 (local rank 1 of 2) has none of the 1 devices in the list; name one for each of the 2 "
        "ranks of this host, or start 1");
}

TEST_CASE("pin: a MIG instance is seen alone, and shown by the launcher") {
  topology host = make_host(1, {0});
  host.gpus.front().uuid = "MIG-11111111-d72c-4106-c12f-20bd9faed9f6";
  host.gpus.front().name = "NVIDIA H200 MIG 1g.18gb";
  const pinning::list instances{{"MIG-00000000", "MIG-11111111"}};
  CHECK(instances(host, at(1, 2)).ordinal == 0);
  CHECK(has(complaint([&] { instances(host, at(0, 2)); }),
            "a process sees one MIG instance, chosen before it starts: use hvdrun --pin "
            "list:MIG-00000000,MIG-11111111, or set CUDA_VISIBLE_DEVICES=MIG-00000000"));
  // A driver that calls an instance by another name than its user.
  const pinning::list old{{"MIG-GPU-8932f937/1/0"}};
  host.visible_devices = "MIG-GPU-8932f937/1/0";
  CHECK(old(host, at(0, 1)).device->uuid == "MIG-11111111-d72c-4106-c12f-20bd9faed9f6");

  const auto planned = hvd::detail::plan_host(host, hvd::parse_pin("list:MIG-0,MIG-1"), 0, 2);
  CHECK(planned[0].where.device == hvd::device_id{"MIG-0", ""});
  CHECK(planned[1].where.device == hvd::device_id{"MIG-1", ""});
  CHECK(planned[1].where.ordinal == 0);
  CHECK(planned[1].problem.empty());
}

TEST_CASE("pin: what a scheduler has given") {
  const topology host = make_host(2, {0, 0, 1, 1}, true);
  const auto with = [](std::string_view name, std::string value) {
    return pinning::from_scheduler::of([=](const char* variable) -> std::optional<std::string> {
      return variable == name ? std::optional(value) : std::nullopt;
    });
  };
  // Spark counts along the bus, CUDA here the other way round.
  CHECK(with("HVD_TASK_GPUS", "0")(host, at(2, 4)).ordinal == 3);
  CHECK(with("HVD_TASK_GPUS", "2,3")(host, at(2, 4)).ordinal == 1);
  CHECK(with("HVD_TASK_GPUS", uuid(2))(host, at(0, 4)).ordinal == 2);
  CHECK(with("HVD_TASK_GPUS", "0000:13:00.0")(host, at(0, 4)).ordinal == 0);
  // Behind CUDA_VISIBLE_DEVICES numbers begin again, and only its own numbers can be found.
  topology some = make_host(1, {0, 0});
  some.visible_devices = "6,4";
  CHECK(with("HVD_TASK_GPUS", "4")(some, at(0, 1)).ordinal == 1);
  CHECK(complaint([&] { with("HVD_TASK_GPUS", "0")(some, at(1, 2)); }) ==
        "hvd: pin from_scheduler: the address \"0\" (HVD_TASK_GPUS) is not a visible GPU for rank 1 (local rank 1 of "
        "2); 2 "
        "GPUs are visible to it: 0 is " +
            uuid(0) + " (0000:10:00.0), 1 is " + uuid(1) +
            " (0000:11:00.0); CUDA_VISIBLE_DEVICES is \"6,4\"; let the scheduler give UUIDs, or unset "
            "CUDA_VISIBLE_DEVICES");
  CHECK(ordinals(host, with("SLURM_GPUS_PER_TASK", "2"), 2) == std::vector<int>{0, 2});
  CHECK(with("SLURM_GPUS_PER_TASK", "a100:1")(host, at(3, 4)).ordinal == 3);
  CHECK(has(complaint([&] { with("SLURM_GPUS_PER_TASK", "2")(host, at(2, 4)); }),
            "SLURM_GPUS_PER_TASK=2 leaves no GPU for rank 2"));
  CHECK(has(complaint([&] { with("", "")(host, at(0, 1)); }), "no scheduler names a GPU for rank 0"));
  CHECK(with("", "")(make_host(1, {0}), at(2, 4)).ordinal == 0);
}

TEST_CASE("pin: the current device stays") {
  topology host = make_host(1, {0, 0});
  CHECK(pinning::current{}(host, at(0, 1)).reason == "no GPU is current in this thread");
  host.current_gpu = 1;
  const placement p = pinning::current{}(host, at(0, 1));
  CHECK(p.ordinal == 1);
  CHECK(p.keep_current);
}

TEST_CASE("pin: shared and exclusive") {
  const topology host = make_host(1, {0, 0});
  CHECK(ordinals(host, pinning::shared<2>{}, 4) == std::vector<int>{0, 1, 0, 1});
  CHECK(ordinals(host, pinning::shared<0, pinning::scatter>{}, 5) == std::vector<int>{0, 1, 0, 1, 0});
  CHECK(pinning::shared<2>{}(host, at(0, 2)).max_ranks == 2);
  CHECK(has(complaint([&] { pinning::shared<2>{}(host, at(4, 5)); }),
            "start at most 4 ranks on this host, allow more than shared:2, or use a transport on the host"));
  CHECK(pinning::exclusive<pinning::round_robin>{}(host, at(3, 4)).ordinal == 1);
  CHECK(pinning::exclusive<pinning::round_robin>{}(host, at(3, 4)).max_ranks == 1);
  CHECK(has(complaint([&] { pinning::exclusive<>{}(host, at(2, 3)); }), "has no GPU left"));
}

TEST_CASE("pin: policies from text") {
  for (const char* same : {"by_local_rank", "none", "round_robin", "compact", "scatter", "numa_near", "from_scheduler",
                           "current", "list:0,GPU-89,0000:17:00.0", "shared,scatter", "shared:2,cpus=numa,list:1,0"}) {
    CHECK(hvd::parse_pin(same).text() == same);
  }
  CHECK(hvd::parse_pin("shared:2").text() == "shared:2,by_local_rank");
  CHECK(hvd::parse_pin("cpus=exclusive,exclusive").text() == "cpus=exclusive,by_local_rank");
  CHECK(hvd::parse_pin("list:GPU-1,MIG-2,cpus=none,shared:3").text() == "shared:3,cpus=none,list:GPU-1,MIG-2");
  CHECK(ordinals(make_host(1, {0, 0, 0}), hvd::parse_pin("list:2,1,0"), 3) == std::vector<int>{2, 1, 0});
  CHECK(complaint([] { hvd::parse_pin("numa_nera", "--pin"); }) ==
        "hvd: --pin=\"numa_nera\" has the unknown part \"numa_nera\"; allowed: by_local_rank, round_robin, compact, "
        "scatter, numa_near, list:A,B,..., from_scheduler, current or none, with exclusive, shared or shared:N, and "
        "cpus=none, cpus=numa or cpus=exclusive, with commas between them");
  for (const char* wrong :
       {"", ",", "scatter,compact", "scatter,0", "shared:0", "shared:x", "shared,exclusive", "cpus=", "cpus=core",
        "cpus=none,cpus=numa", "list:", "list:0,,1", "list:0,list:1", "list:0,scatter"}) {
    CHECK_MESSAGE(complaint([&] { hvd::parse_pin(wrong); }) != "none", wrong);
  }
}

TEST_CASE("pin: whole cores, as many for each rank, neighbours, none shared") {
  // Two sockets of two cores with two threads each, numbered as Linux does.
  topology host;
  host.cpu_ids = range(0, 8);
  host.cores = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  CHECK(bound(host, "cpus=exclusive", 2) == std::vector<cpus>{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(bound(host, "cpus=exclusive", 4) == std::vector<cpus>{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  // Equal shares: what is left over is nobody's.
  CHECK(bound(host, "cpus=exclusive", 3) == std::vector<cpus>{{0, 4}, {1, 5}, {2, 6}});
  const auto why = [&](int ranks, std::size_t each = 0) {
    return hvd::detail::share_cores(host, std::vector<const hvd::gpu*>(static_cast<std::size_t>(ranks)), each).reason;
  };
  CHECK(why(2) == "bound to 2 of 4 cores each");
  CHECK(why(1) == "not bound: one rank has all CPUs to itself");
  CHECK(why(5) == "not bound: 5 ranks on 4 cores");
  CHECK(why(2, 3) == "not bound: 2 ranks of 3 cores on 4 cores");
  CHECK(why(1, 1) == "bound to 1 of 4 cores");
  CHECK(why(4, 1) == "bound to 1 of 4 cores each");
  host.quota = 4;  // two cores' worth
  CHECK(why(2) == "bound to 1 of 2 cores (a quota of 4 CPUs, on 4 cores) each");
  CHECK(why(3) == "not bound: 3 ranks on 2 cores (a quota of 4 CPUs, on 4 cores)");
  host.quota = 0.5;
  CHECK(why(2) == "not bound: 2 ranks on 1 core (a quota of 0.5 CPUs, on 4 cores)");
  host.quota = 1e300;
  CHECK(why(2) == "bound to 2 of 4 cores each");
  CHECK(bound(masked(host, {2, 3, 6}), "cpus=exclusive", 2) == std::vector<cpus>{{2, 6}, {3}});
  // A rank under a launcher that has bound it has no neighbours' cores to choose from.
  local_place where = at(1, 2);
  where.bound = true;
  CHECK(placement_of(masked(host, {1, 5}), hvd::parse_pin("cpus=exclusive"), where).cpu_reason ==
        "bound by the launcher");
}

TEST_CASE("pin: cores near to the GPU, where the host says which") {
  const topology host = make_host(2, {1, 0});
  CHECK(bound(host, "cpus=exclusive", 2) == std::vector<cpus>{{4, 5, 6, 7}, {0, 1, 2, 3}});
  CHECK(bound(make_host(2, {-1, -1}), "cpus=exclusive", 2) == std::vector<cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(bound(host, "none,cpus=exclusive", 2) == std::vector<cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}});
  // All GPUs on one node: those that come late get what is left over.
  CHECK(bound(make_host(2, {1, 1, 1}), "cpus=exclusive", 3) == std::vector<cpus>{{4, 5}, {6, 7}, {0, 1}});
  // Where each rank sees its own GPU alone, the shares do not depend on it.
  CHECK(bound(make_host(2, {1}), "cpus=exclusive", 2) == std::vector<cpus>{{0, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("pin: the CPUs of a NUMA node") {
  CHECK(bound(make_host(2, {1, 0}), "cpus=numa", 2) == std::vector<cpus>{{4, 5, 6, 7}, {0, 1, 2, 3}});
  CHECK(bound(make_host(4, {}), "cpus=numa", 8)[5] == cpus{8, 9, 10, 11});
  CHECK(bound(make_host(4, {}), "cpus=numa", 2) == std::vector<cpus>{{0, 1, 2, 3}, {8, 9, 10, 11}});
  CHECK(bound(masked(make_host(2, {1}), {3, 5, 7}), "cpus=numa", 1) == std::vector<cpus>{{5, 7}});
  const auto why = [](const topology& host) {
    return placement_of(host, pinning::by_local_rank{}, at(0, 1), cpu_binding::numa).cpu_reason;
  };
  CHECK(why(make_host(2, {-1})) == "not bound: the GPU's NUMA node is unknown");
  CHECK(why(masked(make_host(2, {1}), {0, 1})) == "not bound: no usable CPU is near the GPU, on NUMA node 1");
  CHECK(why(make_host(1, {})) == "not bound: the CPUs are on one NUMA node");
  CHECK(why(make_host(2, {1})) == "near the GPU, on NUMA node 1");
  CHECK(bound(make_host(2, {1}), "cpus=none", 1) == std::vector<cpus>{{}});
}

TEST_CASE("pin: a launcher plans for all ranks of a host") {
  const auto plan = [](const topology& host, const char* policy, int ranks) {
    return hvd::detail::plan_host(host, hvd::parse_pin(policy), 4, ranks);
  };
  const auto two = plan(make_host(2, {1, 0}), "by_local_rank", 2);
  CHECK(two[1].where.device == hvd::device_id{uuid(1), address(1)});
  CHECK(two[1].where.cpus == cpus{0, 1, 2, 3});
  CHECK(two[1].problem.empty());
  // Ranks near their CPUs: the cores first, then the GPUs near these; the ranks come to the same.
  const topology host = make_host(2, eight_gpus);
  const auto near = plan(host, "numa_near", 4);
  for (int r = 0; r < 4; ++r) {
    const auto& where = near[static_cast<std::size_t>(r)].where;
    CHECK(where.cpus == range(2 * r, 2));
    CHECK(where.ordinal == cpus{0, 1, 6, 7}[static_cast<std::size_t>(r)]);
    CHECK(pinning::numa_near{}(masked(host, where.cpus), at(r, 4)).ordinal == where.ordinal);
  }
  char name[64] = {};
  REQUIRE(gethostname(name, sizeof name - 1) == 0);
  const auto crowd = plan(make_host(1, {0}), "by_local_rank", 4);
  for (const auto& rank : crowd) {
    CHECK(rank.problem ==
          "ranks 4, 5, 6 and 7 on host " + std::string(name) + " have one GPU, " + uuid(0) +
              " (0000:10:00.0); start fewer ranks on this host, pin each to a GPU of its own (hvd::pin, hvdrun --pin), "
              "pin with shared (NCCL 2.30 or newer), or use a transport on the host");
  }
  CHECK(plan(make_host(1, {0}), "shared", 4)[3].problem.empty());
  CHECK(has(plan(make_host(1, {0}), "shared:3", 4)[3].problem, "allows for 3 ranks only"));
  const auto three = plan(make_host(1, {0, 0}), "by_local_rank", 3);
  CHECK(three[1].problem.empty());
  CHECK(has(three[2].problem, "pin by_local_rank: rank 6 (local rank 2 of 3) has no GPU left"));
}

TEST_CASE("pin: ranks that have a device in common are refused, all with one sentence") {
  std::vector<std::string> said;
  const auto check = [&](int np, auto device, int allowed) {
    std::vector<hvd::detail::device_of_rank> all;
    for (int r = 0; r != np; ++r) all.push_back(hvd::detail::describe(device(r), r, allowed));
    const std::string problem = hvd::detail::find_shared_device(all);
    said.assign(static_cast<std::size_t>(np), problem.empty() ? "none" : problem);
  };
  char name[64] = {};
  REQUIRE(gethostname(name, sizeof name - 1) == 0);
  const auto one = [](int) { return hvd::device_id{uuid(0), address(0)}; };
  check(4, one, 1);
  for (const std::string& text : said) {
    CHECK(text ==
          "ranks 0, 1, 2 and 3 on host " + std::string(name) + " have one GPU, " + uuid(0) +
              " (0000:10:00.0); start fewer ranks on this host, pin each to a GPU of its own (hvd::pin, hvdrun --pin), "
              "pin with shared (NCCL 2.30 or newer), or use a transport on the host");
  }
  check(4, one, 0);
  CHECK(said == std::vector<std::string>(4, "none"));
  check(4, one, 4);
  CHECK(said == std::vector<std::string>(4, "none"));
  check(3, one, 2);
  CHECK(has(said[2], "ranks 0, 1 and 2 on host "));
  CHECK(has(said[2], ", which shared:2 allows for 2 ranks only; "));
  check(
      4,
      [](int rank) {
        return hvd::device_id{uuid(rank), address(rank)};
      },
      1);
  CHECK(said == std::vector<std::string>(4, "none"));
  check(
      4,
      [](int rank) {
        return hvd::device_id{uuid(rank % 3), address(rank % 3)};
      },
      1);
  CHECK(has(said[1], "ranks 0 and 3 on host "));
  check(
      2, [](int) { return hvd::device_id{}; }, 1);  // ranks without a GPU
  CHECK(said == std::vector<std::string>(2, "none"));
  check(1, one, 1);
  CHECK(said[0] == "none");
}

TEST_CASE("pin: the same UUID on two hosts is two devices") {
  std::vector<hvd::detail::device_of_rank> all(2);
  for (int r = 0; r < 2; ++r) {
    all[static_cast<std::size_t>(r)] = hvd::detail::describe({uuid(0), address(0)}, r, 1);
    all[static_cast<std::size_t>(r)].host = static_cast<unsigned>(r);
  }
  CHECK(hvd::detail::find_shared_device(all).empty());
  std::vector<int> many(64);
  std::iota(many.begin(), many.end(), 0);
  CHECK(hvd::detail::ranks_text(many) == "ranks 0, 1, 2, 3, ... (64 ranks) and 63");
  CHECK(hvd::detail::ranks_text({7}) == "rank 7");
}

TEST_CASE("pin: CPU lists as text") {
  CHECK(hvd::cpu_list_text(cpus{}) == "");
  CHECK(hvd::cpu_list_text(cpus{0, 1, 2, 8}) == "0-2,8");
  CHECK(hvd::cpu_list_text(cpus{3}) == "3");
  CHECK(hvd::cpu_list_text(cpus{0, 2, 3}) == "0,2-3");
}

TEST_CASE("pin: the calling thread is bound, and is as before when the guard is gone") {
  const cpus before = hvd::detail::thread_affinity();
  REQUIRE(!before.empty());
  {
    placement to;
    to.cpus = {before.back()};
    hvd::PinGuard guard(to);
    CHECK(hvd::detail::thread_affinity() == to.cpus);
    CHECK(guard.where().cpus == to.cpus);
    REQUIRE(hvd::detail::pinned());
    const hvd::PinGuard moved(std::move(guard));
    CHECK(hvd::detail::thread_affinity() == to.cpus);
  }
  CHECK(hvd::detail::thread_affinity() == before);
  CHECK(!hvd::detail::pinned());

  placement nowhere;
  nowhere.cpus = {1 << 19};
  CHECK(complaint([&] { hvd::PinGuard{nowhere}; }) ==
        "hvd: pin: the CPUs 524288 were refused: Invalid argument; usable now: " + hvd::cpu_list_text(before));
  CHECK(hvd::detail::thread_affinity() == before);

  std::thread([&] {
    placement to;
    to.cpus = {before.front()};
    hvd::PinGuard(to).keep();
    CHECK(hvd::detail::thread_affinity() == to.cpus);
  }).join();
  CHECK(hvd::detail::thread_affinity() == before);
}

TEST_CASE("pin: this host") {
  const topology host = topology::discover();
  std::size_t in_cores = 0;
  for (const cpus& core : host.cores) in_cores += core.size();
  CHECK(in_cores == host.cpu_ids.size());
  CHECK(host.gpus.empty() != host.no_gpus.empty());
  const hvd::PinGuard guard = hvd::pin("none,cpus=exclusive");
  CHECK(guard.where().cpu_reason == "not bound: one rank has all CPUs to itself");
  if (host.gpus.empty()) {
    const hvd::PinGuard bare = hvd::pin();
    CHECK(!bare.where().device);
    CHECK(complaint([] { hvd::local_device(); }) == "hvd: this rank has no GPU: " + host.no_gpus);
  }
}

TEST_CASE("pin: a local rank outside its host") {
  CHECK(complaint([] {
          placement_of(make_host(1, {}), pinning::none{}, {.rank = 3, .local_rank = 2, .local_size = 2});
        }) == "hvd: pin: the local rank of rank 3 is 2; allowed: 0 to 1, as there are 2 ranks on its host");
}

}  // namespace pin_tests
